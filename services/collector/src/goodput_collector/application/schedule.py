"""Every source on its own clock, and none in another's way.

A source is opened, read when its interval is over or its descriptor wakes, and closed when it fails (`source_thread`). A
failure makes *that* source unknown, with the reason, until it answers again: it is tried again after 1, 2, 4 ... at most
60 s. What this host does not have is absent, not unknown, and looked for once a minute. State goes to the heartbeat; a
change of it is logged once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from goodput_collector.application.ports import Reading, SourceReader
from goodput_collector.application.source_thread import SourceThread
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Source, SourceStatus
from goodput_common.runtime.clock import Clock
from goodput_common.runtime.lifecycle import Part
from goodput_common.runtime.logs import StateLog, get_logger
from goodput_common.runtime.tasks import Tasks, stop_task

WATCH_EVERY_S = 1.0
APART_S = 0.004
GATHER_S = 0.03
END_WITHIN_S = 1.0  # together; a source that hangs is left behind

_log = get_logger(__name__)


@dataclass(slots=True)
class Condition:
    """How a source is. `looked_at` is what it covered when it was last read."""

    source: Source
    status: SourceStatus = SourceStatus.UNKNOWN
    reason: str = "not read yet"
    instance: str = ""
    looked_at: tuple[ComponentId, ...] = ()

    @property
    def covered(self) -> tuple[ComponentId, ...]:
        """Nothing while it cannot be read."""
        return self.looked_at if self.status is SourceStatus.OK else ()

    @property
    def name(self) -> str:
        return f"{self.source} {self.instance}" if self.instance else str(self.source)


class Schedule(Part):
    """`publish` gets each reading that has something in it, in the event loop, and says whether it is safe from kill -9.
    `settled`: is all that was published before? Else a reading with nothing in it moves no bookmark either. `shorten` is how
    long a source's thread really waits when it is to wait so many seconds: tests have no time."""

    name = "sources"

    def __init__(
        self,
        readers: Sequence[SourceReader],
        publish: Callable[[Source, Reading], bool],
        *,
        settled: Callable[[], bool] = lambda: True,
        clock: Clock,
        tasks: Tasks,
        shorten: Callable[[float], float] = lambda seconds: seconds,
    ) -> None:
        self._readers = readers
        self._publish = publish
        self._settled = settled
        self._clock = clock
        self._tasks = tasks
        self._shorten = shorten
        self._conditions = [Condition(reader.source, instance=reader.instance) for reader in readers]
        self._threads: list[SourceThread] = []
        self._watching: asyncio.Task[None] | None = None
        self._gathered: deque[Callable[[], None]] = deque()
        self._gathering = False
        self._states = StateLog(_log)

    def conditions(self) -> tuple[Condition, ...]:
        return tuple(self._conditions)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for number, (reader, condition) in enumerate(zip(self._readers, self._conditions, strict=True)):
            thread = SourceThread(
                reader,
                name=f"source {condition.name}",
                say=partial(self._heard, loop, condition),
                take=partial(self._taken, loop, reader, condition),
                shorten=self._shorten,
                offset_s=number * APART_S,
            )
            self._threads.append(thread)
            thread.start()
        self._watching = self._tasks.spawn("sources watched", self._watch())

    async def stop_pulling(self) -> None:
        await stop_task(self._watching)
        for thread in self._threads:
            thread.stop()

    async def close(self) -> None:
        await self.stop_pulling()
        until_s = time.monotonic() + END_WITHIN_S
        while not all(thread.ended for thread in self._threads) and time.monotonic() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # they may still be handing readings over

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(WATCH_EVERY_S)
            for thread, reader, condition in zip(self._threads, self._readers, self._conditions, strict=True):
                if thread.overdue():
                    self._say(condition, SourceStatus.UNKNOWN, f"no answer within {reader.deadline_s:g} s")

    # -- in a source's thread ---------------------------------------------------------------------------------------

    def _heard(self, loop: asyncio.AbstractEventLoop, condition: Condition, status: SourceStatus, reason: str) -> None:
        if (condition.status, condition.reason) != (status, reason):
            _soon(loop, partial(self._say, condition, status, reason))

    def _taken(self, loop: asyncio.AbstractEventLoop, reader: SourceReader, condition: Condition, reading: Reading) -> None:
        """Hand a reading to the loop, and wait until it is in the spool: only then may a bookmark move and the next read
        begin. Raises what publishing raised."""
        if reading.covered is not None:
            condition.looked_at = tuple(reading.covered)
        if not (reading.samples or reading.dumps or reading.snapshots):
            if self._settled():
                _kept(reading, condition.name)
            return
        done = threading.Event()
        failed: list[Exception] = []

        def publish() -> None:
            try:
                if self._publish(reader.source, reading):
                    _kept(reading, condition.name)
            except Exception as error:  # noqa: BLE001 - the source's thread raises it
                failed.append(error)
            finally:
                done.set()

        if self._gather(loop, publish):
            while not done.wait(5.0):
                if loop.is_closed():
                    return
        if failed:
            raise failed[0]

    def _gather(self, loop: asyncio.AbstractEventLoop, publish: Callable[[], None]) -> bool:
        """Sources read at about the same time: the loop wakes once for all their readings."""
        self._gathered.append(publish)
        if self._gathering:
            return True
        self._gathering = True
        return _soon(loop, lambda: loop.call_later(GATHER_S, self._publish_gathered))

    def _publish_gathered(self) -> None:
        self._gathering = False  # first: what is added from now on is gathered anew
        while self._gathered:
            self._gathered.popleft()()

    # -- in the loop ------------------------------------------------------------------------------------------------

    def _say(self, condition: Condition, status: SourceStatus, reason: str) -> None:
        condition.status, condition.reason = status, reason
        self._states.report(
            condition.name,
            f"{status}: {reason}" if reason else str(status),
            "source changed",
            level="info" if status is not SourceStatus.UNKNOWN else "warning",
        )


def _kept(reading: Reading, name: str) -> None:
    """A bookmark that cannot move costs lines told twice; that is no reason to tell all of them twice now."""
    if reading.kept is None:
        return
    try:
        reading.kept()
    except Exception as error:  # noqa: BLE001 - the reading itself is safe
        _log.error("bookmark not moved", source=name, exc_info=error)


def _soon(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> bool:
    """False when the loop has ended before the source did."""
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        return False
    return True
