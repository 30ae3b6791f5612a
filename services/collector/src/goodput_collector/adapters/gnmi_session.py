"""One conversation with one switch: what it can do, then a task for each stream, and an inbox in between.

Everything here but `Inbox.take` runs in the hub's thread. The inbox is bounded: when it is full, nobody reads from the
connection any more, gRPC tells the switch to wait, and the switch folds what it would have sent. Nothing is dropped here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any, NamedTuple

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from pygnmi.spec.v080 import gnmi_pb2, gnmi_pb2_grpc

from goodput_collector.adapters import gnmi_channel, gnmi_wire
from goodput_collector.adapters.switch_hub import Hub
from goodput_collector.application.ports import Unreadable
from goodput_collector.domain.gnmi_streams import Attempt, Kind, Stream, Way, encoding, kind_of, ladder, origins_of, streams
from goodput_collector.domain.switch_list import Credentials, Switch
from goodput_common.runtime.clock import Clock

INBOX_MESSAGES_MAX = 4_096
INBOX_BYTES_MAX = 32 << 20
ASK_S = 5.0
ANSWER_S = 8.0  # to a subscription, from the first word of it: at least that there is nothing yet
GET_S = 10.0
REFUSED_AGAIN_S = 300.0
# INTERNAL is also what gRPC makes of a refusal that comes while the request is still on its way
_REFUSED = frozenset(
    {"UNIMPLEMENTED", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "OUT_OF_RANGE", "UNKNOWN", "INTERNAL"}
)
_OF_THE_SWITCH = frozenset({"UNAVAILABLE", "UNAUTHENTICATED"})  # and of no stream


class Arrived(NamedTuple):
    """A notification, not yet taken apart."""

    attempt: Attempt
    message: Any
    at: datetime
    monotonic_s: float


class Inbox:
    """From the hub's thread to the reader's."""

    def __init__(self, hub: Hub, wake_fd: int) -> None:
        self._hub = hub
        self._wake_fd = wake_fd
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Arrived, int]] = deque()
        self._bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    async def put(self, arrived: Arrived, size: int) -> None:
        await self._room.wait()
        with self._lock:
            self._waiting.append((arrived, size))
            self._bytes += size
            full = len(self._waiting) >= INBOX_MESSAGES_MAX or self._bytes >= INBOX_BYTES_MAX
        if full:
            self._room.clear()
        if full or (arrived.attempt.stream.urgent and arrived.attempt.way is Way.ON_CHANGE):
            self.wake()

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake_fd, 1)

    def take(self) -> list[Arrived]:
        """All that is there. Called by the reader."""
        with self._lock:
            taken = [arrived for arrived, _ in self._waiting]
            self._waiting.clear()
            self._bytes = 0
        self._hub.soon(self._room.set)
        return taken


class Session:
    """`failure` is set when the conversation is over; `refused` names the streams that the switch does not give."""

    def __init__(self, switch: Switch, credentials: Credentials, inbox: Inbox, clock: Clock) -> None:
        self._switch = switch
        self._metadata = gnmi_channel.metadata(credentials)
        self._inbox = inbox
        self._clock = clock
        self._channel: grpc.aio.Channel | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._encoding = ""
        self.kind = Kind.AUTO
        self.failure: Unreadable | None = None
        self.refused: dict[str, str] = {}
        self.ways: dict[str, Way] = {}
        self.heard_at_s = clock.monotonic_s()

    async def open(self, channel: Callable[[], grpc.aio.Channel]) -> None:
        """Connect, ask what the switch can do, and begin. Raises Unreadable."""
        self._channel = channel()
        stub = gnmi_pb2_grpc.gNMIStub(self._channel)
        try:
            answer = await stub.Capabilities(gnmi_wire.capabilities(), metadata=self._metadata, timeout=ASK_S)
        except grpc.aio.AioRpcError as error:
            if error.code().name != "UNIMPLEMENTED" or self._switch.kind is Kind.AUTO:
                raise self._unreadable(error) from None
            answer = gnmi_pb2.CapabilityResponse()
        models = gnmi_wire.models(answer)
        self.kind = kind_of(models) if self._switch.kind is Kind.AUTO else self._switch.kind
        self._encoding = encoding(self.kind, gnmi_wire.encodings(answer))
        origins = origins_of(models)
        self.heard_at_s = self._clock.monotonic_s()
        for stream in streams(self.kind, sample_s=self._switch.every_s):
            following = self._follow(stub, stream, origins)
            self._tasks.append(asyncio.create_task(following, name=f"{self._switch.name} {stream.name}"))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close(grace=None)

    async def _follow(self, stub: Any, stream: Stream, origins: frozenset[str]) -> None:
        """Down the ladder until one way is taken; after that, a failure of what is required ends the session. What is
        refused altogether is asked for again later: a table may not be there before its first row is."""
        try:
            while (why := await self._descend(stub, stream, origins)) is not None:
                if stream.required:
                    remedy = "see what its gNMI server can do"
                    return self._fail(Unreadable(f"the switch gives no {stream.name}: {why}", remedy=remedy))
                self.refused[stream.name] = why
                self.ways.pop(stream.name, None)
                await asyncio.sleep(REFUSED_AGAIN_S)
        except asyncio.CancelledError:
            raise
        except (DecodeError, ValueError) as error:
            self._fail(Unreadable(f"the switch answers with something else than gNMI: {error}"))
        except Exception as error:  # noqa: BLE001 - a task's failure must be seen by the reader
            self._fail(Unreadable(f"{type(error).__name__}: {error}"))

    async def _descend(self, stub: Any, stream: Stream, origins: frozenset[str]) -> str | None:
        """Returns the last refusal, or None when the session is over."""
        why = ""
        for attempt in ladder(stream, origins=origins):
            refusal = await self._try(stub, attempt)
            if refusal is None:
                return None
            why = refusal
        return why

    async def _try(self, stub: Any, attempt: Attempt) -> str | None:
        """Returns why the switch does not give it in this way, or None when the session is over."""
        if attempt.way is Way.GET:
            return await self._fetch(stub, attempt)
        call = stub.Subscribe(_ask(gnmi_wire.subscribe(attempt, self._encoding)), metadata=self._metadata)
        answered = False
        try:
            async with asyncio.timeout(ANSWER_S) as patience:
                async for response in call:
                    if not answered:
                        answered = True
                        patience.reschedule(None)
                        self._taken(attempt)
                    if response.WhichOneof("response") == "update":
                        await self._put(attempt, response.update)
        except grpc.aio.AioRpcError as error:
            return self._refusal(error, attempt, answered=answered)
        except TimeoutError:
            return f"no answer to a subscription within {ANSWER_S:g} s"
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            return "the call has broken off"  # gRPC's way to say that it could not be sent
        finally:
            call.cancel()
        if attempt.stream.required:
            self._fail(Unreadable(f"the switch has ended the subscription to {attempt.stream.name}"))
            return None
        return "the switch has ended the subscription"

    def _refusal(self, error: grpc.aio.AioRpcError, attempt: Attempt, *, answered: bool) -> str | None:
        """What a failed call says about one way of asking; None when it ends the session. For what is not required it does
        so only when it is about the switch as a whole: a stream that can be done without takes no other with it."""
        code = error.code().name
        ends = answered or code not in _REFUSED if attempt.stream.required else code in _OF_THE_SWITCH
        if ends:
            self._fail(self._unreadable(error))
            return None
        return f"{code}: {gnmi_channel.details(error, 80)}"

    async def _fetch(self, stub: Any, attempt: Attempt) -> str | None:
        answered = False
        while True:
            try:
                answer = await stub.Get(gnmi_wire.get(attempt, self._encoding), metadata=self._metadata, timeout=GET_S)
            except grpc.aio.AioRpcError as error:
                return self._refusal(error, attempt, answered=answered)
            answered = True
            self._taken(attempt)
            for each in answer.notification:
                await self._put(attempt, each)
            await asyncio.sleep(attempt.stream.every_s)

    def _taken(self, attempt: Attempt) -> None:
        self.ways[attempt.stream.name] = attempt.way
        self.refused.pop(attempt.stream.name, None)

    async def _put(self, attempt: Attempt, message: Any) -> None:
        self.heard_at_s = self._clock.monotonic_s()
        await self._inbox.put(Arrived(attempt, message, self._clock.now(), self.heard_at_s), message.ByteSize())

    def _unreadable(self, error: grpc.aio.AioRpcError) -> Unreadable:
        why, remedy = gnmi_channel.reason(error, self._switch.tls)
        return Unreadable(why, remedy=remedy)

    def _fail(self, failure: Unreadable) -> None:
        if self.failure is None:
            self.failure = failure
        self._inbox.wake()


async def _ask(request: Any) -> AsyncIterator[Any]:
    """One request, and then nothing: to servers such as SONiC's, an end of the requests is the end of the subscription."""
    yield request
    await asyncio.Event().wait()
