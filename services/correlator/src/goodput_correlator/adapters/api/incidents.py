"""`/v1/incidents`: one a fault, with its verdict and the evidence that it rests on. `/v1/evidence`: one fact."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from msgspec.structs import replace
from starlette.responses import Response

from goodput_common.contracts.verdict import FaultClass
from goodput_common.http.auth import Tenant
from goodput_common.http.etag import conditional
from goodput_common.http.paging import LIMIT_DEFAULT, Cursor, Limit, decode_cursor, next_cursor
from goodput_common.http.structs import returns
from goodput_correlator.adapters.api.context import InContext, Since, Until, evidence_item, instant, list_of, missing, page
from goodput_correlator.adapters.queries import IncidentFilter, verdict_of
from goodput_correlator.application import facts
from goodput_correlator.application.views import EvidenceItem, Incident, IncidentDetail, IncidentState
from goodput_correlator.application.visibility import Sight

router = APIRouter(tags=["incidents"])


def incident_for(sight: Sight, incident: Incident) -> Incident:
    return incident if sight.sees(incident.component) else replace(incident, component=None)


@router.get("/v1/incidents", summary="List incidents, newest first", responses=list_of(Incident))
async def list_incidents(
    request: Request,
    context: InContext,
    principal: Tenant,
    state: IncidentState | None = None,
    job: Annotated[str | None, Query(description="that stands still, or is touched")] = None,
    fault_class: FaultClass | None = None,
    component: Annotated[str | None, Query(description="that the newest version blames")] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Response:
    """`since` and `until` are about the moment at which the incident opened. The order is that of opening, which no later
    version changes."""
    wanted = IncidentFilter(
        state=state.value if state else None,
        job=job,
        fault_class=fault_class.value if fault_class else None,
        component=component,
        since=instant(since),
        until=instant(until),
    )
    sight = await context.sight(principal)
    if (job is not None and not sight.sees_job(job)) or not sight.sees(component):
        return conditional(request, page([], None))  # a filter must not answer what the incident itself would not tell
    listing = f"incidents {wanted}"
    before = decode_cursor(cursor, (int,), listing=listing)[0] if cursor else None
    rows = await context.queries.incidents(wanted, principal.jobs, before=before, limit=limit + 1)
    shown, following = next_cursor(rows, limit, lambda row: (row[0],), listing=listing)
    return conditional(request, page([incident_for(sight, incident) for _, incident in shown], following))


@router.get(
    "/v1/incidents/{incident_id}",
    summary="One incident with its verdict and all evidence cited",
    responses=returns(IncidentDetail),
)
async def get_incident(request: Request, context: InContext, principal: Tenant, incident_id: str) -> Response:
    incident = await context.queries.incident(incident_id, principal.jobs)
    versions = await context.queries.versions(incident.verdict, principal.jobs) if incident else []
    if incident is None or not versions:
        raise missing("incident")
    sight = await context.sight(principal)
    cited = await context.queries.cited(incident.verdict)
    detail = IncidentDetail(
        incident=incident_for(sight, incident),
        verdict=sight.verdict(verdict_of(versions[-1])),
        evidence=tuple(evidence_item(each, sight) for each in cited if sight.sees(facts.component_of(each.fact))),
    )
    return conditional(request, detail)


@router.get("/v1/evidence/{event_id:path}", summary="One fact, as it was received", responses=returns(EvidenceItem))
async def get_evidence(request: Request, context: InContext, principal: Tenant, event_id: str) -> Response:
    """A tenant sees what its own ranks said, and what a verdict about its jobs rests on."""
    seen = await context.queries.evidence(event_id)
    if seen is None:
        raise missing("evidence")
    sight = await context.sight(principal)
    if principal.jobs is not None and not sight.sees_job(seen.job):
        cited = seen.job is None and await context.queries.cites(event_id, principal.jobs)
        if not cited or not sight.sees(facts.component_of(seen.fact)):
            raise missing("evidence")
    return conditional(request, evidence_item(seen, sight))
