"""What happens to every request around its route: an id, a place in the metrics, a bound on its body, an answer to a crash.

Pure ASGI, so that streams are not buffered.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from typing import Any

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from goodput_common.http.problem import Problem, crash_response, stopping_response
from goodput_common.runtime.logs import get_logger
from goodput_common.runtime.metrics import Metrics

_log = get_logger(__name__)
BODY_BYTES_MAX = 1 << 20
_REQUEST_ID = re.compile(rb"^[A-Za-z0-9._-]{1,64}$")


class RequestMiddleware:
    """Keeps a well-formed `X-Request-Id` or makes one, returns it, binds it to the log lines of the request, and measures by
    route template (never by path: a path holds ids). A crash below it is logged with its traceback and answered with 500."""

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
        started = False

        async def observed_send(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
                self._seconds.labels(_method(scope), _route(scope), message["status"]).observe(time.monotonic() - began_s)
            await send(message)

        self._open.inc()
        try:
            with structlog.contextvars.bound_contextvars(request_id=request_id):
                try:
                    await self._app(scope, receive, observed_send)
                except ClientDisconnect:
                    _log.debug("client went away", route=_route(scope))
                except asyncio.CancelledError:
                    if started or not _stopping(scope):
                        raise
                    _log.warning("request cut short: the service is stopping", method=_method(scope), route=_route(scope))
                    await stopping_response(Request(scope))(scope, receive, observed_send)
                except Exception:
                    _log.exception("request crashed", method=_method(scope), route=_route(scope), answered=started)
                    if started:
                        raise  # the server cuts the connection: half an answer must not look whole
                    await crash_response(Request(scope))(scope, receive, observed_send)
        finally:
            self._open.dec()


class BodyLimitMiddleware:
    """Refuses a body over `bytes_max`, announced or found while reading. (FastAPI's own limit answers in plain text.)"""

    def __init__(self, app: ASGIApp, *, bytes_max: int = BODY_BYTES_MAX) -> None:
        self._app, self._bytes_max = app, bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        too_large = Problem(413, f"a body may have {self._bytes_max} bytes: send less", kind="too-large")
        left = self._bytes_max

        async def bounded_receive() -> Message:
            nonlocal left
            if announced.isdigit() and int(announced) > self._bytes_max:
                raise too_large
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise too_large
            return message

        await self._app(scope, bounded_receive, send)


def _stopping(scope: Scope) -> bool:
    return bool(getattr(scope["app"].state, "stopping", False))


def _method(scope: Scope) -> str:
    method = str(scope["method"])
    return method if method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} else "other"


def _route(scope: Scope) -> str:
    route: Any = scope.get("route")
    return str(getattr(route, "path", "")) or "none"
