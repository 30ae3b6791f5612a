"""`/v1/verdicts`: the newest version of each verdict, or all versions, newest first.

The pages of one walk show what was newest when it began: a verdict that gets another version meanwhile is neither left out
nor shown twice.

Whoever sees everything gets the very bytes that went to the bus.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from goodput_common.contracts.verdict import FaultClass, Verdict, VerdictState
from goodput_common.http.auth import Tenant
from goodput_common.http.etag import conditional
from goodput_common.http.paging import LIMIT_DEFAULT, Cursor, Limit, decode_cursor, next_cursor
from goodput_common.http.structs import returns
from goodput_correlator.adapters.api.context import InContext, Since, Until, instant, list_of, missing, page
from goodput_correlator.adapters.queries import VerdictFilter, verdict_of
from goodput_correlator.application.visibility import Sight

router = APIRouter(tags=["verdicts"])


@router.get("/v1/verdicts", summary="List verdicts, newest first", responses=list_of(Verdict))
async def list_verdicts(
    request: Request,
    context: InContext,
    principal: Tenant,
    job: Annotated[str | None, Query(description="that stands still, or is touched")] = None,
    host: Annotated[str | None, Query(description="that carries a culprit")] = None,
    fault_class: FaultClass | None = None,
    state: VerdictState | None = None,
    component: Annotated[str | None, Query(description="that is a culprit")] = None,
    since: Since = None,
    until: Until = None,
    all_versions: Annotated[bool, Query(description="every version, not only the newest of each verdict")] = False,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Response:
    """`since` and `until` are about the publication."""
    wanted = VerdictFilter(
        job=job,
        host=host,
        fault_class=fault_class.value if fault_class else None,
        state=state.value if state else None,
        component=component,
        since=instant(since),
        until=instant(until),
        all_versions=all_versions,
    )
    sight = await context.sight(principal)
    if not _may_ask(sight, wanted):
        return conditional(request, page([], None))
    listing = f"verdicts {wanted}"
    before, as_of = decode_cursor(cursor, (int, int), listing=listing) if cursor else (None, None)
    rows, as_of = await context.queries.verdicts(wanted, principal.jobs, before=before, as_of=as_of, limit=limit + 1)
    shown, following = next_cursor(rows, limit, lambda row: (row.position, as_of), listing=listing)
    return conditional(request, page([shown_to(sight, row.body) for row in shown], following))


def _may_ask(sight: Sight, wanted: VerdictFilter) -> bool:
    """A filter must not answer what the verdict itself would not tell."""
    if sight.jobs is None:
        return True
    return (
        (wanted.job is None or sight.sees_job(wanted.job))
        and (wanted.host is None or wanted.host in sight.hosts)
        and (wanted.component is None or sight.sees(wanted.component))
    )


def shown_to(sight: Sight, body: bytes) -> msgspec.Raw:
    """A verdict's JSON as the caller may read it."""
    return msgspec.Raw(body if sight.jobs is None else msgspec.json.encode(sight.verdict(verdict_of(body))))


@router.get("/v1/verdicts/{verdict_id}", summary="The newest version of one verdict", responses=returns(Verdict))
async def get_verdict(request: Request, context: InContext, principal: Tenant, verdict_id: str) -> Response:
    versions = await context.queries.versions(verdict_id, principal.jobs)
    if not versions:
        raise missing("verdict")
    return conditional(request, shown_to(await context.sight(principal), versions[-1]))


@router.get("/v1/verdicts/{verdict_id}/versions", summary="All versions, oldest first", responses=list_of(Verdict))
async def get_versions(request: Request, context: InContext, principal: Tenant, verdict_id: str) -> Response:
    versions = await context.queries.versions(verdict_id, principal.jobs)
    if not versions:
        raise missing("verdict")
    sight = await context.sight(principal)
    return conditional(request, page([shown_to(sight, body) for body in versions], None))
