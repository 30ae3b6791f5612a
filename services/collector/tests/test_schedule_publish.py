"""Sources do not disturb each other, batches are numbered without gaps, and the bus may be away."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from goodput_collector.adapters.spool import DiskSpool
from goodput_collector.application.lane import HOLD_S, QUICK_READS
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.application.publish import SAMPLES_PER_BATCH, Heartbeat, Origin, Publisher
from goodput_collector.application.schedule import Condition, Schedule
from goodput_collector.application.turn import DELIVERIES_MAX
from goodput_collector.application.worker import Hung, Worker
from goodput_common.bus.errors import BusUnavailable
from goodput_common.bus.memory import FaultPlan, MemoryBus
from goodput_common.bus.ports import Bus, Consumer, Message
from goodput_common.contracts.job import Collective, CollectiveState, FlightRecorderDump
from goodput_common.contracts.telemetry import (
    CollectorHeartbeat,
    Gauge,
    Source,
    SourceStatus,
    State,
    TelemetryBatch,
)
from goodput_common.runtime.clock import SystemClock
from goodput_common.runtime.tasks import Tasks

AT = datetime(2026, 3, 1, tzinfo=UTC)


def state(value: str = "up") -> State:
    return State(component="nic:h0/rail0/1", name="operstate", observed_at=AT, value=value)


class Script:
    """A source that does what it is told, read by read."""

    deadline_s = 5.0
    interval_s = 0.01

    def __init__(self, source: Source, *steps: object) -> None:
        self.source = source
        self.instance = ""
        self._steps = list(steps)
        self.opened = self.closed = 0
        self.fd: int | None = None

    def open(self) -> None:
        self.opened += 1

    def read(self) -> Reading:
        step = self._steps.pop(0) if self._steps else Reading()
        if isinstance(step, Exception):
            raise step
        if isinstance(step, threading.Event):
            step.wait(30)
            return Reading()
        assert isinstance(step, Reading)
        return step

    def wake_fd(self) -> int | None:
        return self.fd

    def close(self) -> None:
        self.closed += 1


class FastClock(SystemClock):
    """Back-off of minutes takes moments."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.005))

    def shorten(self, seconds: float) -> float:
        self.asked.append(seconds)
        return min(seconds, 0.005)


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - a test may poll
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"never happened: {what}")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Running:
    """A schedule under way, and what it has said."""

    def __init__(self, *scripts: Script, clock: FastClock | None = None) -> None:
        self.told: list[tuple[Source, Reading]] = []
        self.safe = True
        self.tasks = Tasks()
        self.clock = clock or FastClock()
        self.schedule = Schedule(
            scripts,
            self._publish,
            settled=lambda: self.safe,
            shorten=self.clock.shorten,
        )

    def _publish(self, source: Source, reading: Reading) -> bool:
        self.told.append((source, reading))
        return self.safe

    async def __aenter__(self) -> Running:
        await self.schedule.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.schedule.close()
        await self.tasks.close()

    def condition(self, source: Source) -> Condition:
        return next(each for each in self.schedule.conditions() if each.source is source)


async def test_a_source_that_fails_is_unknown_with_its_reason_until_it_answers_again() -> None:
    script = Script(Source.RDMA, Unreadable("the adapter does not answer"), Reading(samples=[state()]))
    seen = []
    running = Running(script)
    async with running:
        await until(lambda: running.condition(Source.RDMA).reason == "the adapter does not answer" or bool(running.told), "")
        seen.append(running.condition(Source.RDMA).status)
        await until(lambda: bool(running.told), "the second reading")
        assert running.condition(Source.RDMA).status is SourceStatus.OK
    assert script.opened == 2
    assert script.closed >= 2


async def test_retries_grow_slower_up_to_a_minute() -> None:
    clock = FastClock()
    script = Script(Source.RDMA, *[Unreadable("no")] * 9)
    running = Running(script, clock=clock)
    async with running:
        await until(lambda: script.opened >= 9, "nine tries")
    assert [asked for asked in clock.asked if asked >= 1][:8] == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_what_a_host_does_not_have_is_absent_and_not_unknown() -> None:
    running = Running(Script(Source.RDMA, *[Absent("no RDMA devices")] * 500))
    async with running:
        await until(lambda: running.condition(Source.RDMA).status is SourceStatus.ABSENT, "absent")
        assert running.condition(Source.RDMA).reason == "no RDMA devices"


