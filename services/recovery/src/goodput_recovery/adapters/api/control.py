"""`/v1/actions`, `/v1/policy`, `/v1/status`, and the switch that stops everything."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Body, Request
from starlette.responses import Response

from goodput_common.http import auth
from goodput_common.http.etag import conditional
from goodput_common.http.paging import LIMIT_DEFAULT, Cursor, Limit, decode_cursor, next_cursor
from goodput_common.http.structs import StructResponse, returns
from goodput_recovery.adapters.api.context import ApiContext, InContext, PolicyView, Status, Step, list_of, page
from goodput_recovery.adapters.api.plans import Decision
from goodput_recovery.application.ports import Deed
from goodput_recovery.domain.budget import left
from goodput_recovery.domain.ladder import LADDER, REMEDIES

router = APIRouter(tags=["actions"])
GivenReason = Annotated[Decision | None, Body(description="may be left out")]


@router.get("/v1/actions", summary="Executed actions, newest first; one row a plan", responses=list_of(Deed))
async def list_actions(
    request: Request,
    context: InContext,
    principal: auth.Tenant,
    job: str | None = None,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Response:
    listing = f"actions {job}"
    before = decode_cursor(cursor, (int,), listing=listing)[0] if cursor else None
    rows = await context.queries.deeds(job, principal.jobs, before=before, limit=limit + 1)
    shown, following = next_cursor(rows, limit, lambda row: (row.position,), listing=listing)
    return conditional(request, page([row.deed for row in shown], following))


@router.get("/v1/policy", summary="The policy, the ladder and the remedies", responses=returns(PolicyView))
async def get_policy(request: Request, context: InContext, _: auth.Viewer) -> Response:
    ladder = [
        Step(
            kind=rung.kind,
            what=rung.what,
            downtime_s=rung.downtime_s,
            blast=rung.blast,
            restore=rung.restore,
            nodes_out=rung.nodes_out,
            needs=rung.needs,
            passive=rung.passive,
            threshold=0.0 if rung.passive else context.policy.threshold_of(rung.kind),
            offered=rung.passive or rung.kind in context.offers,
        )
        for rung in LADDER.values()
    ]
    remedies = {fault_class: remedy.steps for fault_class, remedy in REMEDIES.items()}
    view = PolicyView(digest=context.policy.digest(), policy=context.policy, ladder=ladder, remedies=remedies)
    return conditional(request, view)


@router.get("/v1/status", summary="Who leads, what is paused, what budget is left", responses=returns(Status))
async def get_status(request: Request, context: InContext, _: auth.Viewer) -> Response:
    return conditional(request, await _status(context))


@router.post("/v1/pause", summary="Carry out nothing new until resumed", responses=returns(Status))
async def pause(context: InContext, principal: auth.Operator, decision: GivenReason = None) -> Response:
    await context.operator.pause(principal.name, decision.reason if decision else "", paused=True)
    return StructResponse(await _status(context))


@router.post("/v1/resume", summary="Go on after a pause", responses=returns(Status))
async def resume(context: InContext, principal: auth.Operator, decision: GivenReason = None) -> Response:
    await context.operator.pause(principal.name, decision.reason if decision else "", paused=False)
    return StructResponse(await _status(context))


async def _status(context: ApiContext) -> Status:
    control = await context.store.control()
    usage = await context.store.usage(context.contexts.usage_since())
    incidents = await context.store.open_incidents()
    states = Counter(plan.state for incident in incidents if (plan := incident.open_plan) is not None)
    return Status(
        fabric=context.fabric,
        role=context.role(),
        paused=bool(control.paused_by),
        paused_by=control.paused_by,
        paused_why=control.paused_why,
        paused_at=control.paused_at,
        last_token=control.last_token,
        hosts_known=usage.hosts_known,
        budget_left=left(usage, context.policy.budget, context.clock.now()),
        plans_open=dict(states),
    )
