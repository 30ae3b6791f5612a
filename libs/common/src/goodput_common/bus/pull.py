"""A pull loop on a durable consumer, bounded by free slots.

The server hands out a message only against a pull request, and the loop asks for no more than it has free slots: credits
given out plus messages in hand never exceed `slots`. One raw pull (`$JS.API.CONSUMER.MSG.NEXT`) is open at a time, with a
reply subject of its own, so that every credit is accounted for: used by a message, given back by a status, or lost with the
connection. Idle heartbeats tell a quiet stream from a dead one.

When the durable, the stream or the connection is lost, the loop binds anew with a growing delay. Messages in hand then go
on; their outcome is told to the server that comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import nats.errors
import nats.js.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from goodput_common.bus.codec import decode
from goodput_common.bus.connection import Backoff, Connection
from goodput_common.bus.consumers import JetStreamLost, bind_consumer
from goodput_common.bus.delivery import Done, Later, Never, Outcome, retry_delay_s, run_handler, too_often
from goodput_common.bus.errors import BusUnavailable, DecodeError, ProvisioningConflict
from goodput_common.bus.metrics import BusMetrics
from goodput_common.bus.ports import Consumer, Handler
from goodput_common.bus.rejected import Rejection

PULL_EXPIRES_S = 30.0
HEARTBEAT_S = 5.0
SILENCE_S_MAX = 12.0  # two heartbeats and a bit
FIRST_BIND_WAIT_S = 5.0
LONG_HANDLER_ACK_WAITS = 10
ACK, NAK, IN_PROGRESS = b"+ACK", b"-NAK", b"+WPI"
_EPOCH = datetime.fromtimestamp(0, UTC)

StoreRejection = Callable[[Rejection], Awaitable[None]]
Key = tuple[int, int]  # stream sequence and the broker's time: a stream made anew counts from 1 again


@dataclass(slots=True)
class _Pull:
    """`subject` is where its statuses come; its messages keep their own."""

    subject: str
    credits: int
    ends_at_s: float
    last_sign_s: float


@dataclass(slots=True)
class _Delivery:
    """A message in hand. `reply` is that of its newest delivery, where acks go."""

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
        return _EPOCH + timedelta(microseconds=self.received_ns // 1000)


class PullSubscription:
    """See `goodput_common.bus.ports.Subscription`."""

    def __init__(
        self,
        connection: Connection,
        consumer: Consumer,
        handler: Handler,
        *,
        metrics: BusMetrics,
        store_rejection: StoreRejection,
        no_stream: Callable[[], Awaitable[None]],
    ) -> None:
        self._connection = connection
        self._consumer = consumer
        self._handler = handler
        self._store_rejection = store_rejection
        self._no_stream = no_stream
        self._log = structlog.get_logger(__name__).bind(stream=consumer.stream, durable=consumer.durable)
        labels = (consumer.stream, consumer.durable)
        self._consumed = metrics.consumed.labels(*labels)
        self._acked = metrics.acked.labels(*labels)
        self._naked = metrics.naked.labels(*labels)
        self._rejected = metrics.rejected.labels(*labels)
        self._rebinds = metrics.rebinds.labels(*labels)
        self._in_hand_gauge = metrics.in_hand.labels(*labels)
        self._pull: _Pull | None = None
        self._pull_numbers = itertools.count(1)
        self._in_hand: dict[Key, _Delivery] = {}
        self._put_off: dict[Key, float] = {}  # waiting for a retry, until when
        self._unsent: deque[tuple[str, bytes]] = deque(maxlen=4 * consumer.slots)
        self._wake = asyncio.Event()
        self._bound = asyncio.Event()
        self._lost_because = ""
        self._next_sequence: int | None = None  # where a consumer of new messages goes on when its durable is gone
        self._conflict: ProvisioningConflict | None = None
        self._draining = False
        self._loop: asyncio.Task[None] | None = None
        self._ticker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin. Waits up to 5 s for the durable to exist, so that what is published from now on is seen.

        Raises ProvisioningConflict. With no server it goes on trying in the background.
        """
        name = self._consumer.durable
        self._loop = asyncio.create_task(self._run(), name=f"pull loop {name}")
        self._ticker = asyncio.create_task(self._tick(), name=f"pull in-progress {name}")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._bound.wait(), FIRST_BIND_WAIT_S)
        if self._conflict is not None:
            await self.drain()
            raise self._conflict

    # -- binding ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff, trouble, binds = Backoff(), "", 0
        while not self._draining:
            try:
                client = await self._connected()
                if client is None:
                    return
                self._next_sequence = await bind_consumer(client, self._consumer, self._next_sequence)
                inbox = client.new_inbox()
                subscription = await client.subscribe(f"{inbox}.*", cb=self._received)
                binds += 1
                if binds > 1:
                    self._rebinds.inc()
                if binds > 1 or trouble:
                    self._log.info("consumer bound", again=binds > 1)
                trouble = ""
                self._bound.set()
                started_s = _now_s()
                await self._pump(client, inbox)
                await self._unsubscribe(client, subscription)
                if _now_s() - started_s > HEARTBEAT_S:
                    backoff.reset()
                trouble = self._tell(trouble, self._lost_because)
            except ProvisioningConflict as error:
                self._conflict = error
                self._bound.set()
                trouble = self._tell(trouble, str(error))
            except JetStreamLost as error:
                if error.stream_missing:
                    await self._no_stream()
                trouble = self._tell(trouble, str(error))
            except (OSError, TimeoutError, nats.errors.Error, nats.js.errors.Error) as error:
                trouble = self._tell(trouble, f"{type(error).__name__}: {error}")
            self._pull = None
            await self._sleep(backoff.next_s())

    def _tell(self, before: str, trouble: str) -> str:
        if trouble != before:
            self._log.warning("consumer lost, will bind again", reason=trouble)
        return trouble

    async def _connected(self) -> Client | None:
        while not self._draining:
            with contextlib.suppress(BusUnavailable):
                return await self._connection.wait(1.0)
        return None

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake_when_draining(), seconds)

    async def _wake_when_draining(self) -> None:
        while not self._draining:
            self._wake.clear()
            await self._wake.wait()

    async def _unsubscribe(self, client: Client, subscription: NatsSubscription) -> None:
        """Messages that were already on their way pass through `_received`, which puts them back."""
        with contextlib.suppress(OSError, TimeoutError, nats.errors.Error):
            await asyncio.wait_for(subscription.drain(), timeout=2.0)  # type: ignore[no-untyped-call]

    # -- pulling ---------------------------------------------------------------------------------------------------

    async def _pump(self, client: Client, inbox: str) -> None:
        """Pull until draining, or until the consumer is lost (`_lost_because` says why)."""
        self._pull = None
        self._lost_because = ""
        while self._unsent:
            await client.publish(*self._unsent.popleft())
        while not self._draining and not self._lost_because:
            self._wake.clear()
            if self._connection.client is not client:
                self._lost_because = "connection lost"
                break
            self._end_pull_when_over(_now_s())
            free = self._consumer.slots - len(self._in_hand)
            if self._pull is None and free > 0 and not self._lost_because:
                await self._request(client, inbox, free)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), timeout=1.0)

    def _end_pull_when_over(self, now_s: float) -> None:
        pull = self._pull
        if pull is None:
            return
        if pull.credits <= 0 or now_s > pull.ends_at_s:
            self._pull = None
        elif now_s - pull.last_sign_s > SILENCE_S_MAX:
            self._lost_because = f"no sign of life from the server for {SILENCE_S_MAX} s"

    async def _request(self, client: Client, inbox: str, batch: int) -> None:
        now_s = _now_s()
        self._pull = _Pull(f"{inbox}.{next(self._pull_numbers)}", batch, now_s + PULL_EXPIRES_S + 1.0, now_s)
        request = {"batch": batch, "expires": int(PULL_EXPIRES_S * 1e9), "idle_heartbeat": int(HEARTBEAT_S * 1e9)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._consumer.stream}.{self._consumer.durable}"
        await client.publish(subject, json.dumps(request).encode(), reply=self._pull.subject)

    async def _received(self, message: Msg) -> None:
        """A message or a status for the open pull. Never waits for a handler."""
        pull = self._pull
        if pull is not None:
            pull.last_sign_s = _now_s()
        if not message.reply.startswith("$JS.ACK."):
            if pull is not None and message.subject == pull.subject:
                self._status(message.headers or {})
            return
        if pull is not None:
            pull.credits -= 1
        delivery = _delivery(message)
        held = self._in_hand.get(delivery.key)
        if held is not None:  # delivered again while its handler runs: one handler is enough
            held.reply = delivery.reply
        elif self._draining or len(self._in_hand) >= self._consumer.slots:
            await self._reply(delivery.reply, NAK)
        else:
            self._take(delivery)
        if pull is not None and pull.credits <= 0:
            self._wake.set()

    def _status(self, headers: dict[str, str]) -> None:
        status, text = headers.get("Status", ""), headers.get("Description", "")
        if status == "100":
            return
        self._pull = None
        released = status in ("404", "408") or (status == "409" and text.startswith(("Exceeded", "Batch", "Message Size")))
        if not released:
            self._lost_because = self._lost_because or f"{status} {text}".strip()
        self._wake.set()

    # -- handling --------------------------------------------------------------------------------------------------

    def _take(self, delivery: _Delivery) -> None:
        self._put_off.pop(delivery.key, None)
        self._in_hand[delivery.key] = delivery
        self._next_sequence = max(self._next_sequence or 0, delivery.sequence + 1)
        self._consumed.inc()
        self._in_hand_gauge.set(len(self._in_hand))
        delivery.task = asyncio.create_task(
            self._handle(delivery), name=f"{self._consumer.durable} {self._consumer.stream}#{delivery.sequence}"
        )

    async def _handle(self, delivery: _Delivery) -> None:
        try:
            outcome = await self._judge(delivery)
            if isinstance(outcome, Never):
                outcome = await self._reject(delivery, outcome)
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
            del self._in_hand[delivery.key]
            self._in_hand_gauge.set(len(self._in_hand))
            self._wake.set()

    async def _judge(self, delivery: _Delivery) -> Outcome:
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

    async def _reject(self, delivery: _Delivery, verdict: Never) -> Outcome:
        """Acknowledge only once the rejection is stored."""
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
        except BusUnavailable as error:
            self._log.warning("a rejected message could not be kept yet", sequence=delivery.sequence, error=str(error))
            return Later(retry_delay_s(delivery.deliveries), str(error))
        self._rejected.inc()
        self._log.warning("message rejected", subject=delivery.subject, sequence=delivery.sequence, reason=verdict.reason)
        return Done()

    async def _reply(self, reply: str, word: bytes) -> None:
        """Tell the server; kept for the next connection when there is none (then it may also deliver again: no harm)."""
        client = self._connection.client
        if client is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await client.publish(reply, word)
                return
        if word != IN_PROGRESS:
            self._unsent.append((reply, word))

    async def _tick(self) -> None:
        """Signs of life for what is in hand, three in each ack wait."""
        ack_wait_s = self._consumer.ack_wait_s
        while True:
            await asyncio.sleep(ack_wait_s / 3)
            now_s = _now_s()
            self._put_off = {key: until for key, until in self._put_off.items() if until > now_s}
            for delivery in list(self._in_hand.values()):
                await self._reply(delivery.reply, IN_PROGRESS)
                if not delivery.told_long and now_s - delivery.started_s > LONG_HANDLER_ACK_WAITS * ack_wait_s:
                    delivery.told_long = True
                    self._log.warning(
                        "a handler has been running for long", sequence=delivery.sequence, subject=delivery.subject
                    )

    # -- the port --------------------------------------------------------------------------------------------------

    async def pending(self) -> int:
        """What the server has for this consumer and no handler has finished, less what waits for a retry.

        Raises BusUnavailable.
        """
        client = await self._connection.wait(FIRST_BIND_WAIT_S)
        try:
            info = await client.jetstream().consumer_info(self._consumer.stream, self._consumer.durable)
        except (nats.errors.Error, nats.js.errors.Error, TimeoutError) as error:
            raise BusUnavailable(f"cannot ask about {self._consumer.durable}: {error}") from error
        now_s = _now_s()
        waiting = sum(1 for until in self._put_off.values() if until > now_s)
        unfinished = max((info.num_ack_pending or 0) - waiting, len(self._in_hand))
        return (info.num_pending or 0) + unfinished

    async def drain(self) -> None:
        self._draining = True
        self._wake.set()
        if self._loop is not None:
            await self._loop
        while tasks := [each.task for each in self._in_hand.values() if each.task is not None]:
            await asyncio.wait(tasks)
        await self._stop_ticker()

    async def abort(self) -> None:
        """Stop without waiting for handlers: they are cancelled, their messages go back."""
        self._draining = True
        self._wake.set()
        tasks = [each.task for each in self._in_hand.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=2.0)
        if self._loop is not None:
            self._loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop
        await self._stop_ticker()

    async def _stop_ticker(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _delivery(message: Msg) -> _Delivery:
    """Read the ack subject.

    `$JS.ACK[.<domain>.<account>].<stream>.<consumer>.<deliveries>.<sequence>.<consumer sequence>.<ns>.<pending>[.<random>]`
    """
    tokens = message.reply.split(".")
    first = 2 if len(tokens) == 9 else 4
    deliveries, sequence, _, received_ns = (int(token) for token in tokens[first + 2 : first + 6])
    return _Delivery(
        subject=message.subject,
        headers=dict(message.headers or {}),
        body=message.data,
        reply=message.reply,
        sequence=sequence,
        received_ns=received_ns,
        deliveries=deliveries,
        started_s=_now_s(),
    )
