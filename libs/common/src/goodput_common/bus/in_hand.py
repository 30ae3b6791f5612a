"""The messages whose handlers run now: taken, kept alive, judged, answered.

Each message has a task of its own. While it runs, signs of life keep the server from delivering the message to anybody else.
Its outcome is told on the reply subject of its newest delivery; a message that must be rejected is acknowledged only once
the rejection is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from nats.aio.msg import Msg

from goodput_common.bus.codec import decode
from goodput_common.bus.delivery import RETRY_S_MAX, Done, Later, Never, Outcome, retry_delay_s, run_handler, too_often
from goodput_common.bus.errors import BusUnavailable, DecodeError, Refused
from goodput_common.bus.metrics import BusMetrics
from goodput_common.bus.ports import Consumer, Handler
from goodput_common.bus.rejected import Rejection
from goodput_common.runtime.logs import get_logger

ACK, NAK, IN_PROGRESS = b"+ACK", b"-NAK", b"+WPI"
SIGNS_PER_ACK_WAIT = 3
LONG_HANDLER_ACK_WAITS = 10
CANCEL_WAIT_S = 2.0
_EPOCH = datetime.fromtimestamp(0, UTC)

Key = tuple[int, int]  # stream sequence and the broker's time: a stream made anew counts from 1 again
StoreRejection = Callable[[Rejection], Awaitable[None]]
Reply = Callable[[str, bytes], Awaitable[None]]


@dataclass(slots=True)
class Delivery:
    """One message as delivered. `reply` is where acks go: that of the newest delivery while it is in hand."""

    subject: str
    headers: dict[str, str]
    body: bytes
    reply: str
    sequence: int
    received_ns: int
    deliveries: int
    started_s: float
    told_long: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def key(self) -> Key:
        return self.sequence, self.received_ns

    @property
    def received_at(self) -> datetime:
        return time_of(self.received_ns)


def time_of(unix_ns: int) -> datetime:
    """The broker's time stamp, to the microsecond."""
    return _EPOCH + timedelta(microseconds=unix_ns // 1000)


def ack_numbers(reply: str) -> tuple[int, int, int, int]:
    """(deliveries, stream sequence, consumer sequence, broker's time in ns) from the ack subject.

    `$JS.ACK[.<domain>.<account>].<stream>.<consumer>.<deliveries>.<sequence>.<consumer sequence>.<ns>.<pending>[.<random>]`
    """
    tokens = reply.split(".")
    first = 4 if len(tokens) == 9 else 6
    deliveries, sequence, consumer_sequence, received_ns = (int(token) for token in tokens[first : first + 4])
    return deliveries, sequence, consumer_sequence, received_ns


def delivery_of(message: Msg) -> Delivery:
    deliveries, sequence, _, received_ns = ack_numbers(message.reply)
    return Delivery(
        subject=message.subject,
        headers=dict(message.headers or {}),
        body=message.data,
        reply=message.reply,
        sequence=sequence,
        received_ns=received_ns,
        deliveries=deliveries,
        started_s=_now_s(),
    )


class InHand:
    """At most `consumer.slots` deliveries, which the pull loop sees to. `freed` is called when one is done."""

    def __init__(
        self,
        consumer: Consumer,
        handler: Handler,
        *,
        metrics: BusMetrics,
        reply: Reply,
        store_rejection: StoreRejection,
        freed: Callable[[], None],
        log: Any,
    ) -> None:
        self._consumer = consumer
        self._handler = handler
        self._reply = reply
        self._store_rejection = store_rejection
        self._freed = freed
        self._log = log
        labels = (consumer.stream, consumer.durable)
        self._consumed = metrics.consumed.labels(*labels)
        self._acked = metrics.acked.labels(*labels)
        self._naked = metrics.naked.labels(*labels)
        self._rejected = metrics.rejected.labels(*labels)
        self._signs_failed = metrics.signs_failed.labels(*labels)
        self._gauge = metrics.in_hand.labels(*labels)
        self._held: dict[Key, Delivery] = {}
        self._put_off: dict[Key, float] = {}  # waiting for a retry, until when
        self._keeper = asyncio.create_task(self._keep_alive(), name=f"in-progress {consumer.durable}")

    def __len__(self) -> int:
        return len(self._held)

    def held(self, key: Key) -> Delivery | None:
        return self._held.get(key)

    def put_off(self) -> int:
        """How many messages wait for a retry that this process asked for."""
        now_s = _now_s()
        self._put_off = {key: until for key, until in self._put_off.items() if until > now_s}
        return len(self._put_off)

    def take(self, delivery: Delivery) -> None:
        self._put_off.pop(delivery.key, None)
        self._held[delivery.key] = delivery
        self._consumed.inc()
        self._gauge.set(len(self._held))
        name = f"{self._consumer.durable} {self._consumer.stream}#{delivery.sequence}"
        delivery.task = asyncio.create_task(self._handle(delivery), name=name)

    async def _handle(self, delivery: Delivery) -> None:
        try:
            try:
                outcome = await self._judge(delivery)
                if isinstance(outcome, Never):
                    outcome = await self._reject(delivery, outcome)
            except Exception as error:  # noqa: BLE001 - ours, not the handler's; the message must not be lost by it
                self._log.error("a delivery could not be judged", sequence=delivery.sequence, exc_info=error)
                outcome = Later(RETRY_S_MAX, f"{type(error).__name__}: {error}")
            if isinstance(outcome, Later):
                self._naked.inc()
                self._put_off[delivery.key] = _now_s() + outcome.delay_s
                await self._reply(delivery.reply, NAK + b' {"delay": %d}' % int(outcome.delay_s * 1e9))
            else:
                self._acked.inc()
                await self._reply(delivery.reply, ACK)
        except asyncio.CancelledError:
            await self._reply(delivery.reply, NAK)  # stopped in the middle: somebody else may have it at once
            raise
        finally:
            del self._held[delivery.key]
            self._gauge.set(len(self._held))
            self._freed()

    async def _judge(self, delivery: Delivery) -> Outcome:
        if (outcome := too_often(delivery.deliveries, self._consumer.max_deliveries)) is not None:
            return outcome
        try:
            message = decode(
                delivery.subject,
                delivery.headers,
                delivery.body,
                received_at=delivery.received_at,
                stream=self._consumer.stream,
                sequence=delivery.sequence,
                deliveries=delivery.deliveries,
            )
        except DecodeError as error:
            return Never(error.reason)
        return await run_handler(self._handler, message, self._consumer.max_deliveries)

    async def _reject(self, delivery: Delivery, verdict: Never) -> Outcome:
        """Done once the rejection is stored, else another try later."""
        rejection = Rejection(
            reason=verdict.reason,
            stream=self._consumer.stream,
            subject=delivery.subject,
            sequence=delivery.sequence,
            durable=self._consumer.durable,
            deliveries=delivery.deliveries,
            received_at=delivery.received_at,
            headers=delivery.headers,
            body=delivery.body,
        )
        try:
            await self._store_rejection(rejection)
        except (BusUnavailable, Refused) as error:
            self._log.warning("a rejected message could not be kept yet", sequence=delivery.sequence, error=str(error))
            return Later(retry_delay_s(delivery.deliveries), str(error))
        self._rejected.inc()
        self._log.warning("message rejected", subject=delivery.subject, sequence=delivery.sequence, reason=verdict.reason)
        return Done()

    async def _keep_alive(self) -> None:
        ack_wait_s = self._consumer.ack_wait_s
        trouble = ""
        while True:
            await asyncio.sleep(ack_wait_s / SIGNS_PER_ACK_WAIT)
            now_s = _now_s()
            try:
                for delivery in list(self._held.values()):
                    await self._reply(delivery.reply, IN_PROGRESS)
                    if not delivery.told_long and now_s - delivery.started_s > LONG_HANDLER_ACK_WAITS * ack_wait_s:
                        delivery.told_long = True
                        self._log.warning(
                            "a handler has been running for long", sequence=delivery.sequence, subject=delivery.subject
                        )
            except Exception as error:  # noqa: BLE001 - without signs of life every slow message would be delivered twice
                self._signs_failed.inc()
                if repr(error) != trouble:
                    self._log.error("signs of life could not be sent; trying again", exc_info=error)
                trouble = repr(error)
            else:
                trouble = ""

    async def finish(self) -> None:
        """Wait for all handlers."""
        while tasks := self._tasks():
            await asyncio.wait(tasks)
        await self._stop_keeper()

    async def abort(self) -> None:
        """Cancel all handlers; their messages go back."""
        tasks = self._tasks()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_WAIT_S)
        await self._stop_keeper()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [each.task for each in self._held.values() if each.task is not None]

    async def _stop_keeper(self) -> None:
        self._keeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._keeper


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def subscription_log(consumer: Consumer) -> Any:
    return get_logger(__name__).bind(stream=consumer.stream, durable=consumer.durable)
