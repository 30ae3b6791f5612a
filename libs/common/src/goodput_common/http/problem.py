"""Errors over HTTP: problem details (RFC 9457) for every one, whoever raised it.

A client can rely on one shape, `application/problem+json` with `type`, `title`, `status`, `detail`, `instance` and the
request's id, for a refusal by our code as much as for an unknown path, a wrong method, a parameter of the wrong type or a
crash. `detail` says what to do next. A crash tells the client nothing but the id under which the log has the traceback.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"
_NO_BODY = {204, 205, 304}
_HINTS = {
    404: "nothing is served at this path: the paths are listed in /openapi.json",
    405: "this path has other methods: see the Allow header",
    413: "send a smaller body",
}


class Problem(HTTPException):
    """Raise it anywhere below a route. `kind` becomes the problem's type (`urn:goodput:problem:<kind>`)."""

    def __init__(
        self, status: int, detail: str, *, kind: str = "", headers: Mapping[str, str] | None = None, **extra: Any
    ) -> None:
        super().__init__(status, detail, headers)
        self.kind = kind
        self.extra = extra


class FieldError(msgspec.Struct, frozen=True):
    """One wrong parameter: where (query, path, header, body), which, and what was expected there."""

    where: str
    name: str
    expected: str


def problem_response(
    request: Request,
    status: int,
    detail: str,
    *,
    kind: str = "",
    headers: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Response:
    """The response itself, for code that cannot raise."""
    if status in _NO_BODY:
        return Response(status_code=status, headers=headers)
    body: dict[str, Any] = {
        "type": f"urn:goodput:problem:{kind}" if kind else "about:blank",
        "title": _title(status),
        "status": status,
        "detail": detail,
        "instance": request.url.path,
    }
    if request_id := request.scope.get("goodput.request_id"):
        body["request_id"] = request_id
    body |= extra or {}
    return Response(msgspec.json.encode(body), status_code=status, media_type=MEDIA_TYPE, headers=headers)


def install(app: FastAPI) -> None:
    """Answer every refusal of this app with a problem. A crash is answered by `RequestMiddleware`, which also logs it."""
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)


def field_errors(error: RequestValidationError) -> tuple[FieldError, ...]:
    """What the framework found, without echoing what was sent."""
    found = []
    for each in error.errors():
        where, *path = [str(part) for part in each.get("loc", ("request",))]
        if each.get("type") == "json_invalid":
            reason = each.get("ctx", {}).get("error", "it does not parse")
            found.append(FieldError(where, "", f"valid JSON; at character {'.'.join(path)}: {reason}"))
            continue
        found.append(FieldError(where, ".".join(path), str(each.get("msg", "a valid value"))))
    return tuple(found)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = str(error.detail)
    kind, extra = (error.kind, error.extra) if isinstance(error, Problem) else ("", {})
    if detail == _title(error.status_code):
        detail = _HINTS.get(error.status_code, detail)
    return problem_response(request, error.status_code, detail, kind=kind, headers=error.headers, extra=extra)


async def _on_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = field_errors(error)
    detail = (
        "; ".join(f"{each.where} {each.name}".strip() + f": {each.expected}" for each in errors)
        or "the request is not valid"
    )
    return problem_response(request, 422, detail, kind="invalid-request", extra={"errors": errors})


def crash_response(request: Request) -> Response:
    """A crash tells the client nothing but where to look."""
    detail = "the service failed on this request; its log has the traceback under the request_id given here"
    return problem_response(request, 500, detail, kind="internal")


def stopping_response(request: Request) -> Response:
    """For a request that is still in hand when the time to finish it is over."""
    detail = "the service is stopping and could not finish this request: send it again"
    headers = {"Retry-After": "2", "Connection": "close"}
    return problem_response(request, 503, detail, kind="stopping", headers=headers)


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
