"""When and over what readings are taken, and the small irregularities in them.

The irregularities come from a table of normal deviates that every host walks through in its own stride: the same seed gives
the same readings, and drawing anew for each would cost more than all the rest.
"""

from __future__ import annotations

import random
from datetime import datetime
from typing import NamedTuple

from goodput_common.contracts.telemetry import Sample

FULL_EVERY_S = 60.0
GRAINS = 4096
Batch = list[Sample]


def grains(rng: random.Random) -> tuple[float, ...]:
    return tuple(rng.gauss(0.0, 1.0) for _ in range(GRAINS))


class Moment(NamedTuple):
    """When and over what a reading is taken. `steps`: of the job on this host, since the last reading."""

    at: datetime  # by the host's clock
    now_s: float
    interval_s: float
    steps: float
    usual_steps: float  # as many as there would be if nothing were wrong
    active: bool  # the host carries the job now
    checkpoint: bool
    first: bool  # no increases can be told yet


class Walk:
    """Through the table, in a stride of one's own."""

    __slots__ = ("at", "stride", "table")

    def __init__(self, table: tuple[float, ...], mark: int) -> None:
        self.table = table
        self.at = mark % GRAINS
        self.stride = 2 * (mark // GRAINS % (GRAINS // 2)) + 1  # odd: it comes by every entry

    def next(self) -> float:
        self.at = (self.at + self.stride) % GRAINS
        return self.table[self.at]
