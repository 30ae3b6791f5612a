"""The planner: (verdict, facts, policy) -> the smallest safe step, its price, and why not the next cheaper one.

It walks the fault class's remedy from its smallest step and takes the first whose needs all hold. Everything cheaper on the
ladder is accounted for: either it is no remedy for this class, or a need of it does not hold, or it was tried and failed.
Whether the step may be *carried out* (confidence, approval, budget) is decided later, by `gate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from goodput_common.contracts.ids import ComponentId, host_id, job_id, rank_id
from goodput_common.contracts.recovery import NotChosen
from goodput_common.contracts.verdict import ActionKind, FaultClass, Trouble, Verdict
from goodput_recovery.domain.facts import Facts, host_of_culprit, judge, ranks_of
from goodput_recovery.domain.ladder import LADDER, ORDER, REMEDIES, STOPPED, Restore, Rung
from goodput_recovery.domain.policy import Policy

Step = tuple[ActionKind, ComponentId | None]

_ON_HOST = frozenset(
    {ActionKind.SWAP_NODE, ActionKind.DRAIN_AND_RESUME, ActionKind.CORDON_AT_CHECKPOINT},
)
_ON_JOB = frozenset({ActionKind.RESTART_JOB, ActionKind.OBSERVE, ActionKind.HAND_TO_PERSON})


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What to do about a verdict."""

    action: ActionKind
    target: ComponentId | None
    host: str | None
    cost_gpu_s: float
    reason: str
    not_chosen: tuple[NotChosen, ...]
    settled_at: datetime  # nothing is done before

    @property
    def step(self) -> Step:
        return (self.action, self.target)


def propose(
    verdict: Verdict,
    facts: Facts,
    policy: Policy,
    now: datetime,
    *,
    tried: frozenset[Step] = frozenset(),
    only_person: str = "",
) -> Proposal:
    """`tried` are steps that were carried out and did not help: they, and what is smaller on the same target, are out.
    `only_person` is a reason why nothing but a person is left."""
    steps, smaller_fails = _remedy(verdict, policy)
    not_chosen: list[NotChosen] = []
    for kind, rung in LADDER.items():
        why = only_person if only_person and not rung.passive else ""
        if not why and kind not in steps:
            why = f"no remedy for {verdict.fault_class}: {smaller_fails}" if smaller_fails else "nothing to act on"
        if not why:
            why = _tried(kind, verdict, tried) or _unmet(rung, verdict, facts)
        if only_person and kind is ActionKind.OBSERVE:
            why = why or only_person
        if not why or kind is ActionKind.HAND_TO_PERSON:
            return _proposal(rung, verdict, facts, policy, now, tuple(not_chosen), only_person)
        not_chosen.append(NotChosen(kind=kind, why=why))
    raise AssertionError("unreachable: the ladder ends with a person")


def price(rung: Rung, verdict: Verdict, facts: Facts, policy: Policy) -> float:
    """Lost GPU-seconds. A synchronous job waits as a whole, so downtime and work done twice count for every GPU of it."""
    prices = policy.prices
    gpus = facts.world_size or len(verdict.affected.ranks) or 1
    if rung.kind is ActionKind.OBSERVE:
        return 0.0 if facts.moving else gpus * policy.observe_s
    if rung.kind is ActionKind.HAND_TO_PERSON:
        return 0.0 if facts.moving else gpus * prices.person_s
    twice = {
        Restore.NONE: 0.0,
        Restore.BOUNDARY: 0.0,
        Restore.PEER: prices.peer_interval_s / 2,
        Restore.CHECKPOINT: prices.checkpoint_interval_s / 2,
    }[rung.restore]
    unreplaced = 0 if rung.kind is ActionKind.SWAP_NODE else rung.nodes_out
    return gpus * (rung.downtime_s * prices.downtime_scale + twice) + unreplaced * prices.gpus_per_host * prices.repair_s