async def test_a_hung_source_is_unknown_and_the_others_go_on() -> None:
    release = threading.Event()
    hung = Script(Source.RDMA, release, Reading(samples=[state("back")]))
    hung.deadline_s = 0.05
    fine = Script(Source.NETLINK, *[Reading(samples=[state(str(number))]) for number in range(20)])
    running = Running(hung, fine)
    async with running:
        await until(lambda: "no answer within" in running.condition(Source.RDMA).reason, "the deadline")
        await until(lambda: len(running.told) == 20, "the other source's readings")
        assert running.condition(Source.RDMA).status is SourceStatus.UNKNOWN
        release.set()
        await until(lambda: len(running.told) == 21, "the hung source after it came back")
        assert running.condition(Source.RDMA).status is SourceStatus.OK


class Where(Script):
    """Notes in which thread it is read."""

    def __init__(self, source: Source, instance: str = "", *, slow_reads: int = 0) -> None:
        super().__init__(source)
        self.instance = instance
        self.slow_reads = slow_reads
        self.threads: list[int] = []

    def read(self) -> Reading:
        self.threads.append(threading.get_ident())
        if self.slow_reads:
            self.slow_reads -= 1
            threading.Event().wait(2 * HOLD_S)
        return Reading(samples=[state(f"{self.instance}{len(self.threads)}")])


async def test_sources_that_answer_quickly_share_a_thread() -> None:
    sources = [Where(Source.RDMA, "a"), Where(Source.RDMA, "b"), Where(Source.NETLINK)]
    async with Running(*sources):
        await until(lambda: all(len(each.threads) > 20 for each in sources), "twenty rounds")
    assert len({thread for each in sources for thread in each.threads}) == 1


async def test_a_source_that_was_slow_is_left_to_its_thread_and_shares_again_after_many_quick_reads() -> None:
    slow, fine = Where(Source.RDMA, slow_reads=2), Where(Source.NETLINK)
    async with Running(slow, fine):
        await until(lambda: len(slow.threads) > 3, "it is quick again")
        assert fine.threads[-1] != slow.threads[-1]
        await until(lambda: fine.threads[-1] == slow.threads[-1], "one thread again")
    assert len(slow.threads) >= QUICK_READS


async def test_what_others_have_read_in_the_round_in_which_one_hangs_is_told_once() -> None:
    release = threading.Event()
    before = Script(Source.NETLINK, *[Reading(samples=[state(f"before {n}")]) for n in range(9)])
    hung = Script(Source.RDMA, release)
    after = Script(Source.HOST, *[Reading(samples=[state(f"after {n}")]) for n in range(9)])
    running = Running(before, hung, after)
    async with running:
        await until(lambda: len(running.told) == 18, "both neighbours' readings")
        release.set()
    for name, source in (("before", Source.NETLINK), ("after", Source.HOST)):
        told = [reading.samples[0].value for each, reading in running.told if each is source]  # type: ignore[union-attr]
        assert told == [f"{name} {n}" for n in range(9)]


async def test_however_many_sources_hang_the_last_one_goes_on() -> None:
    release = threading.Event()
    hung = [Script(Source.RDMA, release) for _ in range(4)]
    fine = Script(Source.NETLINK, *[Reading(samples=[state(str(n))]) for n in range(9)])
    for each in hung:
        each.deadline_s = 0.01
    running = Running(*hung, fine)
    async with running:
        await until(lambda: len(running.told) == 9, "its readings")
        reasons = [each.reason for each in running.schedule.conditions()]
        assert [("no answer within" in reason) for reason in reasons] == [True] * 4 + [False]
        release.set()


async def test_a_hung_source_keeps_no_schedule_from_closing_and_leaves_no_descriptor_behind() -> None:
    before, release = descriptors(), threading.Event()
    hung, fine = Script(Source.RDMA, release), Script(Source.NETLINK, *[Reading(samples=[state(str(n))]) for n in range(9)])
    running = Running(hung, fine)
    async with running:
        await until(lambda: len(running.told) == 9, "the neighbour's readings")
    assert hung.closed == 0
    release.set()
    await until(lambda: hung.closed == 1, "the hung source is closed once it has come back")
    await until(lambda: descriptors() <= before, "all descriptors are given back")


