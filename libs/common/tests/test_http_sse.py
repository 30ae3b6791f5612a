"""Event streams: resumable, bounded, and ended with a reason."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import Request

from goodput_common.http.problem import Problem
from goodput_common.http.sse import SseEvent, SseHub, encode_event


def _event(number: int, job: str = "a") -> SseEvent:
    return SseEvent(str(number), "verdict", {"n": number}, job)


def _everything(_: SseEvent) -> bool:
    return True


def _parse(chunk: bytes) -> dict[str, Any]:
    fields = dict(line.split(": ", 1) for line in chunk.decode().splitlines() if line and not line.startswith(":"))
    return fields | {"data": json.loads(fields["data"])} if "data" in fields else fields


async def _next(stream: AsyncIterator[bytes]) -> dict[str, Any]:
    return _parse(await anext(stream))


async def test_a_new_client_gets_a_hello_and_then_what_happens() -> None:
    hub = SseHub()
    hub.publish(_event(1))
    stream = hub.stream(None, _everything)
    assert await _next(stream) == {"event": "hello", "retry": "2000", "data": {"resumed": False}}
    hub.publish(_event(2))
    assert await _next(stream) == {"id": "2", "event": "verdict", "data": {"n": 2}}


async def test_a_client_that_comes_back_gets_what_it_missed_once_and_in_order() -> None:
    hub = SseHub()
    for number in range(1, 5):
        hub.publish(_event(number))
    stream = hub.stream("2", _everything)
    assert (await _next(stream))["data"] == {"resumed": True}
    hub.publish(_event(5))  # while it is still reading what it missed
    assert [(await _next(stream))["id"] for _ in range(3)] == ["3", "4", "5"]


async def test_a_client_that_is_up_to_date_misses_nothing() -> None:
    hub = SseHub()
    hub.publish(_event(1))
    stream = hub.stream("1", _everything)
    assert (await _next(stream))["data"] == {"resumed": True}
    hub.publish(_event(2))
    assert (await _next(stream))["id"] == "2"


async def test_a_gap_that_cannot_be_filled_is_said() -> None:
    hub = SseHub(history=2)
    for number in range(1, 6):
        hub.publish(_event(number))
    stream = hub.stream("1", _everything)
    assert (await _next(stream))["data"] == {"resumed": False}
    reset = await _next(stream)
    assert reset["event"] == "reset"
    assert "read the listing again" in reset["data"]["reason"]


async def test_history_seeded_from_storage_serves_clients_across_a_restart() -> None:
    hub = SseHub()
    hub.seed([_event(1), _event(2)])
    stream = hub.stream("1", _everything)
    await _next(stream)
    assert (await _next(stream))["id"] == "2"


async def test_a_client_gets_only_what_it_may_see_live_and_on_resume() -> None:
    hub = SseHub()
    for number, job in ((1, "a"), (2, "b"), (3, "a")):
        hub.publish(_event(number, job))
    stream = hub.stream("1", lambda event: event.job == "a")
    await _next(stream)
    hub.publish(_event(4, "b"))
    hub.publish(_event(5, "a"))
    assert [(await _next(stream))["id"] for _ in range(2)] == ["3", "5"]


async def test_a_slow_client_is_dropped_with_a_reason_and_the_others_go_on() -> None:
    hub = SseHub(queue_max=2)
    slow, quick = hub.stream(None, _everything), hub.stream(None, _everything)
    await _next(slow)
    await _next(quick)
    for number in range(1, 5):
        hub.publish(_event(number))
        assert (await _next(quick))["id"] == str(number)
    assert [(await _next(slow))["id"] for _ in range(2)] == ["1", "2"]
    dropped = await _next(slow)
    assert dropped["event"] == "dropped"
    assert "more than 2 events behind" in dropped["data"]["reason"]
    with pytest.raises(StopAsyncIteration):
        await anext(slow)
    assert hub.clients == 1


async def test_what_a_dropped_client_missed_is_there_when_it_resumes() -> None:
    hub = SseHub(queue_max=1)
    stream = hub.stream(None, _everything)
    await _next(stream)
    for number in range(1, 4):
        hub.publish(_event(number))
    last = (await _next(stream))["id"]
    again = hub.stream(last, _everything)
    await _next(again)
    assert [(await _next(again))["id"] for _ in range(2)] == ["2", "3"]


async def test_silence_is_filled_with_heartbeat_comments() -> None:
    hub = SseHub(heartbeat_s=0.01)
    stream = hub.stream(None, _everything)
    await _next(stream)
    assert (await anext(stream)).startswith(b":")


async def test_closing_ends_every_stream_with_a_reason_after_what_is_queued() -> None:
    hub = SseHub()
    stream = hub.stream(None, _everything)
    await _next(stream)
    hub.publish(_event(1))
    hub.close()
    assert (await _next(stream))["id"] == "1"
    assert (await _next(stream))["event"] == "closing"
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert hub.clients == 0


async def test_a_client_that_leaves_is_forgotten() -> None:
    hub = SseHub()
    stream = hub.stream(None, _everything)
    await anext(stream)
    assert hub.clients == 1
    await stream.aclose()
    assert hub.clients == 0


async def test_the_number_of_clients_is_bounded_and_none_is_taken_while_closing() -> None:
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": []})
    hub = SseHub(clients_max=1)
    stream = hub.stream(None, _everything)
    await anext(stream)
    with pytest.raises(Problem, match="streaming already") as raised:
        hub.response(request)
    assert (raised.value.status_code, dict(raised.value.headers or {})["Retry-After"]) == (503, "30")
    hub.close()
    with pytest.raises(Problem, match="stopping"):
        hub.response(request)


def test_fields_cannot_be_broken_out_of() -> None:
    chunk = encode_event("verdict\ndata: forged", {"text": "line\nbreak\r\n"}, id="1\nevent: forged")
    assert chunk == b'id: 1 event: forged\nevent: verdict data: forged\ndata: {"text":"line\\nbreak\\r\\n"}\n\n'
