"""One incident and its chain of plans: what each thing that happens to it changes.

An incident has one verdict (its newest version) and at most one open plan. Everything that can happen is one function here,
from (incident, what happened, context) to a `Decision`: the incident afterwards and the events to store, audit and
announce. The shell runs each under one lock and one transaction, so a crash leaves either all or nothing of it.

What a new version of the verdict does:

    state of the newest plan            the verdict now asks for            then
    none, or ended without an action    anything                            a new plan, unless refused or vetoed before
    open, nothing done yet              the same step                       noted; its confidence counts from now on
    open, nothing done yet              another step                        superseded by a new plan
    open, nothing done yet              nothing: it is resolved             superseded
    a watch under way                   nothing: it is resolved             noted; the ranks show what it was (see below)
    executing or verifying an action    anything                            noted; used if the verification fails
    recovered by an action              anything                            noted
    recovered by an action, resolved    anything: it is open again          a new plan, with a step not yet tried
    none open, the job ran to its end   anything                            noted; nothing is left to bring back

A resolved verdict is no proof that training is back: the job may have been withdrawn. Only its steps are (`progress`). A
plan whose job ended without that proof is superseded if it only watched, else failed; either way with the reason, and
nothing larger follows. Where there is no job, there are no steps: there the verdict's end is the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import msgspec

from goodput_common.contracts.recovery import PlanState
from goodput_common.contracts.verdict import ActionKind, Verdict, VerdictState
from goodput_recovery.domain.gate import Context, Go, next_step
from goodput_recovery.domain.plan import IllegalTransition, Plan, allowed_from, move, plan_id
from goodput_recovery.domain.planner import Proposal, Step, propose
from goodput_recovery.domain.progress import Outcome, Seen

SERVICE = "recovery"  # the actor of decisions that no person took


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    fabric: str
    id: str
    verdict: Verdict
    opened_at: datetime
    plans: tuple[Plan, ...] = ()

    @property
    def open_plan(self) -> Plan | None:
        return next((plan for plan in reversed(self.plans) if plan.open), None)

    @property
    def executed(self) -> tuple[Plan, ...]:
        return tuple(plan for plan in self.plans if plan.executed)

    def plan(self, plan: str) -> Plan:
        """Raises KeyError."""
        for each in self.plans:
            if each.id == plan:
                return each
        raise KeyError(plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A plan was made (`previous` is None) or changed its state."""

    plan: Plan
    previous: PlanState | None
    actor: str = SERVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """A decision that changes no state: kept in the audit log."""

    what: str
    reason: str
    plan: str | None = None
    actor: str = SERVICE


Event = Moved | Noted


@dataclass(frozen=True, slots=True)
class Decision:
    incident: Incident
    events: tuple[Event, ...] = ()

    def then(self, *others: Decision) -> Decision:
        events = list(self.events)
        for other in others:
            events.extend(other.events)
        return Decision(others[-1].incident if others else self.incident, tuple(events))


def heard(incident: Incident | None, verdict: Verdict, ctx: Context) -> Decision:
    """A version of the verdict arrived; any version, any number of times, in any order."""
    came_back = False
    if incident is None:
        incident = Incident(fabric=verdict.fabric, id=verdict.incident, verdict=verdict, opened_at=ctx.now)
    elif (verdict.version, verdict.id) <= (incident.verdict.version, incident.verdict.id):
        newest = incident.verdict.version
        return _note(incident, "verdict_stale", f"version {verdict.version} after version {newest} changes nothing")
    else:
        came_back = incident.verdict.state is VerdictState.RESOLVED  # what flaps is taken up again under its old id
        incident = replace(incident, verdict=verdict)
    if verdict.state is VerdictState.RESOLVED:
        return _resolved(incident, ctx)
    current = incident.open_plan
    if current is not None and current.executed:
        why = f"version {verdict.version} came after the action: it counts if verification fails"
        return _note(incident, "verdict_after_action", why, current)
    if not came_back and incident.executed and incident.plans[-1].state is PlanState.RECOVERED:
        return _note(incident, "verdict_after_recovery", "the incident is over, unless it comes back after it was resolved")
    if current is None and ctx.facts.finished:
        return _note(incident, "verdict_after_end", "every rank has left cleanly: nothing is left to bring back")
    return _reconsider(incident, current, ctx)


