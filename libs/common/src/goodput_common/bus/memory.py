"""The bus in one process: the same behaviour as JetStream, plus faults drawn from a seed.

For unit tests and simulations. Messages go through the codec like on the wire, so that a struct that cannot travel fails
here too. With a ManualClock nothing waits in real time.

Faults hit deliveries, since the bus promises at least once: a dropped delivery comes again after the consumer's
`ack_wait_s`, a doubled one comes twice, a delayed or reordered one comes later than those behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import random
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
import structlog

from goodput_common.bus.codec import MESSAGE_ID_HEADER, Encoded, decode, encode
from goodput_common.bus.delivery import Done, Later, Never, Outcome, run_handler, too_often
from goodput_common.bus.errors import (
    BusUnavailable,
    DecodeError,
    MessageTooLarge,
    NoResponders,
    RequestFailed,
    RequestTimeout,
)
from goodput_common.bus.ports import Consumer, Handler, Responder
from goodput_common.bus.rejected import Rejection, from_stored, to_headers
from goodput_common.contracts import subjects
from goodput_common.runtime.clock import Clock, SystemClock

MESSAGE_BYTES_MAX = 1 << 20
REORDER_S = 0.05
SETTLE_TURNS_MAX = 1000
SETTLE_QUIET_TURNS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """Probabilities per delivery, drawn from `seed`. `delay_s` is the most that a delivery is late."""

    seed: int = 0
    drop: float = 0.0
    double: float = 0.0
    delay_s: float = 0.0
    reorder: float = 0.0
    publish_unavailable: float = 0.0


@dataclass(frozen=True, slots=True)
class _Stored:
    subject: str
    headers: Mapping[str, str]
    body: bytes
    sequence: int
    received_at: datetime


@dataclass(order=True, slots=True)
class _Due:
    """A delivery to come. `put_off` marks a retry that its handler or its failure asked for."""

    at_s: float
    order: int
    stored: _Stored = field(compare=False)
    deliveries: int = field(compare=False)
    put_off: bool = field(compare=False, default=False)


class _Stream:
    def __init__(self, config: subjects.Stream, messages_max: int) -> None:
        self.config = config
        self.messages: deque[_Stored] = deque(maxlen=messages_max)  # the oldest go first, as on the server
        self.last_sequence = 0
        self._ids: OrderedDict[str, float] = OrderedDict()

    def seen(self, message_id: str, now_s: float) -> bool:
        """Whether `message_id` was stored within the duplicate window; remembers it."""
        while self._ids and next(iter(self._ids.values())) < now_s - self.config.duplicate_window_s:
            self._ids.popitem(last=False)
        if message_id in self._ids:
            return True
        self._ids[message_id] = now_s
        return False


class _Durable:
    """A consumer's position and retries; outlives its subscriptions."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.due: list[_Due] = []
        self.changed = asyncio.Event()

    def wants(self, subject: str) -> bool:
        return any(matches(pattern, subject) for pattern in self.consumer.subjects)


