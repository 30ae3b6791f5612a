"""Hosts that answer or probe slowly, told from a slow network.

The six time stamps of a probe give three delays, each within one clock: in the network, in the responder (its processor
is busy: the answer waits), in the prober (the answer is there and nobody takes it). A busy host loses and delays probes
on all its paths, which looks like its NIC or its leaf switch to anybody who only counts. So it is looked for first, and
what is lost between it and others is laid on it, not on the network.
"""

from __future__ import annotations

import enum
import functools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from goodput_common.contracts.ids import ComponentId, InvalidComponentId, host_id, host_of
from goodput_correlator.domain.localise.counted import (
    PROBER_P50,
    PROBER_P99,
    RESPONDER_P50,
    RESPONDER_P99,
    Flow,
)

FLOWS_MIN = 2  # one flow's word is not enough
USUAL_FACTOR = 8.0  # slow is this many times what is usual in the fabric
SLOW_US_P50_MIN = 1_000.0  # a kernel that answers at once takes some tens of microseconds; the scheduler's tick is 1..4 ms
SLOW_US_P99_MIN = 20_000.0
NETWORK_FACTOR = 5.0
NETWORK_US_MIN = 200.0
NICS_REMEMBERED = 100_000


class Role(enum.StrEnum):
    RESPONDER = "responder"
    PROBER = "prober"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowEnd:
    """A host that is slow as responder or as prober: its delay and what is usual. `percentile` says of which share."""

    host: ComponentId
    role: Role
    delay_us: float
    usual_us: float
    percentile: int
    flows: int


@dataclass(frozen=True, slots=True)
class Measure:
    """One way to tell a slow host: whose delay, at which percentile, and the least that is slow. `column` is where
    `counted.Counted` has it."""

    role: Role
    percentile: int
    least_us: float
    column: int
    end: Callable[[Flow], ComponentId]
    delay: Callable[[Flow], float]


MEASURES = (
    Measure(Role.RESPONDER, 50, SLOW_US_P50_MIN, RESPONDER_P50, lambda f: f.target, lambda f: f.responder_us_p50),
    Measure(Role.RESPONDER, 99, SLOW_US_P99_MIN, RESPONDER_P99, lambda f: f.target, lambda f: f.responder_us_p99),
    Measure(Role.PROBER, 50, SLOW_US_P50_MIN, PROBER_P50, lambda f: f.prober, lambda f: f.prober_us_p50),
    Measure(Role.PROBER, 99, SLOW_US_P99_MIN, PROBER_P99, lambda f: f.prober, lambda f: f.prober_us_p99),
)


@functools.lru_cache(maxsize=NICS_REMEMBERED)
def host_behind(nic: ComponentId) -> ComponentId | None:
    try:
        name = host_of(nic)
    except InvalidComponentId:
        return None
    return None if name is None else host_id(name)


def slow_ends(flows: Sequence[Flow]) -> tuple[SlowEnd, ...]:
    """The slow hosts, the slowest against its limit first."""
    found: list[SlowEnd] = []
    for measure in MEASURES:
        of_host: dict[ComponentId, list[float]] = {}
        for each in flows:
            host = host_behind(measure.end(each))
            if host is not None and (delay_us := measure.delay(each)) >= 0:
                of_host.setdefault(host, []).append(delay_us)
        found += slow_among(measure, of_host)
    return slowest_first(found)


def slow_among(measure: Measure, of_host: Mapping[ComponentId, Sequence[float]]) -> Iterator[SlowEnd]:
    """By the delays of each host's flows, as far as they were measured."""
    medians = {host: statistics.median(delays) for host, delays in of_host.items() if len(delays) >= FLOWS_MIN}
    if len(medians) < 2:
        return  # nothing to compare with
    usual_us = statistics.median_low(medians.values())
    limit_us = max(measure.least_us, USUAL_FACTOR * usual_us)
    for host in sorted(medians):
        if medians[host] > limit_us:
            yield SlowEnd(
                host=host,
                role=measure.role,
                delay_us=medians[host],
                usual_us=usual_us,
                percentile=measure.percentile,
                flows=len(of_host[host]),
            )


def may_be_slow(measure: Measure, delays: Sequence[float]) -> bool:
    """Whether a host with these can be slow at all, whatever is usual among the others."""
    return len(delays) >= FLOWS_MIN and statistics.median(delays) > measure.least_us


def slowest_first(found: Iterable[SlowEnd]) -> tuple[SlowEnd, ...]:
    """Each host once: for the measure that comes first."""
    of_host: dict[ComponentId, SlowEnd] = {}
    for each in found:
        of_host.setdefault(each.host, each)
    return tuple(sorted(of_host.values(), key=lambda each: (-each.delay_us / max(each.usual_us, 1.0), each.host)))


def delay_limit_us(known: Sequence[float]) -> float:
    """What the network's median delay of a flow has to exceed, by those of all flows."""
    return max(NETWORK_US_MIN, NETWORK_FACTOR * statistics.median_low(known))


def delayed(flows: Sequence[Flow], limit_us: float | None = None) -> list[int]:
    """Of each flow, how many of its answered probes the network delayed, as far as percentiles and late answers tell: half
    where the median is far above what is usual, those that came late where only the 99th percentile is."""
    if limit_us is None:
        known = [each.network_us_p50 for each in flows if each.network_us_p50 >= 0]
        if not known:
            return [0] * len(flows)
        limit_us = delay_limit_us(known)
    found = []
    for each in flows:
        if each.network_us_p50 > limit_us:
            found.append(max(each.late, -(-each.answered // 2)))
        else:
            found.append(each.late if each.network_us_p99 > limit_us else 0)
    return found
