"""What the correlator does with what arrives: keep it, place it, analyse it every second, and never lose its place."""