def ticked(incident: Incident, ctx: Context) -> Decision:
    """Time passed, or the world around the incident changed."""
    plan = incident.open_plan
    if plan is None:
        return Decision(incident)
    if plan.state is PlanState.VERIFYING and plan.job is None and incident.verdict.state is VerdictState.RESOLVED:
        return _move(incident, plan, PlanState.RECOVERED, ctx, f"verdict resolved: {incident.verdict.resolution}")
    step = next_step(plan, incident.verdict, ctx)
    if not isinstance(step, Go):
        return _wait(incident, plan, step.waiting)
    decision = _move(incident, plan, step.to, ctx, step.reason, **step.changes)
    if step.to is PlanState.REFUSED:
        return decision.then(_propose(decision.incident, ctx, only_person=f"refused: {step.reason}"))
    if step.anew:
        return decision.then(_propose(decision.incident, ctx))
    return decision


def approve(incident: Incident, plan_id: str, who: str, why: str, ctx: Context) -> Decision:
    """A person lets the plan go on. Doing so twice is once. Raises KeyError, IllegalTransition."""
    plan = incident.plan(plan_id)
    if plan.approved_by == who or (plan.state is PlanState.APPROVED):
        return Decision(incident)
    reason = f"approved by {who}" + (f": {why}" if why else "")
    return _move(incident, plan, PlanState.APPROVED, ctx, reason, who, approved_by=who, expires_at=_give_up(ctx))


def veto(incident: Incident, plan_id: str, who: str, why: str, ctx: Context) -> Decision:
    """A person stops the plan before anything is done. Doing so twice is once. Raises KeyError, IllegalTransition."""
    plan = incident.plan(plan_id)
    if plan.state is PlanState.VETOED:
        return Decision(incident)
    return _move(incident, plan, PlanState.VETOED, ctx, f"vetoed by {who}" + (f": {why}" if why else ""), who)


def acted(incident: Incident, plan_id: str, *, done: bool, result: str, ctx: Context) -> Decision:
    """The actuator has answered. Saying so twice is once."""
    plan = incident.plan(plan_id)
    if plan.state is not PlanState.EXECUTING:
        return Decision(incident)
    if done:
        return _move(incident, plan, PlanState.VERIFYING, ctx, result, result=result)
    decision = _move(incident, plan, PlanState.FAILED, ctx, result, result=result)
    return decision.then(_escalate(decision.incident, plan, f"{plan.action} could not be carried out", ctx))


def judged(incident: Incident, plan_id: str, seen: Seen, ctx: Context) -> Decision:
    """Verification has looked at the plan. Only a plan that is being verified can be judged."""
    plan = incident.plan(plan_id)
    if plan.state is not PlanState.VERIFYING or seen.outcome is Outcome.WAIT:
        return _wait(incident, plan, seen.text) if plan.open else Decision(incident)
    if seen.outcome is Outcome.RECOVERED:
        return _move(incident, plan, PlanState.RECOVERED, ctx, seen.text, result=seen.text)
    if seen.outcome is Outcome.ENDED:
        ended_as = PlanState.SUPERSEDED if plan.passive else PlanState.FAILED
        return _move(incident, plan, ended_as, ctx, seen.text, result=seen.text)
    decision = _move(incident, plan, PlanState.FAILED, ctx, seen.text, result=seen.text)
    only_person = ""
    if seen.outcome is Outcome.BLIND:
        only_person = "nobody reported: nothing larger is done without evidence"
    elif plan.passive:
        only_person = "steps did not resume while they were watched"
    return decision.then(_escalate(decision.incident, plan, only_person, ctx))


def _resolved(incident: Incident, ctx: Context) -> Decision:
    plan = incident.open_plan
    why = f"verdict resolved: {incident.verdict.resolution or 'no reason given'}"
    watching = plan is not None and plan.passive and plan.state is PlanState.VERIFYING
    if plan is None or plan.executed or (watching and plan.job is not None):
        return _note(incident, "verdict_resolved", why, plan)
    if watching:
        return _move(incident, plan, PlanState.RECOVERED, ctx, why, result=why)
    return _move(incident, plan, PlanState.SUPERSEDED, ctx, f"{why}, before anything was done")


def _reconsider(incident: Incident, current: Plan | None, ctx: Context) -> Decision:
    proposal = _proposal(incident, ctx)
    if current is not None and (current.action, current.target) == proposal.step:
        same = f"version {incident.verdict.version} asks for the same step (confidence {incident.verdict.confidence:.2f})"
        return _note(incident, "verdict_same_step", same, current)
    ended = next((plan for plan in reversed(incident.plans) if (plan.action, plan.target) == proposal.step), None)
    if ended is not None and ended.state in (PlanState.REFUSED, PlanState.VETOED):
        return _note(incident, "verdict_same_step", f"{proposal.action} was {ended.state} before: {ended.reason}", ended)
    if current is None:
        return _propose(incident, ctx, proposal=proposal)
    reason = f"version {incident.verdict.version} of the verdict asks for {proposal.action} of {proposal.target or 'nobody'}"
    decision = _move(incident, current, PlanState.SUPERSEDED, ctx, reason)
    return decision.then(_propose(decision.incident, ctx, proposal=proposal))


