"""From answers of RAS to what they mean: only a count that stays as it is over repeated queries says anything.

A query catches a job in the middle of things: counts that differ by a few are normal, and so is a communicator that
nobody uses just now. So each communicator is followed:

    moving     its counts have changed since the query before
    stuck      some ranks have launched a collective that others have not, and that has not changed for a while
    still      nothing has changed for a while, and all have launched the same: idle, or all wait in one operation
    unknown    not asked often enough, or the answer was not whole

And when to ask: each query makes every process of the job answer, so one host of a job asks for all of it, now and then;
more often, and from other hosts too, only when something says that the job stands still.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from goodput_collector.domain.ras import POINT_TO_POINT, Communicator, RasRank, RasReport

UNCHANGED_QUERIES = 3
UNCHANGED_S = 20.0
COMMUNICATORS_MAX = 4096


class Progress(enum.Enum):
    MOVING = "moving"
    STUCK = "stuck"
    STILL = "still"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Lag:
    """Where a communicator's ranks have parted: `most` is the highest count, `behind` who is known to be below it."""

    operation: str
    most: int
    behind: tuple[tuple[RasRank, int], ...]
    behind_ranks: int  # how many, named or not


@dataclass(frozen=True, slots=True)
class Followed:
    communicator: Communicator
    progress: Progress
    unchanged_s: float
    lag: Lag | None


@dataclass(slots=True)
class _Known:
    counts: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]
    since_s: float
    queries: int
    seen: int


class RasWatch:
    def __init__(self, *, queries: int = UNCHANGED_QUERIES, after_s: float = UNCHANGED_S) -> None:
        self._queries = queries
        self._after_s = after_s
        self._known: dict[str, _Known] = {}
        self._asked = 0

    def see(self, report: RasReport, now_s: float) -> list[Followed]:
        """All communicators of this answer. An answer that is not whole changes nothing and says nothing."""
        if not report.complete:
            return [Followed(each, Progress.UNKNOWN, 0.0, None) for each in report.communicators]
        self._asked += 1
        followed = [self._follow(each, now_s) for each in report.communicators[:COMMUNICATORS_MAX]]
        self._known = {name: known for name, known in self._known.items() if known.seen == self._asked}
        return followed

    def _follow(self, communicator: Communicator, now_s: float) -> Followed:
        counts = tuple((name, tuple(sorted(numbers.items()))) for name, numbers in sorted(communicator.counts.items()))
        known = self._known.get(communicator.hash)
        if known is None or known.counts != counts:
            moved = known is not None
            self._known[communicator.hash] = _Known(counts, now_s, 1, self._asked)
            return Followed(communicator, Progress.MOVING if moved else Progress.UNKNOWN, 0.0, None)
        known.queries, known.seen = known.queries + 1, self._asked
        unchanged_s = now_s - known.since_s
        if known.queries < self._queries or unchanged_s < self._after_s or not counts:
            return Followed(communicator, Progress.UNKNOWN, unchanged_s, None)
        lag = lag_of(communicator)
        return Followed(communicator, Progress.STILL if lag is None else Progress.STUCK, unchanged_s, lag)


def lag_of(communicator: Communicator) -> Lag | None:
    """The operation in which the ranks have parted furthest; None when they have not."""
    worst: Lag | None = None
    gap = 0
    for operation, numbers in sorted(communicator.counts.items()):
        if operation in POINT_TO_POINT or len(numbers) < 2:
            continue
        most, least = max(numbers), min(numbers)
        if most - least <= gap:
            continue
        gap = most - least
        known = communicator.at.get(operation, {})
        behind = tuple((rank, count) for count in sorted(known) if count < most for rank in known[count])
        total = sum(ranks for count, ranks in numbers.items() if count < most)
        worst = Lag(operation, most, behind, total)
    return worst


@dataclass(frozen=True, slots=True)
class Pace:
    """`every_s`: how often a job is asked when all is well; `stalled_s` when something says that it stands still."""

    every_s: float = 30.0
    stalled_s: float = 8.0

    def wait_s(self, *, leads: bool, stalled: bool) -> float | None:
        """Between queries; None: not at all. `leads`: the job's first rank is on this host."""
        if leads:
            return self.stalled_s if stalled else self.every_s
        return self.every_s if stalled else None
