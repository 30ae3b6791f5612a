"""What the GPU engines have in common: errors of one GPU, weighed by what they would explain.

An error line alone is not a diagnosis: fleets log Xids all day. It becomes one when a rank on that GPU is what everybody
waits for; it is doubtful when the recorder points at ranks elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

from goodput_common.contracts.ids import ComponentId, host_of
from goodput_common.contracts.telemetry import Event
from goodput_common.contracts.verdict import Action, Evidence, FaultClass
from goodput_correlator.domain.blame import agreement
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import CLOCK_DOUBT_S, EVIDENCE_PER_FINDING, canonical, cite, ranks_on, symptoms_of
from goodput_correlator.domain.finding import Finding

Seen = tuple[Observed, Event]
WENT_ON_S = 8.0


def by_component(case: Case, seen: Iterable[Seen]) -> dict[ComponentId, list[Seen]]:
    """Grouped by the topology's name for the component, in order of time."""
    grouped: dict[ComponentId, list[Seen]] = {}
    for each, event in seen:
        grouped.setdefault(canonical(case, event.component), []).append((each, event))
    return dict(sorted(grouped.items()))


def _went_on(case: Case, seen: Seen) -> bool:
    """Whether steps were still finished well after this error: then it did not stop them."""
    each, event = seen
    at = min(each.received_at, (event.last_at or event.observed_at) + timedelta(seconds=CLOCK_DOUBT_S))
    assert case.stalled_since is not None
    return case.stalled_since - at > timedelta(seconds=WENT_ON_S + 3 * case.usual_step_s)


def device_finding(
    case: Case,
    component: ComponentId,
    seen: list[Seen],
    *,
    fault_class: FaultClass,
    engine: str,
    score: float,
    why: Callable[[Event], str],
    action: Action,
    because: str,
    decisive: bool = True,
    more: tuple[Evidence, ...] = (),
) -> Finding | None:
    """A finding on one device. With a stalled job, only devices that carry one of its ranks count (None otherwise), or whose
    ranks cannot be told."""
    ranks = ranks_on(case, component)
    host = host_of(component)
    if case.job is not None and case.placement is not None and not ranks:
        if host not in case.placement.hosts or component in case.topology:
            return None
        score, decisive = score * 0.6, False  # on a host of the job, but whose GPU it is cannot be told
    if case.stalled_since is not None and all(_went_on(case, each) for each in seen):
        score, decisive = score * 0.4, False
    factor, words, extra = agreement(case, ranks, network=False)
    evidence = [cite(each, why(event), score, component) for each, event in seen[:EVIDENCE_PER_FINDING]]
    return Finding(
        fault_class=fault_class,
        component=component,
        score=min(0.98, score * factor),
        evidence=(*evidence, *more, *extra),
        engine=engine,
        ranks=ranks,
        host=host,
        explains=symptoms_of(case),
        because=because + (f"; {words}" if words else ""),
        decisive=decisive and factor >= 0.9,
        hardware=True,
        action=action,
    )
