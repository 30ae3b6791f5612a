"""What a rank says on the bus and leaves on its host, and what becomes of it when the bus is away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from goodput_agent.files import RunDirectory
from goodput_agent.gate import PauseGate
from goodput_agent.identity import identify
from goodput_agent.outqueue import CAPACITY
from goodput_agent.recorder import FlightRecorder
from goodput_agent.reporter import Reporter
from goodput_agent.steps import StepClock
from goodput_common.bus.errors import BusUnavailable
from goodput_common.bus.memory import MemoryBus
from goodput_common.bus.ports import Consumer, Message
from goodput_common.contracts import subjects
from goodput_common.contracts.job import GroupProgress, RankExited, RankProgress, RankRegistered, StallSuspected
from goodput_common.contracts.recovery import AgentCommand, AgentCommandKind, AgentReply, AgentReplyStatus
from goodput_common.runtime.clock import ManualClock, SystemClock

ME = identify({"RANK": "3", "WORLD_SIZE": "4", "GOODPUT_HOST": "h1", "GOODPUT_GENERATION": "2"}, job="j")
START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Rank:
    """A reporter with everything around it but a process."""

    def __init__(self, folder: Path, connect: Callable[[], Awaitable[Any]] | None, clock: Any = None) -> None:
        self.steps = StepClock()
        self.gate = PauseGate()
        self.files = RunDirectory(folder, "j", 3)
        self.reporter = Reporter(
            ME,
            self.steps,
            self.gate,
            FlightRecorder(modules={}),
            self.files,
            connect,
            clock or SystemClock(),
            main_thread=threading.get_ident(),
        )
        self.leaving = asyncio.Event()
        self.last_words: tuple[bool, str] = (True, "")

    async def run(self) -> None:
        await self.reporter.run(self.leaving, lambda: self.last_words)

    def queued(self) -> list[Any]:
        waiting = []
        while (head := self.reporter.queue.head()) is not None:
            waiting.append(head.data)
            self.reporter.queue.done(head)
        return waiting


class Ear:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.came = asyncio.Event()

    async def __call__(self, message: Message) -> None:
        self.messages.append(message)
        self.came.set()

    async def until(self, condition: Callable[[list[Any]], bool]) -> list[Any]:
        async with asyncio.timeout(20):
            while not condition([message.data for message in self.messages]):
                self.came.clear()
                await self.came.wait()
        return [message.data for message in self.messages]


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    await bus.close()


@pytest.fixture
async def ear(bus: MemoryBus) -> Ear:
    ear = Ear()
    await bus.consume(Consumer(durable="ear", stream="JOB", subjects=("goodput.job.>",)), ear)
    return ear


class OwnConnection:
    """A connection of the rank's own to the one bus: closing it leaves the bus to the others."""

    def __init__(self, bus: MemoryBus) -> None:
        self.publish = bus.publish
        self.serve = bus.serve

    async def close(self) -> None:
        pass


async def connected(bus: MemoryBus) -> OwnConnection:
    return OwnConnection(bus)


async def test_a_rank_registers_reports_and_says_goodbye(tmp_path: Path, bus: MemoryBus, ear: Ear) -> None:
    rank = Rank(tmp_path, lambda: connected(bus))
    running = asyncio.create_task(rank.run())
    await ear.until(lambda data: any(isinstance(each, RankProgress) for each in data))
    registered = msgspec.json.decode(rank.files.registration.read_bytes(), type=RankRegistered)
    assert (registered.rank, registered.host, registered.generation, registered.pid) == (3, "h1", 2, ME.pid)
    rank.leaving.set()
    await running
    data = await ear.until(lambda data: any(isinstance(each, RankExited) for each in data))
    assert data[0] == registered
    assert data[-1].clean
    assert not rank.files.registration.exists()
    assert len({message.id for message in ear.messages}) == len(ear.messages)
    assert {message.component for message in ear.messages} == {"rank:j/3"}


async def test_an_unclean_end_keeps_the_registration_for_the_collector(tmp_path: Path, bus: MemoryBus, ear: Ear) -> None:
    rank = Rank(tmp_path, lambda: connected(bus))
    running = asyncio.create_task(rank.run())
    await ear.until(bool)
    rank.last_words = (False, "RuntimeError: Connection closed by peer")
    rank.leaving.set()
    await running
    data = await ear.until(lambda data: any(isinstance(each, RankExited) for each in data))
    assert (data[-1].clean, data[-1].reason) == (False, "RuntimeError: Connection closed by peer")
    assert rank.files.registration.exists()


