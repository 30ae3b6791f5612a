"""From readings to messages that arrive.

Every batch gets the next number of its source, is written to the spool, and only then sent; what the server has stored
is taken off the spool. So a bus that is away costs nothing but time, kill -9 loses nothing, and the numbers have no
gaps: a hole that a reader sees is a message that was dropped at the spool's bound or that the bus refused for good, and
the heartbeat says how many those were.

The message id is made of source, boot and number, so a batch that is sent twice is stored once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from goodput_collector.application.encodable import NOT_ENCODABLE, encodable_part
from goodput_collector.application.message_size import chunks, fitting
from goodput_collector.application.ports import Outgoing, Reading, Spool
from goodput_collector.application.schedule import Condition
from goodput_collector.domain.thinning import Thinning, thinned_to
from goodput_common.bus.errors import BusUnavailable, Refused
from goodput_common.bus.ports import Bus
from goodput_common.contracts import subjects
from goodput_common.contracts.job import FlightRecorderDump
from goodput_common.contracts.telemetry import (
    CollectorHeartbeat,
    Sample,
    Source,
    SourceHealth,
    SourceStatus,
    TelemetryBatch,
)
from goodput_common.runtime.clock import Clock
from goodput_common.runtime.lifecycle import Part
from goodput_common.runtime.logs import StateLog, get_logger
from goodput_common.runtime.tasks import Tasks, stop_task

SEND_AT_ONCE = 64
RELEASE_EVERY_S = 5.0  # at least: a look at what is held back and due, should its source have fallen silent
UNFINISHED_MAX = 32  # readings of which a part has been spooled
RETRY_FIRST_S = 0.2
RETRY_MAX_S = 5.0

_Marks = Mapping[str, int | str]
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who speaks."""

    fabric: str
    host: str
    boot_id: str

    @property
    def name(self) -> str:
        return f"collector/{self.host}"


