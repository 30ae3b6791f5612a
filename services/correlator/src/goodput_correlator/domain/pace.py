"""How fast a job goes, and whether that is slower than usual for it.

Steps are looked at in windows of five seconds or five reports of a rank, whichever is longer. A window's step time is the
median over what ranks report, so that a checkpoint or an evaluation, which lengthens one step in many, does not make it
slow. What is usual is the median of windows that were not slow themselves; a job that stays slow for half an hour has a new
usual.

In synchronous training every rank has the same step time. Who is *late* shows in what a rank does itself: its own time, the
step without what it waited for others, against its own past and against the others.
"""

from __future__ import annotations

import operator
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from goodput_common.contracts.job import RankProgress

if TYPE_CHECKING:
    from goodput_correlator.domain.case import Observed  # whose Case holds paces

WINDOW_S = 5.0
WINDOW_REPORTS = 5  # of one rank: a pause is in one of them
VOICES_MAX = 32  # ranks that are listened to for the step time
USUAL_WINDOWS_MAX = 360  # half an hour
USUAL_WINDOWS_MIN = 1
SLOW_FACTOR = 1.08  # from here on a window is slow
SLOW_WINDOWS = 2  # so many in a row make the job slow,
SLOW_AT_ONCE = 1.5  # or one as slow as this
BROKEN_OFF_REPORTS = 3  # of one rank make a window that a standstill broke off
NEW_USUAL_WINDOWS = 360
RECENT_REPORTS = 6  # of a rank
OWN_SMOOTHING = 0.1  # of a report
LEARNED_AFTER_WINDOWS = 3  # a slow window is known for one so many windows later, and teaches nothing then
PHASES_MAX = 24  # of a rank, whose usual length is kept


@dataclass(frozen=True, slots=True)
class Slow:
    """A job that is slower than usual. `windows`: how many in a row."""

    since: datetime
    usual_ms: float
    now_ms: float
    windows: int

    @property
    def factor(self) -> float:
        return self.now_ms / self.usual_ms if self.usual_ms else 1.0


@dataclass(frozen=True, slots=True)
class RankPace:
    """What one rank does of a step by itself, means of its last reports. `own_ms` is None where it cannot be told apart from
    waiting; `usual_own_ms` and `usual_phases_ms` are from before the job became slow. `told`: the reports, oldest first."""

    rank: int
    step_ms: float
    own_ms: float | None
    usual_own_ms: float | None
    phases_ms: Mapping[str, float]
    told: tuple[Observed, ...]
    usual_phases_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def tells_waiting(self) -> bool:
        """Whether its own time is free of waiting. Phases that the trainer marks may hold both."""
        facts = [seen.fact for seen in self.told]
        return all(isinstance(fact, RankProgress) and fact.waiting_ms >= 0 for fact in facts)


