"""Small stand-ins for the collector's tests: a clock that is turned by hand, a process table and a sysfs tree of files; and
a rig that takes readers all the way to the bus."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from goodput_collector.adapters.spool import DiskSpool
from goodput_collector.application.ports import Reading, SourceReader
from goodput_collector.application.publish import Origin, Publisher
from goodput_collector.application.schedule import Condition, Schedule
from goodput_common.bus.memory import MemoryBus
from goodput_common.bus.ports import Bus, Consumer, Message
from goodput_common.contracts.job import FlightRecorderDump, RankRegistered
from goodput_common.contracts.subjects import token
from goodput_common.contracts.telemetry import Gauge, Sample, Source, TelemetryBatch
from goodput_common.runtime.clock import SystemClock
from goodput_common.runtime.tasks import Tasks

START = datetime(2026, 3, 1, tzinfo=UTC)


class TurnedClock:
    """Wall and monotonic clock for readers, which never sleep."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def monotonic_s(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a reader does not sleep")


class Proc:
    """A process table under a folder, as /proc has it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, pid: int, state: str = "S", *, ticks: int = 0, start: int = 1000, cgroup: str = "/job") -> None:
        folder = self.root / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        fields = [
            state,
            "1",
            "1",
            "1",
            "0",
            "-1",
            "0",
            "0",
            "0",
            "0",
            "0",
            str(ticks),
            "0",
            "0",
            "0",
            "20",
            "0",
            "1",
            "0",
            str(start),
        ]
        (folder / "stat").write_text(f"{pid} (python3 (odd) name) {' '.join(fields)} 0 0\n")
        (folder / "wchan").write_text("do_poll")
        (folder / "cgroup").write_text(f"0::{cgroup}\n")

    def remove(self, pid: int) -> None:
        for file in (self.root / str(pid)).iterdir():
            file.unlink()
        (self.root / str(pid)).rmdir()


def register(run_dir: Path, rank: int, pid: int, *, start: int = 1000, job: str = "j1", boot_id: str = "b1") -> Path:
    folder = run_dir / "ranks"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{token(job)}.{rank}.json"
    registered = RankRegistered(
        fabric="f", job=job, rank=rank, world_size=2, host="h0", pid=pid, at=START, process_start=start, boot_id=boot_id
    )
    path.write_bytes(msgspec.json.encode(registered))
    return path


def rdma_device(
    root: Path, name: str, counters: dict[str, int], hw_counters: dict[str, int], state: str = "4: ACTIVE"
) -> Path:
    port = root / "class" / "infiniband" / name / "ports" / "1"
    for folder, values in (("counters", counters), ("hw_counters", hw_counters)):
        (port / folder).mkdir(parents=True, exist_ok=True)
        for counter, value in values.items():
            (port / folder / counter).write_text(f"{value}\n")
    for file, text in (
        ("state", state),
        ("phys_state", "5: LinkUp"),
        ("rate", "400 Gb/sec (4X NDR)"),
        ("link_layer", "InfiniBand"),
    ):
        (port / file).write_text(f"{text}\n")
    return port


def kept(reading: Reading) -> Reading:
    """As the schedule does once everything is in the spool."""
    if reading.kept is not None:
        reading.kept()
    return reading


class QuickClock(SystemClock):
    """Intervals and back-offs of minutes take moments."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(self.shorten(seconds))

    def shorten(self, seconds: float) -> float:
        return min(seconds, 0.01)


class Ticking:
    """A source that has something to say at every read: the neighbour that must not be disturbed."""

    source = Source.RDMA
    instance = "neighbour"
    interval_s = 0.01
    deadline_s = 5.0

    def __init__(self) -> None:
        self.reads = 0

    def open(self) -> None:
        pass

    def wake_fd(self) -> int | None:
        return None

    def read(self) -> Reading:
        self.reads += 1
        return Reading(samples=[Gauge(component="host:h0", name="tick", observed_at=START, value=float(self.reads))])

    def close(self) -> None:
        pass


class Rig:
    """Readers under a real schedule, published through a real spool to an in-memory bus.

    async with Rig(tmp_path, reader) as rig:
        await rig.until(lambda: rig.samples(Source.HOST), "the first reading")
    """

    def __init__(self, folder: Path, *readers: SourceReader) -> None:
        self.bus = MemoryBus(SystemClock())
        self.messages: list[Message] = []
        self.tasks = Tasks()
        clock = QuickClock()
        spool = DiskSpool(folder / "spool", boot_id="b1")
        origin = Origin(fabric="f", host="h0", boot_id="b1")
        self.publisher = Publisher(origin, spool, self._connect, clock=clock, tasks=self.tasks)
        self.schedule = Schedule(readers, self.publisher.publish, shorten=clock.shorten)

    async def _connect(self) -> Bus:
        return self.bus

    async def _take(self, message: Message) -> None:
        self.messages.append(message)

    async def __aenter__(self) -> Rig:
        for stream in ("TELEMETRY", "TOPOLOGY", "JOB"):
            await self.bus.consume(Consumer(durable=f"rig-{stream}", stream=stream, subjects=("goodput.>",)), self._take)
        await self.publisher.start()
        await self.schedule.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.schedule.close()
        await self.publisher.close()
        await self.tasks.close()
        await self.bus.close()

    def samples(self, source: Source) -> list[Sample]:
        """All that has reached the bus from this source."""
        batches = (each.data for each in self.messages if isinstance(each.data, TelemetryBatch))
        return [sample for batch in batches if batch.source is source for sample in batch.samples]

    def dumps(self) -> list[FlightRecorderDump]:
        return [each.data for each in self.messages if isinstance(each.data, FlightRecorderDump)]

    def condition(self, source: Source, instance: str = "") -> Condition:
        return next(each for each in self.schedule.conditions() if (each.source, each.instance) == (source, instance))

    async def until(self, condition: Callable[[], object], what: str) -> None:
        try:
            async with asyncio.timeout(20):
                while not condition():  # noqa: ASYNC110 - a test may poll
                    await asyncio.sleep(0.005)
        except TimeoutError:
            conditions = [(each.source, each.instance, each.status, each.reason) for each in self.schedule.conditions()]
            pytest.fail(f"never happened: {what}; sources {conditions}")


class HangingFile:
    """Puts a pipe in a file's place: whoever opens it hangs, as with a device that does not answer, until `release`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = path.read_bytes() if path.exists() else b""
        path.unlink(missing_ok=True)
        os.mkfifo(path)

    def release(self) -> None:
        """Let go of those that wait, and put the file back."""
        held, done = self._path.with_name(f"{self._path.name}.held"), threading.Event()
        self._path.rename(held)
        self._path.write_bytes(self._text)

        def let_go() -> None:
            while not done.wait(0.01):
                try:
                    os.close(os.open(held, os.O_WRONLY | os.O_NONBLOCK))
                    return
                except OSError:
                    continue  # nobody waits yet

        waiting = threading.Thread(target=let_go, daemon=True)
        waiting.start()
        waiting.join(5)
        done.set()
        held.unlink()
