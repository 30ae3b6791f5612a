"""The gate between a plan and the world: what an open plan may do next, or what it waits for.

Pure: (plan, latest verdict, context) -> `Go` or `Stay`. Everything that can stop an action is asked here and nowhere else:
the hold that lets a quick revision win, the confidence threshold, approvals and their expiry, the global pause, the budgets
and the breaker, and whether the job got well in the meantime.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from goodput_common.contracts.recovery import PlanState
from goodput_common.contracts.verdict import ActionKind, Verdict
from goodput_recovery.domain import budget
from goodput_recovery.domain.facts import Facts
from goodput_recovery.domain.ladder import LADDER
from goodput_recovery.domain.plan import Plan
from goodput_recovery.domain.policy import Policy

BY_POLICY = "policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What is true now, besides the incident. `token` is the fencing token that the next execution would get.

    `job_recovered_at` is when another incident's plan last brought the same job back.
    """

    now: datetime
    policy: Policy
    facts: Facts
    usage: budget.Usage
    token: int
    actuator: str
    paused: str = ""  # who paused and why; empty is not paused
    job_recovered_at: datetime | None = None
    stall_generation: int = 0
    stall_step: int | None = None


@dataclass(frozen=True, slots=True)
class Go:
    to: PlanState
    reason: str
    changes: dict[str, Any] = field(default_factory=dict)
    anew: bool = False  # this plan ends, and the matter is to be planned again


@dataclass(frozen=True, slots=True)
class Stay:
    waiting: str


def next_step(plan: Plan, verdict: Verdict, ctx: Context) -> Go | Stay:
    """For plans before execution; later states are moved by what execution and verification see."""
    if plan.executed or not plan.open or (plan.passive and plan.state is not PlanState.PROPOSED):
        return Stay(plan.waiting)
    if ctx.job_recovered_at is not None and verdict.published_at <= ctx.job_recovered_at:
        return Go(PlanState.SUPERSEDED, "the job recovered after this verdict was written")
    if ctx.facts.finished:
        return Go(PlanState.SUPERSEDED, "every rank has left cleanly: nothing is left to bring back")
    if plan.state is PlanState.PROPOSED:
        return _proposed(plan, verdict, ctx)
    if plan.state is PlanState.AWAITING_APPROVAL:
        return _awaiting(plan, verdict, ctx)
    return _approved(plan, verdict, ctx)


def _proposed(plan: Plan, verdict: Verdict, ctx: Context) -> Go | Stay:
    if ctx.now < plan.ready_at:
        return Stay("held for a moment, so that a quick revision of the verdict wins")
    if plan.passive:
        return Go(PlanState.VERIFYING, plan.reason, _watching(plan, verdict, ctx))
    if (why := _needs_person(plan, verdict, ctx)) is not None:
        expires = ctx.now + timedelta(seconds=ctx.policy.approval_within_s)
        return Go(PlanState.AWAITING_APPROVAL, why, {"expires_at": expires})
    answer = budget.answer(plan.action, plan.job, plan.host, ctx.usage, ctx.policy.budget, ctx.now)
    if isinstance(answer, budget.Refuse):
        return Go(PlanState.REFUSED, answer.reason)
    threshold = ctx.policy.threshold_of(plan.action)
    return _approve(ctx, f"confidence {verdict.confidence:.2f} reaches {threshold:.2f}", BY_POLICY)


def _watching(plan: Plan, verdict: Verdict, ctx: Context) -> dict[str, Any]:
    within_s = ctx.policy.observe_s if plan.action is ActionKind.OBSERVE else ctx.policy.person_within_s
    return {
        "verify_by": ctx.now + timedelta(seconds=within_s),
        "stall_generation": max(ctx.stall_generation, verdict.generation),
        "stall_step": ctx.stall_step,
        "steps_prove": ctx.facts.moving is not True,
    }


def _awaiting(plan: Plan, verdict: Verdict, ctx: Context) -> Go | Stay:
    why = _needs_person(plan, verdict, ctx)
    if why is None:
        return _approve(ctx, f"confidence rose to {verdict.confidence:.2f}", BY_POLICY)
    if plan.expires_at is not None and ctx.now >= plan.expires_at:
        return Go(PlanState.REFUSED, f"nobody approved it within {ctx.policy.approval_within_s:.0f} s ({why})")
    return Stay(f"awaits approval: {why}")


def _approved(plan: Plan, verdict: Verdict, ctx: Context) -> Go | Stay:
    expired = plan.expires_at is not None and ctx.now >= plan.expires_at
    if ctx.paused:
        paused = f"recovery is paused {ctx.paused}"
        return _in_vain(ctx, paused) if expired else Stay(paused)
    if plan.approved_by == BY_POLICY and (why := _needs_person(plan, verdict, ctx)) is not None:
        return Go(PlanState.SUPERSEDED, f"the verdict lost its certainty: {why}", anew=True)
    answer = budget.answer(plan.action, plan.job, plan.host, ctx.usage, ctx.policy.budget, ctx.now)
    if isinstance(answer, budget.Refuse):
        return Go(PlanState.REFUSED, answer.reason)
    if isinstance(answer, budget.Wait):
        return _in_vain(ctx, answer.reason) if expired else Stay(answer.reason)
    if expired:  # the pause or the budget let go too late, or nobody led for so long: what was true then may not be now
        return _in_vain(ctx, "its approval has run out")
    downtime_s = LADDER[plan.action].downtime_s * ctx.policy.prices.downtime_scale
    changes = {
        "fencing_token": ctx.token,
        "acted_at": ctx.now,
        "verify_by": ctx.now + timedelta(seconds=ctx.policy.verify_within_s + downtime_s),
        "stall_generation": max(ctx.stall_generation, verdict.generation),
        "stall_step": ctx.stall_step,
        "expires_at": None,
    }
    return Go(PlanState.EXECUTING, f"carried out under token {ctx.token}; {answer.left}", changes)


def _in_vain(ctx: Context, why: str) -> Go:
    return Go(PlanState.REFUSED, f"waited {ctx.policy.budget.wait_s_max:.0f} s in vain: {why}")


def _needs_person(plan: Plan, verdict: Verdict, ctx: Context) -> str | None:
    threshold = ctx.policy.threshold_of(plan.action)
    if plan.action in ctx.policy.always_ask:
        return f"policy: {plan.action} always asks a person"
    if verdict.confidence < threshold:
        return f"confidence {verdict.confidence:.2f} is below {threshold:.2f}, which {plan.action} asks for"
    return None


def _approve(ctx: Context, reason: str, by: str) -> Go:
    expires = ctx.now + timedelta(seconds=ctx.policy.budget.wait_s_max)
    return Go(PlanState.APPROVED, reason, {"approved_by": by, "expires_at": expires})
