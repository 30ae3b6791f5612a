"""One look for suspects at flows that are added up already: the same as `answer.prepare`, at the cost of the bad flows.

Where no flow is marked nothing is lost or late, and there is nothing to work out. Else the marked flows are read one by one
and all others are taken from `crossings`. What is usual among all flows is asked for only when a marked flow is so slow that
it matters.
"""

from __future__ import annotations

from collections.abc import Sequence

from goodput_common.contracts.ids import ComponentId
from goodput_correlator.domain.localise.answer import Localised, Prepared, answer, counting
from goodput_correlator.domain.localise.counted import NETWORK_P50, Counted, Flow
from goodput_correlator.domain.localise.crossings import Crossings
from goodput_correlator.domain.localise.ends import (
    MEASURES,
    NETWORK_US_MIN,
    Measure,
    Role,
    SlowEnd,
    delay_limit_us,
    delayed,
    host_behind,
    may_be_slow,
    slow_among,
    slowest_first,
)
from goodput_correlator.domain.localise.likelihood import likelihood
from goodput_correlator.domain.localise.pick import Variant
from goodput_correlator.domain.localise.reports import Gathered, Windows


def look(windows: Windows, crossings: Crossings, at_s: float, variant: Variant = likelihood) -> Localised:
    gathered, marked = windows.summed(at_s)
    if not marked:
        in_all = gathered.in_all
        return Localised(
            flows=in_all.flows, sent=in_all.sent, waiting=gathered.waiting, came_late=gathered.came_late, odd=gathered.odd
        )
    return answer(_prepared(windows, crossings, at_s, gathered, marked), variant)


def _prepared(
    windows: Windows, crossings: Crossings, at_s: float, gathered: Gathered, marked: Sequence[Counted]
) -> Prepared:
    first, closed = windows.between(at_s)
    slow = _slow_ends(windows, gathered.flows, first, closed)
    apart, flows = list(marked), list(gathered.flows)
    if slow:
        near = dict.fromkeys(marked)
        for each in slow:
            near |= windows.of_target.get(each.host, {}) | windows.of_prober.get(each.host, {})
        told = [(one, flow) for one in sorted(near, key=lambda c: c.order) if (flow := one.told(first, closed)) is not None]
        apart, flows = [one for one, _ in told], [flow for _, flow in told]
    counts = counting(flows, slow, _delayed(windows, flows, first, closed))
    windows.hand_over(closed)
    in_all = gathered.in_all
    sent = in_all.sent - sum(flow.sent - n for flow, n in zip(flows, counts.sent, strict=True))
    answered = in_all.sent - sum(flow.sent - n for flow, n in zip(flows, counts.answered, strict=True))
    return Prepared(
        gathered=Gathered(
            closed=gathered.closed, flows=tuple(flows), totals=in_all, reports=gathered.reports, waiting=gathered.waiting,
            came_late=gathered.came_late, odd=gathered.odd,
        ),
        slow=slow,
        late=counts.late,
        losses=crossings.matrix(apart, counts.sent, counts.lost, flows=in_all.flows, sent_in_all=sent),
        delays=crossings.matrix(apart, counts.answered, counts.late, flows=in_all.flows, sent_in_all=answered),
    )  # fmt: skip


def _slow_ends(windows: Windows, flows: Sequence[Flow], first: int, closed: int) -> tuple[SlowEnd, ...]:
    found: list[SlowEnd] = []
    for measure in MEASURES:
        of_host = windows.of_target if measure.role is Role.RESPONDER else windows.of_prober
        asked = {host_behind(measure.end(flow)) for flow in flows if measure.delay(flow) > measure.least_us}
        if any(may_be_slow(measure, _delays(of_host[host], measure, first, closed)) for host in asked if host is not None):
            all_: dict[ComponentId, list[float]] = {
                host: _delays(own, measure, first, closed) for host, own in of_host.items() if host is not None
            }
            found += slow_among(measure, all_)
    return slowest_first(found)


def _delays(own: dict[Counted, None], measure: Measure, first: int, closed: int) -> list[float]:
    return [delay for each in own if (delay := each.worst(measure.column, first, closed)) >= 0]


def _delayed(windows: Windows, flows: Sequence[Flow], first: int, closed: int) -> list[int]:
    matter = any(
        flow.network_us_p50 > NETWORK_US_MIN or (flow.late and flow.network_us_p99 > NETWORK_US_MIN) for flow in flows
    )
    if not matter:
        return [0] * len(flows)
    known = [
        delay for own in windows.of_target.values() for each in own if (delay := each.worst(NETWORK_P50, first, closed)) >= 0
    ]
    return delayed(flows, delay_limit_us(known)) if known else [0] * len(flows)
