"""What has been received and not been judged yet, and what is known to have been read already.

One entry and one remembered id a *message*: a fabric of 2,250 hosts tells some seventy thousand samples a second in a few
thousand messages. Messages may come in any order and several times; they are handed out at the grid time that covers them,
in the order `(received_at, id)`, each once.

Ids are remembered for `REMEMBER_IDS_S` as 64-bit hashes, in generations that go as a whole: four million of them are a
quarter of a gigabyte, and a hash that two of them share is less likely than a broken memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Generic, TypeVar

T = TypeVar("T")

REMEMBER_IDS_S = 180.0  # a double that comes later than this is too old to matter: it is left out as late
GENERATION_S = 30.0
IDS_MAX = 6_000_000
PENDING_MAX = 1_000_000

_received_at = itemgetter(0)


class SeenIds:
    """The ids of the last `REMEMBER_IDS_S`, by the grid time at which they were read."""

    def __init__(self, ids_max: int = IDS_MAX) -> None:
        self._ids_max = ids_max
        self._generations: deque[tuple[datetime, set[int]]] = deque()  # until when each takes ids, oldest first

    def __len__(self) -> int:
        return sum(len(ids) for _, ids in self._generations)

    def begin(self, at: datetime) -> None:
        """Ids noted from here on were read at `at`."""
        limit = at - timedelta(seconds=REMEMBER_IDS_S)
        while self._generations and (self._generations[0][0] < limit or len(self) > self._ids_max):
            self._generations.popleft()
        if not self._generations or at >= self._generations[-1][0]:
            self._generations.append((at + timedelta(seconds=GENERATION_S), set()))

    def __contains__(self, key: str) -> bool:
        number = hash(key)
        return any(number in ids for _, ids in self._generations)

    def note(self, key: str) -> bool:
        """False: this one was noted before."""
        number = hash(key)
        for _, ids in self._generations:
            if number in ids:
                return False
        self._generations[-1][1].add(number)
        return True


class Arrivals(Generic[T]):
    """Bounded; what does not fit, or comes too late to matter, is counted in `overflow`."""

    def __init__(self, pending_max: int = PENDING_MAX) -> None:
        self.overflow = 0
        self.seen = SeenIds()
        self._pending_max = pending_max
        self._waiting: list[tuple[datetime, str, int, T]] = []
        self._sorted = True
        self._put = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, received_at: datetime, key: str, what: T) -> None:
        if len(self._waiting) >= self._pending_max:
            self.overflow += 1
            return
        self._put += 1
        self._waiting.append((received_at, key, self._put, what))
        self._sorted = False

    @property
    def first_at(self) -> datetime | None:
        """When the earliest that waits was received."""
        self._sort()
        return self._waiting[0][0] if self._waiting else None

    def due(self, at: datetime, *, old_too: bool = False) -> Iterator[T]:
        """Everything received up to `at` that was not handed out before, in order. What is older than ids are remembered
        cannot be told from a double: it is left out, unless `old_too`."""
        self._sort()
        end = bisect_right(self._waiting, at, key=_received_at)
        ready, self._waiting = self._waiting[:end], self._waiting[end:]
        self.seen.begin(at)
        forgotten = at - timedelta(seconds=REMEMBER_IDS_S)
        note = self.seen.note
        for received_at, key, _, what in ready:
            if received_at < forgotten and not old_too:
                self.overflow += key not in self.seen  # long judged, or its double was: too late to matter
            elif note(key):
                yield what

    def _sort(self) -> None:
        if not self._sorted:
            self._waiting.sort()
            self._sorted = True
