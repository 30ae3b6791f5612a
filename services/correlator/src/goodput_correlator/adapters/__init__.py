"""The correlator's edges: Postgres and HTTP."""
