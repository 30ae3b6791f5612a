"""Puts the routers together. Needs no connection, so that the OpenAPI document can be made without a server."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import Response

from goodput_common.http.api import create_api
from goodput_common.http.auth import Auth
from goodput_common.http.problem import problem_response
from goodput_common.runtime.health import Health
from goodput_common.runtime.metrics import Metrics
from goodput_recovery.adapters.api import control, plans
from goodput_recovery.adapters.api.context import ApiContext, PlanDetail, PolicyView, Status
from goodput_recovery.application.ports import Deed, StoreUnavailable
from goodput_recovery.domain.plan import Plan

ROUTERS = (plans.router, control.router)
STRUCTS = (Plan, PlanDetail, PolicyView, Status, Deed)


def create(*, version: str, context: ApiContext, health: Health, auth: Auth, metrics: Metrics) -> FastAPI:
    app = create_api(
        "goodput recovery", version, health=health, auth=auth, metrics=metrics, routers=ROUTERS, structs=STRUCTS
    )
    app.state.recovery = context
    app.add_exception_handler(StoreUnavailable, _on_store_away)
    return app


async def _on_store_away(request: Request, error: Exception) -> Response:
    return problem_response(
        request, 503, f"the database is away ({error}); try again", kind="store-away", headers={"Retry-After": "2"}
    )
