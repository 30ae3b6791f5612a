"""Consuming from the in-memory bus: a pull loop bounded by slots, as on the server."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from typing import TYPE_CHECKING, Any

from goodput_common.bus.codec import decode
from goodput_common.bus.delivery import Done, Never, Outcome, run_handler, too_often
from goodput_common.bus.errors import DecodeError
from goodput_common.bus.memory_parts import Due, Durable
from goodput_common.bus.ports import Handler, Responder
from goodput_common.runtime.logs import get_logger

if TYPE_CHECKING:
    from goodput_common.bus.memory import MemoryBus


class MemorySubscription:
    """A pull loop: takes a delivery that is due whenever a slot is free."""

    def __init__(self, bus: MemoryBus, durable: Durable, handler: Handler) -> None:
        self._bus = bus
        self._durable = durable
        self._handler = handler
        self.binds = 1  # nothing is ever lost on the way here
        self._in_hand: dict[asyncio.Task[None], int] = {}
        self._draining = False
        self._loop = asyncio.create_task(self._run(), name=f"memory-bus {durable.consumer.durable}")

    async def _run(self) -> None:
        durable, clock = self._durable, self._bus.clock
        while not self._draining:
            durable.changed.clear()
            wait_s = self._take_due(clock.monotonic_s())
            await self._changed_within(wait_s)

    def _take_due(self, now_s: float) -> float | None:
        """Start what is due and has a slot; seconds until the next is due, None when only a change can bring one."""
        durable = self._durable
        while durable.due and self._bus.available and len(self._in_hand) < durable.consumer.slots:
            if durable.due[0].at_s > now_s:
                return durable.due[0].at_s - now_s
            due = heapq.heappop(durable.due)
            if self._bus.draw_faults(durable, due):
                task = asyncio.create_task(self._deliver(due), name=f"{durable.consumer.durable} #{due.stored.sequence}")
                self._in_hand[task] = due.stored.sequence
                task.add_done_callback(self._finished)
        return None

    async def _changed_within(self, wait_s: float | None) -> None:
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._durable.changed.wait())]
        if wait_s is not None:
            waits.append(asyncio.ensure_future(self._bus.clock.sleep(wait_s)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _deliver(self, due: Due) -> None:
        bus, durable, stored = self._bus, self._durable, due.stored
        consumer = durable.consumer
        outcome: Outcome | None = too_often(due.deliveries, consumer.max_deliveries)
        if outcome is None:
            try:
                message = decode(
                    stored.subject,
                    stored.headers,
                    stored.body,
                    received_at=stored.received_at,
                    stream=consumer.stream,
                    sequence=stored.sequence,
                    deliveries=due.deliveries,
                )
            except DecodeError as error:
                outcome = Never(error.reason)
            else:
                outcome = await run_handler(self._handler, message, consumer.max_deliveries)
        if isinstance(outcome, Never):
            get_logger(__name__).warning(
                "message rejected", stream=consumer.stream, sequence=stored.sequence, reason=outcome.reason
            )
        if not isinstance(outcome, Done):
            bus.settle_outcome(durable, due, outcome)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._in_hand.pop(task, None)
        self._durable.changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    @property
    def busy(self) -> bool:
        return bool(self._in_hand)

    async def drain(self) -> None:
        self._draining = True
        self._durable.changed.set()
        await self._loop
        while self._in_hand:
            await asyncio.wait(list(self._in_hand))

    async def pending(self) -> int:
        return sum(1 for due in self._durable.due if not due.put_off) + len(self._in_hand)


class MemoryService:
    """A served subject."""

    def __init__(self, responders: list[tuple[str, Responder]], entry: tuple[str, Responder]) -> None:
        self.binds = 1
        self._responders = responders
        self._entry = entry

    async def drain(self) -> None:
        with contextlib.suppress(ValueError):
            self._responders.remove(self._entry)

    async def pending(self) -> int:
        return 0
