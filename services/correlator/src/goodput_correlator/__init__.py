"""Joins evidence on the topology and names the culprit."""
