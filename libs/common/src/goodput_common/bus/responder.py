"""Answers requests on one subject: core NATS, no stream, so that nobody there is known at once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from goodput_common.bus.codec import decode, encode, escape
from goodput_common.bus.connection import Connection
from goodput_common.bus.ports import Responder
from goodput_common.runtime.clock import Clock
from goodput_common.runtime.logs import get_logger

ERROR_HEADER = "goodput-error"
AT_ONCE_MAX = 16
WAITING_MAX = 256  # requests beyond are dropped; their sender sees a time-out
ERROR_CHARS_MAX = 500


class Service:
    """Subscribed on every connection anew. At most 16 requests are answered at once."""

    def __init__(self, connection: Connection, subject: str, responder: Responder, *, clock: Clock) -> None:
        self.binds = 0
        self._connection = connection
        self._subject = subject
        self._responder = responder
        self._clock = clock
        self._log = get_logger(__name__).bind(subject=subject)
        self._places = asyncio.Semaphore(AT_ONCE_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._replies = itertools.count(1)
        self._subscription: NatsSubscription | None = None

    async def start(self) -> None:
        self._connection.on_connect.append(self._subscribe)
        if (client := self._connection.client) is not None:
            await self._subscribe(client)
            await client.flush()  # the server knows of it when this returns

    async def _subscribe(self, client: Client) -> None:
        self.binds += 1
        self._subscription = await client.subscribe(self._subject, cb=self._asked, pending_msgs_limit=WAITING_MAX)

    async def _asked(self, request: Msg) -> None:
        await self._places.acquire()
        task = asyncio.create_task(self._answer(request), name=f"answer {request.subject}")
        self._tasks.add(task)
        task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._places.release()

    async def _answer(self, request: Msg) -> None:
        now = self._clock.now()
        try:
            message = decode(request.subject, request.headers, request.data, received_at=now)
            answer = await self._responder(message)
            encoded = encode(answer, id=f"{message.id}/reply/{next(self._replies)}", source=self._subject, time=now)
        except Exception as error:  # noqa: BLE001 - told to the one who asked
            text = f"{type(error).__name__}: {error}"
            self._log.warning("a request failed", error=text)
            await self._send(request.reply, b"", {ERROR_HEADER: escape(text[:ERROR_CHARS_MAX])})
        else:
            await self._send(request.reply, encoded.body, encoded.headers)

    async def _send(self, reply: str, body: bytes, headers: dict[str, str]) -> None:
        client = self._connection.client
        if client is None or not reply:
            self._log.warning("an answer could not be sent: the connection is lost")
            return
        try:
            await client.publish(reply, body, headers=headers)
        except (nats.errors.Error, OSError) as error:
            self._log.warning("an answer could not be sent", error=f"{type(error).__name__}: {error}")

    async def drain(self) -> None:
        with contextlib.suppress(ValueError):
            self._connection.on_connect.remove(self._subscribe)
        if self._subscription is not None:
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                await asyncio.wait_for(self._subscription.drain(), 2.0)  # type: ignore[no-untyped-call]
            self._subscription = None
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def abort(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def pending(self) -> int:
        return len(self._tasks)
