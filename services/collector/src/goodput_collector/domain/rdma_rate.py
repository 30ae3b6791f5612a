"""What rate an RDMA port could have: sysfs tells only what it has.

A 400 Gb/s port that trained at 200 works, at half the speed, and nothing is red. What it could do shows in its own past and
in its siblings: ports of the same board in the same host. Only a port that is up counts; one that is down shows some
default.
"""

from __future__ import annotations

import re

_GBPS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*Gb/sec")


def gbps(rate: str) -> float | None:
    """`400 Gb/sec (4X NDR)` -> 400.0"""
    match = _GBPS.match(rate)
    return float(match[1]) if match else None


class Rates:
    """The best rate that was seen up, by board and port number."""

    def __init__(self) -> None:
        self._best: dict[tuple[str, int], float] = {}
        self.changes = 0  # how often a best rate has risen

    def best(self, board: str, port: int, rate: str, *, active: bool, name: str) -> float | None:
        """The best rate known for such a port, this reading included. A port whose board is unknown (""), is compared with
        its own past only: `name` tells it apart."""
        key = (board or f"={name}", port)
        now = gbps(rate)
        if active and now is not None and now > self._best.get(key, 0.0):
            self._best[key] = now
            self.changes += 1
        return self._best.get(key)
