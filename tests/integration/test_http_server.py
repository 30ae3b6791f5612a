"""uvicorn inside our lifecycle, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from starlette.responses import Response

from goodput_common.http.api import create_api
from goodput_common.http.auth import Auth
from goodput_common.http.server import HttpServer
from goodput_common.http.sse import encode_event, event_stream
from goodput_common.http.structs import StructResponse
from goodput_common.runtime.health import Health
from goodput_common.runtime.lifecycle import StartError, run_service
from goodput_common.runtime.metrics import Metrics
from goodput_common.runtime.tasks import Tasks

TOKEN = "a-token-of-an-admin"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


class Running:
    """A service of one HTTP server, with a route that waits and a stream that goes on until the service stops."""

    def __init__(self) -> None:
        self.closing = asyncio.Event()
        self.release = asyncio.Event()
        self.entered = asyncio.Event()
        self.stop = asyncio.Event()
        self.health = Health()
        tasks = Tasks()
        app = create_api(
            "test",
            "1",
            health=self.health,
            auth=Auth.from_json(json.dumps({TOKEN: {"role": "admin", "name": "test"}})),
            metrics=Metrics(process=False),
            routers=[self._router()],
        )
        app.state.on_stop.append(self.closing.set)
        self.server = HttpServer(app, host="127.0.0.1", port=0, tasks=tasks)
        service = run_service("test", [self.server], health=self.health, tasks=tasks, stop=self.stop)
        self.service = asyncio.create_task(service)

    def _router(self) -> APIRouter:
        router = APIRouter()

        @router.get("/wait")
        async def wait() -> Response:
            self.entered.set()
            await self.release.wait()
            return StructResponse({"done": True})

        @router.get("/events")
        async def events() -> Response:
            return event_stream(self._stream())

        return router

    async def _stream(self) -> AsyncIterator[bytes]:
        yield encode_event("hello", {})
        await self.closing.wait()
        yield encode_event("closing", {"reason": "the service is stopping"})

    async def ready(self) -> Running:
        for _ in range(1000):
            if self.health.ready:
                return self
            await asyncio.sleep(0.01)
        raise AssertionError("never ready")


@pytest.fixture
async def running() -> AsyncIterator[Callable[[], Any]]:
    started: list[Running] = []

    async def start() -> Running:
        started.append(Running())
        return await started[-1].ready()

    yield start
    for each in started:
        each.stop.set()
        each.release.set()
        await each.service


async def test_port_0_gives_a_free_port_that_is_told(running: Callable[[], Any]) -> None:
    one, two = await running(), await running()
    assert one.server.port != two.server.port
    async with httpx.AsyncClient() as client:
        for each in (one, two):
            response = await client.get(f"{each.server.url}/readyz")
            assert response.json()["ready"]
            assert "server" not in response.headers


async def test_a_taken_port_is_an_error_that_says_what_to_set(running: Callable[[], Any]) -> None:
    first = await running()
    app = create_api("t", "1", health=Health(), auth=Auth(), metrics=Metrics(process=False))
    second = HttpServer(app, host="127.0.0.1", port=first.server.port, tasks=Tasks())
    with pytest.raises(
        StartError, match=f"cannot listen on 127.0.0.1:{first.server.port}: Address already in use"
    ) as raised:
        await second.start()
    assert "GOODPUT_HTTP_PORT" in raised.value.do_next
    await second.close()
    absent = HttpServer(app, host="no-such-host.invalid", port=0, tasks=Tasks())
    with pytest.raises(StartError, match="no address of this machine"):
        await absent.start()


async def test_the_server_leaves_the_signals_alone(running: Callable[[], Any]) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    await running()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


async def test_a_stop_ends_event_streams_with_a_reason(running: Callable[[], Any]) -> None:
    service = await running()
    client = httpx.AsyncClient(headers=HEADERS, timeout=20)
    async with client, client.stream("GET", f"{service.server.url}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.aiter_lines()
        assert await anext(lines) == "event: hello"
        service.stop.set()
        rest = [line async for line in lines]
    assert rest[-3:-1] == ["event: closing", 'data: {"reason":"the service is stopping"}']
    assert await service.service == 0


async def test_a_stop_lets_a_request_in_hand_finish_and_takes_no_new_one(running: Callable[[], Any]) -> None:
    service = await running()
    async with httpx.AsyncClient(headers=HEADERS, timeout=20) as client:
        in_hand = asyncio.create_task(client.get(f"{service.server.url}/wait"))
        await service.entered.wait()
        service.stop.set()
        for _ in range(500):
            with contextlib.suppress(httpx.HTTPError):
                async with httpx.AsyncClient(timeout=20) as other:
                    await other.get(f"{service.server.url}/healthz")
                await asyncio.sleep(0.01)
                continue
            break
        else:
            raise AssertionError("still taking requests")
        assert not in_hand.done()
        service.release.set()
        assert (await in_hand).json() == {"done": True}
    assert await service.service == 0


async def test_a_request_that_never_ends_does_not_keep_the_service(running: Callable[[], Any]) -> None:
    service = await running()
    async with httpx.AsyncClient(headers=HEADERS, timeout=20) as client:
        hanging = asyncio.create_task(client.get(f"{service.server.url}/wait"))
        await service.entered.wait()
        service.stop.set()
        async with asyncio.timeout(10):
            assert await service.service == 0
        response = await hanging
        assert response.status_code == 503
        assert response.json()["type"] == "urn:goodput:problem:stopping"
        assert response.headers["retry-after"] == "2"
