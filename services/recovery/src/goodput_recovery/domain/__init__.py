"""Decisions of the recovery service: pure functions of (verdict, state, policy, now). No I/O, no clock, no randomness."""