class Device(Script):
    """Has a counter, and hangs once: what it counts meanwhile is in the reading that comes late, and in no other."""

    deadline_s = 0.05

    def __init__(self) -> None:
        super().__init__(Source.RDMA)
        self.release = threading.Event()
        self.link_downed = self.told = 0

    def read(self) -> Reading:
        self.release.wait(30)
        delta, self.told = self.link_downed - self.told, self.link_downed
        return Reading(samples=[state(f"+{delta}")] if delta else [], covered=["nic:h0/rail0/1"])


async def test_what_changed_while_a_source_hung_is_told_after_it() -> None:
    device = Device()
    running = Running(device)
    async with running:
        await until(lambda: "no answer within" in running.condition(Source.RDMA).reason, "the deadline")
        device.link_downed += 1
        device.release.set()
        await until(lambda: running.told != [], "the change")
        await until(lambda: running.condition(Source.RDMA).status is SourceStatus.OK, "it answers again")
        assert running.condition(Source.RDMA).covered == ("nic:h0/rail0/1",)
        assert (device.opened, device.closed) == (1, 0)
    assert [reading.samples for _, reading in running.told] == [[state("+1")]]


async def test_a_source_that_takes_long_to_open_goes_on_once_it_is_open() -> None:
    release = threading.Event()
    slow = Script(Source.RDMA, Reading(samples=[state()]))
    slow.deadline_s = 0.05
    slow.open = lambda: release.wait(30)  # type: ignore[method-assign, assignment, return-value]
    running = Running(slow)
    async with running:
        await until(lambda: "no answer within" in running.condition(Source.RDMA).reason, "the deadline")
        release.set()
        await until(lambda: len(running.told) == 1, "its reading")
        assert slow.closed == 0


async def test_a_reading_that_could_not_be_published_is_offered_again_before_the_next_read() -> None:
    running, refusals = Running(Script(Source.RDMA, *[Reading(samples=[state(str(n))]) for n in range(3)])), 2
    told = running.told

    def publish(source: Source, reading: Reading) -> bool:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise OSError(28, "no space left on device")
        told.append((source, reading))
        return True

    running.schedule._publish = publish
    async with running:
        await until(lambda: len(told) == 3, "all three")
        await until(lambda: running.condition(Source.RDMA).status is SourceStatus.OK, "it is fine again")
    assert [reading.samples for _, reading in told] == [[state(str(n))] for n in range(3)]


async def test_a_reading_that_can_never_be_published_is_given_up_with_its_reason() -> None:
    script = Script(Source.RDMA, Reading(samples=[state("poison")]), Reading(samples=[state("fine")]))
    running = Running(script)
    told, offered = running.told, 0

    def publish(source: Source, reading: Reading) -> bool:
        nonlocal offered
        if reading.samples[0] == state("poison"):
            offered += 1
            raise ValueError("not to be encoded")
        told.append((source, reading))
        return True

    running.schedule._publish = publish
    reasons: set[str] = set()
    async with running:
        await until(lambda: bool(reasons.add(running.condition(Source.RDMA).reason)) or bool(told), "the next reading")
    assert offered == DELIVERIES_MAX
    assert any("not to be encoded" in reason for reason in reasons)


async def test_a_source_whose_close_raises_is_opened_again() -> None:
    script = Script(Source.RDMA, Unreadable("no"), Reading(samples=[state()]))

    def close() -> None:
        raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")

    script.close = close  # type: ignore[method-assign]
    running = Running(script)
    async with running:
        await until(lambda: len(running.told) == 1, "its reading")


async def test_a_bookmark_that_cannot_move_makes_nothing_told_twice() -> None:
    def kept() -> None:
        raise ValueError("cannot be written")

    running = Running(Script(Source.RDMA, Reading(samples=[state("1")], kept=kept), Reading(samples=[state("2")])))
    async with running:
        await until(lambda: len(running.told) == 2, "both")
    assert [reading.samples for _, reading in running.told] == [[state("1")], [state("2")]]


