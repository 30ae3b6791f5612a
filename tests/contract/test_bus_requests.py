"""Request and reply: an answer, or the reason why there is none."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from goodput_common.bus.errors import (
    BusUnavailable,
    NoResponders,
    RequestFailed,
    RequestTimeout,
)
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.ports import Message
from goodput_common.bus.testing import (
    LONG_S,
    NOW,
    AnyBus,
    eventually,
)
from goodput_common.contracts import subjects
from goodput_common.contracts.recovery import AgentCommand, AgentCommandKind, AgentReply, AgentReplyStatus
from goodput_common.embedded import EmbeddedNats

COMMAND = AgentCommand(id="c1", kind=AgentCommandKind.DUMP, fabric="f", job="j", rank=0, fencing_token=1)
AGENT = subjects.agent("f", "j", 0)


async def reply_done(message: Message) -> AgentReply:
    return AgentReply(id=message.data.id, status=AgentReplyStatus.DONE, rank=0, at=NOW)


async def test_a_request_gets_its_reply(bus: AnyBus) -> None:
    await bus.serve(AGENT, reply_done)
    reply = await bus.request(AGENT, COMMAND, id="c1", source="t", timeout_s=LONG_S)
    assert reply == AgentReply(id="c1", status=AgentReplyStatus.DONE, rank=0, at=NOW)


async def test_nobody_there_is_known_without_waiting_for_the_timeout(bus: AnyBus) -> None:
    async with asyncio.timeout(LONG_S):
        with pytest.raises(NoResponders):
            await bus.request(AGENT, COMMAND, id="c1", source="t", timeout_s=LONG_S * 10)


async def test_no_reply_in_time_is_a_timeout(bus: AnyBus) -> None:
    async def silent(message: Message) -> AgentReply:
        await asyncio.sleep(LONG_S)
        return await reply_done(message)

    service = await bus.serve(AGENT, silent)
    with pytest.raises(RequestTimeout):
        await bus.request(AGENT, COMMAND, id="c1", source="t", timeout_s=0.2)
    if isinstance(bus, JetStreamBus):
        await service.abort()  # type: ignore[union-attr]


async def test_a_responder_that_raises_is_told_to_the_one_who_asked(bus: AnyBus) -> None:
    async def broken(message: Message) -> AgentReply:
        raise RuntimeError("no room left")

    await bus.serve(AGENT, broken)
    with pytest.raises(RequestFailed, match="no room left"):
        await bus.request(AGENT, COMMAND, id="c1", source="t", timeout_s=LONG_S)


async def test_a_drained_service_is_nobody(bus: AnyBus) -> None:
    service = await bus.serve(AGENT, reply_done)
    await bus.request(AGENT, COMMAND, id="c1", source="t", timeout_s=LONG_S)
    await service.drain()
    with pytest.raises(NoResponders):
        await bus.request(AGENT, COMMAND, id="c2", source="t", timeout_s=LONG_S)


async def test_a_service_answers_again_after_the_server_came_back(tmp_path: Path) -> None:
    async with EmbeddedNats(tmp_path) as server:
        bus = await JetStreamBus.connect(server.url, name="contract", registry=CollectorRegistry())
        await bus.serve(AGENT, reply_done)
        server.kill()
        await server.restart()

        answers: list[object] = []

        async def answered() -> bool:
            with contextlib.suppress(NoResponders, RequestTimeout, BusUnavailable):
                answers.append(await bus.request(AGENT, COMMAND, id="c1", source="t", timeout_s=1.0))
            return bool(answers)

        await eventually(answered)
        await bus.close()
    assert answers == [AgentReply(id="c1", status=AgentReplyStatus.DONE, rank=0, at=NOW)]
