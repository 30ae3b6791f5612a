"""Which probe reports count: those of closed windows, each once, joined flow by flow.

Reports come late: a prober's own interval, its clock (2 s off at worst), the collector's spool. A window of time is
judged only once it is over for a grace; judging it earlier would take reports that are under way for probes that nobody
sent. Reports that come after the grace are counted and used all the same, for what they say is true.

A report is placed in time by the broker's clock: the host's clock plus the shortest lag that any of the host's reports
shows, so that the clock's error cancels out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.telemetry import Probe
from goodput_correlator.domain.case import Observed

REPORTS_PER_HOST_MAX = 4_000
HOSTS_MAX = 20_000
KEEP_S = 180.0
NIC = f"{ComponentKind.NIC}:"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPolicy:
    window_s: float = 5.0
    grace_s: float = 5.0  # about one window
    look_back_s: float = 60.0  # a rare loss shows only over many windows


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
    ids: tuple[str, ...] = ()  # of the reports with losses or late answers, else of the newest: what evidence cites

    @property
    def answered(self) -> int:
        return self.sent - self.lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    flows: tuple[Flow, ...] = ()
    reports: int = 0  # that count
    waiting: int = 0  # of windows that are not closed yet
    came_late: int = 0  # after their window's grace; they count all the same
    odd: int = 0  # that no prober can have meant: nothing sent, more lost than sent, ends that are no NICs


def gather(
    observed: Iterable[Observed], now: datetime, policy: WindowPolicy = WindowPolicy(), *, ended: bool = False
) -> Gathered:
    """The flows as of `now`. `ended`: there is no present (files): every window is closed and none too old."""
    seen = [each for each in sorted(observed, key=lambda o: o.order) if isinstance(each.fact, Probe)]
    lags: dict[str, timedelta] = {}
    for each in seen:
        lag = each.received_at - each.observed_at
        lags[each.host] = min(lags.get(each.host, lag), lag)
    window, grace = policy.window_s, policy.grace_s
    oldest_s = now.timestamp() - policy.look_back_s - grace
    told: set[tuple[str, str, int, datetime]] = set()
    kept: dict[tuple[str, str, int, tuple[str, ...], tuple[str, ...]], list[Observed]] = {}
    reports = waiting = came_late = odd = 0
    for each in seen:
        fact = each.fact
        assert isinstance(fact, Probe)
        key = (fact.component, fact.target, fact.flow, fact.observed_at)
        if key in told:
            continue
        told.add(key)
        if not _makes_sense(fact):
            odd += 1
            continue
        placed_s = (each.observed_at + lags[each.host]).timestamp()
        end_s = (math.floor(placed_s / window) + 1) * window
        if not ended and end_s + grace > now.timestamp():
            waiting += 1
            continue
        if not ended and placed_s < oldest_s:
            continue
        reports += 1
        came_late += each.received_at.timestamp() > end_s + grace
        kept.setdefault((fact.component, fact.target, fact.flow, fact.path, fact.answer_path), []).append(each)
    flows = tuple(_joined(kept[key]) for key in sorted(kept))
    return Gathered(flows=flows, reports=reports, waiting=waiting, came_late=came_late, odd=odd)


def _makes_sense(fact: Probe) -> bool:
    ends = all(len(end) > len(NIC) and end.startswith(NIC) for end in (fact.component, fact.target))
    counts = fact.sent > 0 and fact.lost >= 0 and fact.late >= 0 and fact.lost + fact.late <= fact.sent
    return ends and counts and fact.component != fact.target


def _joined(reports: list[Observed]) -> Flow:
    facts = [each.fact for each in reports if isinstance(each.fact, Probe)]
    first = facts[0]
    bad = tuple(e.id for e in reports if isinstance(e.fact, Probe) and (e.fact.lost or e.fact.late))
    return Flow(
        prober=first.component,
        target=first.target,
        flow=first.flow,
        path=first.path,
        answer_path=first.answer_path,
        sent=sum(each.sent for each in facts),
        lost=sum(each.lost for each in facts),
        late=sum(each.late for each in facts),
        network_us_p50=_worst(each.network_us_p50 for each in facts),
        network_us_p99=_worst(each.network_us_p99 for each in facts),
        responder_us_p50=_worst(each.responder_us_p50 for each in facts),
        responder_us_p99=_worst(each.responder_us_p99 for each in facts),
        prober_us_p50=_worst(each.prober_us_p50 for each in facts),
        prober_us_p99=_worst(each.prober_us_p99 for each in facts),
        ids=(bad or (reports[-1].id,))[:4],
    )


def _worst(delays_us: Iterable[float]) -> float:
    return max((each for each in delays_us if math.isfinite(each) and each >= 0), default=-1.0)


class ProbeMemory:
    """The probe reports of a fabric that a decision may still need, bounded a host: the oldest go first and are counted."""

    def __init__(self) -> None:
        self.dropped = 0
        self._hosts: dict[str, deque[Observed]] = {}

    def fold(self, seen: Observed) -> None:
        """Take in a Probe; in the order of `Observed.order`."""
        kept = self._hosts.get(seen.host)
        if kept is None:
            if len(self._hosts) >= HOSTS_MAX:
                self.dropped += 1
                return
            kept = self._hosts[seen.host] = deque(maxlen=REPORTS_PER_HOST_MAX)
        limit = seen.received_at - timedelta(seconds=KEEP_S)
        while kept and kept[0].received_at < limit:
            kept.popleft()
        self.dropped += len(kept) == REPORTS_PER_HOST_MAX
        kept.append(seen)

    def forget(self, before: datetime) -> None:
        """Leave out hosts of which nothing was heard since."""
        for host in [host for host, kept in self._hosts.items() if not kept or kept[-1].received_at < before]:
            del self._hosts[host]

    def reports(self) -> tuple[Observed, ...]:
        return tuple(each for host in sorted(self._hosts) for each in self._hosts[host])
