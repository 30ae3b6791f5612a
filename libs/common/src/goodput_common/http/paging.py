"""Cursor paging: a page says where the next one begins, so that rows which come or go in between shift nothing.

A cursor is opaque to clients: base64 of the sort key of the last row, with a mark of the listing that it belongs to. It
is not signed, because it grants nothing: it only says from where to read what the caller may read anyway.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from fastapi import Query

from goodput_common.http.problem import Problem

LIMIT_DEFAULT = 50
LIMIT_MAX = 500
_CURSOR_CHARS_MAX = 1024

Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="items a page")]
Cursor = Annotated[str | None, Query(description="`next` of the page before; leave out for the first page")]


class BadCursor(Problem):
    """400, naming the cursor."""

    def __init__(self, cursor: str, why: str) -> None:
        shown = cursor if len(cursor) <= 64 else f"{cursor[:64]}…"
        super().__init__(400, f"cursor {shown!r}: {why}; start again without it", kind="bad-cursor", cursor=shown)


def encode_cursor(key: Sequence[Any], *, listing: str = "") -> str:
    """`key` is the sort key of the last row (strings, numbers, datetimes); `listing` names what is listed and its
    filters, so that a cursor of one listing is refused by another."""
    body = msgspec.json.encode([_mark(listing), *key])
    return base64.urlsafe_b64encode(body).rstrip(b"=").decode()


def decode_cursor(cursor: str, types: Sequence[type], *, listing: str = "") -> tuple[Any, ...]:
    """The key back, each part of the type given. Raises BadCursor."""
    if len(cursor) > _CURSOR_CHARS_MAX:
        raise BadCursor(cursor, "is longer than any that was given out")
    try:
        body = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        parts = msgspec.json.decode(body, type=list[Any])
        mark, *key = parts
        if mark != _mark(listing):
            raise BadCursor(cursor, "belongs to another listing or other filters")
        if len(key) != len(types):
            raise BadCursor(cursor, "is not one that was given out")
        return tuple(msgspec.convert(part, type=kind) for part, kind in zip(key, types, strict=True))
    except (binascii.Error, ValueError, msgspec.MsgspecError, UnicodeError) as error:
        raise BadCursor(cursor, "is not one that was given out") from error


def next_cursor(rows: Sequence[Any], limit: int, key: Any, *, listing: str = "") -> tuple[Sequence[Any], str | None]:
    """For a query that asked for `limit` + 1 rows: the page, and the cursor when there is more. `key(row)` is its sort
    key."""
    if len(rows) <= limit:
        return rows, None
    page = rows[:limit]
    return page, encode_cursor(key(page[-1]), listing=listing)


def _mark(listing: str) -> str:
    return hashlib.blake2b(listing.encode(), digest_size=4).hexdigest()
