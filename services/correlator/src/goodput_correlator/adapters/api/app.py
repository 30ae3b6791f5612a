"""Puts the routers together. Needs no connection, so that the OpenAPI document can be made without a server."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import Response

from goodput_common.contracts.verdict import Verdict
from goodput_common.http.api import create_api
from goodput_common.http.auth import Auth
from goodput_common.http.problem import problem_response
from goodput_common.runtime.health import Health
from goodput_common.runtime.metrics import Metrics
from goodput_correlator.adapters.api import events, incidents, jobs, rejected, topology, verdicts
from goodput_correlator.adapters.api.context import Context
from goodput_correlator.application.ports import StoreUnavailable
from goodput_correlator.application.views import (
    EvidenceItem,
    Incident,
    IncidentDetail,
    Job,
    JobDetail,
    RejectedItem,
    Topology,
)

ROUTERS = (verdicts.router, incidents.router, jobs.router, topology.router, rejected.router, events.router)
STRUCTS = (Verdict, Incident, IncidentDetail, Job, JobDetail, EvidenceItem, Topology, RejectedItem)


def create(
    *, version: str, context: Context, feed: events.EventFeed, health: Health, auth: Auth, metrics: Metrics
) -> FastAPI:
    app = create_api(
        "goodput correlator", version, health=health, auth=auth, metrics=metrics, routers=ROUTERS, structs=STRUCTS
    )
    app.state.context = context
    events.attach(app.state, feed)
    app.add_exception_handler(StoreUnavailable, _on_store_away)
    return app


async def _on_store_away(request: Request, error: Exception) -> Response:
    return problem_response(
        request, 503, f"the database is away ({error}); try again", kind="store-away", headers={"Retry-After": "2"}
    )
