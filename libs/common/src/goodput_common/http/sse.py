"""Server-sent events: live updates over plain HTTP, resumable after a lost connection.

A `SseHub` keeps the newest `history` events and hands every new one to each client's own queue. A client that comes back
with `Last-Event-ID` gets what it missed; where that is no longer known, it gets one `reset` event that tells it to read
the listing again, never a silent gap. A client too slow for its queue of `queue_max` is dropped with a `dropped` event
saying so; it may come back and resume. At the end of the service every stream ends with a `closing` event.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from starlette.responses import StreamingResponse

from goodput_common.http.problem import Problem

_RETRY_MS = 2000
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@dataclass(frozen=True, slots=True)
class SseEvent:
    """`id` grows with every event of a hub and means something across restarts (a row's number). `job` is for filters."""

    id: str
    event: str
    data: Any
    job: str | None = None


def encode_event(event: str, data: Any, *, id: str = "", retry_ms: int | None = None) -> bytes:
    """Wire format. JSON has no bare line breaks, so the data is one line."""
    lines = [f"id: {_one_line(id)}"] if id else []
    lines.append(f"event: {_one_line(event)}")
    if retry_ms is not None:
        lines.append(f"retry: {retry_ms}")
    lines.append(f"data: {msgspec.json.encode(data).decode()}")
    return ("\n".join(lines) + "\n\n").encode()


def _one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ").replace("\0", "")


@dataclass(slots=True, eq=False)
class _Client:
    accept: Callable[[SseEvent], bool]
    queue: deque[SseEvent]
    wake: asyncio.Event
    dropped: bool = False


class SseHub:
    """One stream of events for any number of clients, at most `clients_max`."""

    def __init__(
        self, *, history: int = 1000, queue_max: int = 256, clients_max: int = 500, heartbeat_s: float = 15.0
    ) -> None:
        self._history: deque[SseEvent] = deque(maxlen=history)
        self._queue_max, self._clients_max, self._heartbeat_s = queue_max, clients_max, heartbeat_s
        self._clients: set[_Client] = set()
        self._closing = ""

    def attach(self, app: FastAPI) -> None:
        """Let the app's HttpServer close this hub when the service stops."""
        app.state.sse_hubs.append(self)

    @property
    def clients(self) -> int:
        return len(self._clients)

    def seed(self, events: list[SseEvent]) -> None:
        """Fill the history from storage at the start, oldest first, so that clients can resume over a restart."""
        self._history.extend(events)

    def publish(self, event: SseEvent) -> None:
        """Give the event to every client that accepts it; never waits."""
        self._history.append(event)
        for client in self._clients:
            if client.dropped or not client.accept(event):
                continue
            if len(client.queue) >= self._queue_max:
                client.dropped = True
            else:
                client.queue.append(event)
            client.wake.set()

    def close(self, reason: str = "the service is stopping") -> None:
        """End every stream and refuse new ones."""
        self._closing = reason
        for client in self._clients:
            client.wake.set()

    def response(self, request: Request, accept: Callable[[SseEvent], bool] = lambda _: True) -> StreamingResponse:
        """The streaming response for one client. Raises Problem 503 when full or closing."""
        if self._closing:
            raise Problem(503, self._closing, kind="closing", headers={"Retry-After": "2"})
        if len(self._clients) >= self._clients_max:
            detail = f"{self._clients_max} clients are streaming already: poll the listing, or come back later"
            raise Problem(503, detail, kind="too-many-streams", headers={"Retry-After": "30"})
        stream = self.stream(request.headers.get("last-event-id"), accept)
        return StreamingResponse(stream, media_type="text/event-stream", headers=_HEADERS)

    async def stream(self, last_event_id: str | None, accept: Callable[[SseEvent], bool]) -> AsyncIterator[bytes]:
        """The bytes for one client, until it leaves, is dropped, or the hub closes."""
        client = _Client(accept, deque(), asyncio.Event())
        missed = self._missed(last_event_id)
        self._clients.add(client)
        try:
            yield encode_event("hello", {"resumed": missed is not None}, retry_ms=_RETRY_MS)
            if missed is None and last_event_id:
                yield encode_event("reset", {"reason": f"event {last_event_id} is no longer known: read the listing again"})
            for event in missed or ():
                if accept(event):
                    yield encode_event(event.event, event.data, id=event.id)
            while True:
                while client.queue:
                    event = client.queue.popleft()
                    yield encode_event(event.event, event.data, id=event.id)
                if client.dropped:
                    reason = f"more than {self._queue_max} events behind: resume, or ask for fewer"
                    yield encode_event("dropped", {"reason": reason})
                    return
                if self._closing:
                    yield encode_event("closing", {"reason": self._closing})
                    return
                client.wake.clear()
                try:
                    async with asyncio.timeout(self._heartbeat_s):
                        await client.wake.wait()
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self._clients.discard(client)

    def _missed(self, last_event_id: str | None) -> list[SseEvent] | None:
        """Events after `last_event_id`; None when it is not in the history."""
        if not last_event_id:
            return None
        for place, event in enumerate(self._history):
            if event.id == last_event_id:
                return list(self._history)[place + 1 :]
        return None
