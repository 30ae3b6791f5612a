"""Ranks and their host's collector as processes, on a real bus: who sends the reports, whatever becomes of the collector.

A rank's reports are numbered: that each number arrives says that none is lost.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.ports import Consumer, Message
from goodput_common.bus.provision import provision
from goodput_common.contracts.job import HostProgress, RankExited, RankProgress
from goodput_common.embedded import EmbeddedNats
from goodput_common.runtime.clock import SystemClock

RANKS = 2
LOOP = """
import pathlib, sys, time
import goodput_agent
agent = goodput_agent.attach()
while not pathlib.Path(sys.argv[1]).exists():
    with agent.step():
        time.sleep(0.02)
"""


class Host:
    """One host under a folder: a collector, two ranks, and what reaches the bus of them, in order."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.heard: list[tuple[RankProgress, bool]] = []  # and whether it came with others'
        self.exits: list[RankExited] = []
        self.collector: asyncio.subprocess.Process | None = None
        self.ranks: list[asyncio.subprocess.Process] = []
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GOODPUT_")},
            "GOODPUT_NATS_URL": url,
            "GOODPUT_RUN_DIR": str(folder / "run"),
            "GOODPUT_HOST": "h0",
            "GOODPUT_KERNEL_LOG": "",
            "GOODPUT_SYS_ROOT": str(folder / "no-sys"),
            "GOODPUT_COLLECTOR_HTTP": "false",
            "GOODPUT_JOB": "j",
            "WORLD_SIZE": str(RANKS),
        }

    async def take(self, message: Message) -> None:
        data = message.data
        if isinstance(data, RankProgress):
            self.heard.append((data, False))
        elif isinstance(data, HostProgress):
            self.heard += [(each, True) for each in data.reports]
        elif isinstance(data, RankExited):
            self.exits.append(data)

    async def start_collector(self) -> None:
        self.collector = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "goodput_collector"),
            env=self._environment,
            stderr=(self.folder / "collector.log").open("ab"),
        )

    async def start_ranks(self) -> None:
        for rank in range(RANKS):
            environment = {**self._environment, "RANK": str(rank)}
            stop = str(self.folder / "stop")
            self.ranks.append(await asyncio.create_subprocess_exec(sys.executable, "-c", LOOP, stop, env=environment))

    def signal(self, number: signal.Signals) -> None:
        assert self.collector is not None
        self.collector.send_signal(number)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(100):
            while not condition():  # noqa: ASYNC110 - a test may poll
                await asyncio.sleep(0.02)

    async def reported(self, *, together: bool) -> None:
        """Wait until each rank has reported twice more in this way."""
        begin = len(self.heard)

        def enough() -> bool:
            ranks = [report.rank for report, way in self.heard[begin:] if way is together]
            return all(ranks.count(rank) >= 2 for rank in range(RANKS))

        await self.until(enough)

    async def end(self) -> None:
        """The ranks end; then every one of their reports has come."""
        (self.folder / "stop").touch()
        for each in self.ranks:
            await each.wait()
        await self.until(lambda: len(self.exits) == RANKS)
        for rank in range(RANKS):
            numbers = {report.seq for report, _ in self.heard if report.rank == rank}
            assert numbers == set(range(1, max(numbers) + 1)), f"rank {rank} in {self.folder}"


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    nats = EmbeddedNats(tmp_path / "nats")
    await nats.start()
    bus = await JetStreamBus.connect(nats.url, name="test", clock=SystemClock())
    await provision(bus)
    made = Host(tmp_path, nats.url)
    await bus.consume(Consumer(durable="test", stream="JOB", subjects=("goodput.job.>",)), made.take)
    try:
        yield made
    finally:
        for each in (made.collector, *made.ranks):
            if each is not None and each.returncode is None:
                each.kill()
                await each.wait()
        await bus.close()
        await nats.stop()


async def test_ranks_report_by_themselves_until_a_collector_is_there_and_say_their_last_words_themselves(host: Host) -> None:
    await host.start_ranks()
    await host.reported(together=False)
    await host.start_collector()
    await host.reported(together=True)
    await host.end()
    assert all(exited.clean for exited in host.exits)


async def test_no_report_is_lost_when_the_collector_is_killed_and_another_takes_its_place(host: Host) -> None:
    await host.start_collector()
    await host.start_ranks()
    for _ in range(2):
        await host.reported(together=True)
        assert host.collector is not None
        host.collector.kill()
        await host.collector.wait()
        await host.reported(together=False)
        await host.start_collector()
    await host.reported(together=True)
    await host.end()


async def test_no_report_is_lost_while_the_collector_hangs_and_it_is_trusted_again_afterwards(host: Host) -> None:
    await host.start_collector()
    await host.start_ranks()
    await host.reported(together=True)
    host.signal(signal.SIGSTOP)
    await host.reported(together=False)
    host.signal(signal.SIGCONT)
    await host.reported(together=True)
    await host.end()


async def test_a_collector_that_stops_hands_everything_back(host: Host) -> None:
    await host.start_collector()
    await host.start_ranks()
    await host.reported(together=True)
    host.signal(signal.SIGTERM)
    await host.reported(together=False)
    assert not (host.folder / "run/collectors/h0.sock").exists()
    await host.end()