class Publisher(Part):
    """`connect` gives a connected bus; it is asked again after each failure to store a message. Measurements and traffic
    are told every `measures_every_s`, more seldom while the spool fills up."""

    name = "publisher"

    def __init__(
        self,
        origin: Origin,
        spool: Spool,
        connect: Callable[[], Awaitable[Bus]],
        *,
        clock: Clock,
        tasks: Tasks,
        measures_every_s: float = 0.0,
    ) -> None:
        self._origin = origin
        self._spool = spool
        self._connect = connect
        self._clock = clock
        self._tasks = tasks
        self._more = asyncio.Event()
        self._progress = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._releasing: asyncio.Task[None] | None = None
        self._last_seq: dict[Source, int] = {}
        self._states = StateLog(_log)
        self._measures_every_s = measures_every_s
        self._thinning: Thinning[Source] = Thinning()
        self.thinned_to_s = 0.0
        self._unfinished: dict[int, tuple[Reading, deque[Callable[[], None]] | None]] = {}
        self.settled = True
        """Is everything that was published on the disk or sent? May be asked from any thread."""
        self.published = 0
        self.refused = 0
        self.reachable: bool | None = None

    async def start(self) -> None:
        self._sending = self._tasks.spawn("publisher", self._send_for_ever())
        self._releasing = self._tasks.spawn("held samples", self._release_for_ever())

    async def flush(self) -> None:
        """Spool what is held back; give what is spooled a last chance. What does not go now goes after the next start."""
        self._release(0.0)
        while self._spool.state().waiting and self.reachable:
            self._progress.clear()
            await self._progress.wait()

    async def close(self) -> None:
        await stop_task(self._releasing)
        await stop_task(self._sending)
        self._spool.close()

    def publish(self, source: Source, reading: Reading) -> bool:
        """Number, spool and send. Returns at once: whether all of it is safe. While the spool fills up, low-value samples
        are held back. A reading that is offered again goes on with what of it has not been spooled."""
        steps = self._unfinished.pop(id(reading), (reading, None))[1] or self._steps(source, reading)
        try:
            while steps:
                steps[0]()
                steps.popleft()
        except Exception:
            self._unfinished[id(reading)] = (reading, steps)  # which is kept, so that no other one gets its id
            if len(self._unfinished) > UNFINISHED_MAX:
                self._unfinished.pop(next(iter(self._unfinished)))
            raise
        return self.settled

    def _steps(self, source: Source, reading: Reading) -> deque[Callable[[], None]]:
        """One for each message."""
        steps: deque[Callable[[], None]] = deque()
        told = self._thinning.take(source, reading.samples, every_s=self._every_s(), now_s=self._clock.monotonic_s())
        batches = list(chunks(told))
        left = len(batches) + len(reading.dumps)  # messages: the marks go with the last one
        for samples in batches:
            left -= 1
            steps.append(partial(self._publish_batch, source, samples, marks={} if left else reading.marks))
        for dump in reading.dumps:
            left -= 1
            steps.append(partial(self._publish_dump, source, dump, marks={} if left else reading.marks))
        for snapshot in reading.snapshots:
            subject = subjects.topology(snapshot.fabric, snapshot.source)
            steps.append(partial(self._publish_beside, f"{source}_snapshot", subject, snapshot))
        return steps

    def _publish_batch(self, source: Source, samples: Sequence[Sample], *, marks: _Marks) -> None:
        seq = self._next(source)
        now = self._clock.now()
        times = [sample.observed_at for sample in samples]
        batch = TelemetryBatch(
            fabric=self._origin.fabric,
            host=self._origin.host,
            source=source,
            boot_id=self._origin.boot_id,
            seq=seq,
            observed_from=min([*times, now]),
            observed_to=max([*times, now]),
            samples=tuple(samples),
        )
        subject = subjects.telemetry(self._origin.fabric, self._origin.host, source)
        self._enqueue(source, seq, batch, subject, marks=marks)

    async def _release_for_ever(self) -> None:
        while True:
            await self._clock.sleep(max(RELEASE_EVERY_S, self._every_s()))
            self._release(self._every_s())

    def _release(self, every_s: float) -> None:
        for source, samples in self._thinning.due(every_s=every_s, now_s=self._clock.monotonic_s()):
            for chunk in chunks(samples):
                self._publish_batch(source, chunk, marks={})

    def _every_s(self) -> float:
        """How often measurements and traffic are told now."""
        return max(self._thin(), self._measures_every_s)

    def _thin(self) -> float:
        thinned_to_s = thinned_to(self._spool.state().filled)
        if thinned_to_s != self.thinned_to_s:
            self.thinned_to_s = thinned_to_s
            what = f"told every {thinned_to_s:g} s" if thinned_to_s else "told at once"
            self._states.report("thinning", what, "measurements and traffic", level="warning" if thinned_to_s else "info")
        return thinned_to_s

    def heartbeat(self, conditions: Sequence[Condition], interval_s: float) -> None:
        seq = self._next(Source.HEARTBEAT)
        spool = self._spool.state()
        health = tuple(each.health(self._last_seq.get(each.source, 0)) for each in conditions)
        if trouble := spool.trouble:
            health += (SourceHealth(source=Source.HEARTBEAT, status=SourceStatus.UNKNOWN, reason=trouble, last_seq=seq),)
        beat = CollectorHeartbeat(
            fabric=self._origin.fabric,
            host=self._origin.host,
            boot_id=self._origin.boot_id,
            seq=seq,
            at=self._clock.now(),
            interval_s=interval_s,
            sources=health,
            spooled_batches=spool.waiting,
            dropped_batches=spool.dropped + self.refused,
            thinned_to_s=self.thinned_to_s,
        )
        subject = subjects.telemetry(self._origin.fabric, self._origin.host, Source.HEARTBEAT)
        self._enqueue(Source.HEARTBEAT, seq, beat, subject)

    def _publish_dump(self, source: Source, dump: FlightRecorderDump, *, marks: _Marks) -> None:
        subject = subjects.job(dump.fabric, dump.job, "flight_recorder")
        self._publish_beside(f"{source}_dump", subject, fitting(dump), marks=marks)

    def _publish_beside(self, series: str, subject: str, data: msgspec.Struct, *, marks: _Marks | None = None) -> None:
        """Numbered by itself, not among the source's batches: it goes to another subject."""
        seq = self._spool.next_seq(series)
        self._enqueue(series, seq, data, subject, marks=marks)

    def _next(self, source: Source) -> int:
        seq = self._spool.next_seq(source)
        self._last_seq[source] = seq
        return seq

    def _enqueue(self, source: str, seq: int, data: msgspec.Struct, subject: str, *, marks: _Marks | None = None) -> None:
        message = Outgoing(
            subject=subject,
            id=f"{self._origin.fabric}/{self._origin.host}/{source}/{self._origin.boot_id}/{seq}",
            source=self._origin.name,
            time=self._clock.now(),
            data=data,
            marks=marks or {},
        )
        try:
            self.settled = self._spool.append(message, source=source, seq=seq)  # a later one is as safe as all before
        except NOT_ENCODABLE as error:
            part, left_out = encodable_part(data)
            self.refused += 1
            what = f"{type(error).__name__}: {error}"
            self._states.report(subject, what, "what cannot be encoded is left out", level="error", count=left_out)
            if part is None:
                return
            self.settled = self._spool.append(msgspec.structs.replace(message, data=part), source=source, seq=seq)
        self._more.set()

    async def _send_for_ever(self) -> None:
        bus: Bus | None = None
        retry_s = RETRY_FIRST_S
        while True:
            self._more.clear()
            try:
                if bus is None:
                    bus = await self._connect()
                sent = await self._send(bus)
                self._say(True, "")
                self._progress.set()
                retry_s = RETRY_FIRST_S
                if not sent:
                    await self._more.wait()
            except BusUnavailable as error:
                bus = None
                self._say(False, str(error))
                self._progress.set()
                await self._clock.sleep(retry_s)
                retry_s = min(retry_s * 2, RETRY_MAX_S)

    async def _send(self, bus: Bus) -> int:
        """Send the oldest messages in order; returns how many were looked at. Raises BusUnavailable."""
        sent = 0
        for position, message in list(self._spool.peek(SEND_AT_ONCE)):
            try:
                await bus.publish(
                    message.subject,
                    message.data,
                    id=message.id,
                    source=message.source,
                    component=message.component,
                    time=message.time,
                )
            except (Refused, TypeError, ValueError) as error:  # for ever, so what follows must not wait for it
                self.refused += 1
                reason = error.reason if isinstance(error, Refused) else str(error)
                self._states.report(message.subject, reason, "message dropped", level="error", id=message.id)
            else:
                self.published += 1
            self._spool.acknowledge(position)
            sent += 1
        return sent

    def _say(self, reachable: bool, reason: str) -> None:
        self.reachable = reachable
        state = "reachable" if reachable else "unreachable"
        self._states.report("bus", state, "bus", level="info" if reachable else "warning", reason=reason)
