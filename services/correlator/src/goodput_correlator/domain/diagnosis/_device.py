"""What the GPU engines have in common: errors of one GPU, weighed by what they would explain.

An error line alone is not a diagnosis: fleets log Xids all day. It becomes one when a rank on that GPU is what everybody
waits for; it is doubtful when the recorder points at ranks elsewhere.

What the job ran on over is history: old errors lie about on every fleet, and four of them must not outweigh a fresh fault
elsewhere. Only the ranks that use the component show that: in a loosely coupled job others go on for long. An effect may
come late, though (a link is retried for seconds, memory errors forebode worse), and clocks differ: an error of the last
seconds before the stall remains a suspect, and one that repeats then counts in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

from goodput_common.contracts.ids import ComponentId, host_of
from goodput_common.contracts.job import RankProgress
from goodput_common.contracts.telemetry import Event
from goodput_common.contracts.verdict import Action, Evidence, FaultClass
from goodput_correlator.domain.blame import agreement
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import CLOCK_DOUBT_S, EVIDENCE_PER_FINDING, canonical, cite, ranks_on, symptoms_of
from goodput_correlator.domain.finding import Finding

Seen = tuple[Observed, Event]
WENT_ON_S = 8.0  # what stops a job does so within this and three steps
HISTORY_S = 15.0  # older than this, and survived by the job: not the cause by itself
SURVIVED_S = 5.0  # the job has to have run this long, and three steps, since
LESS_LIKELY, HISTORY = 0.6, 0.3


def by_component(case: Case, seen: Iterable[Seen]) -> dict[ComponentId, list[Seen]]:
    """Grouped by the topology's name for the component, in order of time."""
    grouped: dict[ComponentId, list[Seen]] = {}
    for each, event in seen:
        grouped.setdefault(canonical(case, event.component), []).append((each, event))
    return dict(sorted(grouped.items()))


def survived(case: Case, seen: Iterable[Seen], ranks: Iterable[int]) -> tuple[float, str]:
    """What is left of errors that `ranks`, who use the component, ran on over: a factor for their score, and why in words.
    (1.0, "") for errors that came shortly before the stall, or after which not all of these ranks have worked."""
    if case.stalled_since is None:
        return 1.0, ""
    ago_s = min((_ago_s(case, each) for each in seen), default=0.0)
    ran_s = min(ago_s - _stood_before_s(case, ranks), _up_for_s(case))
    steps_s = 3 * case.usual_step_s
    if ran_s <= max(SURVIVED_S, steps_s) or ago_s <= WENT_ON_S + steps_s:
        return 1.0, ""
    words = f"it was last seen {ago_s:.0f} s before steps stopped, and the job ran on for {ran_s:.0f} s"
    return (HISTORY if ago_s > HISTORY_S else LESS_LIKELY), words


def _ago_s(case: Case, seen: Seen) -> float:
    """How long before the stall, at the least."""
    each, event = seen
    at = min(each.received_at, (event.last_at or event.observed_at) + timedelta(seconds=CLOCK_DOUBT_S))
    assert case.stalled_since is not None
    return (case.stalled_since - at).total_seconds()


def _stood_before_s(case: Case, ranks: Iterable[int]) -> float:
    """How long before the job's last step one of `ranks` ended its own last; infinite where that is not known."""
    assert case.stalled_since is not None
    longest_s, known = 0.0, False
    for rank in ranks:
        known = True
        said = case.progress.get(rank)
        if said is None or not isinstance(said.fact, RankProgress) or said.fact.step_at is None:
            return float("inf")
        finished_at = said.received_at - max(timedelta(), said.fact.at - said.fact.step_at)
        longest_s = max(longest_s, (case.stalled_since - finished_at).total_seconds())
    return longest_s if known else float("inf")


def _up_for_s(case: Case) -> float:
    """How long the job had been there, all ranks of it, when steps stopped."""
    assert case.stalled_since is not None
    known = [p.registered_at for p in case.placement.ranks.values() if p.registered_at] if case.placement else []
    return (case.stalled_since - max(known)).total_seconds() if known else float("inf")


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
    repeated: bool = False,
) -> Finding | None:
    """A finding on one device. With a stalled job, only devices that carry one of its ranks count (None otherwise), or whose
    ranks cannot be told. `repeated`: something else shows that the error goes on, however old its lines are."""
    ranks = ranks_on(case, component)
    host = host_of(component)
    if case.job is not None and case.placement is not None and not ranks:
        if host not in case.placement.hosts or component in case.topology:
            return None
        score, decisive = score * 0.6, False  # on a host of the job, but whose GPU it is cannot be told
    users = ranks or (case.placement.on_host(host or "") if case.placement is not None else ())
    left, history = (1.0, "") if repeated else survived(case, seen, users)
    score, decisive = score * left, decisive and not history
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
        because="; ".join(each for each in (because, history, words) if each),
        history=history,
        decisive=decisive and factor >= 0.9,
        hardware=True,
        action=action,
    )
