"""Who gives way when a bound is reached.

What is held of jobs and hosts is bounded. At the bound, those that have ended go first, then those that have been silent
longest; who still speaks is never put out for a newcomer. Where nobody may go, the newcomer is left out. A few go at once,
and a search in vain is not repeated for a while, so a flood of new names costs little. Whoever went and speaks again is
taken up like a newcomer.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, TypeVar

T = TypeVar("T")

QUIET_S = 60.0  # silence of this long, at least, lets somebody go who has not ended
AGAIN_S = 10.0  # after a search in vain
SHARE = 100  # one of so many goes at once


@dataclass(frozen=True, slots=True)
class Leave:
    """Somebody may go: whether it has ended, and when it was last heard of."""

    ended: bool
    heard_at: datetime


@dataclass
class Room(Generic[T]):
    """Keeps `held_max` names. It holds nothing itself: whoever does asks `leaving` before taking in one more."""

    held_max: int
    _again_at: datetime | None = None

    def leaving(self, held: Mapping[str, T], leave: Callable[[T], Leave | None], at: datetime) -> list[str]:
        """Whom to forget so that one more fits; nobody while there is room, and nobody when none may go. Those of which
        `leave` says None stay."""
        if len(held) < self.held_max or (self._again_at is not None and at < self._again_at):
            return []
        quiet = at - timedelta(seconds=QUIET_S)
        found = []
        for name, each in held.items():
            may = leave(each)
            if may is not None and (may.ended or may.heard_at <= quiet):
                found.append((not may.ended, may.heard_at, name))
        self._again_at = None if found else at + timedelta(seconds=AGAIN_S)
        return [name for *_, name in heapq.nsmallest(1 + self.held_max // SHARE, found)]
