"""What tests of a bus share: either bus, a message to send, a handler that keeps what it gets, and waiting with a limit."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from goodput_common.bus.codec import encode
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.memory import MemoryBus
from goodput_common.bus.ports import Consumer, Message, Subscription
from goodput_common.contracts import subjects
from goodput_common.contracts.job import RankExited

AnyBus = MemoryBus | JetStreamBus
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
LONG_S = 20.0  # how long a test waits for what must come
SUBJECT = subjects.job("f", "j", "rank_exited")
_ids = itertools.count(1)


def exited(rank: int, reason: str = "") -> RankExited:
    return RankExited(fabric="f", job="j", rank=rank, host="h0", at=NOW, reason=reason)


GOOD = encode(exited(1), id="foreign", source="test", time=NOW)


def job_consumer(**options: object) -> Consumer:
    settings: dict[str, object] = {"durable": "test", "stream": "JOB", "subjects": ("goodput.job.>",), "ack_wait_s": 5.0}
    return Consumer(**(settings | options))  # type: ignore[arg-type]


async def publish(bus: AnyBus, rank: int, *, id: str = "", subject: str = SUBJECT) -> None:
    await bus.publish(subject, exited(rank), id=id or f"m{next(_ids)}", source="goodput://test", time=NOW)


class Collected:
    """A handler that keeps what it gets and lets a test wait for a number of messages."""

    def __init__(self, act: Callable[[Message], Awaitable[None]] | None = None) -> None:
        self.messages: list[Message] = []
        self.finished: list[int] = []
        self._act = act
        self._changed = asyncio.Condition()

    async def __call__(self, message: Message) -> None:
        self.messages.append(message)
        await self._tell()
        if self._act is not None:
            await self._act(message)
        self.finished.append(message.data.rank)
        await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    @property
    def ranks(self) -> list[int]:
        return [message.data.rank for message in self.messages]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LONG_S), self._changed:
            await self._changed.wait_for(condition)

    async def count(self, number: int) -> None:
        await self.until(lambda: len(self.finished) >= number)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LONG_S):
        while not await condition():  # noqa: ASYNC110 - the state of a server, which tells nobody
            await asyncio.sleep(0.02)


async def nothing_pending(subscription: Subscription) -> None:
    async def done() -> bool:
        return await subscription.pending() == 0

    await eventually(done)