async def test_no_bookmark_moves_while_what_was_told_waits_in_memory() -> None:
    moved: list[str] = []
    script = Script(
        Source.RDMA,
        Reading(samples=[state("1")], kept=lambda: moved.append("told")),
        Reading(kept=lambda: moved.append("nothing told")),
        Reading(samples=[state("2")]),
    )
    running = Running(script)
    running.safe = False
    async with running:
        await until(lambda: len(running.told) == 2, "all of it")
    assert moved == []


async def test_a_bug_in_one_source_takes_nobody_down() -> None:
    fine = Script(Source.NETLINK, Reading(samples=[state()]))
    running = Running(Script(Source.RDMA, *[ZeroDivisionError("bug")] * 500), fine)
    async with running:
        await until(lambda: "ZeroDivisionError" in running.condition(Source.RDMA).reason, "the bug's report")
        await until(lambda: len(running.told) == 1, "the other source's reading")
        assert running.tasks.crash is None


async def test_a_bug_that_stays_is_logged_once_and_again_after_it_had_gone(caplog: pytest.LogCaptureFixture) -> None:
    script = Script(
        Source.RDMA, *[ZeroDivisionError("bug")] * 9, Reading(samples=[state()]), *[ZeroDivisionError("bug")] * 9
    )
    async with Running(script):
        await until(lambda: script.opened >= 19, "all tries")
    told = [each for each in caplog.records if "source failed" in str(each.msg)]
    assert len(told) == 2


async def test_trouble_with_a_part_is_told_while_the_source_is_fine() -> None:
    running = Running(Script(Source.RDMA, *[Reading(trouble="cannot read mlx5_1/1")] * 5000))
    async with running:
        await until(lambda: running.condition(Source.RDMA).reason == "cannot read mlx5_1/1", "the trouble")
        assert running.condition(Source.RDMA).status is SourceStatus.OK


async def test_a_descriptor_that_becomes_readable_wakes_its_source_before_its_time() -> None:
    read_end, write_end = os.pipe()
    script = Script(Source.KERNEL_LOG, Reading(), Reading(samples=[state()]))
    script.interval_s, script.fd = 3600.0, read_end

    class Patient(FastClock):
        def shorten(self, seconds: float) -> float:
            return seconds

    running = Running(script, clock=Patient())
    try:
        async with running:
            await until(lambda: running.condition(Source.KERNEL_LOG).status is SourceStatus.OK, "the first reading")
            assert running.told == []
            os.write(write_end, b"x")
            await until(lambda: len(running.told) == 1, "the wake-up")
    finally:
        os.close(read_end)
        os.close(write_end)


async def test_a_worker_asks_no_more_of_a_thread_that_has_not_come_back() -> None:
    worker, release = Worker("test"), threading.Event()
    with pytest.raises(Hung):
        await worker.call(lambda: release.wait(30), deadline_s=0.02)
    with pytest.raises(Hung):
        await worker.call(lambda: "never run yet", deadline_s=0.02)
    release.set()
    assert await worker.call(lambda: "now", deadline_s=20) == "now"
    worker.stop()


# -- publishing ------------------------------------------------------------------------------------------------------


class Receiver:
    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def listen(self, bus: Bus) -> None:
        for stream in ("TELEMETRY", "JOB"):
            await bus.consume(Consumer(durable=f"t-{stream}", stream=stream, subjects=("goodput.>",)), self._take)

    async def _take(self, message: Message) -> None:
        self.messages.append(message)

    def batches(self, source: Source) -> list[TelemetryBatch]:
        return [each.data for each in self.messages if isinstance(each.data, TelemetryBatch) and each.data.source is source]


ORIGIN = Origin(fabric="f", host="h0", boot_id="b1")


class Publishing:
    def __init__(self, folder: Path, connect: Callable[[], Awaitable[Bus]]) -> None:
        self.tasks = Tasks()
        self.clock = FastClock()
        self.spool = DiskSpool(folder, boot_id=ORIGIN.boot_id)
        self.publisher = Publisher(ORIGIN, self.spool, connect, clock=self.clock, tasks=self.tasks)

    async def __aenter__(self) -> Publisher:
        await self.publisher.start()
        return self.publisher

    async def __aexit__(self, *_: object) -> None:
        await self.publisher.close()
        await self.tasks.close()


