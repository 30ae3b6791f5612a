"""Pytest fixtures: a real NATS and a real Postgres, from the environment, Docker or the embedded binaries."""
