"""`/v1/events`: verdict versions and incidents as server-sent events, resumable from the database.

An event's id is its row's position, so `Last-Event-ID` works across restarts and on any replica. One look at the newest
position serves all clients; each then reads its own rows, restricted to what it may see, so a slow client costs nobody but
itself and is never dropped. An id that retention has let go, or that never was, gives one `reset` event: read the listing
again, then follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from goodput_common.http.auth import Principal, Tenant
from goodput_common.http.problem import Problem
from goodput_common.http.sse import encode_event, event_stream
from goodput_common.runtime.clock import Clock
from goodput_common.runtime.lifecycle import Part
from goodput_common.runtime.tasks import Tasks, stop_task
from goodput_correlator.adapters.api.context import Context, InContext
from goodput_correlator.adapters.api.incidents import incident_for
from goodput_correlator.adapters.api.verdicts import shown_to
from goodput_correlator.adapters.queries import Queries, Row
from goodput_correlator.application.ports import StoreUnavailable
from goodput_correlator.application.views import EventKind, Incident
from goodput_correlator.application.visibility import Sight

router = APIRouter(tags=["events"])

LOOK_S = 0.5
HEARTBEAT_S = 15.0
CLIENTS_MAX = 500
ROWS_A_READ = 200
RETRY_MS = 2000


class EventFeed(Part):
    """Watches for new events and wakes the streams. Streams end with a `closing` event when the service stops."""

    name = "event feed"

    def __init__(self, queries: Queries, *, clock: Clock, tasks: Tasks) -> None:
        self._queries = queries
        self._clock = clock
        self._tasks = tasks
        self._task: asyncio.Task[Any] | None = None
        self._changed = asyncio.Event()
        self.closing = False
        self.clients = 0
        self.newest = 0

    async def start(self) -> None:
        self._task = self._tasks.spawn(self.name, self._watch())

    async def close(self) -> None:
        await stop_task(self._task)

    def end_streams(self) -> None:
        self.closing = True
        self._changed.set()

    async def _watch(self) -> None:
        while True:
            try:
                _, newest = await self._queries.kept_events()
            except StoreUnavailable:
                newest = self.newest  # the streams stay open and go on when the database is back
            if newest != self.newest:
                self.newest = newest
                self._changed.set()
                self._changed = asyncio.Event()
            await self._clock.sleep(LOOK_S)

    async def changed(self, seen: int, within_s: float) -> bool:
        """Wait until the newest event is another than `seen`, or the end; False: neither came in time."""
        if self.closing or self.newest != seen:
            return True
        try:
            async with asyncio.timeout(within_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True


def attach(state: Any, feed: EventFeed) -> None:
    state.feed = feed
    state.on_stop.append(feed.end_streams)


@router.get(
    "/v1/events",
    summary="Follow verdicts and incidents",
    responses={200: {"description": "Events `verdict` and `incident`", "content": {"text/event-stream": {}}}},
)
async def follow(
    request: Request,
    context: InContext,
    principal: Tenant,
    kind: Annotated[EventKind | None, Query(description="only this kind")] = None,
    job: Annotated[str | None, Query(description="only what is about this job")] = None,
    last_event_id: Annotated[str | None, Header(description="go on behind this event")] = None,
) -> Response:
    feed: EventFeed = request.app.state.feed
    if feed.closing or feed.clients >= CLIENTS_MAX:
        why = "the service is stopping" if feed.closing else f"{CLIENTS_MAX} clients follow already"
        raise Problem(503, f"{why}: come back in a moment", kind="no-stream", headers={"Retry-After": "2"})
    oldest, newest = await context.queries.kept_events()
    after, gone = newest, False
    if last_event_id is not None:
        if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 20):
            raise Problem(400, f"header Last-Event-ID: {last_event_id[:64]!r} is no id of this stream", kind="bad-event-id")
        given = int(last_event_id)
        gone = given > newest or 0 < given < oldest - 1
        after = newest if gone else given
    jobs = principal.jobs
    if job is not None:
        principal.check_job(job)
        jobs = frozenset((job,))
    stream = _stream(feed, context, principal, jobs=jobs, kind=kind, after=after, gone=gone)
    return event_stream(stream)


async def _stream(
    feed: EventFeed,
    context: Context,
    principal: Principal,
    *,
    jobs: frozenset[str] | None,
    kind: EventKind | None,
    after: int,
    gone: bool,
) -> AsyncIterator[bytes]:
    feed.clients += 1
    try:
        yield encode_event("hello", {"fabric": context.fabric, "at": after}, retry_ms=RETRY_MS)
        if gone:
            yield encode_event("reset", {"reason": "that event is not kept: read the listing again, then follow"})
        while True:
            seen = feed.newest  # before asking: what comes while the database answers is not waited for
            try:
                rows = await context.queries.events(jobs, after=after, limit=ROWS_A_READ)
                sight = await context.sight(principal)
            except StoreUnavailable:
                rows, sight = [], Sight(frozenset())
            for row in rows:
                after = row.position
                if kind is None or row.kind == kind.value:
                    yield encode_event(row.kind, _data(sight, row), id=str(row.position))
            if feed.closing:
                yield encode_event("closing", {"reason": "the service is stopping"})
                return
            if len(rows) < ROWS_A_READ and not await feed.changed(seen, HEARTBEAT_S):
                yield b": still here\n\n"
    finally:
        feed.clients -= 1


def _data(sight: Sight, row: Row) -> Any:
    if row.kind == EventKind.VERDICT.value:
        return shown_to(sight, row.body)
    if sight.jobs is None:
        return msgspec.Raw(row.body)
    return incident_for(sight, msgspec.json.decode(row.body, type=Incident))