async def made(bus: Bus) -> Bus:
    return bus


async def test_batches_are_numbered_without_gaps_per_source(tmp_path: Path) -> None:
    bus, receiver = MemoryBus(SystemClock()), Receiver()
    await receiver.listen(bus)
    async with Publishing(tmp_path, lambda: made(bus)) as publisher:
        for _ in range(5):
            publisher.publish(Source.RDMA, Reading(samples=[state()]))
            publisher.publish(Source.NETLINK, Reading(samples=[state()]))
        await until(lambda: len(receiver.messages) == 10, "ten batches")
    assert [each.seq for each in receiver.batches(Source.RDMA)] == [1, 2, 3, 4, 5]
    message = receiver.messages[0]
    assert message.id == "f/h0/rdma/b1/1"
    assert message.subject == "goodput.telemetry.f.h0.rdma"
    await bus.close()


async def test_a_reading_larger_than_a_message_becomes_several_batches(tmp_path: Path) -> None:
    bus, receiver = MemoryBus(SystemClock()), Receiver()
    await receiver.listen(bus)
    async with Publishing(tmp_path, lambda: made(bus)) as publisher:
        publisher.publish(Source.RDMA, Reading(samples=[state()] * (2 * SAMPLES_PER_BATCH + 1)))
        await until(lambda: len(receiver.messages) == 3, "three batches")
    assert [len(each.samples) for each in receiver.batches(Source.RDMA)] == [SAMPLES_PER_BATCH, SAMPLES_PER_BATCH, 1]
    await bus.close()


async def test_a_bus_that_is_away_costs_nothing_but_time(tmp_path: Path) -> None:
    bus, receiver = MemoryBus(SystemClock(), faults=FaultPlan(seed=4, publish_unavailable=0.5)), Receiver()
    await receiver.listen(bus)
    refusals = 3

    async def connect() -> Bus:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise BusUnavailable("nobody there")
        return bus

    async with Publishing(tmp_path, connect) as publisher:
        for _ in range(30):
            publisher.publish(Source.RDMA, Reading(samples=[state()]))
        await until(lambda: len(receiver.batches(Source.RDMA)) >= 30, "all batches")
    assert sorted(each.seq for each in receiver.batches(Source.RDMA)) == list(range(1, 31))
    await bus.close()


async def test_a_message_that_the_bus_refuses_is_counted_and_holds_up_nothing(tmp_path: Path) -> None:
    forbidden = FaultPlan(forbidden=("goodput.telemetry.f.h0.kernel_log",))
    bus, receiver = MemoryBus(SystemClock(), faults=forbidden), Receiver()
    await receiver.listen(bus)
    publishing = Publishing(tmp_path, lambda: made(bus))
    async with publishing as publisher:
        for source in (Source.KERNEL_LOG, Source.RDMA, Source.KERNEL_LOG, Source.RDMA):
            publisher.publish(source, Reading(samples=[state()]))
        await until(lambda: len(receiver.batches(Source.RDMA)) == 2, "what may be published")
        await until(lambda: (publisher.published, publisher.refused) == (2, 2), "all are counted")
        publisher.heartbeat((), 1.0)
        await until(lambda: len(receiver.messages) == 3, "the heartbeat")
    (beat,) = [each.data for each in receiver.messages if isinstance(each.data, CollectorHeartbeat)]
    assert (beat.dropped_batches, beat.spooled_batches) == (2, 0)
    await bus.close()


async def test_a_heartbeat_tells_each_sources_health_and_last_number(tmp_path: Path) -> None:
    bus, receiver = MemoryBus(SystemClock()), Receiver()
    await receiver.listen(bus)
    publishing = Publishing(tmp_path, lambda: made(bus))
    conditions = (
        Condition(Source.RDMA, SourceStatus.OK, ""),
        Condition(Source.KERNEL_LOG, SourceStatus.UNKNOWN, "not allowed to read /dev/kmsg"),
    )
    async with publishing as publisher:
        publisher.publish(Source.RDMA, Reading(samples=[state()]))
        beat = Heartbeat(publisher, lambda: conditions, interval_s=5.0, clock=publishing.clock, tasks=publishing.tasks)
        await beat.start()
        await until(lambda: any(isinstance(each.data, CollectorHeartbeat) for each in receiver.messages), "a heartbeat")
        await beat.stop_pulling()
    heard = next(each.data for each in receiver.messages if isinstance(each.data, CollectorHeartbeat))
    assert [(each.source, each.status, each.reason, each.last_seq) for each in heard.sources] == [
        (Source.RDMA, SourceStatus.OK, "", 1),
        (Source.KERNEL_LOG, SourceStatus.UNKNOWN, "not allowed to read /dev/kmsg", 0),
    ]
    assert (heard.seq, heard.interval_s) == (1, 5.0)
    await bus.close()


