"""The API that every service starts from: health, metrics, errors, access, and an OpenAPI document that can be committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse, Response

from goodput_common.http import problem
from goodput_common.http.auth import Auth, Role, require
from goodput_common.http.middleware import BodyLimitMiddleware, RequestMiddleware
from goodput_common.http.structs import StructResponse, returns, schemas
from goodput_common.runtime.health import Health, HealthReport
from goodput_common.runtime.metrics import Metrics


class ProblemDetails(msgspec.Struct, kw_only=True, omit_defaults=True):
    """RFC 9457, with the id under which the service's log has the request."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str = ""


class Alive(msgspec.Struct):
    """`phase` is starting, ready or stopping."""

    status: str
    phase: str


def create_api(
    title: str,
    version: str,
    *,
    health: Health,
    auth: Auth,
    metrics: Metrics,
    routers: Sequence[APIRouter] = (),
    structs: Sequence[Any] = (),
    cors_origins: Sequence[str] = (),
) -> FastAPI:
    """An app with `/healthz`, `/readyz` and `/metrics` (no token needed: they tell nothing about jobs), problem+json for all
    errors and `auth` behind `require(...)`. Every route of `routers` needs a valid token, also one that asks for no role.
    Bodies are at most 1 MiB. `structs` go into the OpenAPI document."""
    app = FastAPI(
        title=title,
        version=version,
        docs_url=None,  # the built-in pages load their scripts from elsewhere
        redoc_url=None,
        default_response_class=StructResponse,
        responses={"default": _problem_in_openapi()},
    )
    app.state.auth = auth
    app.state.health = health
    app.state.on_stop = []
    problem.install(app)
    if cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(cors_origins), allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    app.add_middleware(BodyLimitMiddleware)
    app.add_middleware(RequestMiddleware, metrics=metrics)
    app.include_router(_operations(health, metrics))
    for router in routers:
        app.include_router(router, dependencies=[Depends(require(Role.TENANT))])
    _describe(app, [ProblemDetails, HealthReport, Alive, *structs])
    return app


def _operations(health: Health, metrics: Metrics) -> APIRouter:
    router = APIRouter(tags=["operations"])

    @router.get("/healthz", summary="Is the process alive?", responses=returns(Alive))
    async def healthz() -> Response:
        return StructResponse(Alive("alive", health.phase))

    @router.get("/readyz", summary="May it be given work? 503 names what is missing", responses=returns(HealthReport))
    async def readyz(request: Request) -> Response:
        report = await health.report()
        headers = {"Cache-Control": "no-store"}
        if not report.ready:
            extra = {"checks": report.checks}
            return problem.problem_response(request, 503, report.reason, kind="not-ready", headers=headers, extra=extra)
        return StructResponse(report, headers=headers)

    @router.get("/metrics", summary="Prometheus text exposition", response_class=PlainTextResponse)
    async def exposition() -> Response:
        body, content_type = metrics.render()
        return Response(body, media_type=content_type)

    return router


def _problem_in_openapi() -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/ProblemDetails"}
    return {"description": "What went wrong", "content": {problem.MEDIA_TYPE: {"schema": schema}}}


def _describe(app: FastAPI, structs: Sequence[Any]) -> None:
    """Put the structs' schemas into the OpenAPI document, and take out the framework's own error shape, which is never
    sent."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        components = document.setdefault("components", {}).setdefault("schemas", {})
        components.update(schemas(structs))
        for unused in ("HTTPValidationError", "ValidationError"):
            components.pop(unused, None)
        for path in document.get("paths", {}).values():
            for operation in path.values():
                operation.get("responses", {}).pop("422", None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