async def test_without_a_bus_the_newest_messages_are_kept_and_the_end_is_quick(tmp_path: Path) -> None:
    rank = Rank(tmp_path, None)
    rank.reporter.register()
    for _ in range(CAPACITY + 5):
        rank.reporter.report()
    assert rank.reporter.queue.dropped == 5
    waiting = rank.queued()
    assert len(waiting) == CAPACITY + 1
    assert isinstance(waiting[0], RankRegistered), "the registration is never the one to go"
    assert waiting[-1].seq == CAPACITY + 5
    running = asyncio.create_task(rank.run())
    rank.leaving.set()
    async with asyncio.timeout(10):
        await running


async def test_last_words_wait_for_a_connection_that_is_being_made(tmp_path: Path, bus: MemoryBus, ear: Ear) -> None:
    connecting, leaving, connected_now = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def connect() -> OwnConnection:
        connecting.set()
        await connected_now.wait()
        return OwnConnection(bus)

    def last_words() -> tuple[bool, str]:
        leaving.set()
        return False, "RuntimeError: out of memory"

    rank = Rank(tmp_path, connect)
    running = asyncio.create_task(rank.reporter.run(rank.leaving, last_words))
    async with asyncio.timeout(20):
        await connecting.wait()
        rank.leaving.set()
        await leaving.wait()
    assert ear.messages == [] and not running.done()
    connected_now.set()
    await running
    data = await ear.until(lambda data: any(isinstance(each, RankExited) for each in data))
    assert isinstance(data[0], RankRegistered)
    (exited,) = [each for each in data if isinstance(each, RankExited)]
    assert (exited.clean, exited.reason) == (False, "RuntimeError: out of memory")


async def test_messages_of_an_outage_arrive_after_it_in_order(tmp_path: Path, bus: MemoryBus, ear: Ear) -> None:
    bus.set_available(False)
    rank = Rank(tmp_path, lambda: connected(bus))
    running = asyncio.create_task(rank.run())
    await asyncio.sleep(0)
    rank.reporter.report()
    await asyncio.sleep(0.05)
    bus.set_available(True)
    data = await ear.until(lambda data: len(data) >= 2)
    assert isinstance(data[0], RankRegistered)
    assert isinstance(data[1], RankProgress)
    rank.leaving.set()
    await running


async def test_a_bus_that_cannot_be_reached_is_tried_again(tmp_path: Path, bus: MemoryBus, ear: Ear) -> None:
    tries = 0

    async def connect() -> OwnConnection:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise BusUnavailable("no server")
        return OwnConnection(bus)

    rank = Rank(tmp_path, connect)
    running = asyncio.create_task(rank.run())
    await ear.until(bool)
    assert tries == 2
    rank.leaving.set()
    await running


async def test_commands_are_answered_over_the_bus(tmp_path: Path, bus: MemoryBus, ear: Ear) -> None:
    rank = Rank(tmp_path, lambda: connected(bus))
    running = asyncio.create_task(rank.run())
    await ear.until(bool)
    command = AgentCommand(
        id="c1",
        kind=AgentCommandKind.PAUSE,
        fabric="default",
        job="j",
        rank=3,
        fencing_token=4,
        expires_at=datetime.now(UTC) + timedelta(seconds=60),
    )
    subject = subjects.agent("default", "j", 3)
    reply = await bus.request(subject, command, id="c1", source="test", timeout_s=5)
    assert isinstance(reply, AgentReply)
    assert reply.status is AgentReplyStatus.ACCEPTED
    assert rank.gate.requested
    resume = msgspec.structs.replace(command, id="c2", kind=AgentCommandKind.RESUME)
    await bus.request(subject, resume, id="c2", source="test", timeout_s=5)
    assert not rank.gate.requested
    rank.leaving.set()
    await running


async def test_a_dump_without_torch_is_refused_with_the_reason(tmp_path: Path) -> None:
    assert "torch.distributed is not in use" in Rank(tmp_path, None).reporter.dump("asked")


