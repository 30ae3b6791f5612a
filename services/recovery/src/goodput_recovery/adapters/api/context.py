"""What every route needs, and the shapes that lists and details have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Request

from goodput_common.contracts.recovery import PlanState
from goodput_common.contracts.verdict import ActionKind, FaultClass
from goodput_common.http.problem import Problem
from goodput_common.runtime.clock import Clock
from goodput_recovery.adapters.queries import AuditEntry, Change, Queries
from goodput_recovery.application.context import Contexts
from goodput_recovery.application.operate import Operator
from goodput_recovery.application.ports import Asked, Deed, Store
from goodput_recovery.domain.budget import Left
from goodput_recovery.domain.ladder import Blast, Need, Restore
from goodput_recovery.domain.plan import Plan
from goodput_recovery.domain.policy import Policy


@dataclass(frozen=True)
class ApiContext:
    """`role` says whether this replica leads the fabric now."""

    queries: Queries
    store: Store
    contexts: Contexts
    operator: Operator
    clock: Clock
    fabric: str
    policy: Policy
    offers: frozenset[ActionKind]
    role: Callable[[], str]


class PlanDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One plan and all that is known of it. `possible` are the states that it can still reach; `deed` is the record of its
    execution; `audit` holds every decision about its incident, with its inputs (not for tenants)."""

    plan: Plan
    possible: tuple[PlanState, ...]
    history: list[Change]
    deed: Deed | None
    asked: list[Asked]
    audit: list[AuditEntry]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A rung of the ladder."""

    kind: ActionKind
    what: str
    downtime_s: float
    blast: Blast
    restore: Restore
    nodes_out: int
    needs: tuple[Need, ...]
    passive: bool
    threshold: float
    offered: bool


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """The policy in force, the ladder, and for each fault class the steps that cure it, smallest first."""

    digest: str
    policy: Policy
    ladder: list[Step]
    remedies: dict[FaultClass, tuple[ActionKind, ...]]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The fabric as recovery sees it now. `role` is that of the replica that answers."""

    fabric: str
    role: str
    paused: bool
    paused_by: str
    paused_why: str
    paused_at: datetime | None
    last_token: int
    hosts_known: int | None
    budget_left: Left
    plans_open: dict[PlanState, int]


def context_of(request: Request) -> ApiContext:
    context: ApiContext = request.app.state.recovery
    return context


InContext = Annotated[ApiContext, Depends(context_of)]


def missing(what: str) -> Problem:
    """The answer for what does not exist and for what the caller may not know to exist."""
    return Problem(404, f"no such {what}", kind="not-found")


def page(items: Any, following: str | None) -> dict[str, Any]:
    """The shape of every list."""
    return {"items": items, "next": following}


def list_of(struct: type) -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`: a page of these."""
    items = {"type": "array", "items": {"$ref": f"#/components/schemas/{struct.__name__}"}}
    following = {"type": ["string", "null"], "description": "cursor of the next page, null on the last"}
    shape = {"type": "object", "required": ["items", "next"], "properties": {"items": items, "next": following}}
    return {200: {"description": "A page", "content": {"application/json": {"schema": shape}}}}
