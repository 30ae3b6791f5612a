"""Every source on its own clock, and none in another's way.

A source is opened, read when its interval is over or its descriptor wakes, and closed when it fails. A failure makes
*that* source unknown, with the reason, until it answers again: it is tried again after 1, 2, 4 ... at most 60 s. What
this host does not have is absent, not unknown, and looked for once a minute. State goes to the heartbeat; a change of
it is logged once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from goodput_collector.application.ports import Absent, Reading, SourceReader, Unreadable
from goodput_collector.application.worker import Hung, Worker
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Source, SourceStatus
from goodput_common.runtime.clock import Clock
from goodput_common.runtime.lifecycle import Part
from goodput_common.runtime.logs import StateLog, get_logger
from goodput_common.runtime.tasks import Tasks, stop_task

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 60.0
WAKE_SETTLE_S = 0.02

_log = get_logger(__name__)


@dataclass(slots=True)
class Condition:
    """How a source is."""

    source: Source
    status: SourceStatus = SourceStatus.UNKNOWN
    reason: str = "not read yet"
    instance: str = ""
    covered: tuple[ComponentId, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.source} {self.instance}" if self.instance else str(self.source)


class Schedule(Part):
    """`publish` gets each reading that has something in it, in the event loop."""

    name = "sources"

    def __init__(
        self,
        readers: Sequence[SourceReader],
        publish: Callable[[Source, Reading], None],
        *,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._readers = readers
        self._publish = publish
        self._clock = clock
        self._tasks = tasks
        self._conditions = {
            (reader.source, reader.instance): Condition(reader.source, instance=reader.instance) for reader in readers
        }
        self._running: list[asyncio.Task[None]] = []
        self._workers: list[Worker] = []
        self._states = StateLog(_log)

    def conditions(self) -> tuple[Condition, ...]:
        return tuple(self._conditions.values())

    async def start(self) -> None:
        for reader in self._readers:
            worker = Worker(f"source {_name(reader)}")
            self._workers.append(worker)
            self._running.append(self._tasks.spawn(f"source {_name(reader)}", self._run(reader, worker)))

    async def stop_pulling(self) -> None:
        for task in self._running:
            await stop_task(task)

    async def close(self) -> None:
        await self.stop_pulling()
        for reader, worker in zip(self._readers, self._workers, strict=False):
            with contextlib.suppress(Hung):
                await worker.call(reader.close, deadline_s=0.3)
            worker.stop()

    async def _run(self, reader: SourceReader, worker: Worker) -> None:
        backoff_s = BACKOFF_FIRST_S
        while True:
            try:
                await worker.call(reader.open, deadline_s=reader.deadline_s)
                async for _ in self._reads(reader, worker):
                    backoff_s = BACKOFF_FIRST_S
            except Absent as error:
                self._say(reader, SourceStatus.ABSENT, str(error))
                backoff_s = BACKOFF_MAX_S
            except Unreadable as error:
                self._say(reader, SourceStatus.UNKNOWN, str(error))
            except Hung:
                self._say(reader, SourceStatus.UNKNOWN, f"no answer within {reader.deadline_s:g} s")
            except OSError as error:
                self._say(reader, SourceStatus.UNKNOWN, f"{error.strerror or error}: {error.filename or _name(reader)}")
            except Exception as error:  # noqa: BLE001 - one source's bug must not take the others down
                self._say(reader, SourceStatus.UNKNOWN, f"{type(error).__name__}: {error}")
                _log.error("source failed", source=_name(reader), exc_info=error)
            with contextlib.suppress(Hung):
                await worker.call(reader.close, deadline_s=reader.deadline_s)
            await self._clock.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)

    async def _reads(self, reader: SourceReader, worker: Worker) -> AsyncIterator[None]:
        with _Wake(reader.wake_fd()) as wake:
            while True:
                reading = await worker.call(reader.read, deadline_s=reader.deadline_s)
                if reading.covered is not None:
                    self._conditions[reader.source, reader.instance].covered = tuple(reading.covered)
                self._say(reader, SourceStatus.OK, reading.trouble)
                if reading.samples or reading.dumps or reading.snapshots:
                    self._publish(reader.source, reading)
                if reading.kept is not None:
                    reading.kept()
                yield
                wake.arm()
                await self._until_due(reader.interval_s, wake)

    async def _until_due(self, interval_s: float, wake: _Wake) -> None:
        if wake.event is None:
            await self._clock.sleep(interval_s)
            return
        sleeping = asyncio.ensure_future(self._clock.sleep(interval_s))
        waking = asyncio.ensure_future(wake.event.wait())
        try:
            await asyncio.wait([sleeping, waking], return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            waking.cancel()
        if wake.event.is_set():
            await asyncio.sleep(WAKE_SETTLE_S)  # lines come in bursts: one batch for them

    def _say(self, reader: SourceReader, status: SourceStatus, reason: str) -> None:
        condition = self._conditions[reader.source, reader.instance]
        condition.status, condition.reason = status, reason
        if status is not SourceStatus.OK:
            condition.covered = ()
        self._states.report(
            _name(reader),
            f"{status}: {reason}" if reason else str(status),
            "source changed",
            level="info" if status is not SourceStatus.UNKNOWN else "warning",
        )


def _name(reader: SourceReader) -> str:
    return f"{reader.source} {reader.instance}" if reader.instance else str(reader.source)


class _Wake:
    """An event that is set when a descriptor becomes readable; one-shot, armed anew after each read."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._armed = False
        self.event = asyncio.Event() if fd is not None else None

    def __enter__(self) -> _Wake:
        return self

    def __exit__(self, *_: object) -> None:
        self._disarm()

    def arm(self) -> None:
        if self._fd is None or self.event is None:
            return
        self.event.clear()
        if not self._armed:
            asyncio.get_running_loop().add_reader(self._fd, self._readable)
            self._armed = True

    def _disarm(self) -> None:
        if self._armed and self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            self._armed = False

    def _readable(self) -> None:
        self._disarm()
        if self.event is not None:
            self.event.set()