def target_of(kind: ActionKind, verdict: Verdict) -> ComponentId | None:
    """What the action is done to."""
    if kind in _ON_HOST:
        host = host_of_culprit(verdict.culprit)
        return host_id(host) if host else None
    if kind in _ON_JOB:
        return job_id(verdict.job) if verdict.job else verdict.culprit.component
    if kind is ActionKind.RESTART_RANK and verdict.job and (ranks := ranks_of(verdict)):
        return rank_id(verdict.job, ranks[0])
    return verdict.culprit.component


def _remedy(verdict: Verdict, policy: Policy) -> tuple[tuple[ActionKind, ...], str]:
    stopped = verdict.fault_class is FaultClass.STRAGGLER and verdict.trouble is Trouble.STALLED
    remedy = STOPPED if stopped else REMEDIES[verdict.fault_class]
    doubtful = verdict.confidence < policy.act_floor
    nobody = verdict.culprit.component is None and verdict.culprit.host is None and not ranks_of(verdict)
    if doubtful or nobody:
        remedy = REMEDIES[FaultClass.UNDETERMINED]
        why = (
            f"confidence {verdict.confidence:.2f} is below {policy.act_floor:.2f}, from which any action is considered"
            if doubtful
            else "the verdict names no culprit"
        )
        return remedy.steps, why
    return remedy.steps, remedy.smaller_fails


def _tried(kind: ActionKind, verdict: Verdict, tried: frozenset[Step]) -> str:
    target = target_of(kind, verdict)
    if (kind, target) in tried:
        return "tried, and steps did not resume"
    larger = [
        done for done, on in tried if ORDER[done] > ORDER[kind] and not LADDER[done].passive and _same(on, target, verdict)
    ]
    return f"{larger[0]} was tried already, and that is the larger step" if larger else ""


def _same(tried_on: ComponentId | None, target: ComponentId | None, verdict: Verdict) -> bool:
    """Whether two targets are the same matter: the same thing, or both belong to the culprit of this verdict."""
    if tried_on == target:
        return True
    own = {target_of(kind, verdict) for kind in LADDER}
    return tried_on in own


def _unmet(rung: Rung, verdict: Verdict, facts: Facts) -> str:
    for need in rung.needs:
        judged = judge(need, rung.kind, verdict, facts)
        if not judged.holds:
            return judged.why
    return ""


def _proposal(
    rung: Rung,
    verdict: Verdict,
    facts: Facts,
    policy: Policy,
    now: datetime,
    not_chosen: tuple[NotChosen, ...],
    only_person: str,
) -> Proposal:
    cost = price(rung, verdict, facts, policy)
    why = only_person if only_person and rung.kind is ActionKind.HAND_TO_PERSON else _reason(rung, verdict, cost)
    if not_chosen:
        why += f". Not {not_chosen[-1].kind}: {not_chosen[-1].why}"
    settled = now + timedelta(seconds=policy.settle_s)
    if verdict.fault_class is FaultClass.LINK_FLAP and rung.nodes_out:
        # The smaller step opens as soon as the link is back: worth a moment before a node goes.
        settled = max(settled, verdict.first_evidence_at + timedelta(seconds=policy.link_wait_s))
        settled = min(settled, now + timedelta(seconds=max(policy.settle_s, policy.link_wait_s)))
    return Proposal(
        action=rung.kind,
        target=target_of(rung.kind, verdict),
        host=host_of_culprit(verdict.culprit),
        cost_gpu_s=round(cost, 1),
        reason=why,
        not_chosen=not_chosen,
        settled_at=settled,
    )


def _reason(rung: Rung, verdict: Verdict, cost: float) -> str:
    culprit = verdict.culprit.component or "nobody"
    return (
        f"{verdict.fault_class} of {culprit} (confidence {verdict.confidence:.2f}): {rung.what}, "
        f"about {cost:.0f} GPU-seconds, disturbs {rung.blast}"
    )
