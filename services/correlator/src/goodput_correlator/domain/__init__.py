"""The diagnosis as pure functions: evidence, topology, placement and a time go in, verdicts come out. No I/O, no clock."""
