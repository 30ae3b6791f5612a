"""The goodput command line."""
