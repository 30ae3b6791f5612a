"""The collector as a process, on a real bus: from a log line to the bus, over kill -9, and while the bus is away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.ports import Consumer, Message
from goodput_common.bus.provision import provision
from goodput_common.contracts.job import FlightRecorderDump, RankRegistered
from goodput_common.contracts.telemetry import (
    CollectorHeartbeat,
    Event,
    EventName,
    Source,
    SourceStatus,
    TelemetryBatch,
)
from goodput_common.embedded import EmbeddedNats
from goodput_common.runtime.clock import SystemClock

KERNEL_LOG = Path("/dev/kmsg")
XID = "NVRM: Xid (PCI:0000:{bus:02x}:00): 79, pid=1, name=x, GPU has fallen off the bus.\n"


class Host:
    """One host under a folder: its kernel log, run directory and collector, and what reaches the bus of it."""

    def __init__(self, folder: Path, nats: EmbeddedNats, bus: JetStreamBus) -> None:
        self.folder, self.nats, self.bus = folder, nats, bus
        self.log = folder / "kernel.log"
        self.log.write_text("from before\n")
        self.run_dir = folder / "run"
        self.messages: list[Message] = []
        self.collector: asyncio.subprocess.Process | None = None

    async def listen(self) -> None:
        for stream in ("TELEMETRY", "JOB"):
            await self.bus.consume(Consumer(durable=f"test-{stream}", stream=stream, subjects=(">",)), self._take)

    async def _take(self, message: Message) -> None:
        self.messages.append(message)

    async def start(self) -> None:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GOODPUT_")},
            "GOODPUT_NATS_URL": self.nats.url,
            "GOODPUT_RUN_DIR": str(self.run_dir),
            "GOODPUT_HOST": "h0",
            "GOODPUT_FABRIC": "lab",
            "GOODPUT_KERNEL_LOG": str(self.log),
            "GOODPUT_SYS_ROOT": str(self.folder / "no-sys"),
            "GOODPUT_COLLECTOR_HTTP": "false",
            "GOODPUT_HEARTBEAT_S": "0.5",
        }
        self.collector = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "goodput_collector", env=environment, stderr=(self.folder / "stderr").open("ab")
        )

    async def kill(self) -> None:
        assert self.collector is not None
        self.collector.kill()
        await self.collector.wait()

    def write(self, bus: int) -> None:
        with self.log.open("a") as file:
            file.write(XID.format(bus=bus))

    def xids(self) -> list[str]:
        return [
            sample.attrs["pci"]
            for batch in self.batches(Source.KERNEL_LOG)
            for sample in batch.samples
            if isinstance(sample, Event)
        ]

    def batches(self, source: Source) -> list[TelemetryBatch]:
        return [each.data for each in self.messages if isinstance(each.data, TelemetryBatch) and each.data.source is source]

    def beats(self) -> list[CollectorHeartbeat]:
        return [each.data for each in self.messages if isinstance(each.data, CollectorHeartbeat)]

    def events(self, source: Source) -> list[Event]:
        return [sample for batch in self.batches(source) for sample in batch.samples if isinstance(sample, Event)]

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(60):
                while not condition():  # noqa: ASYNC110 - a test may poll
                    await asyncio.sleep(0.01)
        except TimeoutError:
            seen = [(each.subject, each.id) for each in self.messages][-8:]
            pytest.fail(f"never happened: {what}; last messages {seen}; log {(self.folder / 'stderr').read_text()[-2000:]}")

    async def reading(self) -> None:
        """Wait until the kernel log is being read."""
        before = len(self.beats())
        await self.until(
            lambda: any(
                each.source is Source.KERNEL_LOG and each.status is SourceStatus.OK
                for beat in self.beats()[before:]
                for each in beat.sources
            ),
            "a heartbeat that says the kernel log is read",
        )


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    nats = EmbeddedNats(tmp_path / "nats")
    await nats.start()
    bus = await JetStreamBus.connect(nats.url, name="test", clock=SystemClock())
    await provision(bus)
    made = Host(tmp_path, nats, bus)
    await made.listen()
    await made.start()
    try:
        yield made
    finally:
        if made.collector is not None and made.collector.returncode is None:
            await made.kill()
        await bus.close()
        await nats.stop()


async def test_a_line_reaches_the_bus_and_a_stop_is_clean(host: Host) -> None:
    await host.reading()
    host.write(0x05)
    await host.until(lambda: host.xids() == ["0000:05:00"], "the Xid on the bus")
    (message,) = [each for each in host.messages if ".kernel_log" in each.subject]
    assert message.subject == "goodput.telemetry.lab.h0.kernel_log"
    assert message.id.startswith("lab/h0/kernel_log/")
    assert message.id.endswith("/1")
    rdma = next(each for each in host.beats()[-1].sources if each.source is Source.RDMA)
    assert rdma.status is SourceStatus.ABSENT
    assert host.collector is not None
    host.collector.send_signal(signal.SIGTERM)
    assert await host.collector.wait() == 0


async def test_kill_9_while_the_bus_is_away_loses_no_line_and_repeats_no_number(host: Host) -> None:
    await host.reading()
    host.write(0x01)
    await host.until(lambda: len(host.xids()) == 1, "the first Xid")
    await host.nats.stop()
    host.write(0x02)
    spool = host.run_dir / "collector" / "h0"
    await host.until(lambda: any(b"0000:02:00" in path.read_bytes() for path in spool.glob("*.spool")), "the spooled Xid")
    await host.kill()
    host.write(0x03)  # while no collector runs
    await host.start()
    await host.until(lambda: any(b"0000:03:00" in path.read_bytes() for path in spool.glob("*.spool")), "the missed Xid")
    await host.nats.start()
    await host.until(lambda: {"0000:02:00", "0000:03:00"} <= set(host.xids()), "both Xids after the bus is back")
    host.write(0x04)
    await host.until(lambda: "0000:04:00" in host.xids(), "an Xid after all that")
    batches = host.batches(Source.KERNEL_LOG)
    assert sorted({each.seq for each in batches}) == list(range(1, len({each.seq for each in batches}) + 1))
    assert len({each.boot_id for each in batches}) == 1
    by_seq: dict[int, TelemetryBatch] = {}
    for each in batches:
        assert by_seq.setdefault(each.seq, each) == each  # a number never stands for two batches
    beats = [each.seq for each in host.beats()]
    assert sorted(set(beats)) == list(range(1, max(beats) + 1))


async def test_kill_9_at_any_moment_loses_no_line_and_tells_none_twice(host: Host) -> None:
    """The bookmark of a log is in the same write as the events that it stands for."""
    await host.reading()
    chance = random.Random(7)
    lines, kills = 120, set(chance.sample(range(10, 110), 5))
    for number in range(lines):
        host.write(number)
        await asyncio.sleep(chance.uniform(0, 0.02))
        if number in kills:
            await host.kill()
            await host.start()
            if chance.random() < 0.5:
                await host.reading()
    expected = [f"0000:{number:02x}:00" for number in range(lines)]
    await host.until(lambda: set(host.xids()) == set(expected), "every line")
    batches = {each.id: each.data for each in host.messages if isinstance(each.data, TelemetryBatch)}  # each once
    samples = [sample for each in batches.values() if each.source is Source.KERNEL_LOG for sample in each.samples]
    assert sorted(sample.attrs["pci"] for sample in samples if isinstance(sample, Event)) == expected


async def test_ranks_and_dumps_of_the_run_directory_are_told(host: Host) -> None:
    rank = await asyncio.create_subprocess_exec("sleep", "600")
    try:
        start = _started(rank.pid)
        (host.run_dir / "ranks").mkdir(parents=True, exist_ok=True)
        registered = RankRegistered(
            fabric="lab",
            job="j",
            rank=1,
            world_size=2,
            host="h0",
            pid=rank.pid,
            at=SystemClock().now(),
            process_start=start,
        )
        (host.run_dir / "ranks" / "j.1.json").write_bytes(msgspec.json.encode(registered))
        await host.until(lambda: bool(host.batches(Source.PROCESS)), "the rank's state")
        rank.send_signal(signal.SIGSTOP)
        await host.until(lambda: EventName.PROCESS_STOPPED in _names(host), "the stop")
        dump = {"version": "2.10", "pg_config": {"0": {"ranks": "[0, 1]"}}, "pg_status": {}, "entries": []}
        folder = host.run_dir / "dumps" / "j"
        folder.mkdir(parents=True)
        (folder / ".rank_1.tmp").write_text(json.dumps(dump))
        (folder / ".rank_1.tmp").rename(folder / "rank_1")
        await host.until(lambda: any(isinstance(each.data, FlightRecorderDump) for each in host.messages), "the dump")
        rank.send_signal(signal.SIGCONT)
        await host.until(lambda: EventName.PROCESS_CONTINUED in _names(host), "that it runs again")
        rank.kill()
        await host.until(lambda: EventName.PROCESS_EXITED in _names(host), "the exit")
    finally:
        with contextlib.suppress(ProcessLookupError):
            rank.kill()
        await rank.wait()
    told = next(each.data for each in host.messages if isinstance(each.data, FlightRecorderDump))
    assert (told.job, told.rank, told.fabric) == ("j", 1, "lab")


def _write(device: Path, line: str) -> None:
    try:
        device.write_text(line)
    except OSError as error:
        pytest.skip(f"no kernel log to write to: {error.strerror}")


def _started(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def _names(host: Host) -> list[EventName]:
    return [event.name for event in host.events(Source.PROCESS)]


@pytest.mark.skipif(os.geteuid() != 0 or not KERNEL_LOG.exists(), reason="writing to the kernel's log takes root")
async def test_a_record_of_the_real_kernel_log_is_told_at_its_time(host: Host) -> None:
    """With a line that worries nobody else who reads this machine's log."""
    device = f"{os.getpid() & 0xFFFF:04x}:ee:00"  # of this run: the log still holds the ones before
    line = f"mlx5_core {device}.0: Port module event: module 0, Cable plugged\n"
    await host.kill()
    host.log = KERNEL_LOG
    await host.start()
    await host.reading()
    before = time.time()
    _write(KERNEL_LOG, line)
    mine = f"nic:h0/{device}/1"
    await host.until(lambda: mine in [event.component for event in host.events(Source.KERNEL_LOG)], "the event")
    event = next(event for event in host.events(Source.KERNEL_LOG) if event.component == mine)
    assert before - 2 < event.observed_at.timestamp() < time.time() + 2
