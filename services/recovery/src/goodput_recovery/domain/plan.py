"""One plan and its life.

    proposed --> awaiting_approval --> approved --> executing --> verifying --> recovered
        |               |                 |             |             |
        +---------------+-----------------+             +-------------+-------> failed
        |
        +--> refused (budget, policy, nobody approved in time)
        +--> vetoed (a person said no)
        +--> superseded (the verdict changed or was resolved before anything was done, or the job ended)

A *passive* plan (observe, hand to a person) does nothing, so it has nothing to execute: it goes from proposed straight to
verifying, which for it means watching, and may still be superseded or vetoed there.

A plan never changes what it orders. `move` is the only way from state to state; what the table does not list is an error.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

import msgspec

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.recovery import NotChosen, PlanState, RecoveryUpdate
from goodput_common.contracts.verdict import ActionKind, FaultClass

_P = PlanState

ACTIVE: dict[PlanState, frozenset[PlanState]] = {
    _P.PROPOSED: frozenset({_P.AWAITING_APPROVAL, _P.APPROVED, _P.REFUSED, _P.VETOED, _P.SUPERSEDED}),
    _P.AWAITING_APPROVAL: frozenset({_P.APPROVED, _P.REFUSED, _P.VETOED, _P.SUPERSEDED}),
    _P.APPROVED: frozenset({_P.EXECUTING, _P.REFUSED, _P.VETOED, _P.SUPERSEDED}),
    _P.EXECUTING: frozenset({_P.VERIFYING, _P.FAILED}),
    _P.VERIFYING: frozenset({_P.RECOVERED, _P.FAILED}),
}
PASSIVE: dict[PlanState, frozenset[PlanState]] = {
    _P.PROPOSED: frozenset({_P.VERIFYING, _P.VETOED, _P.SUPERSEDED}),
    _P.VERIFYING: frozenset({_P.RECOVERED, _P.FAILED, _P.VETOED, _P.SUPERSEDED}),
}
TERMINAL = frozenset({_P.RECOVERED, _P.FAILED, _P.REFUSED, _P.VETOED, _P.SUPERSEDED})


class IllegalTransition(ValueError):
    """The plan cannot go there from where it is."""

    def __init__(self, plan: Plan, to: PlanState) -> None:
        allowed = ", ".join(sorted(allowed_from(plan))) or "nothing, it has ended"
        super().__init__(f"plan {plan.id} is {plan.state}, it cannot become {to} (possible now: {allowed})")
        self.plan = plan
        self.to = to


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done about one version of one verdict. Times are UTC; `fencing_token` is 0 until it is carried out.

    `stall_generation` and `stall_step` are where the job stood when the action was taken: what "steps move again" is
    measured against. `waiting` says in words what an open plan waits for.
    """

    id: str
    fabric: str
    incident: str
    ordinal: int
    job: str | None
    verdict: str
    verdict_version: int
    fault_class: FaultClass
    confidence: float
    action: ActionKind
    target: ComponentId | None
    host: str | None
    culprit_ranks: tuple[int, ...]
    actuator: str
    passive: bool
    why: str  # this step and no other
    state: PlanState
    reason: str  # it is in this state
    cost_gpu_s: float
    not_chosen: tuple[NotChosen, ...]
    created_at: datetime
    changed_at: datetime
    ready_at: datetime
    expires_at: datetime | None = None
    waiting: str = ""
    approved_by: str = ""  # policy, or a person
    fencing_token: int = 0
    acted_at: datetime | None = None
    verify_by: datetime | None = None
    stall_generation: int = 0
    stall_step: int | None = None
    steps_prove: bool = True  # False where the job moved all along: then the verdict must be resolved, too
    result: str = ""
    escalates: str = ""  # the plan whose failure led to this one

    @property
    def open(self) -> bool:
        return self.state not in TERMINAL

    @property
    def executed(self) -> bool:
        """Something was, or may have been, done."""
        return self.fencing_token > 0


def plan_id(verdict: str, ordinal: int) -> str:
    """The same verdict gives the same ids, however often and in whatever order its versions arrive."""
    return "plan-" + hashlib.sha256(f"{verdict}\x1f{ordinal}".encode()).hexdigest()[:20]


def allowed_from(plan: Plan) -> frozenset[PlanState]:
    return (PASSIVE if plan.passive else ACTIVE).get(plan.state, frozenset())


def move(plan: Plan, to: PlanState, *, at: datetime, reason: str, **changes: Any) -> Plan:
    """The plan in its next state. Raises IllegalTransition."""
    if to not in allowed_from(plan):
        raise IllegalTransition(plan, to)
    if to is _P.EXECUTING and not changes.get("fencing_token"):
        raise ValueError(f"plan {plan.id}: nothing is carried out without a fencing token")
    return msgspec.structs.replace(plan, state=to, changed_at=at, reason=reason, **{"waiting": "", **changes})


def update_of(plan: Plan, previous: PlanState | None) -> RecoveryUpdate:
    """What the bus is told of the state that `plan` has reached."""
    return RecoveryUpdate(
        plan=plan.id,
        fabric=plan.fabric,
        job=plan.job,
        verdict=plan.verdict,
        verdict_version=plan.verdict_version,
        fault_class=plan.fault_class,
        action=plan.action,
        target=plan.target,
        actuator=plan.actuator,
        state=plan.state,
        previous=previous,
        reason=plan.reason,
        fencing_token=plan.fencing_token,
        at=plan.changed_at,
        cost_gpu_s=plan.cost_gpu_s,
        not_chosen=plan.not_chosen,
        result=plan.result,
    )