@dataclass(slots=True)
class JobPace:
    """The windows of one generation of a job. `report` in the order of evidence."""

    _usual: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL_WINDOWS_MAX))
    _slow: deque[float] = field(default_factory=lambda: deque(maxlen=NEW_USUAL_WINDOWS))
    windows: int = 0  # that have ended
    _fine: int = 0  # of them, in a row, that were not slow
    _slow_since: datetime | None = None
    _began: datetime | None = None
    _reports: int = 0  # of the first rank that is listened to
    _first: int = -1
    _told: list[float] = field(default_factory=list)

    def report(self, fact: RankProgress, received_at: datetime, world_size: int) -> None:
        if fact.steps <= 0 or fact.step_ms_mean <= 0 or fact.rank % max(1, world_size // VOICES_MAX):
            return
        if self._began is None:
            self._began, self._first = received_at - timedelta(milliseconds=fact.step_ms_mean * fact.steps), fact.rank
        self._told.append(fact.step_ms_mean)
        if fact.rank == self._first:
            self._reports += 1
        length_s = (received_at - self._began).total_seconds()
        enough = self._reports >= WINDOW_REPORTS or len(self._told) >= WINDOW_REPORTS * VOICES_MAX
        if length_s >= WINDOW_S and enough:
            self._close(statistics.median(self._told), self._began)
            self._began, self._reports, self._told = received_at, 0, []

    @property
    def usual_ms(self) -> float:
        return statistics.median(self._usual) if len(self._usual) >= USUAL_WINDOWS_MIN else 0.0

    @property
    def slow(self) -> Slow | None:
        if self._slow_since is None or not self._slow:
            return None
        now_ms, usual_ms = statistics.median(list(self._slow)[-3:]), self.usual_ms
        if len(self._slow) < SLOW_WINDOWS and now_ms < SLOW_AT_ONCE * usual_ms:
            return None
        return Slow(self._slow_since, usual_ms, now_ms, len(self._slow))

    @property
    def before_standstill(self) -> Slow | None:
        """The same for a job that stands still by now, and whose windows will not go on: one slow window is enough then, and
        one that the standstill broke off is a window too. It takes better evidence to name somebody for that."""
        slow, since, usual_ms = list(self._slow), self._slow_since, self.usual_ms
        if usual_ms and self._reports >= BROKEN_OFF_REPORTS and self._began is not None:
            broken_off_ms = statistics.median(self._told)
            if broken_off_ms >= SLOW_FACTOR * usual_ms:
                slow, since = [*slow, broken_off_ms], since or self._began
        if since is None or not slow:
            return None
        return Slow(since, usual_ms, statistics.median(slow[-3:]), len(slow))

    @property
    def closed_at(self) -> datetime | None:
        """When the last window ended."""
        return self._began if self.windows else None

    @property
    def fine_windows(self) -> int:
        """How many windows in a row were as fast as usual."""
        return self._fine

    def _close(self, step_ms: float, began: datetime) -> None:
        self.windows += 1
        usual_ms = self.usual_ms
        if not usual_ms or step_ms < SLOW_FACTOR * usual_ms:
            self._usual.append(step_ms)
            self._fine += 1
            if self._fine >= SLOW_WINDOWS or not self._slow:
                self._slow.clear()
                self._slow_since = None
            return
        if self._slow_since is None:
            self._slow_since = began
        self._fine = 0
        self._slow.append(step_ms)
        if len(self._slow) >= NEW_USUAL_WINDOWS:
            self._usual.clear()
            self._usual.extend(self._slow)
            self._slow.clear()
            self._slow_since = None


def own_ms(fact: RankProgress) -> float | None:
    """What the rank does of a step itself: the step without waiting, where the agent tells; else the phases it marks."""
    if fact.waiting_ms >= 0 and fact.step_ms_mean > 0:
        return max(0.0, fact.step_ms_mean - fact.waiting_ms)
    return sum(fact.phases_ms.values()) if fact.phases_ms else None


@dataclass(slots=True)
class _Window:
    """What a rank said in one window, summed."""

    number: int
    reports: int = 0
    own: int = 0  # of them with an own time
    own_ms: float = 0.0
    names: tuple[str, ...] = ()  # of phases, as the last report had them
    spent_ms: list[float] = field(default_factory=list)  # in each of these
    others_ms: dict[str, float] = field(default_factory=dict)  # in phases that earlier reports named or ordered otherwise

    @property
    def phases_ms(self) -> dict[str, float]:
        return self.others_ms | dict(zip(self.names, self.spent_ms, strict=True))

    def add(self, phases_ms: Mapping[str, float]) -> None:
        """Trainers mark the same phases in the same order again and again: then this is one pass over numbers."""
        names = tuple(phases_ms)
        if names == self.names:
            self.spent_ms = list(map(operator.add, self.spent_ms, phases_ms.values()))
            return
        before = self.phases_ms
        new = [name for name in names if name not in before]
        left_out = set(new[max(0, PHASES_MAX - len(before)) :])
        self.names = tuple(name for name in names if name not in left_out)
        self.spent_ms = [before.get(name, 0.0) + phases_ms[name] for name in self.names]
        self.others_ms = {name: spent_ms for name, spent_ms in before.items() if name not in phases_ms}


@dataclass(slots=True)
class Own:
    """One rank's own time: lately, and before the job became slow.

    That a window was slow is known only when it and the next have ended: until then what was said in it teaches nothing.
    """

    told: deque[Observed] = field(default_factory=lambda: deque(maxlen=RECENT_REPORTS))
    usual_ms: float | None = None
    usual_phases_ms: dict[str, float] = field(default_factory=dict)
    _unsure: deque[_Window] = field(default_factory=lambda: deque(maxlen=LEARNED_AFTER_WINDOWS + 1))

    def report(self, seen: Observed, *, slow: bool, window: int) -> None:
        """`window` is the number of the job's windows that have ended."""
        fact = seen.fact
        if not isinstance(fact, RankProgress) or fact.steps <= 0:
            return
        self.told.append(seen)
        if slow:
            self._unsure.clear()
            return
        while self._unsure and self._unsure[0].number <= window - LEARNED_AFTER_WINDOWS:
            self._learn(self._unsure.popleft())
        if not self._unsure or self._unsure[-1].number != window:
            self._unsure.append(_Window(window))
        now = self._unsure[-1]
        now.reports += 1
        mine_ms = own_ms(fact)
        if mine_ms is not None:
            now.own += 1
            now.own_ms += mine_ms
        if fact.phases_ms:
            now.add(fact.phases_ms)

    def _learn(self, window: _Window) -> None:
        if window.own:
            mine_ms, weight = window.own_ms / window.own, 1.0 - (1.0 - OWN_SMOOTHING) ** window.own
            self.usual_ms = mine_ms if self.usual_ms is None else self.usual_ms + weight * (mine_ms - self.usual_ms)
        weight = 1.0 - (1.0 - OWN_SMOOTHING) ** window.reports
        phases_ms = window.phases_ms
        for name in sorted(self.usual_phases_ms.keys() | phases_ms.keys()):
            spent_ms = phases_ms.get(name, 0.0) / window.reports
            usual_ms = self.usual_phases_ms.get(name)
            if usual_ms is not None:
                self.usual_phases_ms[name] = usual_ms + weight * (spent_ms - usual_ms)
            elif len(self.usual_phases_ms) < PHASES_MAX:
                self.usual_phases_ms[name] = spent_ms

    def pace(self, rank: int, since: datetime) -> RankPace | None:
        """From the reports since then; None without any."""
        told = tuple(seen for seen in self.told if seen.received_at >= since)
        facts = [seen.fact for seen in told if isinstance(seen.fact, RankProgress)]
        if not facts:
            return None
        own = [mine_ms for fact in facts if (mine_ms := own_ms(fact)) is not None]
        names = sorted({name for fact in facts for name in fact.phases_ms})
        return RankPace(
            rank=rank,
            step_ms=statistics.fmean(fact.step_ms_mean for fact in facts),
            own_ms=statistics.fmean(own) if own else None,
            usual_own_ms=self.usual_ms,
            phases_ms={name: statistics.fmean(fact.phases_ms.get(name, 0.0) for fact in facts) for name in names},
            told=told,
            usual_phases_ms=dict(self.usual_phases_ms),
        )
