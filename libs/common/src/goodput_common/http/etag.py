"""Conditional requests: a dashboard that polls every second gets 304 and no body as long as nothing has changed.

A **strong** ETag promises the same bytes; a **weak** one (`W/"…"`) the same meaning, which is what a version number or a
"newest change" can promise. `If-None-Match` compares weakly (RFC 9110 13.1.2).
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response

_TAG = re.compile(r'\s*(?P<tag>(?:W/)?"[\x21\x23-\x7e\x80-\xff]*")\s*(?:,|$)')
# `private`: what a caller may see depends on its token. `no-cache`: keep it, but ask before using it.
_HEADERS = {"Cache-Control": "private, no-cache", "Vary": "Authorization"}


def weak_etag(*parts: object) -> str:
    """From what determines the meaning: ids, versions, the filters, who asks."""
    return f"W/{_quoted(msgspec.json.encode([str(part) for part in parts]))}"


def strong_etag(body: bytes) -> str:
    return _quoted(body)


def _quoted(content: bytes) -> str:
    return f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'


def parse_tags(header: str) -> tuple[str, ...]:
    """The tags of an If-None-Match header; `("*",)` for any. Junk gives no tags, hence no match."""
    if header.strip() == "*":
        return ("*",)
    tags: list[str] = []
    place = 0
    while place < len(header):
        match = _TAG.match(header, place)
        if match is None:
            return ()
        tags.append(match["tag"])
        place = match.end()
    return tuple(tags)


def not_modified(request: Request, etag: str) -> Response | None:
    """A 304 when the client has this version already, else None: check before loading the body."""
    header = request.headers.get("if-none-match")
    if header is None:
        return None
    opaque = etag.removeprefix("W/")
    if any(tag == "*" or tag.removeprefix("W/") == opaque for tag in parse_tags(header)):
        return Response(status_code=304, headers={"ETag": etag, **_HEADERS})
    return None


def tagged(response: Response, etag: str) -> Response:
    """Add the headers by which the next request can be conditional."""
    response.headers["ETag"] = etag
    for name, value in _HEADERS.items():
        response.headers[name] = value
    return response


def conditional(request: Request, content: Any, etag: str | None = None) -> Response:
    """`content` as JSON with an ETag (strong over the bytes where none is given), or 304."""
    body = msgspec.json.encode(content)
    tag = etag or strong_etag(body)
    return not_modified(request, tag) or tagged(Response(body, media_type="application/json"), tag)
