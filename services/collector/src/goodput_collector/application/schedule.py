"""Every source on its own clock, and none in another's way.

Each source is opened, read when its interval is over or its descriptor wakes, and closed when it fails (`turn`). All of them
share a thread while they answer quickly, and one that does not is left to a thread of its own (`lane`). State goes to the
heartbeat; a change of it is logged once. The event loop hears of a source only when there is something to say: readings with
content, all of one round together, or a state that has changed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from goodput_collector.application.lane import Lane, Told
from goodput_collector.application.ports import Reading, SourceReader
from goodput_collector.application.turn import Turn
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Source, SourceHealth, SourceStatus
from goodput_common.runtime.lifecycle import Part
from goodput_common.runtime.logs import StateLog, get_logger

SPLIT_AGAIN_S = 1.0
COVERED_MAX = 300  # components a source names in a heartbeat
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

    def health(self, last_seq: int) -> SourceHealth:
        """For a heartbeat; `last_seq` is the number of the source's last batch."""
        covered = self.covered
        return SourceHealth(
            source=self.source,
            status=self.status,
            reason=self.reason,
            last_seq=last_seq,
            instance=self.instance,
            covered=covered[:COVERED_MAX],
            covered_more=max(0, len(covered) - COVERED_MAX),
        )


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
        shorten: Callable[[float], float] = lambda seconds: seconds,
    ) -> None:
        self._readers = readers
        self._publish = publish
        self._settled = settled
        self._shorten = shorten
        self._conditions = [Condition(reader.source, instance=reader.instance) for reader in readers]
        self._condition_of: dict[Turn, Condition] = {}
        self._lanes: list[Lane] = []
        self._shared: Lane | None = None
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._states = StateLog(_log)

    def conditions(self) -> tuple[Condition, ...]:
        return tuple(self._conditions)

    async def start(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        for reader, condition in zip(self._readers, self._conditions, strict=True):
            voice = _Voice(loop, partial(self._say, condition))
            self._condition_of[Turn(reader, name=condition.name, say=voice.say, shorten=self._shorten)] = condition
        self._shared = self._new_lane(loop)
        self._shared.begin(tuple(self._condition_of))

    async def stop_pulling(self) -> None:
        self._stopping = True
        for lane in self._lanes:
            lane.stop()

    async def close(self) -> None:
        await self.stop_pulling()
        until_s = time.monotonic() + END_WITHIN_S
        while not all(lane.ended for lane in self._lanes) and time.monotonic() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # they may still be handing readings over
        for lane in tuple(self._lanes):
            self._forget(lane)

    # -- in a lane's thread -----------------------------------------------------------------------------------------

    def _take(self, loop: asyncio.AbstractEventLoop, batch: Sequence[Told]) -> list[Exception | None]:
        """Hand readings to the loop, and wait until they are in the spool: only then may a bookmark move and the next read
        begin. What publishing raised, for each."""
        errors: list[Exception | None] = [None] * len(batch)
        full = []
        for number, (turn, reading) in enumerate(batch):
            if reading.covered is not None:
                try:
                    self._condition_of[turn].looked_at = tuple(reading.covered)
                except Exception as error:  # noqa: BLE001 - its source hears of it
                    errors[number] = error
                    continue
            if reading.samples or reading.dumps or reading.snapshots:
                full.append(number)
            elif self._settled():
                _kept(reading, turn.name)
        if not full:
            return errors
        done = threading.Event()

        def publish() -> None:
            for number in full:
                turn, reading = batch[number]
                try:
                    if self._publish(turn.reader.source, reading):
                        _kept(reading, turn.name)
                except Exception as error:  # noqa: BLE001 - its source hears of it
                    errors[number] = error
            done.set()

        if _soon(loop, publish):
            while not done.wait(5.0):
                if loop.is_closed():
                    break
        return errors

    # -- in the loop ------------------------------------------------------------------------------------------------

    def _new_lane(self, loop: asyncio.AbstractEventLoop) -> Lane:
        """Which waits to `begin`. Raises OSError, RuntimeError."""
        lane = Lane("sources", take=partial(self._take, loop), quick=lambda lane: _soon(loop, partial(self._back, lane)))
        loop.add_reader(lane.alarm.fd, self._rang, lane)
        self._lanes.append(lane)
        return lane

    def _rang(self, lane: Lane) -> None:
        """A lane that has something to wait for has waited. A split while all is being stopped gives the other sources to a
        lane that publishes what they have told, closes them and ends."""
        lane.alarm.heard()
        if not lane.keeps_waiting():
            return
        assert self._loop is not None
        try:
            another = self._new_lane(self._loop)
        except (OSError, RuntimeError) as error:  # no descriptor or thread left: the others wait, and it is tried again
            self._states.report("lanes", str(error), "no thread for the sources that wait", level="error")
            lane.wait_on(SPLIT_AGAIN_S)
            return
        self._states.forget("lanes")
        kept_waiting = lane.split()
        if kept_waiting is None or self._stopping:
            another.stop()
        else:
            self._shared = another
        if kept_waiting is None:
            self._forget(another)
        another.begin(*(kept_waiting or ((), ())))

    def _back(self, lane: Lane) -> None:
        """Its source has been quick for long."""
        if self._shared is not None and not self._stopping and (turn := lane.retire()) is not None:
            self._shared.adopt(turn)
            self._forget(lane)

    def _forget(self, lane: Lane) -> None:
        self._lanes.remove(lane)
        if self._loop is not None and lane.alarm.fd >= 0:
            self._loop.remove_reader(lane.alarm.fd)
        lane.forget()

    def _say(self, condition: Condition, status: SourceStatus, reason: str) -> None:
        condition.status, condition.reason = status, reason
        self._states.report(
            condition.name,
            f"{status}: {reason}" if reason else str(status),
            "source changed",
            level="info" if status is not SourceStatus.UNKNOWN else "warning",
        )


class _Voice:
    """What a source says of its state, from any thread: the loop hears what differs from what was said before, in order.
    (To compare with the state that the loop has would be wrong: it may not have heard the last word yet.)"""

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Callable[[SourceStatus, str], None]) -> None:
        self._loop = loop
        self._tell = tell
        self._lock = threading.Lock()
        self._said: tuple[SourceStatus, str] | None = None

    def say(self, status: SourceStatus, reason: str) -> None:
        with self._lock:
            if self._said != (status, reason):
                self._said = (status, reason)
                _soon(self._loop, partial(self._tell, status, reason))


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
