"""The pages of a process without a web framework are those of one that has it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from goodput_common.http.api import create_api
from goodput_common.http.auth import Auth
from goodput_common.http.operations import AT_ONCE_MAX, OperationsServer
from goodput_common.runtime.health import Health
from goodput_common.runtime.lifecycle import StartError
from goodput_common.runtime.metrics import Metrics


class Pages:
    def __init__(self) -> None:
        self.health = Health(cache_s=0.0)
        self.metrics = Metrics("collector", fabric="f", process=False)
        self.server = OperationsServer(health=self.health, metrics=self.metrics, host="127.0.0.1", port=0)

    async def both(self, path: str) -> tuple[httpx.Response, httpx.Response]:
        """The answer of the plain server, and that of the framework."""
        app = create_api("collector", "1", health=self.health, auth=Auth(), metrics=self.metrics)
        async with httpx.AsyncClient(base_url=self.server.url, timeout=20) as plain:
            given = await plain.get(path)
        async with httpx.AsyncClient(base_url="http://x", transport=httpx.ASGITransport(app=app)) as framework:
            return given, await framework.get(path)


@asynccontextmanager
async def serving() -> AsyncIterator[Pages]:
    pages = Pages()
    await pages.server.start()
    try:
        yield pages
    finally:
        await pages.server.stop_pulling()
        await pages.server.close()


def without_moments(body: object) -> object:
    """The same but for how long a check took, and the request's id."""
    if isinstance(body, dict):
        return {name: without_moments(value) for name, value in body.items() if name not in ("took_ms", "request_id")}
    return [without_moments(each) for each in body] if isinstance(body, list) else body


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_health_is_told_as_the_framework_tells_it(path: str, ready: bool) -> None:
    async def bus() -> bool:
        return ready

    async with serving() as pages:
        pages.health.add("bus", bus)
        pages.health.set_phase("ready", ready=ready)
        given, wanted = await pages.both(path)
    assert given.status_code == wanted.status_code
    assert given.headers["content-type"] == wanted.headers["content-type"]
    assert without_moments(given.json()) == without_moments(wanted.json())


async def test_metrics_are_exposed() -> None:
    async with serving() as pages:
        pages.metrics.counter("lines", "Lines").inc(3)
        given, wanted = await pages.both("/metrics")
    assert "goodput_lines_total 3.0" in given.text
    assert given.headers["content-type"] == wanted.headers["content-type"]


async def test_another_path_is_a_problem_that_names_the_paths() -> None:
    async with serving() as pages, httpx.AsyncClient(base_url=pages.server.url, timeout=20) as client:
        answer = await client.get("/v1/verdicts")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert "/healthz, /readyz, /metrics" in answer.json()["detail"]


async def test_clients_that_say_nothing_do_not_keep_a_probe_from_its_answer() -> None:
    async with serving() as pages:
        port = int(pages.server.url.rpartition(":")[2])
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(AT_ONCE_MAX - 1)]
        try:
            async with httpx.AsyncClient(base_url=pages.server.url, timeout=20) as client:
                assert (await client.get("/healthz")).status_code == 200
        finally:
            for each in silent:
                each.close()


async def test_a_taken_port_is_an_error_that_says_what_to_set() -> None:
    async with serving() as pages:
        port = int(pages.server.url.rpartition(":")[2])
        second = OperationsServer(health=pages.health, metrics=pages.metrics, host="127.0.0.1", port=port)
        with pytest.raises(StartError) as error:
            await second.start()
    assert "GOODPUT_HTTP_PORT" in error.value.do_next


async def test_a_stopped_server_takes_no_more_connections() -> None:
    async with serving() as pages:
        url = pages.server.url
    with pytest.raises(httpx.ConnectError):
        await asyncio.wait_for(httpx.AsyncClient().get(f"{url}/healthz"), 5)


async def test_an_accept_that_fails_for_want_of_descriptors_is_tried_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures, pauses = 0, 0
    accept, pause = socket.socket.accept, OperationsServer._pause

    def failing(self: socket.socket) -> tuple[socket.socket, object]:
        nonlocal failures
        if failures < 2:
            failures += 1
            raise OSError(24, "Too many open files")
        return accept(self)

    def paused(self: OperationsServer) -> bool:
        nonlocal pauses
        pauses += 1
        return pause(self)

    monkeypatch.setattr("goodput_common.http.operations.ACCEPT_AGAIN_S", 0.01)
    monkeypatch.setattr(socket.socket, "accept", failing)
    monkeypatch.setattr(OperationsServer, "_pause", paused)
    async with serving() as pages, httpx.AsyncClient(base_url=pages.server.url, timeout=20) as client:
        assert (await client.get("/healthz")).status_code == 200
    assert (failures, pauses) == (2, 2)
