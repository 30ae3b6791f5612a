"""Reads streams in order, beside their consumers and without disturbing them: for recording and for following.

Each stream has an ephemeral consumer of its own that acknowledges nothing. It is made again, behind the last message seen,
whenever it is lost; so the reader sees every message that the stream still has, each once and in the stream's order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api

from goodput_common.bus.codec import decode
from goodput_common.bus.connection import Backoff
from goodput_common.bus.errors import DecodeError
from goodput_common.bus.in_hand import ack_numbers, time_of
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.ports import Message
from goodput_common.bus.recording import Recorder, last_sequences
from goodput_common.runtime.logs import get_logger

BATCH = 256
FETCH_S = 1.0
INACTIVE_S = 30.0
QUEUED_BATCHES_MAX = 4
LAST_BATCHES_S = 5.0


@dataclass(slots=True)
class TailReport:
    """What a recording wrote and left out."""

    written: int = 0
    undecodable: int = 0
    last: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """`position` is the last sequence read, also when `messages` lacks it because nobody could decode it."""

    stream: str
    position: int
    messages: list[Message]


class Tail:
    """`start` gives each stream's first sequence; a stream that it lacks begins with what comes next (1 is the oldest)."""

    def __init__(self, bus: JetStreamBus, streams: Sequence[str], start: Mapping[str, int] | None = None) -> None:
        self._bus = bus
        self._streams = tuple(streams)
        self._next = dict(start or {})
        self._first: dict[str, int] = {}
        # Bounded: a slow reader holds the fetching back, and the stream keeps what is not fetched.
        self._batches: asyncio.Queue[Batch] = asyncio.Queue(maxsize=QUEUED_BATCHES_MAX)
        self._log = get_logger(__name__)
        self.undecodable = 0

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Batches of messages of one stream each, for ever. Closing the iterator ends the reading."""
        # The positions first, so that whatever is published once the first batch is awaited is seen.
        tasks = [asyncio.create_task(self._read(stream), name=f"tail {stream}") for stream in self._streams]
        try:
            while True:
                get = asyncio.create_task(self._batches.get())
                done, _ = await asyncio.wait({get, *tasks}, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task in done:
                        get.cancel()
                        task.result()  # reading ends only by an error
                yield get.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def positions(self) -> None:
        """Fix where each stream without a start begins: behind what it holds now. Raises BusUnavailable."""
        js = (await self._bus.client()).jetstream(timeout=5.0)
        for stream in self._streams:
            if stream not in self._next:
                self._next[stream] = (await js.stream_info(stream)).state.last_seq + 1
        self._first = dict(self._next)

    async def behind(self, read: Mapping[str, int]) -> dict[str, int]:
        """The last sequence of each stream that holds more than `read` says, from the positions on."""
        js = (await self._bus.client()).jetstream(timeout=5.0)
        last = {stream: (await js.stream_info(stream)).state.last_seq for stream in self._streams}
        return {stream: at for stream, at in last.items() if at >= self._first.get(stream, 0) and at > read.get(stream, 0)}

    async def _read(self, stream: str) -> None:
        backoff, trouble = Backoff(), ""
        while True:
            client = await self._bus.client(within_s=3600.0)
            try:
                async with contextlib.aclosing(self._fetch(client, stream)) as fetched:
                    async for raw in fetched:
                        backoff.reset()
                        trouble = ""
                        messages = [message for each in raw if (message := self._decode(stream, each)) is not None]
                        await self._batches.put(Batch(stream, self._next[stream] - 1, messages))
            except (nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError) as error:
                text = f"{type(error).__name__}: {error}"
                if text != trouble:
                    self._log.warning("reading a stream was interrupted, will go on", stream=stream, error=text)
                trouble = text
            await asyncio.sleep(backoff.next_s())

    async def _fetch(self, client: Client, stream: str) -> AsyncGenerator[list[Msg], None]:
        """Batches from the next sequence on, until the consumer is lost or a delivery of its is missing."""
        js = client.jetstream(timeout=5.0)
        info = await js.add_consumer(stream, await self._config(js, stream))
        subscription = await js.pull_subscribe_bind(consumer=info.name, stream=stream)
        delivered = 0
        try:
            while True:
                try:
                    batch = await subscription.fetch(BATCH, timeout=FETCH_S)
                except nats.errors.TimeoutError:
                    await js.consumer_info(stream, info.name)  # quiet, or gone?
                    continue
                for message in batch:
                    delivered += 1
                    if ack_numbers(message.reply)[2] != delivered:
                        raise nats.errors.Error(f"delivery {delivered} of the reading consumer is missing")
                if batch:
                    yield batch
        finally:
            with contextlib.suppress(nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError):
                await subscription.unsubscribe()
                await js.delete_consumer(stream, info.name)

    async def _config(self, js: JetStreamContext, stream: str) -> api.ConsumerConfig:
        state = (await js.stream_info(stream)).state
        wanted = self._next.setdefault(stream, state.last_seq + 1)
        if wanted > state.last_seq + 1:  # the stream was made anew and counts from 1 again
            wanted = self._next[stream] = 1
        return api.ConsumerConfig(
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=max(1, wanted),
            ack_policy=api.AckPolicy.NONE,
            mem_storage=True,
            inactive_threshold=INACTIVE_S,
            num_replicas=1,
        )

    def _decode(self, stream: str, raw: Msg) -> Message | None:
        _, sequence, _, received_ns = ack_numbers(raw.reply)
        if sequence < self._next[stream]:
            return None
        self._next[stream] = sequence + 1
        try:
            return decode(
                raw.subject,
                raw.headers,
                raw.data,
                received_at=time_of(received_ns),
                stream=stream,
                sequence=sequence,
            )
        except DecodeError as error:  # its consumer keeps it under goodput.rejected
            self.undecodable += 1
            self._log.warning("left out of the recording", stream=stream, sequence=sequence, reason=error.reason)
            return None


async def record(
    bus_url: str,
    path: Path | str,
    streams: Sequence[str],
    *,
    start: Mapping[str, int] | None = None,
    resume: bool = False,
    until: asyncio.Event | None = None,
    user: str | None = None,
    password: str | None = None,
    ready: asyncio.Event | None = None,
    report: TailReport | None = None,
) -> TailReport:
    """Append what `streams` receive to `path` until `until` is set (or the task is cancelled).

    What was stored before `until` was set is still written. Begins at `start` (sequence by stream; 1 is the oldest), with
    `resume` behind what the file already has, else with what comes next. `ready` is set once nothing published from then on
    can be missed. `report` is filled while it runs. Raises BusUnavailable when no server answers at the start.
    """
    report = report if report is not None else TailReport()
    until = until or asyncio.Event()
    first = dict(start or {})
    if resume and await asyncio.to_thread(Path(path).exists):
        first |= {stream: last + 1 for stream, last in (await asyncio.to_thread(last_sequences, path)).items()}
    bus = await JetStreamBus.connect(bus_url, name="goodput-recorder", user=user, password=password)
    recorder = await asyncio.to_thread(Recorder, path)
    try:
        tail = Tail(bus, streams, first)
        await tail.positions()
        if ready is not None:
            ready.set()
        await _copy(tail, recorder, until, report)
    finally:
        recorder.close()
        await bus.close()
    return report


async def _copy(tail: Tail, recorder: Recorder, until: asyncio.Event, report: TailReport) -> None:
    copied: dict[str, int] = {}
    progress = asyncio.Event()

    async def copy() -> None:
        async with contextlib.aclosing(tail.batches()) as batches:
            async for batch in batches:
                await recorder.append(batch.messages)
                copied[batch.stream] = batch.position
                report.written, report.undecodable = recorder.written, tail.undecodable
                report.last[batch.stream] = batch.position
                progress.set()

    copying = asyncio.create_task(copy(), name="record copy")
    stop = asyncio.create_task(until.wait(), name="record until")
    try:
        await asyncio.wait({copying, stop}, return_when=asyncio.FIRST_COMPLETED)
        wanted = {} if copying.done() else await tail.behind(copied)
        deadline = asyncio.get_running_loop().time() + LAST_BATCHES_S
        while any(copied.get(stream, 0) < last for stream, last in wanted.items()) and not copying.done():
            progress.clear()
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                get_logger(__name__).warning("the end of the recording is missing", wanted=wanted, copied=copied)
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(progress.wait(), left_s)
        if copying.done():
            copying.result()  # ends by itself only with an error
    finally:
        for task in (copying, stop):
            task.cancel()
        await asyncio.gather(copying, stop, return_exceptions=True)
