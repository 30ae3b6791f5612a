"""One flow of probes as it is counted: a row of numbers a window, and some of the reports for a verdict to cite.

Ten thousand reports a second are added up here, so a report costs one packed row and no object. The reports that are kept
are those that may be cited: with probes lost or late, or with a delay that no healthy network or host has.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from sys import intern

import msgspec

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Probe
from goodput_correlator.domain.case import Observed

BAD_KEPT, SLOW_KEPT = 3, 2  # reports a flow that may be cited

# one window of one flow: its number, when its newest report was observed, how many reports, how many of them late, probes
_WINDOW, _OBSERVED, _REPORTS, _CAME_LATE, _SENT, _LOST, _LATE, _DELAYS = range(8)
NETWORK_P50, NETWORK_P99, RESPONDER_P50, RESPONDER_P99, PROBER_P50, PROBER_P99 = range(_DELAYS, _DELAYS + 6)
_WIDTH = _DELAYS + 6
_PACKED = Struct(f"{_WIDTH}d").pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """One flow over all windows that count. Delays are those of its worst window, -1 where none was measured."""

    prober: ComponentId
    target: ComponentId
    flow: int
    path: tuple[ComponentId, ...]
    answer_path: tuple[ComponentId, ...]
    sent: int
    lost: int
    late: int
    network_us_p50: float
    network_us_p99: float
    responder_us_p50: float
    responder_us_p99: float
    prober_us_p50: float
    prober_us_p99: float
    told: tuple[Observed, ...] = ()  # some of the reports that say what is wrong with it: evidence

    @property
    def answered(self) -> int:
        return self.sent - self.lost


class Counted:
    """One flow: its windows, the oldest first, and reports that may be cited, each with its window. `way` is what
    `crossings` has learned of it, and `learned` who learned it."""

    __slots__ = (
        "_made", "answer_path", "bad", "flow", "learned", "newest_s", "path", "prober", "rows", "slow", "target", "way",
    )  # fmt: skip

    def __init__(self, fact: Probe) -> None:
        self.prober, self.target, self.flow = intern(fact.component), intern(fact.target), fact.flow
        self.path, self.answer_path = tuple(map(intern, fact.path)), tuple(map(intern, fact.answer_path))
        self.rows: array[float] = array("d")
        self.newest_s = -math.inf  # the newest report that was ever added
        self.bad: list[tuple[int, Observed]] = []
        self.slow: list[tuple[int, Observed]] = []
        self.way: tuple[int, ...] = ()
        self.learned: object = None
        self._made: tuple[float, float, Flow] | None = None  # of which windows, the first and the last

    @property
    def order(self) -> tuple[ComponentId, ComponentId, int, tuple[ComponentId, ...], tuple[ComponentId, ...]]:
        return (self.prober, self.target, self.flow, self.path, self.answer_path)

    def knows(self, observed_s: float) -> bool:
        rows = self.rows
        return observed_s <= self.newest_s and observed_s in rows[_OBSERVED::_WIDTH]

    def add(self, window: int, observed_s: float, late: bool, fact: Probe) -> tuple[float | None, float | None] | None:
        """None if the window had a row before; else the windows before and after the new one, each if there is one."""
        rows = self.rows
        row = _PACKED(
            window, observed_s, 1, late, fact.sent, fact.lost, fact.late, fact.network_us_p50, fact.network_us_p99,
            fact.responder_us_p50, fact.responder_us_p99, fact.prober_us_p50, fact.prober_us_p99,
        )  # fmt: skip
        if observed_s > self.newest_s:
            self.newest_s = observed_s
        if not rows:
            rows.frombytes(row)
            return None, None
        before = rows[-_WIDTH]
        if before < window:
            rows.frombytes(row)
            return before, None
        return self._put(window, observed_s, array("d", row))

    def _put(self, window: int, observed_s: float, row: array[float]) -> tuple[float | None, float | None] | None:
        self._made = None
        rows, at = self.rows, len(self.rows)
        while at and rows[at - _WIDTH] > window:
            at -= _WIDTH
        if at and rows[at - _WIDTH] == window:
            at -= _WIDTH
            rows[at + _OBSERVED] = observed_s
            for n in range(_REPORTS, _DELAYS):
                rows[at + n] += row[n]
            for n in range(_DELAYS, _WIDTH):
                rows[at + n] = _worst((rows[at + n], row[n]))
            return None
        rows[at:at] = row
        after = rows[at + _WIDTH] if at + _WIDTH < len(rows) else None
        return (rows[at - _WIDTH] if at else None), after

    def cite(self, window: int, seen: Observed, fact: Probe, apart: int) -> None:
        """Keep it if there is room. Those that are kept are the older ones, whose windows are closed."""
        if fact.lost or fact.late:
            if len(self.bad) >= BAD_KEPT:
                return
            kept = self.bad
        else:
            kept = self.slow
            if kept and (len(kept) >= SLOW_KEPT or window - kept[-1][0] < apart):
                return
        same = msgspec.structs.replace(  # as it was told, but all of a flow share these
            fact, component=self.prober, target=self.target, path=self.path, answer_path=self.answer_path
        )
        kept.append((window, Observed(seen.id, seen.host, seen.source, seen.observed_at, seen.received_at, same)))

    def forget(self, last: int) -> None:
        """The windows up to `last`."""
        rows = self.rows
        if not rows or rows[0] > last:
            return
        gone = _WIDTH
        while gone < len(rows) and rows[gone] <= last:
            gone += _WIDTH
        del rows[:gone]
        for kept in (self.bad, self.slow):
            while kept and kept[0][0] <= last:
                del kept[0]

    def worst(self, delay: int, first: int, closed: int) -> float:
        """The worst of one delay (`NETWORK_P50` and so on) within these windows, -1 if it was not measured."""
        begin, end = self._between(first, closed)
        return _worst(self.rows[begin + delay : end : _WIDTH])

    def counting(self, first: int, closed: int) -> tuple[Flow | None, int, int, int]:
        """What counts of it, None if nothing; reports that count, that came late, that wait."""
        rows = self.rows
        begin, end = self._between(first, closed)
        waiting = int(sum(rows[end + _REPORTS :: _WIDTH])) if end < len(rows) else 0
        if begin == end:
            return None, 0, 0, waiting
        reports, came_late = (int(sum(rows[begin + n : end : _WIDTH])) for n in (_REPORTS, _CAME_LATE))
        return self._flow(begin, end, first, closed), reports, came_late, waiting

    def told(self, first: int, closed: int) -> Flow | None:
        """What counts of it."""
        begin, end = self._between(first, closed)
        return None if begin == end else self._flow(begin, end, first, closed)

    def _between(self, first: int, closed: int) -> tuple[int, int]:
        rows, begin, end = self.rows, 0, len(self.rows)
        while begin < end and rows[begin] < first:
            begin += _WIDTH
        while end > begin and rows[end - _WIDTH] > closed:
            end -= _WIDTH
        return begin, end

    def _flow(self, begin: int, end: int, first: int, closed: int) -> Flow:
        """Closed windows do not change: the same of them make the same flow."""
        rows = self.rows[begin:end]
        oldest, newest = rows[0], rows[-_WIDTH]
        if self._made is not None and self._made[:2] == (oldest, newest):
            return self._made[2]
        bad, slow = ([each for window, each in kept if first <= window <= closed] for kept in (self.bad, self.slow))
        made = Flow(
            prober=self.prober,
            target=self.target,
            flow=self.flow,
            path=self.path,
            answer_path=self.answer_path,
            sent=int(sum(rows[_SENT::_WIDTH])),
            lost=int(sum(rows[_LOST::_WIDTH])),
            late=int(sum(rows[_LATE::_WIDTH])),
            network_us_p50=_worst(rows[NETWORK_P50::_WIDTH]),
            network_us_p99=_worst(rows[NETWORK_P99::_WIDTH]),
            responder_us_p50=_worst(rows[RESPONDER_P50::_WIDTH]),
            responder_us_p99=_worst(rows[RESPONDER_P99::_WIDTH]),
            prober_us_p50=_worst(rows[PROBER_P50::_WIDTH]),
            prober_us_p99=_worst(rows[PROBER_P99::_WIDTH]),
            told=tuple(bad or slow),
        )
        self._made = (oldest, newest, made)
        return made


def _worst(delays_us: Iterable[float]) -> float:
    return max((each for each in delays_us if 0.0 <= each < math.inf), default=-1.0)
