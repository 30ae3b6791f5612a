"""Batches are numbered without gaps, and the bus may be away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from schedule_fixtures import AT, FastClock, state, until

from goodput_collector.adapters.spool import DiskSpool
from goodput_collector.application.heartbeat import Heartbeat
from goodput_collector.application.message_size import SAMPLES_PER_BATCH
from goodput_collector.application.ports import Reading
from goodput_collector.application.publish import Origin, Publisher
from goodput_collector.application.schedule import Condition
from goodput_common.bus.errors import BusUnavailable
from goodput_common.bus.memory import FaultPlan, MemoryBus
from goodput_common.bus.ports import Bus, Consumer, Message
from goodput_common.contracts.job import Collective, CollectiveState, FlightRecorderDump
from goodput_common.contracts.telemetry import (
    CollectorHeartbeat,
    Gauge,
    Source,
    SourceStatus,
    TelemetryBatch,
)
from goodput_common.runtime.clock import SystemClock
from goodput_common.runtime.tasks import Tasks


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
