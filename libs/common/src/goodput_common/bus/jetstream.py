"""The bus on NATS JetStream.

Put together from its parts: `connection` (made again for ever), `publisher` (waits for the server's ack), `pull` (consumes
within its slots), `responder` (answers requests), `provision` (makes the streams).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from datetime import datetime

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from prometheus_client import CollectorRegistry

from goodput_common.bus.codec import decode, encode, texts, unescape, wire_bytes
from goodput_common.bus.connection import Connection, heeding_cancel
from goodput_common.bus.errors import (
    BusError,
    BusUnavailable,
    MessageTooLarge,
    NoResponders,
    RequestFailed,
    RequestTimeout,
)
from goodput_common.bus.metrics import bus_metrics
from goodput_common.bus.ports import Consumer, Handler, Responder
from goodput_common.bus.publisher import Publisher
from goodput_common.bus.pull import PullSubscription
from goodput_common.bus.rejected import Rejection, from_stored, to_headers
from goodput_common.bus.responder import ERROR_HEADER, Service
from goodput_common.contracts import subjects
from goodput_common.runtime.clock import Clock, SystemClock

DRAIN_AT_CLOSE_S = 5.0
REPROVISION_EVERY_S = 5.0
REJECTED_STREAM = "REJECTED"


class JetStreamBus:
    """See `goodput_common.bus.ports.Bus`. Made by `connect`."""

    def __init__(
        self, connection: Connection, *, clock: Clock, publish_timeout_s: float, pending_max: int, compress_over: int | None
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._compress_over = compress_over
        self._metrics = connection.metrics
        self._publisher = Publisher(
            connection,
            self._metrics,
            timeout_s=publish_timeout_s,
            pending_max=pending_max,
            no_stream=self._make_streams_again,
            kept=self._is_kept,
        )
        self._subscriptions: list[PullSubscription] = []
        self._services: list[Service] = []
        self._streams: tuple[subjects.Stream, ...] = ()
        self._streams_made_s = float("-inf")

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        name: str,
        user: str | None = None,
        password: str | None = None,
        clock: Clock | None = None,
        wait_s: float | None = 30.0,
        publish_timeout_s: float = 5.0,
        pending_max: int = 256,
        compress_over: int | None = None,
        registry: CollectorRegistry | None = None,
    ) -> JetStreamBus:
        """Connect to `url` (several servers: comma between them; user and password also as part of it).

        Tries for `wait_s`, then raises BusUnavailable; None tries for ever. With 0 it returns at once and goes on in the
        background: publishing then waits, within its own limit, for the connection. `pending_max` bounds the publishes that
        wait for the server at once. Published bodies of more than `compress_over` bytes are compressed.
        """
        connection = Connection(url, name=name, user=user, password=password, metrics=bus_metrics(registry))
        bus = cls(
            connection,
            clock=clock or SystemClock(),
            publish_timeout_s=publish_timeout_s,
            pending_max=pending_max,
            compress_over=compress_over,
        )
        connection.open()
        if wait_s != 0:
            try:
                await connection.wait(wait_s)
            except BusUnavailable:
                await connection.close()
                raise
        return bus

    async def client(self, within_s: float = 5.0) -> Client:
        """The live connection, for provisioning and recording. Raises BusUnavailable."""
        return await self._connection.wait(within_s)

    async def healthy(self) -> bool:
        return self._connection.client is not None

    # -- publish ---------------------------------------------------------------------------------------------------

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
        at = time or self._clock.now()
        encoded = encode(data, id=id, source=source, component=component, time=at, compress_over=self._compress_over)
        await self._publisher.store(subject, encoded.headers, encoded.body)

    async def publish_raw(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Store bytes as they are: for replay, and for tests that send what no producer of ours would."""
        await self._publisher.store(subject, headers, body)

    def keep_streams(self, streams: tuple[subjects.Stream, ...]) -> None:
        """Streams to make again when the server has lost them; `provision` says so."""
        self._streams = streams

    def _is_kept(self, subject: str) -> bool:
        patterns = (pattern for stream in self._streams for pattern in stream.subjects)
        return subjects.is_kept(subject) or any(subjects.matches(pattern, subject) for pattern in patterns)

    async def _make_streams_again(self) -> None:
        from goodput_common.bus.provision import provision

        now_s = time.monotonic()
        if not self._streams or now_s - self._streams_made_s < REPROVISION_EVERY_S:
            return
        self._streams_made_s = now_s
        with contextlib.suppress(BusError):  # whoever noticed the loss keeps trying and tells
            await provision(self, self._streams)

    # -- consume ---------------------------------------------------------------------------------------------------

    async def consume(self, consumer: Consumer, handler: Handler) -> PullSubscription:
        if consumer.stream == REJECTED_STREAM:
            raise ValueError("rejected messages cannot be decoded: read them through rejections()")
        subscription = PullSubscription(
            self._connection,
            consumer,
            handler,
            metrics=self._metrics,
            store_rejection=self._keep_rejected,
            no_stream=self._make_streams_again,
        )
        self._subscriptions = [each for each in self._subscriptions if not each.over] + [subscription]
        await subscription.start()
        return subscription

    async def _keep_rejected(self, rejection: Rejection) -> None:
        try:
            await self._publisher.store(subjects.rejected(rejection.stream), to_headers(rejection), rejection.body)
        except MessageTooLarge:  # the added headers crossed the limit: the body loses its end, the reason stays
            await self._publisher.store(
                subjects.rejected(rejection.stream), to_headers(rejection), rejection.body[: len(rejection.body) // 2]
            )

    async def rejections(self, limit: int = 100) -> list[Rejection]:
        """The newest rejected messages, oldest of them first. Raises BusUnavailable."""
        js = (await self.client()).jetstream(timeout=3.0)
        found: list[Rejection] = []
        try:
            state = (await js.stream_info(REJECTED_STREAM)).state
            for sequence in range(max(state.first_seq, state.last_seq - limit + 1, 1), state.last_seq + 1):
                with contextlib.suppress(nats.js.errors.NotFoundError):
                    raw = await js.get_msg(REJECTED_STREAM, sequence)
                    at = raw.time or self._clock.now()
                    found.append(from_stored(texts(raw.headers), raw.data or b"", at))
        except nats.js.errors.NotFoundError:
            return []
        except (nats.errors.Error, nats.js.errors.Error, TimeoutError) as error:
            raise BusUnavailable(f"cannot read {REJECTED_STREAM}: {type(error).__name__}: {error}") from error
        return found

    # -- request and reply -----------------------------------------------------------------------------------------

    async def request(self, subject: str, data: msgspec.Struct, *, id: str, source: str, timeout_s: float) -> msgspec.Struct:
        client = await self._connection.wait(timeout_s)
        encoded = encode(data, id=id, source=source, time=self._clock.now())
        if (size := wire_bytes(encoded.headers, encoded.body)) > client.max_payload:
            raise MessageTooLarge(size, client.max_payload)
        try:
            asking = client.request(subject, encoded.body, timeout=timeout_s, headers=encoded.headers)
            reply = await heeding_cancel(asking)
        except nats.errors.NoRespondersError:
            raise NoResponders(subject) from None
        except nats.errors.TimeoutError:
            raise RequestTimeout(subject, timeout_s) from None
        except (nats.errors.Error, OSError) as error:
            raise BusUnavailable(f"{subject} could not be asked: {type(error).__name__}: {error}") from error
        headers = reply.headers or {}
        if ERROR_HEADER in headers:
            raise RequestFailed(subject, unescape(headers[ERROR_HEADER]))
        answer: msgspec.Struct = decode(reply.subject, headers, reply.data, received_at=self._clock.now()).data
        return answer

    async def serve(self, subject: str, responder: Responder) -> Service:
        service = Service(self._connection, subject, responder, clock=self._clock)
        self._services.append(service)
        await service.start()
        return service

    async def close(self) -> None:
        """Drain what was not drained (for 5 s, then cancel), flush and disconnect."""
        parts: list[PullSubscription | Service] = [*self._subscriptions, *self._services]
        for each in parts:
            try:
                await asyncio.wait_for(each.drain(), DRAIN_AT_CLOSE_S)
            except TimeoutError:
                await each.abort()
        await self._connection.close()
