"""What rate an RDMA port could have: sysfs tells only what it has.

A 400 Gb/s port that trained at 200 works, at half the speed, and nothing is red. What it could do shows in its own past:
the best rate that it was seen up with. Other ports say nothing about it, not even those of the same board: one adapter
leads to the fabric and its twin to the storage, each at the rate of its switch. What a port is meant to have is the
topology's business. Only a port that is up counts; one that is down shows some default.
"""

from __future__ import annotations

import re

_GBPS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*Gb/sec")


def gbps(rate: str) -> float | None:
    """`400 Gb/sec (4X NDR)` -> 400.0"""
    match = _GBPS.match(rate)
    return float(match[1]) if match else None


class Rates:
    """The best rate that each port was seen up with."""

    def __init__(self) -> None:
        self._best: dict[str, float] = {}

    def best(self, name: str, rate: str, *, active: bool) -> float | None:
        """The best rate known of this port, this reading included."""
        now = gbps(rate)
        if active and now is not None and now > self._best.get(name, 0.0):
            self._best[name] = now
        return self._best.get(name)
