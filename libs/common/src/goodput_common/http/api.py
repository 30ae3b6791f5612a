"""The API that every service starts from: health, metrics, errors, access, and an OpenAPI document that can be committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.responses import Response

from goodput_common.http import problem
from goodput_common.http.auth import Auth
from goodput_common.http.middleware import RequestMiddleware
from goodput_common.http.structs import StructResponse, schemas
from goodput_common.runtime.health import Health
from goodput_common.runtime.metrics import Metrics

BODY_BYTES_MAX = 1 << 20


class ProblemDetails(msgspec.Struct, kw_only=True, omit_defaults=True):
    """RFC 9457, with the id under which the service's log has the request."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str = ""


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
    errors and `auth` behind `require(...)`. Bodies are at most 1 MiB. `structs` go into the OpenAPI document."""
    app = FastAPI(
        title=title,
        version=version,
        docs_url=None,  # the built-in pages load their scripts from elsewhere
        redoc_url=None,
        default_response_class=StructResponse,
        max_body_size=BODY_BYTES_MAX,
        responses={"default": _problem_in_openapi()},
    )
    app.state.auth = auth
    app.state.health = health
    app.state.sse_hubs = []
    problem.install(app)
    if cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(cors_origins), allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    app.add_middleware(RequestMiddleware, metrics=metrics)
    app.include_router(_operations(health, metrics))
    for router in routers:
        app.include_router(router)
    _describe(app, [ProblemDetails, *structs])
    return app


def _operations(health: Health, metrics: Metrics) -> APIRouter:
    router = APIRouter(tags=["operations"])

    @router.get("/healthz", summary="Is the process alive?")
    async def healthz() -> Response:
        return StructResponse({"status": "alive", "phase": health.phase})

    @router.get("/readyz", summary="May it be given work? Names what is missing")
    async def readyz() -> Response:
        report = await health.report()
        return StructResponse(report, status_code=200 if report.ready else 503, headers={"Cache-Control": "no-store"})

    @router.get("/metrics", summary="Prometheus text exposition")
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
