"""Server-sent events: live updates over plain HTTP. How an event looks on the wire, and the response that carries them.

What there is to tell, from where a client that comes back resumes, and who may see what are the service's: it keeps its
events in the database, so that a client can resume over a restart and on any replica. A service with streams that would
keep it from stopping appends what ends them to `app.state.on_stop`; `HttpServer` calls it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.responses import StreamingResponse

# A proxy in between must neither keep the stream nor hold it back until its buffer is full.
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def encode_event(event: str, data: Any, *, id: str = "", retry_ms: int | None = None) -> bytes:
    """Wire format. JSON has no bare line breaks, so the data is one line."""
    lines = [f"id: {_one_line(id)}"] if id else []
    lines.append(f"event: {_one_line(event)}")
    if retry_ms is not None:
        lines.append(f"retry: {retry_ms}")
    lines.append(f"data: {msgspec.json.encode(data).decode()}")
    return ("\n".join(lines) + "\n\n").encode()


def event_stream(stream: AsyncIterator[bytes]) -> StreamingResponse:
    """The response that carries what `encode_event` made, for as long as `stream` goes on."""
    return StreamingResponse(stream, media_type="text/event-stream", headers=_HEADERS)


def _one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ").replace("\0", "")
