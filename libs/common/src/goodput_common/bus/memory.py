"""The bus in one process: the same behaviour as JetStream, plus faults drawn from a seed.

For unit tests and simulations. Messages go through the codec like on the wire, so that a struct that cannot travel fails
here too. With a ManualClock nothing waits in real time.

Faults hit deliveries, since the bus promises at least once: a dropped delivery comes again after the consumer's
`ack_wait_s`, a doubled one comes twice, a delayed or reordered one comes later than those behind it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Mapping
from datetime import datetime

import msgspec

from goodput_common.bus.codec import MESSAGE_ID_HEADER, Encoded, decode, encode, wire_bytes
from goodput_common.bus.delivery import Later, Never, Outcome
from goodput_common.bus.errors import (
    BusUnavailable,
    MessageTooLarge,
    NoResponders,
    Refused,
    RequestFailed,
    RequestTimeout,
)
from goodput_common.bus.memory_parts import Due, Durable, FaultPlan, Stored, StreamStore
from goodput_common.bus.memory_subscription import MemoryService, MemorySubscription
from goodput_common.bus.ports import Consumer, Handler, Responder
from goodput_common.bus.rejected import Rejection, from_stored, to_headers
from goodput_common.contracts import subjects
from goodput_common.runtime.clock import Clock, SystemClock

__all__ = ["FaultPlan", "MemoryBus", "MemorySubscription"]

MESSAGE_BYTES_MAX = 1 << 20
REORDER_S = 0.05
SETTLE_TURNS_MAX = 1000
SETTLE_QUIET_TURNS = 10


class MemoryBus:
    """See `goodput_common.bus.ports.Bus`. `messages_max` bounds each stream."""

    def __init__(
        self,
        clock: Clock | None = None,
        faults: FaultPlan | None = None,
        *,
        streams: tuple[subjects.Stream, ...] = subjects.STREAMS,
        messages_max: int = 100_000,
        compress_over: int | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self._faults = faults or FaultPlan()
        self._random = random.Random(self._faults.seed)
        self._compress_over = compress_over
        self._streams = {stream.name: StreamStore(stream, messages_max) for stream in streams}
        self._durables: dict[tuple[str, str], Durable] = {}
        self._subscriptions: list[MemorySubscription] = []
        self._responders: list[tuple[str, Responder]] = []
        self._order = itertools.count()
        self.available = True
        self._closed = False

    def set_available(self, available: bool) -> None:
        """Take the bus away: publishing and asking raise BusUnavailable, nothing is delivered, until it is given back."""
        self.available = available
        for durable in self._durables.values():
            durable.changed.set()

    async def healthy(self) -> bool:
        return self.available and not self._closed

    async def publish(
        self,
        subject: str,
        data: msgspec.Struct,
        *,
        id: str,
        source: str,
        component: str = "",
        time: datetime | None = None,
    ) -> None:
        at = time or self.clock.now()
        encoded = encode(data, id=id, source=source, component=component, time=at, compress_over=self._compress_over)
        await self.publish_raw(subject, encoded.body, encoded.headers)

    async def publish_raw(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Store bytes as they are, as a foreign producer might."""
        await asyncio.sleep(0)
        self._must_be_up()
        if self._faults.publish_unavailable and self._random.random() < self._faults.publish_unavailable:
            raise BusUnavailable("no server (fault plan)")
        if any(subjects.matches(pattern, subject) for pattern in self._faults.forbidden):
            raise Refused(subject, "no permission to publish it")
        if (size := wire_bytes(headers, body)) > MESSAGE_BYTES_MAX:
            raise MessageTooLarge(size, MESSAGE_BYTES_MAX)
        self._store(subject, headers, body)

    def _store(self, subject: str, headers: Mapping[str, str], body: bytes) -> None:
        stream = next((each for each in self._streams.values() if each.keeps(subject)), None)
        if stream is None:
            if subjects.is_kept(subject):  # somebody has yet to make it
                raise BusUnavailable(f"no stream keeps {subject} now")
            raise Refused(subject, "no stream keeps this subject")
        message_id = headers.get(MESSAGE_ID_HEADER)
        if message_id and stream.seen(message_id, self.clock.monotonic_s()):
            return
        stream.last_sequence += 1
        stored = Stored(subject, dict(headers), body, stream.last_sequence, self.clock.now())
        stream.messages.append(stored)
        for (stream_name, _), durable in self._durables.items():
            if stream_name == stream.config.name and durable.wants(subject):
                self._plan(durable, stored, deliveries=1, after_s=self._lateness_s())

    def _lateness_s(self) -> float:
        faults = self._faults
        late_s = self._random.uniform(0.0, faults.delay_s) if faults.delay_s else 0.0
        if faults.reorder and self._random.random() < faults.reorder:
            late_s += self._random.uniform(0.0, max(faults.delay_s, REORDER_S))
        return late_s

    def _plan(self, durable: Durable, stored: Stored, *, deliveries: int, after_s: float, put_off: bool = False) -> None:
        at_s = self.clock.monotonic_s() + after_s
        heapq.heappush(durable.due, Due(at_s, next(self._order), stored, deliveries, put_off))
        durable.changed.set()

    async def consume(self, consumer: Consumer, handler: Handler) -> MemorySubscription:
        stream = self._streams.get(consumer.stream)
        if stream is None:
            raise BusUnavailable(f"there is no stream {consumer.stream}")
        key = (consumer.stream, consumer.durable)
        durable = self._durables.get(key)
        if durable is None:
            durable = self._durables[key] = Durable(consumer)
            for stored in () if consumer.deliver_new_only else tuple(stream.messages):
                if durable.wants(stored.subject):
                    self._plan(durable, stored, deliveries=1, after_s=self._lateness_s())
        durable.consumer = consumer
        subscription = MemorySubscription(self, durable, handler)
        self._subscriptions.append(subscription)
        return subscription

    def draw_faults(self, durable: Durable, due: Due) -> bool:
        """Draw this delivery's faults; False when it is dropped."""
        again = due.deliveries + 1
        if self._faults.drop and self._random.random() < self._faults.drop:
            self._plan(durable, due.stored, deliveries=again, after_s=durable.consumer.ack_wait_s)
            return False
        if self._faults.double and self._random.random() < self._faults.double:
            self._plan(durable, due.stored, deliveries=again, after_s=self._lateness_s())
        return True

    def settle_outcome(self, durable: Durable, due: Due, outcome: Outcome) -> None:
        stored, consumer = due.stored, durable.consumer
        if isinstance(outcome, Later):
            self._plan(durable, stored, deliveries=due.deliveries + 1, after_s=outcome.delay_s, put_off=True)
        elif isinstance(outcome, Never):
            rejection = Rejection(
                reason=outcome.reason,
                stream=consumer.stream,
                subject=stored.subject,
                sequence=stored.sequence,
                durable=consumer.durable,
                deliveries=due.deliveries,
                received_at=stored.received_at,
                headers=dict(stored.headers),
                body=stored.body,
            )
            self._store(subjects.rejected(consumer.stream), to_headers(rejection), stored.body)

    async def rejections(self, limit: int = 100) -> list[Rejection]:
        """The newest rejected messages, oldest of them first."""
        stored = [
            from_stored(each.headers, each.body, each.received_at)
            for stream in self._streams.values()
            for each in stream.messages
            if each.subject.startswith(f"{subjects.REJECTED_PREFIX}.")
        ]
        return stored[-limit:]

    async def request(self, subject: str, data: msgspec.Struct, *, id: str, source: str, timeout_s: float) -> msgspec.Struct:
        self._must_be_up()
        responder = next((each for pattern, each in self._responders if subjects.matches(pattern, subject)), None)
        if responder is None:
            raise NoResponders(subject)
        asked = encode(data, id=id, source=source, time=self.clock.now())
        answer = asyncio.create_task(self._answer(subject, asked, responder), name=f"memory-bus request {subject}")
        timer = asyncio.create_task(self.clock.sleep(timeout_s), name=f"memory-bus request timer {subject}")
        try:
            await asyncio.wait((answer, timer), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise RequestTimeout(subject, timeout_s)
            return answer.result()
        finally:
            answer.cancel()
            timer.cancel()

    async def _answer(self, subject: str, asked: Encoded, responder: Responder) -> msgspec.Struct:
        now = self.clock.now()
        try:
            reply = await responder(decode(subject, asked.headers, asked.body, received_at=now))
        except Exception as error:
            raise RequestFailed(subject, f"{type(error).__name__}: {error}") from error
        wire = encode(reply, id="reply", source="memory", time=now)
        decoded: msgspec.Struct = decode(subject, wire.headers, wire.body, received_at=now).data
        return decoded

    async def serve(self, subject: str, responder: Responder) -> MemoryService:
        entry = (subject, responder)
        self._responders.append(entry)
        return MemoryService(self._responders, entry)

    async def settle(self) -> None:
        """Let all that is due now be handled, as far as its handlers do not wait. For tests that hold the clock."""
        quiet_turns = 0  # some are needed at the end, for the pull loops to lie down on the clock
        for _ in range(SETTLE_TURNS_MAX):
            await asyncio.sleep(0)
            now_s = self.clock.monotonic_s()
            due = any(durable.due and durable.due[0].at_s <= now_s for durable in self._durables.values())
            busy = (due and self.available) or any(each.busy for each in self._subscriptions)
            quiet_turns = 0 if busy else quiet_turns + 1
            if quiet_turns == SETTLE_QUIET_TURNS:
                return

    async def close(self) -> None:
        for subscription in self._subscriptions:
            await subscription.drain()
        self._responders.clear()
        self._closed = True

    def _must_be_up(self) -> None:
        if self._closed:
            raise BusUnavailable("the bus is closed")
        if not self.available:
            raise BusUnavailable("no server")
