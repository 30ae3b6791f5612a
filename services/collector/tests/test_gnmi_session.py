"""How one stream is asked for: what a refusal is, and what ends the conversation. No connection: the calls are doubles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

pytest.importorskip("pygnmi", reason="gNMI needs goodput-collector[switch]")

import grpc
import grpc.aio

from goodput_collector.adapters import gnmi_session
from goodput_collector.adapters.gnmi_session import Session
from goodput_collector.domain.gnmi_streams import Kind, Stream, Way, streams
from goodput_collector.domain.switch_list import Credentials, Switch
from goodput_common.runtime.clock import SystemClock

STREAMS = {stream.name: stream for stream in streams(Kind.SONIC, sample_s=1.0)}
REQUIRED, OPTIONAL = STREAMS["port states"], STREAMS["queue counters"]


def failed(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details="as told")


class Inbox:
    def wake(self) -> None:
        pass


class Call:
    """A subscription that fails with `error`, or never answers."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = error

    async def __aiter__(self) -> AsyncIterator[Any]:
        if self._error is None:
            await asyncio.Event().wait()
        else:
            raise self._error
        yield None

    def cancel(self) -> None:
        pass


class Stub:
    def __init__(self, subscribed: Callable[[], BaseException | None]) -> None:
        self._subscribed = subscribed
        self.fetched = 0

    def Subscribe(self, _requests: Any, **_: Any) -> Call:  # noqa: N802 - gNMI's name
        return Call(self._subscribed())

    async def Get(self, _request: Any, **_: Any) -> Any:  # noqa: N802
        self.fetched += 1
        raise failed(grpc.StatusCode.NOT_FOUND)


async def descend(stream: Stream, stub: Stub) -> tuple[Session, str | None]:
    switch = Switch(name="leaf-1", address="127.0.0.1:1", kind=Kind.SONIC)
    session = Session(switch, Credentials(), Inbox(), SystemClock())  # type: ignore[arg-type]
    session._encoding = "JSON_IETF"
    return session, await session._descend(stub, stream, frozenset())


@pytest.mark.parametrize("stream", [REQUIRED, OPTIONAL], ids=lambda stream: stream.name)
@pytest.mark.parametrize(
    "error",
    [lambda: failed(grpc.StatusCode.INTERNAL), asyncio.CancelledError, lambda: None],
    ids=["internal", "cancelled by gRPC", "no answer"],
)
async def test_a_subscription_that_comes_to_nothing_is_followed_by_the_next_way(
    stream: Stream, error: Callable[[], BaseException | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gnmi_session, "ANSWER_S", 0.01)
    stub = Stub(error)
    session, why = await descend(stream, stub)
    assert why == "NOT_FOUND: as told"  # what the last way was answered with
    assert stub.fetched
    assert session.failure is None


@pytest.mark.parametrize(
    "code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK], ids=lambda code: code.name
)
async def test_what_can_be_done_without_ends_no_conversation_unless_the_switch_is_gone(code: grpc.StatusCode) -> None:
    session, why = await descend(OPTIONAL, Stub(lambda: failed(code)))
    gone = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED)
    assert (session.failure is not None) is gone
    assert (why is None) is gone


async def test_a_refused_user_of_what_is_required_ends_the_conversation() -> None:
    session, why = await descend(REQUIRED, Stub(lambda: failed(grpc.StatusCode.PERMISSION_DENIED)))
    assert why is None
    assert session.failure is not None
    assert "refuses this user" in str(session.failure)


async def test_a_task_that_is_told_to_end_ends() -> None:
    asked = asyncio.Event()
    task = asyncio.create_task(descend(REQUIRED, Stub(asked.set)))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_both_streams_can_be_subscribed_to_and_fetched() -> None:
    for stream in (REQUIRED, OPTIONAL):
        assert stream.ways[-1] is Way.GET and len(stream.ways) > 1
