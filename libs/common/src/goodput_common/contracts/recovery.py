"""What recovery announces, and what it asks of the agents.

A plan is immutable and carries the fencing token under which it may be carried out: an executor refuses a token lower than
one that it has seen for the same job.
"""

from __future__ import annotations

import enum
from datetime import datetime

import msgspec

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.verdict import ActionKind, FaultClass


class PlanState(enum.StrEnum):
    """See `goodput_recovery.domain.plan` for the transitions."""

    PROPOSED = "proposed"
    AWAITING_APPROVAL = "awaiting_approval"
    APPROVED = "approved"
    EXECUTING = "executing"
    VERIFYING = "verifying"
    RECOVERED = "recovered"
    FAILED = "failed"
    REFUSED = "refused"  # by budget or policy; `reason` says which
    VETOED = "vetoed"
    SUPERSEDED = "superseded"  # nothing had been done: a later verdict asks for something else, or the job ended


class NotChosen(msgspec.Struct, frozen=True, kw_only=True):
    """Why a cheaper step was passed over."""

    kind: ActionKind
    why: str


class RecoveryUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """One change of state of one plan. (`plan`, `state`) is announced once, however often it is sent."""

    plan: str
    fabric: str
    job: str | None
    verdict: str
    verdict_version: int
    fault_class: FaultClass
    action: ActionKind
    target: ComponentId | None
    actuator: str
    state: PlanState
    previous: PlanState | None
    reason: str
    fencing_token: int
    at: datetime
    cost_gpu_s: float = 0.0
    not_chosen: tuple[NotChosen, ...] = ()
    result: str = ""


class AgentCommandKind(enum.StrEnum):
    DUMP = "dump"
    PAUSE = "pause"  # at the next step boundary
    RESUME = "resume"


class AgentCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Request to one rank. `id` makes it idempotent; a `fencing_token` below one already seen is refused."""

    id: str
    kind: AgentCommandKind
    fabric: str
    job: str
    rank: int
    fencing_token: int
    reason: str = ""
    expires_at: datetime | None = None


class AgentReplyStatus(enum.StrEnum):
    DONE = "done"
    ACCEPTED = "accepted"  # takes effect at the next step boundary
    REFUSED = "refused"


class AgentReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    status: AgentReplyStatus
    rank: int
    at: datetime
    reason: str = ""
    step: int = -1
