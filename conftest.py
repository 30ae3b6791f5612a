"""Servers for every test that asks for one: see `goodput_common.testing`."""

pytest_plugins = ["goodput_common.testing"]
