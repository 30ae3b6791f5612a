"""`/v1/plans`: what is planned, why, what it waits for; and a person's yes or no."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from goodput_common.contracts.recovery import PlanState
from goodput_common.http import auth
from goodput_common.http.etag import conditional
from goodput_common.http.paging import LIMIT_DEFAULT, Cursor, Limit, decode_cursor, next_cursor
from goodput_common.http.problem import Problem
from goodput_common.http.structs import StructResponse, returns
from goodput_recovery.adapters.api.context import ApiContext, InContext, PlanDetail, list_of, missing, page
from goodput_recovery.adapters.queries import PlanFilter, history_of
from goodput_recovery.application.operate import UnknownPlan
from goodput_recovery.domain.plan import IllegalTransition, Plan, allowed_from

router = APIRouter(tags=["plans"])


class Decision(BaseModel):
    """Why a person decides so; kept in the audit log."""

    reason: str = Field("", max_length=1000)


GivenReason = Annotated[Decision | None, Body(description="may be left out")]


@router.get("/v1/plans", summary="List plans, newest first", responses=list_of(Plan))
async def list_plans(
    request: Request,
    context: InContext,
    principal: auth.Tenant,
    job: str | None = None,
    incident: str | None = None,
    state: Annotated[list[PlanState] | None, Query(description="one or several")] = None,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Response:
    wanted = PlanFilter(job=job, incident=incident, states=tuple(state or ()))
    listing = f"plans {wanted}"
    before = decode_cursor(cursor, (int,), listing=listing)[0] if cursor else None
    rows = await context.queries.plans(wanted, principal.jobs, before=before, limit=limit + 1)
    shown, following = next_cursor(rows, limit, lambda row: (row.position,), listing=listing)
    return conditional(request, page([row.plan for row in shown], following))


@router.get("/v1/plans/{plan_id}", summary="One plan with its history", responses=returns(PlanDetail))
async def get_plan(request: Request, context: InContext, principal: auth.Tenant, plan_id: str) -> Response:
    plan = await context.queries.plan(plan_id)
    if plan is None or not principal.sees(plan.job):
        raise missing("plan")
    audit = await context.queries.audit(plan)
    detail = PlanDetail(
        plan=plan,
        possible=tuple(sorted(allowed_from(plan))),
        history=history_of(plan, audit),
        deed=await context.queries.deed(plan.id),
        asked=list(await context.queries.asked(plan.id)),
        audit=list(audit) if principal.jobs is None else [],
    )
    return conditional(request, detail)


@router.post(
    "/v1/plans/{plan_id}/approve",
    summary="Let a plan go on that awaits approval; doing so twice is once",
    responses=returns(Plan),
)
async def approve_plan(context: InContext, principal: auth.Operator, plan_id: str, decision: GivenReason = None) -> Response:
    return await _decide(context, plan_id, principal.name, decision, approve=True)


@router.post(
    "/v1/plans/{plan_id}/veto",
    summary="Stop a plan of which nothing has been done yet; doing so twice is once",
    responses=returns(Plan),
)
async def veto_plan(context: InContext, principal: auth.Operator, plan_id: str, decision: GivenReason = None) -> Response:
    return await _decide(context, plan_id, principal.name, decision, approve=False)


async def _decide(context: ApiContext, plan_id: str, who: str, decision: Decision | None, *, approve: bool) -> Response:
    act = context.operator.approve if approve else context.operator.veto
    try:
        return StructResponse(await act(plan_id, who, decision.reason if decision else ""))
    except UnknownPlan:
        raise missing("plan") from None
    except IllegalTransition as error:
        raise Problem(409, str(error), kind="illegal-transition", state=str(error.plan.state)) from None
