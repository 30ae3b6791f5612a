"""Publish and wait until the server has stored the message, or has said that it never will.

Each publish carries a reply subject and waits for the server's ack on it. A connection that is lost in between leaves open
whether the message was stored, so it is sent again on the next connection: the message id makes that harmless. At most
`pending_max` publishes wait at once; the next ones wait for a place, within the same time limit.

What the server will not take at any time is `Refused`, so that the caller can go on with the next message: a subject that
the user may not publish (which the server tells beside the acks, as an error of the connection), a message over a limit, a
request that makes no sense to it, a subject that no stream of ours keeps. A stream of ours that is missing is not: whoever
owns it makes it again.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from goodput_common.bus.codec import wire_bytes
from goodput_common.bus.connection import Backoff, Connection, heeding_cancel
from goodput_common.bus.errors import BusUnavailable, MessageTooLarge, Refused
from goodput_common.bus.metrics import BusMetrics

ACK_WAIT_S = 2.0  # then the message is sent again
NO_RESPONDERS = "503"
NO_STREAM_RETRY_S_MAX = 0.5
_AT_FAULT = range(400, 408)  # as in HTTP: the request is; from 408 on (time, conflict, rate, the server) the moment is
_ACCOUNT_IS_FULL = 10002  # told as 400, but passes when something is deleted
_FORBIDDEN = re.compile(r'permissions violation for publish to "(?P<subject>.+)"')  # the client hands it on in lower case


class _AckError(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Ack(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: _AckError | None = None


_ack_decoder = msgspec.json.Decoder(_Ack)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A publish under way. The future gets the server's reply, its refusal, or None when the connection ends."""

    subject: str
    future: asyncio.Future[Msg | Refused | None]

    def end(self, outcome: Msg | Refused | None) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


class Publisher:
    """`kept` says whether some stream should keep a subject. `no_stream` is called when none does; it may make the streams
    anew."""

    def __init__(
        self,
        connection: Connection,
        metrics: BusMetrics,
        *,
        timeout_s: float,
        pending_max: int,
        no_stream: Callable[[], Awaitable[None]],
        kept: Callable[[str], bool],
    ) -> None:
        self._connection = connection
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._pending_max = pending_max
        self._places = asyncio.Semaphore(pending_max)
        self._no_stream, self._kept = no_stream, kept
        self._inbox = ""
        self._tokens = itertools.count()
        self._waiting: dict[str, _Waiting] = {}
        connection.on_connect.append(self._subscribe)
        connection.on_error.append(self._forbidden)
        connection.on_loss.append(self._lost)

    async def _subscribe(self, client: Client) -> None:
        self._inbox = client.new_inbox()
        await client.subscribe(f"{self._inbox}.*", cb=self._acked)

    async def _acked(self, message: Msg) -> None:
        waiting = self._waiting.get(message.subject.rpartition(".")[2])
        if waiting is not None:
            waiting.end(message)

    def _lost(self) -> None:
        for waiting in self._waiting.values():
            waiting.end(None)

    def _forbidden(self, error: str) -> bool:
        """Whether the server's error is about publishes under way here: those are refused."""
        told = _FORBIDDEN.search(error)
        concerned = [each for each in self._waiting.values() if told and each.subject.lower() == told["subject"]]
        for each in concerned:
            each.end(Refused(each.subject, "this user has no permission to publish it"))
        return bool(concerned)

    async def store(self, subject: str, headers: Mapping[str, str], body: bytes) -> None:
        """Raises BusUnavailable after the time limit, Refused at once."""
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
        except Refused:
            self._metrics.publish_refused.inc()
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
                if not self._kept(subject):
                    raise Refused(subject, "no stream keeps this subject")
                trouble = "no stream keeps this subject, or JetStream is off"
                await self._no_stream()
                await asyncio.sleep(min(backoff.next_s(), max(0.0, deadline - loop.time())))
                continue
            try:
                ack = _ack_decoder.decode(reply.data)
            except (msgspec.DecodeError, UnicodeDecodeError):  # stored or not: the message id makes another try harmless
                trouble = "the server's answer is no acknowledgement"
                await asyncio.sleep(min(backoff.next_s(), max(0.0, deadline - loop.time())))
                continue
            if ack.error is None:
                return ack.stream
            trouble = f"{ack.error.description} (code {ack.error.code}, {ack.error.err_code})"
            if ack.error.code in _AT_FAULT and ack.error.err_code != _ACCOUNT_IS_FULL:
                raise Refused(subject, trouble)
            await asyncio.sleep(min(backoff.next_s(), max(0.0, deadline - loop.time())))
        raise BusUnavailable(f"{subject} was not stored within {self._timeout_s} s: {trouble}")

    async def _send(self, client: Client, subject: str, headers: dict[str, str], body: bytes, wait_s: float) -> Msg | None:
        """The server's reply; None when the connection ended or no reply came in time. Raises Refused."""
        # The client counts the body alone; over its own count the server hangs up on the whole connection.
        if (size := wire_bytes(headers, body)) > client.max_payload:
            raise MessageTooLarge(size, client.max_payload)
        token = str(next(self._tokens))
        waiting = self._waiting[token] = _Waiting(subject, asyncio.get_running_loop().create_future())
        try:
            await heeding_cancel(client.publish(subject, body, reply=f"{self._inbox}.{token}", headers=headers))
            async with asyncio.timeout(wait_s):
                outcome = await waiting.future
        except (TimeoutError, nats.errors.ConnectionClosedError, nats.errors.OutboundBufferLimitError):
            return None
        finally:
            del self._waiting[token]
        if isinstance(outcome, Refused):
            raise outcome
        return outcome
