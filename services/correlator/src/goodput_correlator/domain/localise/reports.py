"""Which probe reports count: those of closed windows, each once, added up flow by flow.

Reports come late: a prober's own interval, its clock (2 s off at worst), the collector's spool. A window of time is
judged only once it is over for a grace; judging it earlier would take reports that are under way for probes that nobody
sent. A report that comes after its window's grace is counted and counts in the first window that is still open, for what it
says is true. So a closed window never changes again, and what is found in it stays the same whenever it is asked for.

A report is placed in time by the broker's clock: the host's clock plus the shortest lag that any of the host's reports
shows, so that the clock's error cancels out.

A fabric tells some ten thousand reports a second. None is kept: of each flow there is a row of numbers a window, as long as
windows count (`counted`), and of each window the sums over all flows and which flows were *marked* in it: those that lost or
delayed probes, or had a delay that no healthy network or host has. Who asks reads the marked flows one by one and takes the
sums for all others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.telemetry import Probe
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.localise.counted import Counted, Flow
from goodput_correlator.domain.localise.ends import (
    NETWORK_US_MIN,
    SLOW_US_P50_MIN,
    SLOW_US_P99_MIN,
    host_behind,
)

FLOWS_MAX = 200_000
HOSTS_MAX = 20_000
SENT_MAX = 1_000_000_000  # within one report: no prober sends more
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
class Totals:
    """Over all flows that count."""

    flows: int = 0
    sent: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """`closed` is the newest window that counts. `flows` are all or, where `totals` is given, only those of which something
    has to be known: `totals` has the others too."""

    closed: int = 0
    flows: tuple[Flow, ...] = ()
    totals: Totals | None = None
    reports: int = 0  # that count
    waiting: int = 0  # of windows that are not closed yet
    came_late: int = 0  # after their window's grace; they count all the same
    odd: int = 0  # that no prober can have meant: nothing sent, more lost than sent, ends that are no NICs

    @property
    def in_all(self) -> Totals:
        if self.totals is not None:
            return self.totals
        return Totals(flows=len(self.flows), sent=sum(f.sent for f in self.flows), lost=sum(f.lost for f in self.flows))


_ALWAYS = 1 << 62


@dataclass(slots=True)
class Told:
    """What was told of one window. `after` counts its flows by the window in which each was told of before, for how many
    different ones there are within some windows. `read`: somebody has taken over its sums."""

    reports: int = 0
    came_late: int = 0
    sent: int = 0
    lost: int = 0
    by_flow: dict[Counted, int] = field(default_factory=dict)  # probes sent
    marked: dict[Counted, None] = field(default_factory=dict)
    after: dict[float | None, int] = field(default_factory=dict)
    read: bool = False


@dataclass(slots=True)
class _Host:
    lag_s: float  # the shortest
    heard_s: float


class Learner(Protocol):
    """Who wants to know of each flow once, before it counts, and of each window when it is closed (`crossings`)."""

    def learn(self, counted: Counted) -> None: ...
    def take(self, told: Mapping[int, Told], first: int, closed: int) -> None: ...
    def start_anew(self) -> None: ...


class Windows:
    """The flows of a fabric, window by window. `ended`: there is no present (files): every window is closed and none too
    old. What does not fit is left out and counted in `dropped`. `changed`: windows were added to after they were read."""

    def __init__(self, policy: WindowPolicy = WindowPolicy(), *, ended: bool = False) -> None:
        self.policy = policy
        self.dropped = 0
        self.flows = 0
        self.odd = 0
        self.changed = False
        self.learner: Learner | None = None
        self.told: dict[int, Told] = {}
        self.of_target: dict[ComponentId | None, dict[Counted, None]] = {}  # by host
        self.of_prober: dict[ComponentId | None, dict[Counted, None]] = {}
        self._ended = ended
        self._flows: dict[Key, list[Counted]] = {}  # one for each way that a flow has taken
        self._hosts: dict[str, _Host] = {}
        self._received: datetime | None = None  # the reports of one message share these
        self._received_s = 0.0
        self._closed = 0
        self._oldest = -_ALWAYS
        self._apart = policy.windows // 2
        self._window_s = policy.window_s

    def fold(self, seen: Observed) -> None:
        """Take in a Probe; in the order of `Observed.order`. Some thousand times a second: hence no calls without need."""
        fact = seen.fact
        assert isinstance(fact, Probe)
        sent, lost = fact.sent, fact.lost
        if not 0 < sent <= SENT_MAX or lost < 0 or fact.late < 0 or lost + fact.late > sent:
            self.odd += 1
            return
        ways = self._flows.get((fact.component, fact.target, fact.flow))
        if ways is None and not _is_between_nics(fact):
            self.odd += 1
            return
        if seen.received_at is not self._received:
            self._receive(seen.received_at)
        observed_s = seen.observed_at.timestamp()
        host = self._hosts.get(seen.host) or self._host(seen.host)
        counted = self._counted(fact, ways)
        if host is None or counted is None:
            self.dropped += 1
            return
        lag_s = self._received_s - observed_s
        host.heard_s = self._received_s
        if lag_s < host.lag_s:
            host.lag_s = lag_s
        window, late = math.floor((observed_s + host.lag_s) / self._window_s), False
        if not self._ended:
            if counted.rows and counted.rows[0] <= self._oldest:
                counted.forget(self._oldest)
            if window <= self._oldest:
                return  # of another hour: a spool that is read out at last
            if window <= self._closed:
                late, window = True, self._closed + 1
        if observed_s <= counted.newest_s and counted.knows(observed_s):
            return
        told = self.told.get(window)
        if told is None:
            told = self.told[window] = Told()
        if told.read:
            self.changed = True
        put = counted.add(window, observed_s, late, fact)
        if put is None:
            told.by_flow[counted] += sent
        else:
            told.by_flow[counted] = sent
            before, after = put
            told.after[before] = told.after.get(before, 0) + 1
            if after is not None:
                self._comes_between(before, window, int(after))
        told.reports += 1
        told.sent += sent
        if late:
            told.came_late += 1
        if (
            lost
            or fact.late
            or fact.network_us_p50 > NETWORK_US_MIN
            or fact.responder_us_p50 > SLOW_US_P50_MIN
            or fact.prober_us_p50 > SLOW_US_P50_MIN
            or fact.responder_us_p99 > SLOW_US_P99_MIN
            or fact.prober_us_p99 > SLOW_US_P99_MIN
        ):
            told.lost += lost
            told.marked[counted] = None
            counted.cite(window, seen, fact, self._apart)

    def between(self, at_s: float) -> tuple[int, int]:
        """The first and the last window that count then."""
        closed = self.policy.newest_closed(at_s)
        return (closed - self.policy.windows + 1, closed) if not self._ended else (-_ALWAYS, _ALWAYS)

    def all(self) -> Iterator[Counted]:
        """Sorted by flow and way."""
        for key in sorted(self._flows):
            yield from self._flows[key]

    def gathered(self, at_s: float) -> Gathered:
        """The flows as of then, one by one."""
        first, last = self.between(at_s)
        flows: list[Flow] = []
        reports = came_late = waiting = 0
        for counted in self.all():
            flow, counting, late, open_ = counted.counting(first, last)
            waiting += open_
            if flow is not None:
                flows.append(flow)
                reports, came_late = reports + counting, came_late + late
        closed = self.policy.newest_closed(at_s)
        return Gathered(
            closed=closed, flows=tuple(flows), reports=reports, waiting=waiting, came_late=came_late, odd=self.odd
        )

    def summed(self, at_s: float) -> tuple[Gathered, list[Counted]]:
        """The same with the marked flows only, and these."""
        first, last = self.between(at_s)
        reports = came_late = waiting = different = sent = lost = 0
        marked: dict[Counted, None] = {}
        for window, told in self.told.items():
            if window > last:
                waiting += told.reports
            elif window >= first:
                reports += told.reports
                came_late += told.came_late
                sent += told.sent
                lost += told.lost
                different += sum(n for before, n in told.after.items() if before is None or before < first)
                marked.update(told.marked)
        found = [
            (flow, each)
            for each in sorted(marked, key=lambda counted: counted.order)
            if (flow := each.told(first, last)) is not None
        ]
        gathered = Gathered(
            closed=self.policy.newest_closed(at_s), flows=tuple(flow for flow, _ in found),
            totals=Totals(flows=different, sent=sent, lost=lost), reports=reports, waiting=waiting, came_late=came_late,
            odd=self.odd,
        )  # fmt: skip
        return gathered, [each for _, each in found]

    def hand_over(self, closed: int) -> None:
        """Bring the learner's sums to the windows that count when this is the newest closed one: little by little, so that
        the first look for suspects finds them ready."""
        if self.learner is not None:
            if self.changed:
                self.learner.start_anew()
                self.changed = False
            self.learner.take(self.told, closed - self.policy.windows + 1, closed)

    def forget(self, at_s: float) -> None:
        """What no decision after this can need."""
        oldest = self.policy.newest_closed(at_s) - self.policy.windows
        self._forget_windows(oldest)
        for key in list(self._flows):
            for counted in self._flows[key]:
                counted.forget(oldest)
            left = [counted for counted in self._flows[key] if counted.rows]
            if len(left) < len(self._flows[key]):
                for counted in self._flows[key]:
                    if not counted.rows:
                        self._leave_out(counted)
                if left:
                    self._flows[key] = left
                else:
                    del self._flows[key]
        heard_s = at_s - self.policy.look_back_s - self.policy.grace_s
        for host in [host for host, known in self._hosts.items() if known.heard_s < heard_s]:
            del self._hosts[host]

    def _receive(self, at: datetime) -> None:
        self._received, self._received_s = at, at.timestamp()
        self._closed = self.policy.newest_closed(self._received_s)
        if not self._ended and self._closed - self.policy.windows > self._oldest:
            self.hand_over(self._closed)
            self._oldest = self._closed - self.policy.windows
            self._forget_windows(self._oldest)

    def _forget_windows(self, last: int) -> None:
        for window in [each for each in self.told if each <= last]:
            del self.told[window]

    def _comes_between(self, before: float | None, window: int, after: int) -> None:
        """A row has come between two others of its flow."""
        told = self.told.get(after)
        if told is not None:
            told.after[before] = told.after.get(before, 0) - 1
            told.after[window] = told.after.get(window, 0) + 1

    def _host(self, host: str) -> _Host | None:
        if len(self._hosts) >= HOSTS_MAX:
            return None
        known = self._hosts[host] = _Host(math.inf, self._received_s)
        return known

    def _counted(self, fact: Probe, ways: list[Counted] | None) -> Counted | None:
        for counted in ways or ():
            if counted.path == fact.path and counted.answer_path == fact.answer_path:
                if counted.learned is not self.learner and self.learner is not None:
                    self.learner.learn(counted)
                return counted
        if self.flows >= FLOWS_MAX:
            return None
        self.flows += 1
        counted = Counted(fact)
        if self.learner is not None:
            self.learner.learn(counted)
        self.of_target.setdefault(host_behind(counted.target), {})[counted] = None
        self.of_prober.setdefault(host_behind(counted.prober), {})[counted] = None
        if ways is None:
            self._flows[counted.prober, counted.target, counted.flow] = [counted]
        else:
            ways.append(counted)
            ways.sort(key=lambda each: (each.path, each.answer_path))
        return counted

    def _leave_out(self, counted: Counted) -> None:
        self.flows -= 1
        for known, end in ((self.of_target, counted.target), (self.of_prober, counted.prober)):
            host = host_behind(end)
            del known[host][counted]
            if not known[host]:
                del known[host]


def gather(
    observed: Iterable[Observed], now: datetime, policy: WindowPolicy = WindowPolicy(), *, ended: bool = False
) -> Gathered:
    """The flows of these facts as of `now`, in whatever order they are given."""
    windows = Windows(policy, ended=ended)
    for each in sorted(observed, key=lambda o: o.order):
        if isinstance(each.fact, Probe):
            windows.fold(each)
    return windows.gathered(now.timestamp())


def _is_between_nics(fact: Probe) -> bool:
    near, far = fact.component, fact.target
    return near != far and near.startswith(NIC) and far.startswith(NIC) and min(len(near), len(far)) > len(NIC)