async def test_a_stall_is_announced_once_with_where_the_loop_is(tmp_path: Path) -> None:
    clock = ManualClock(START)
    rank = Rank(tmp_path, None, clock)
    for _ in range(10):
        rank.steps.end()
        rank.steps.finished[-1] = rank.steps.finished[-1]._replace(finished_s=clock.monotonic_s(), interval_s=0.1)
        await clock.advance(0.1)
        rank.reporter.look()
    rank.queued()
    rank.steps.enter_phase("gradients")
    for _ in range(20):
        await clock.advance(0.25)
        rank.reporter.look()
    stalls = [each for each in rank.queued() if isinstance(each, StallSuspected)]
    assert len(stalls) == 1
    assert stalls[0].step == 9
    assert stalls[0].phase == "gradients"
    assert 2000 < stalls[0].stalled_for_ms < 3000
    assert any(frame.endswith("in test_a_stall_is_announced_once_with_where_the_loop_is") for frame in stalls[0].frames)


async def test_a_run_directory_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    rank = Rank(blocked, None)
    rank.reporter.register()
    rank.reporter.report()
    assert [type(each) for each in rank.queued()] == [RankRegistered, RankProgress]


async def test_a_message_that_the_server_would_never_take_does_not_hold_up_the_others(
    tmp_path: Path, bus: MemoryBus, ear: Ear
) -> None:
    rank = Rank(tmp_path, lambda: connected(bus))
    rank.reporter.register()
    head = rank.reporter.queue.head()
    assert head is not None
    rank.reporter.queue.done(head)
    rank.reporter.queue.put(
        head._replace(data=RankExited(fabric="f", job="j", rank=3, host="h", at=START, reason="x" * (2 << 20)))
    )
    running = asyncio.create_task(rank.run())
    data = await ear.until(bool)
    assert isinstance(data[0], RankRegistered)
    rank.leaving.set()
    await running


class SubscribeFailsOnce(OwnConnection):
    """The connection breaks in the middle of subscribing, with an error of the client library's own."""

    def __init__(self, bus: MemoryBus) -> None:
        super().__init__(bus)
        self._really = bus.serve
        self.serve = self._serve
        self.serving = asyncio.Event()
        self._tried = 0

    async def _serve(self, subject: str, responder: Any) -> Any:
        self._tried += 1
        if self._tried == 1:
            raise RuntimeError("nats: connection closed")
        self.serving.set()
        return await self._really(subject, responder)


async def test_a_connection_that_breaks_while_subscribing_costs_neither_reports_nor_commands(
    tmp_path: Path, bus: MemoryBus, ear: Ear
) -> None:
    connection = SubscribeFailsOnce(bus)

    async def connect() -> SubscribeFailsOnce:
        return connection

    rank = Rank(tmp_path, connect)
    running = asyncio.create_task(rank.run())
    await ear.until(lambda data: any(isinstance(each, RankProgress) for each in data))
    async with asyncio.timeout(20):
        await connection.serving.wait()
    now = datetime.now(UTC)
    command = AgentCommand(
        id="c", kind=AgentCommandKind.PAUSE, fabric="default", job="j", rank=3, fencing_token=1, expires_at=now + HOUR
    )
    subject = subjects.agent("default", "j", 3)
    reply = await bus.request(subject, command, id="c", source="test", timeout_s=20)
    assert isinstance(reply, AgentReply) and reply.status is AgentReplyStatus.ACCEPTED
    assert rank.gate.requested
    rank.leaving.set()
    await running
    data = await ear.until(lambda data: any(isinstance(each, RankExited) for each in data))
    reports = [each.seq for each in data if isinstance(each, RankProgress)]
    assert reports == list(range(1, len(reports) + 1)), "no report is lost"


def test_members_of_a_group_are_told_when_new_and_not_with_every_report(tmp_path: Path) -> None:
    reporter = Rank(tmp_path, None).reporter
    world = GroupProgress(group="0", ranks=(0, 1), last_enqueued=3)
    tensor = GroupProgress(group="1", ranks=(0,), last_enqueued=1)
    assert reporter._lean((world,), 0.0) == (world,)
    assert [each.ranks for each in reporter._lean((world, tensor), 1.0)] == [(), (0,)]
    shrunk = GroupProgress(group="0", ranks=(0,), last_enqueued=4)
    assert [each.ranks for each in reporter._lean((shrunk, tensor), 2.0)] == [(0,), ()]
    assert [each.ranks for each in reporter._lean((shrunk, tensor), 31.0)] == [(0,), (0,)]