class MemoryBus:
    """See `goodput_common.bus.ports.Bus`. `messages_max` bounds each stream."""

    def __init__(
        self,
        clock: Clock | None = None,
        faults: FaultPlan | None = None,
        *,
        streams: tuple[subjects.Stream, ...] = subjects.STREAMS,
        messages_max: int = 100_000,
    ) -> None:
        self._clock = clock or SystemClock()
        self._faults = faults or FaultPlan()
        self._random = random.Random(self._faults.seed)
        self._streams = {stream.name: _Stream(stream, messages_max) for stream in streams}
        self._durables: dict[tuple[str, str], _Durable] = {}
        self._subscriptions: list[MemorySubscription] = []
        self._responders: list[tuple[str, Responder]] = []
        self._order = itertools.count()
        self._available = True
        self._closed = False

    def set_available(self, available: bool) -> None:
        """Take the bus away: publishing and asking raise BusUnavailable, nothing is delivered, until it is given back."""
        self._available = available
        for durable in self._durables.values():
            durable.changed.set()

    async def healthy(self) -> bool:
        return self._available and not self._closed

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
        encoded = encode(data, id=id, source=source, component=component, time=time or self._clock.now())
        await self.publish_raw(subject, encoded.body, encoded.headers)

    async def publish_raw(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Store bytes as they are, as a foreign producer might."""
        await asyncio.sleep(0)
        self._must_be_up()
        if self._faults.publish_unavailable and self._random.random() < self._faults.publish_unavailable:
            raise BusUnavailable("no server (fault plan)")
        if len(body) > MESSAGE_BYTES_MAX:
            raise MessageTooLarge(len(body), MESSAGE_BYTES_MAX)
        self._store(subject, headers, body)

    def _store(self, subject: str, headers: Mapping[str, str], body: bytes) -> None:
        stream = next((each for each in self._streams.values() if _keeps(each.config, subject)), None)
        if stream is None:
            raise BusUnavailable(f"no stream keeps {subject}")
        message_id = headers.get(MESSAGE_ID_HEADER)
        if message_id and stream.seen(message_id, self._clock.monotonic_s()):
            return
        stream.last_sequence += 1
        stored = _Stored(subject, dict(headers), body, stream.last_sequence, self._clock.now())
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

    def _plan(self, durable: _Durable, stored: _Stored, *, deliveries: int, after_s: float, put_off: bool = False) -> None:
        at_s = self._clock.monotonic_s() + after_s
        heapq.heappush(durable.due, _Due(at_s, next(self._order), stored, deliveries, put_off))
        durable.changed.set()

    async def consume(self, consumer: Consumer, handler: Handler) -> MemorySubscription:
        stream = self._streams.get(consumer.stream)
        if stream is None:
            raise BusUnavailable(f"there is no stream {consumer.stream}")
        key = (consumer.stream, consumer.durable)
        durable = self._durables.get(key)
        if durable is None:
            durable = self._durables[key] = _Durable(consumer)
            for stored in () if consumer.deliver_new_only else tuple(stream.messages):
                if durable.wants(stored.subject):
                    self._plan(durable, stored, deliveries=1, after_s=self._lateness_s())
        durable.consumer = consumer
        subscription = MemorySubscription(self, durable, handler)
        self._subscriptions.append(subscription)
        return subscription

    def _judge_dispatch(self, durable: _Durable, due: _Due) -> bool:
        """Draw this delivery's faults; False when it is dropped."""
        again = due.deliveries + 1
        if self._faults.drop and self._random.random() < self._faults.drop:
            self._plan(durable, due.stored, deliveries=again, after_s=durable.consumer.ack_wait_s)
            return False
        if self._faults.double and self._random.random() < self._faults.double:
            self._plan(durable, due.stored, deliveries=again, after_s=self._lateness_s())
        return True

    def _settle(self, durable: _Durable, due: _Due, outcome: Outcome) -> None:
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
        responder = next((each for pattern, each in self._responders if matches(pattern, subject)), None)
        if responder is None:
            raise NoResponders(subject)
        asked = encode(data, id=id, source=source, time=self._clock.now())
        answer = asyncio.create_task(self._answer(subject, asked, responder), name=f"memory-bus request {subject}")
        timer = asyncio.create_task(self._clock.sleep(timeout_s), name=f"memory-bus request timer {subject}")
        try:
            await asyncio.wait((answer, timer), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise RequestTimeout(subject, timeout_s)
            return answer.result()
        finally:
            answer.cancel()
            timer.cancel()

    async def _answer(self, subject: str, asked: Encoded, responder: Responder) -> msgspec.Struct:
        now = self._clock.now()
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
            now_s = self._clock.monotonic_s()
            due = any(durable.due and durable.due[0].at_s <= now_s for durable in self._durables.values())
            busy = (due and self._available) or any(each.busy for each in self._subscriptions)
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
        if not self._available:
            raise BusUnavailable("no server")


class MemorySubscription:
    """A pull loop: takes a delivery that is due whenever a slot is free."""

    def __init__(self, bus: MemoryBus, durable: _Durable, handler: Handler) -> None:
        self._bus = bus
        self._durable = durable
        self._handler = handler
        self._in_hand: dict[asyncio.Task[None], int] = {}
        self._draining = False
        self._loop = asyncio.create_task(self._run(), name=f"memory-bus {durable.consumer.durable}")

    async def _run(self) -> None:
        durable, clock = self._durable, self._bus._clock
        while not self._draining:
            durable.changed.clear()
            wait_s = self._take_due(clock.monotonic_s())
            await self._changed_within(wait_s)

    def _take_due(self, now_s: float) -> float | None:
        """Start what is due and has a slot; seconds until the next is due, None when only a change can bring one."""
        durable = self._durable
        while durable.due and self._bus._available and len(self._in_hand) < durable.consumer.slots:
            if durable.due[0].at_s > now_s:
                return durable.due[0].at_s - now_s
            due = heapq.heappop(durable.due)
            if self._bus._judge_dispatch(durable, due):
                task = asyncio.create_task(self._deliver(due), name=f"{durable.consumer.durable} #{due.stored.sequence}")
                self._in_hand[task] = due.stored.sequence
                task.add_done_callback(self._finished)
        return None

    async def _changed_within(self, wait_s: float | None) -> None:
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._durable.changed.wait())]
        if wait_s is not None:
            waits.append(asyncio.ensure_future(self._bus._clock.sleep(wait_s)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _deliver(self, due: _Due) -> None:
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
            structlog.get_logger(__name__).warning(
                "message rejected", stream=consumer.stream, sequence=stored.sequence, reason=outcome.reason
            )
        if not isinstance(outcome, Done):
            bus._settle(durable, due, outcome)

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
        self._responders = responders
        self._entry = entry

    async def drain(self) -> None:
        with contextlib.suppress(ValueError):
            self._responders.remove(self._entry)

    async def pending(self) -> int:
        return 0


def matches(pattern: str, subject: str) -> bool:
    """NATS subject matching: `*` is one token, `>` one or more at the end."""
    wanted, given = pattern.split("."), subject.split(".")
    for position, token in enumerate(wanted):
        if token == ">":
            return len(given) > position
        if position >= len(given) or token not in ("*", given[position]):
            return False
    return len(wanted) == len(given)


def _keeps(stream: subjects.Stream, subject: str) -> bool:
    return any(matches(pattern, subject) for pattern in stream.subjects)
