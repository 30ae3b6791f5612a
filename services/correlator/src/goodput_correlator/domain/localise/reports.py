"""Which probe reports count: those of closed windows, each once, added up flow by flow.

Reports come late: a prober's own interval, its clock (2 s off at worst), the collector's spool. A window of time is
judged only once it is over for a grace; judging it earlier would take reports that are under way for probes that nobody
sent. A report that comes after its window's grace is counted and counts in the first window that is still open, for what it
says is true. So a closed window never changes again, and what is found in it stays the same whenever it is asked for.

A report is placed in time by the broker's clock: the host's clock plus the shortest lag that any of the host's reports
shows, so that the clock's error cancels out.

A fabric tells some ten thousand reports a second. None is kept: of each flow there is a row of numbers a window, as long as
windows count, and of some reports (those with losses first) the fact itself, for a verdict to cite.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from sys import intern

import msgspec

from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.telemetry import Probe
from goodput_correlator.domain.case import Observed

FLOWS_MAX = 200_000
HOSTS_MAX = 20_000
BAD_KEPT, GOOD_KEPT = 3, 2  # reports a flow that may be cited
NIC = f"{ComponentKind.NIC}:"
Key = tuple[ComponentId, ComponentId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPolicy:
    window_s: float = 5.0
    grace_s: float = 5.0  # about one window
    look_back_s: float = 60.0  # a rare loss shows only over many windows

    def newest_closed(self, at_s: float) -> int:
        """The number of the newest window that is over for the grace."""
        return math.ceil((at_s - self.grace_s) / self.window_s) - 2

    @property
    def windows(self) -> int:
        """How many count."""
        return math.ceil(self.look_back_s / self.window_s)


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
    told: tuple[Observed, ...] = ()  # some of the reports, those with losses or late answers if there are: evidence

    @property
    def answered(self) -> int:
        return self.sent - self.lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """`closed` is the newest window that counts."""

    closed: int = 0
    flows: tuple[Flow, ...] = ()
    reports: int = 0  # that count
    waiting: int = 0  # of windows that are not closed yet
    came_late: int = 0  # after their window's grace; they count all the same
    odd: int = 0  # that no prober can have meant: nothing sent, more lost than sent, ends that are no NICs


# one window of one flow: its number, when its newest report was observed, how many reports, how many of them late, probes
_WINDOW, _OBSERVED, _REPORTS, _CAME_LATE, _SENT, _LOST, _LATE, _DELAYS = range(8)
_WIDTH = _DELAYS + 6
_ALWAYS = 1 << 62


class _Counted:
    """One flow: its windows, the oldest first, and reports that may be cited, each with its window."""

    __slots__ = ("_made", "answer_path", "bad", "flow", "good", "path", "prober", "rows", "target")

    def __init__(self, fact: Probe) -> None:
        self.prober, self.target, self.flow = intern(fact.component), intern(fact.target), fact.flow
        self.path, self.answer_path = tuple(map(intern, fact.path)), tuple(map(intern, fact.answer_path))
        self.rows: array[float] = array("d")
        self.bad: list[tuple[int, Observed]] = []
        self.good: list[tuple[int, Observed]] = []
        self._made: tuple[float, float, Flow] | None = None  # of which windows, the first and the last

    def knows(self, observed_s: float) -> bool:
        rows = self.rows
        return any(rows[at] == observed_s for at in range(_OBSERVED, len(rows), _WIDTH))

    def add(self, window: int, observed_s: float, late: bool, fact: Probe) -> None:
        rows, at = self.rows, len(self.rows)
        row = (
            window, observed_s, 1, late, fact.sent, fact.lost, fact.late, fact.network_us_p50, fact.network_us_p99,
            fact.responder_us_p50, fact.responder_us_p99, fact.prober_us_p50, fact.prober_us_p99,
        )  # fmt: skip
        if not at or rows[at - _WIDTH] < window:
            rows.extend(row)
            return
        while at and rows[at - _WIDTH] > window:
            at -= _WIDTH
        if at and rows[at - _WIDTH] == window:
            at -= _WIDTH
            rows[at + _OBSERVED] = observed_s
            for n in range(_REPORTS, _DELAYS):
                rows[at + n] += row[n]
            for n in range(_DELAYS, _WIDTH):
                rows[at + n] = _worst((rows[at + n], row[n]))
        else:
            rows[at:at] = array("d", row)

    def cite(self, window: int, seen: Observed, fact: Probe, apart: int) -> None:
        """Keep it if there is room. Those that are kept are the older ones, whose windows are closed."""
        if fact.lost or fact.late:
            if len(self.bad) >= BAD_KEPT:
                return
            kept = self.bad
        else:
            kept = self.good
            if kept and (len(kept) >= GOOD_KEPT or window - kept[-1][0] < apart):
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
        gone = 0
        while gone < len(rows) and rows[gone] <= last:
            gone += _WIDTH
        del rows[:gone]
        for kept in (self.bad, self.good):
            while kept and kept[0][0] <= last:
                del kept[0]

    def counting(self, first: int, closed: int) -> tuple[Flow | None, int, int, int]:
        """What counts of it, None if nothing; reports that count, that came late, that wait."""
        rows, begin, end = self.rows, 0, len(self.rows)
        while begin < end and rows[begin] < first:
            begin += _WIDTH
        while end > begin and rows[end - _WIDTH] > closed:
            end -= _WIDTH
        waiting = sum(rows[end + _REPORTS :: _WIDTH]) if end < len(rows) else 0
        if begin == end:
            return None, 0, 0, int(waiting)
        if begin or end < len(rows):
            rows = rows[begin:end]
        return (
            self._flow(rows, first, closed),
            int(sum(rows[_REPORTS::_WIDTH])),
            int(sum(rows[_CAME_LATE::_WIDTH])),
            int(waiting),
        )

    def _flow(self, rows: array[float], first: int, closed: int) -> Flow:
        """Closed windows do not change: the same of them make the same flow."""
        oldest, newest = rows[0], rows[-_WIDTH]
        if self._made is not None and self._made[:2] == (oldest, newest):
            return self._made[2]
        bad, good = ([each for window, each in kept if first <= window <= closed] for kept in (self.bad, self.good))
        made = Flow(
            prober=self.prober,
            target=self.target,
            flow=self.flow,
            path=self.path,
            answer_path=self.answer_path,
            sent=int(sum(rows[_SENT::_WIDTH])),
            lost=int(sum(rows[_LOST::_WIDTH])),
            late=int(sum(rows[_LATE::_WIDTH])),
            network_us_p50=_worst(rows[_DELAYS::_WIDTH]),
            network_us_p99=_worst(rows[_DELAYS + 1 :: _WIDTH]),
            responder_us_p50=_worst(rows[_DELAYS + 2 :: _WIDTH]),
            responder_us_p99=_worst(rows[_DELAYS + 3 :: _WIDTH]),
            prober_us_p50=_worst(rows[_DELAYS + 4 :: _WIDTH]),
            prober_us_p99=_worst(rows[_DELAYS + 5 :: _WIDTH]),
            told=tuple(bad or good),
        )
        self._made = (oldest, newest, made)
        return made


def _worst(delays_us: Iterable[float]) -> float:
    return max((each for each in delays_us if 0.0 <= each < math.inf), default=-1.0)


@dataclass(slots=True)
class _Host:
    lag_s: float  # the shortest
    heard_s: float


class Windows:
    """The flows of a fabric, window by window. `ended`: there is no present (files): every window is closed and none too
    old. What does not fit is left out and counted in `dropped`."""

    def __init__(self, policy: WindowPolicy = WindowPolicy(), *, ended: bool = False) -> None:
        self.policy = policy
        self.dropped = 0
        self.flows = 0
        self._ended = ended
        self._odd = 0
        self._flows: dict[Key, list[_Counted]] = {}  # one for each way that a flow has taken
        self._hosts: dict[str, _Host] = {}
        self._received: datetime | None = None  # the reports of one message share these
        self._received_s = 0.0
        self._closed = 0

    def fold(self, seen: Observed) -> None:
        """Take in a Probe; in the order of `Observed.order`."""
        fact, policy = seen.fact, self.policy
        assert isinstance(fact, Probe)
        if not _makes_sense(fact):
            self._odd += 1
            return
        if seen.received_at is not self._received:
            self._received, self._received_s = seen.received_at, seen.received_at.timestamp()
            self._closed = policy.newest_closed(self._received_s)
        observed_s = seen.observed_at.timestamp()
        lag_s = self._lag_s(seen.host, self._received_s - observed_s)
        counted = self._counted(fact)
        if lag_s is None or counted is None:
            self.dropped += 1
            return
        window = math.floor((observed_s + lag_s) / policy.window_s)
        late = False
        if not self._ended:
            oldest = self._closed - policy.windows
            counted.forget(oldest)
            if window <= oldest:
                return  # of another hour: a spool that is read out at last
            if window <= self._closed:
                late, window = True, self._closed + 1
        if not counted.knows(observed_s):
            counted.add(window, observed_s, late, fact)
            counted.cite(window, seen, fact, policy.windows // 2)

    def gathered(self, at_s: float) -> Gathered:
        """The flows as of then."""
        closed = self.policy.newest_closed(at_s)
        first, last = (closed - self.policy.windows + 1, closed) if not self._ended else (-_ALWAYS, _ALWAYS)
        flows: list[Flow] = []
        reports = came_late = waiting = 0
        for key in sorted(self._flows):
            for counted in self._flows[key]:
                flow, counting, late, open_ = counted.counting(first, last)
                waiting += open_
                if flow is not None:
                    flows.append(flow)
                    reports, came_late = reports + counting, came_late + late
        return Gathered(
            closed=closed, flows=tuple(flows), reports=reports, waiting=waiting, came_late=came_late, odd=self._odd
        )

    def forget(self, at_s: float) -> None:
        """What no decision after this can need."""
        oldest = self.policy.newest_closed(at_s) - self.policy.windows
        for key in list(self._flows):
            for counted in self._flows[key]:
                counted.forget(oldest)
            left = [counted for counted in self._flows[key] if counted.rows]
            self.flows -= len(self._flows[key]) - len(left)
            if left:
                self._flows[key] = left
            else:
                del self._flows[key]
        heard_s = at_s - self.policy.look_back_s - self.policy.grace_s
        for host in [host for host, known in self._hosts.items() if known.heard_s < heard_s]:
            del self._hosts[host]

    def _lag_s(self, host: str, lag_s: float) -> float | None:
        known = self._hosts.get(host)
        if known is None:
            if len(self._hosts) >= HOSTS_MAX:
                return None
            known = self._hosts[host] = _Host(lag_s, self._received_s)
        known.heard_s = self._received_s
        if lag_s < known.lag_s:
            known.lag_s = lag_s
        return known.lag_s

    def _counted(self, fact: Probe) -> _Counted | None:
        key = (fact.component, fact.target, fact.flow)
        ways = self._flows.get(key)
        for counted in ways or ():
            if counted.path == fact.path and counted.answer_path == fact.answer_path:
                return counted
        if self.flows >= FLOWS_MAX:
            return None
        self.flows += 1
        counted = _Counted(fact)
        if ways is None:
            self._flows[counted.prober, counted.target, counted.flow] = [counted]
        else:
            ways.append(counted)
            ways.sort(key=lambda each: (each.path, each.answer_path))
        return counted


def gather(
    observed: Iterable[Observed], now: datetime, policy: WindowPolicy = WindowPolicy(), *, ended: bool = False
) -> Gathered:
    """The flows of these facts as of `now`, in whatever order they are given."""
    windows = Windows(policy, ended=ended)
    for each in sorted(observed, key=lambda o: o.order):
        if isinstance(each.fact, Probe):
            windows.fold(each)
    return windows.gathered(now.timestamp())


def _makes_sense(fact: Probe) -> bool:
    near, far = fact.component, fact.target
    if near == far or not near.startswith(NIC) or not far.startswith(NIC) or min(len(near), len(far)) <= len(NIC):
        return False
    return fact.sent > 0 and fact.lost >= 0 and fact.late >= 0 and fact.lost + fact.late <= fact.sent