def measured(value: float) -> Gauge:
    return Gauge(component="gpu:h0/0000:9b:00", name="temperature_c", observed_at=AT, value=value)


class Held(Publishing):
    """Measurements wait, so that only the publisher itself can bring them on their way."""

    def __init__(self, folder: Path, connect: Callable[[], Awaitable[Bus]], *, every_s: float) -> None:
        super().__init__(folder, connect)
        self.publisher = Publisher(ORIGIN, self.spool, connect, clock=self.clock, tasks=self.tasks, measures_every_s=every_s)


async def test_what_a_silent_source_told_last_is_published_all_the_same(tmp_path: Path) -> None:
    bus, receiver = MemoryBus(SystemClock()), Receiver()
    await receiver.listen(bus)
    async with Held(tmp_path, lambda: made(bus), every_s=0.05) as publisher:
        publisher.publish(Source.NVML, Reading(samples=[measured(1)]))
        publisher.publish(Source.NVML, Reading(samples=[measured(2)]))
        await until(lambda: len(receiver.batches(Source.NVML)) == 2, "what was held")
    assert [each.samples for each in receiver.batches(Source.NVML)] == [(measured(1),), (measured(2),)]
    await bus.close()


async def test_what_is_held_back_at_a_stop_is_published(tmp_path: Path) -> None:
    bus, receiver = MemoryBus(SystemClock()), Receiver()
    await receiver.listen(bus)
    async with Held(tmp_path, lambda: made(bus), every_s=3600) as publisher:
        publisher.publish(Source.NVML, Reading(samples=[measured(1)]))
        await until(lambda: len(receiver.messages) == 1, "the first")
        publisher.publish(Source.NVML, Reading(samples=[measured(2)]))
        await publisher.flush()
        await until(lambda: len(receiver.messages) == 2, "what was held")
    await bus.close()


async def test_a_dump_goes_to_its_job_cut_to_what_a_message_may_carry(tmp_path: Path) -> None:
    bus, receiver = MemoryBus(SystemClock()), Receiver()
    await receiver.listen(bus)
    collectives = tuple(
        Collective(group="0", seq=seq, op="all_reduce", state=CollectiveState.SCHEDULED, frames=("x" * 150,) * 8)
        for seq in range(2000)
    )
    dump = FlightRecorderDump(fabric="f", job="j.1", rank=3, host="h0", at=AT, collectives=collectives)
    async with Publishing(tmp_path, lambda: made(bus)) as publisher:
        publisher.publish(Source.FLIGHT_RECORDER, Reading(dumps=[dump]))
        await until(lambda: len(receiver.messages) == 1, "the dump")
    (message,) = receiver.messages
    assert message.subject == "goodput.job.f.j-1.flight_recorder"
    assert message.data.truncated
    assert message.data.collectives[-1] == collectives[-1]
    await bus.close()


async def test_what_is_spooled_is_sent_after_a_restart_under_the_same_id(tmp_path: Path) -> None:
    async def nobody() -> Bus:
        raise BusUnavailable("nobody there")

    async with Publishing(tmp_path, nobody) as publisher:
        publisher.publish(Source.RDMA, Reading(samples=[state()]))
    bus, receiver = MemoryBus(SystemClock()), Receiver()
    await receiver.listen(bus)
    async with Publishing(tmp_path, lambda: made(bus)) as publisher:
        publisher.publish(Source.RDMA, Reading(samples=[state()]))
        await until(lambda: len(receiver.messages) == 2, "both batches")
    assert [each.id for each in receiver.messages] == ["f/h0/rdma/b1/1", "f/h0/rdma/b1/2"]
    await bus.close()