def _escalate(incident: Incident, failed: Plan, only_person: str, ctx: Context) -> Decision:
    if failed.action is ActionKind.HAND_TO_PERSON:
        return _note(incident, "ladder_ends", "a person had it for the time allowed; nothing larger is left", failed)
    if incident.verdict.state is VerdictState.RESOLVED:
        only_person = "the verdict is resolved, yet the ranks do not show it"
    return _propose(incident, ctx, only_person=only_person, escalates=failed.id)


def _proposal(incident: Incident, ctx: Context, only_person: str = "") -> Proposal:
    tried: frozenset[Step] = frozenset((plan.action, plan.target) for plan in incident.executed)
    limit = ctx.policy.actions_per_incident_max
    if not only_person and len(incident.executed) >= limit:
        only_person = f"{limit} actions did not help"
    if not only_person and len(incident.plans) >= ctx.policy.plans_per_incident_max - 1:
        only_person = f"the verdict changed its mind {len(incident.plans)} times"
    return propose(incident.verdict, ctx.facts, ctx.policy, ctx.now, tried=tried, only_person=only_person)


def _propose(
    incident: Incident, ctx: Context, *, proposal: Proposal | None = None, only_person: str = "", escalates: str = ""
) -> Decision:
    if len(incident.plans) >= ctx.policy.plans_per_incident_max:
        return _note(incident, "plans_exhausted", f"{len(incident.plans)} plans were made, which is the limit")
    proposal = proposal or _proposal(incident, ctx, only_person)
    verdict, ordinal = incident.verdict, len(incident.plans) + 1
    passive = proposal.action in (ActionKind.OBSERVE, ActionKind.HAND_TO_PERSON)
    plan = Plan(
        id=plan_id(verdict.id, ordinal),
        fabric=incident.fabric,
        incident=incident.id,
        ordinal=ordinal,
        job=verdict.job,
        verdict=verdict.id,
        verdict_version=verdict.version,
        fault_class=verdict.fault_class,
        confidence=verdict.confidence,
        action=proposal.action,
        target=proposal.target,
        host=proposal.host,
        culprit_ranks=tuple(sorted({rank for each in (verdict.culprits or (verdict.culprit,)) for rank in each.ranks})),
        actuator="none" if passive else ctx.actuator,
        passive=passive,
        state=PlanState.PROPOSED,
        why=proposal.reason,
        reason=proposal.reason,
        cost_gpu_s=proposal.cost_gpu_s,
        not_chosen=proposal.not_chosen,
        created_at=ctx.now,
        changed_at=ctx.now,
        ready_at=proposal.settled_at,
        escalates=escalates,
    )
    after = replace(incident, plans=(*incident.plans, plan))
    return Decision(after, (Moved(plan=plan, previous=None),))


def _move(
    incident: Incident, plan: Plan, to: PlanState, ctx: Context, reason: str, actor: str = SERVICE, **changes: object
) -> Decision:
    if to not in allowed_from(plan):
        raise IllegalTransition(plan, to)
    moved = move(plan, to, at=ctx.now, reason=reason, **changes)
    return Decision(_with(incident, moved), (Moved(plan=moved, previous=plan.state, actor=actor),))


def _wait(incident: Incident, plan: Plan, waiting: str) -> Decision:
    """Remember what the plan waits for; no event, because nothing was decided."""
    if plan.waiting == waiting:
        return Decision(incident)
    return Decision(_with(incident, _waiting(plan, waiting)))


def _waiting(plan: Plan, waiting: str) -> Plan:
    return msgspec.structs.replace(plan, waiting=waiting)


def _with(incident: Incident, changed: Plan) -> Incident:
    plans: Iterable[Plan] = (changed if plan.id == changed.id else plan for plan in incident.plans)
    return replace(incident, plans=tuple(plans))


def _note(incident: Incident, what: str, reason: str, plan: Plan | None = None) -> Decision:
    return Decision(incident, (Noted(what=what, reason=reason, plan=plan.id if plan else None),))


def _give_up(ctx: Context) -> datetime:
    return ctx.now + timedelta(seconds=ctx.policy.budget.wait_s_max)
