"""Publish and wait until the server has stored the message.

Each publish carries a reply subject and waits for the server's ack on it. A connection that is lost in between leaves open
whether the message was stored, so it is sent again on the next connection: the message id makes that harmless. At most
`pending_max` publishes wait at once; the next ones wait for a place, within the same time limit.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from goodput_common.bus.codec import wire_bytes
from goodput_common.bus.connection import Backoff, Connection, heeding_cancel
from goodput_common.bus.errors import BusUnavailable, MessageTooLarge
from goodput_common.bus.metrics import BusMetrics

ACK_WAIT_S = 2.0  # then the message is sent again
NO_RESPONDERS = "503"
NO_STREAM_RETRY_S_MAX = 0.5


class _AckError(msgspec.Struct):
    code: int = 0
    description: str = ""


class _Ack(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: _AckError | None = None


_ack_decoder = msgspec.json.Decoder(_Ack)


class Publisher:
    """`no_stream` is called when no stream keeps a subject; it may make the streams anew."""

    def __init__(
        self,
        connection: Connection,
        metrics: BusMetrics,
        *,
        timeout_s: float,
        pending_max: int,
        no_stream: Callable[[], Awaitable[None]],
    ) -> None:
        self._connection = connection
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._pending_max = pending_max
        self._places = asyncio.Semaphore(pending_max)
        self._no_stream = no_stream
        self._inbox = ""
        self._tokens = itertools.count()
        self._waiting: dict[str, asyncio.Future[Msg | None]] = {}
        connection.on_connect.append(self._subscribe)
        connection.on_loss.append(self._lost)

    async def _subscribe(self, client: Client) -> None:
        self._inbox = client.new_inbox()
        await client.subscribe(f"{self._inbox}.*", cb=self._acked)

    async def _acked(self, message: Msg) -> None:
        future = self._waiting.get(message.subject.rpartition(".")[2])
        if future is not None and not future.done():
            future.set_result(message)

    def _lost(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None)

    async def store(self, subject: str, headers: Mapping[str, str], body: bytes) -> None:
        """Raises BusUnavailable after the time limit, MessageTooLarge at once."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._places.acquire()
        except TimeoutError:
            self._metrics.publish_failed.inc()
            raise BusUnavailable(f"{self._pending_max} publishes were already waiting for {self._timeout_s} s") from None
        try:
            stream = await self._store(subject, dict(headers), body, deadline)
        except BusUnavailable:
            self._metrics.publish_failed.inc()
            raise
        finally:
            self._places.release()
        self._metrics.published.labels(stream).inc()

    async def _store(self, subject: str, headers: dict[str, str], body: bytes, deadline: float) -> str:
        loop = asyncio.get_running_loop()
        backoff = Backoff(NO_STREAM_RETRY_S_MAX)
        trouble = "no answer"
        while (left_s := deadline - loop.time()) > 0:
            client = await self._connection.wait(left_s)
            reply = await self._send(client, subject, headers, body, min(left_s, ACK_WAIT_S))
            if reply is None:
                trouble = self._connection.last_error or "the server did not acknowledge"
                continue
            if reply.headers and reply.headers.get("Status") == NO_RESPONDERS:
                trouble = "no stream keeps this subject, or JetStream is off"
                await self._no_stream()
                await asyncio.sleep(min(backoff.next_s(), max(0.0, deadline - loop.time())))
                continue
            ack = _ack_decoder.decode(reply.data)
            if ack.error is None:
                return ack.stream
            trouble = f"the server refused it: {ack.error.description} (code {ack.error.code})"
            if ack.error.code != int(NO_RESPONDERS):  # 503: JetStream is not ready yet
                break
            await asyncio.sleep(min(backoff.next_s(), max(0.0, deadline - loop.time())))
        raise BusUnavailable(f"{subject} was not stored within {self._timeout_s} s: {trouble}")

    async def _send(self, client: Client, subject: str, headers: dict[str, str], body: bytes, wait_s: float) -> Msg | None:
        """The server's reply; None when the connection ended or no reply came in time."""
        # The client counts the body alone; over its own count the server hangs up on the whole connection.
        if (size := wire_bytes(headers, body)) > client.max_payload:
            raise MessageTooLarge(size, client.max_payload)
        token = str(next(self._tokens))
        future: asyncio.Future[Msg | None] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        try:
            await heeding_cancel(client.publish(subject, body, reply=f"{self._inbox}.{token}", headers=headers))
            async with asyncio.timeout(wait_s):
                return await future
        except (TimeoutError, nats.errors.ConnectionClosedError, nats.errors.OutboundBufferLimitError):
            return None
        finally:
            del self._waiting[token]
