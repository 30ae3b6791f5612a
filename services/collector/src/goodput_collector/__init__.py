"""Per-host collector: reads the signals, publishes telemetry."""
