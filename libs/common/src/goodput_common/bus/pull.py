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
from dataclasses import dataclass

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from goodput_common.bus.connection import Backoff, Connection, heeding_cancel
from goodput_common.bus.consumers import JetStreamLost, bind_consumer
from goodput_common.bus.errors import BusUnavailable, ProvisioningConflict
from goodput_common.bus.in_hand import IN_PROGRESS, NAK, InHand, StoreRejection, delivery_of, subscription_log
from goodput_common.bus.metrics import BusMetrics
from goodput_common.bus.ports import Consumer, Handler

PULL_EXPIRES_S = 30.0
HEARTBEAT_S = 5.0
SILENCE_S_MAX = 12.0  # two heartbeats and a bit
FIRST_BIND_WAIT_S = 5.0
REFUSED_PAUSE_S = 0.5
UNSENT_PER_SLOT = 4
GIVEN_BACK = ("404", "408")  # no messages, or the pull's time is up


@dataclass(slots=True)
class _Pull:
    """`subject` is where its statuses come; its messages keep their own."""

    subject: str
    credits: int
    ends_at_s: float
    last_sign_s: float


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
        self._no_stream = no_stream
        self._log = subscription_log(consumer)
        self._rebinds = metrics.rebinds.labels(consumer.stream, consumer.durable)
        self._wake = asyncio.Event()
        self._in_hand = InHand(
            consumer,
            handler,
            metrics=metrics,
            reply=self._reply,
            store_rejection=store_rejection,
            freed=self._wake.set,
            log=self._log,
        )
        self._pull: _Pull | None = None
        self._pull_numbers = itertools.count(1)
        self._next_pull_s = 0.0
        self._unsent: deque[tuple[str, bytes]] = deque(maxlen=UNSENT_PER_SLOT * consumer.slots)
        self._bound = asyncio.Event()
        self._lost_because = ""
        self._next_sequence: int | None = None  # where a consumer of new messages goes on when its durable is gone
        self._conflict: ProvisioningConflict | None = None
        self.binds = 0
        self._draining = False
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin. Waits up to 5 s for the durable to exist, so that what is published from now on is seen.

        Raises ProvisioningConflict. With no server it goes on trying in the background.
        """
        self._loop = asyncio.create_task(self._run(), name=f"pull loop {self._consumer.durable}")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._bound.wait(), FIRST_BIND_WAIT_S)
        if self._conflict is not None:
            await self.drain()
            raise self._conflict

    # -- binding ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff, trouble = Backoff(), ""
        while not self._draining:
            started_s = _now_s()
            try:
                client = await self._connected()
                if client is None:
                    return
                self._next_sequence = await bind_consumer(client, self._consumer, self._next_sequence)
                inbox = client.new_inbox()
                subscription = await client.subscribe(f"{inbox}.*", cb=self._received)
                self.binds += 1
                if self.binds > 1:
                    self._rebinds.inc()
                if self.binds > 1 or trouble:
                    self._log.info("consumer bound", again=self.binds > 1)
                trouble = ""
                self._bound.set()
                await self._pump(client, inbox)
                await self._unsubscribe(subscription)
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
            except Exception as error:  # noqa: BLE001 - a loop that ended would be a consumer that silently stopped
                self._log.error("the pull loop failed, will start again", exc_info=error)
            self._pull = None
            if _now_s() - started_s > HEARTBEAT_S:
                backoff.reset()
            await self._pause(backoff.next_s())

    def _tell(self, before: str, trouble: str) -> str:
        if trouble != before:
            self._log.warning("consumer lost, will bind again", reason=trouble)
        return trouble

    async def _connected(self) -> Client | None:
        while not self._draining:
            with contextlib.suppress(BusUnavailable):
                return await self._connection.wait(1.0)
        return None

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not into a drain."""
        ends_at_s = _now_s() + seconds
        while not self._draining and (left_s := ends_at_s - _now_s()) > 0:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), left_s)

    async def _unsubscribe(self, subscription: NatsSubscription) -> None:
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
            if self._pull is None and free > 0 and not self._lost_because and _now_s() >= self._next_pull_s:
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
            if pull.credits <= 0:
                self._wake.set()
        delivery = delivery_of(message)
        held = self._in_hand.held(delivery.key)
        if held is not None:  # delivered again while its handler runs: one handler is enough
            held.reply = delivery.reply
        elif self._draining or len(self._in_hand) >= self._consumer.slots:
            await self._reply(delivery.reply, NAK)
        else:
            self._next_sequence = max(self._next_sequence or 0, delivery.sequence + 1)
            self._in_hand.take(delivery)

    def _status(self, headers: dict[str, str]) -> None:
        status, text = headers.get("Status", ""), headers.get("Description", "")
        if status == "100":
            return
        self._pull = None
        if status == "409" and text.startswith("Exceeded"):  # too many pulls of all who share the durable
            self._next_pull_s = _now_s() + REFUSED_PAUSE_S
        elif status not in GIVEN_BACK:
            self._lost_because = self._lost_because or f"{status} {text}".strip()
        self._wake.set()

    async def _reply(self, reply: str, word: bytes) -> None:
        """Tell the server; kept for the next connection when there is none (then it may also deliver again: no harm)."""
        client = self._connection.client
        if client is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await heeding_cancel(client.publish(reply, word))
                return
        if word != IN_PROGRESS:
            self._unsent.append((reply, word))

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
        unfinished = max((info.num_ack_pending or 0) - self._in_hand.put_off(), len(self._in_hand))
        return (info.num_pending or 0) + unfinished

    @property
    def over(self) -> bool:
        """Drained or aborted, and so of no more use."""
        return self._draining and (self._loop is None or self._loop.done()) and not len(self._in_hand)

    async def drain(self) -> None:
        self._draining = True
        self._wake.set()
        if self._loop is not None:
            await self._loop
        await self._in_hand.finish()

    async def abort(self) -> None:
        """Stop without waiting for handlers: they are cancelled, their messages go back."""
        self._draining = True
        self._wake.set()
        await self._in_hand.abort()
        if self._loop is not None:
            self._loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop


def _now_s() -> float:
    return asyncio.get_running_loop().time()
