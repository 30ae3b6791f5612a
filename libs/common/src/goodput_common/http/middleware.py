"""What happens to every request around its route: an id, a place in the metrics, and an end to oversized log noise.

Pure ASGI, so that streams are not buffered.
"""

from __future__ import annotations

import re
import time
import uuid
from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from goodput_common.runtime.metrics import Metrics

_REQUEST_ID = re.compile(rb"^[A-Za-z0-9._-]{1,64}$")


class RequestMiddleware:
    """Keeps a well-formed `X-Request-Id` or makes one, returns it, binds it to the log lines of the request, and measures by
    route template (never by path: a path holds ids)."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._seconds = metrics.histogram(
            "http_request_seconds", "Time to the first byte of the answer", ["method", "route", "status"]
        )
        self._open = metrics.gauge("http_requests_open", "Requests being answered, streams included")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given.decode() if _REQUEST_ID.match(given) else uuid.uuid4().hex
        scope["goodput.request_id"] = request_id
        began_s = time.monotonic()

        async def observed_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
                self._seconds.labels(_method(scope), _route(scope), message["status"]).observe(time.monotonic() - began_s)
            await send(message)

        self._open.inc()
        try:
            with structlog.contextvars.bound_contextvars(request_id=request_id):
                await self._app(scope, receive, observed_send)
        finally:
            self._open.dec()


def _method(scope: Scope) -> str:
    method = str(scope["method"])
    return method if method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} else "other"


def _route(scope: Scope) -> str:
    route: Any = scope.get("route")
    return str(getattr(route, "path", "")) or "none"
