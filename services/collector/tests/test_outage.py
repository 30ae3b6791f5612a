"""An hour without a bus: what the spool holds arrives once and in order, and what it could not hold is stated."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from goodput_collector.adapters.spool import DiskSpool
from goodput_collector.application.ports import Reading
from goodput_collector.application.publish import Origin, Publisher
from goodput_common.bus.errors import BusUnavailable
from goodput_common.bus.memory import MemoryBus
from goodput_common.bus.ports import Bus, Consumer, Message
from goodput_common.contracts.telemetry import (
    CollectorHeartbeat,
    Counter,
    Event,
    EventName,
    Gauge,
    Sample,
    Source,
    TelemetryBatch,
)
from goodput_common.runtime.clock import SystemClock
from goodput_common.runtime.tasks import Tasks

START = datetime(2026, 3, 1, tzinfo=UTC)
SOURCES = (Source.RDMA, Source.ETHTOOL, Source.NVML, Source.HOST)
NICS, GPUS = 9, 8
AWAY_S = 3600


class Simulated(SystemClock):
    """Time that the test moves; sleeping takes a moment of the real one."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.passed_s)

    def monotonic_s(self) -> float:
        return self.passed_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.001))


def second(source: Source, number: int) -> list[Sample]:
    """What a host tells in one second: traffic and measurements, and once a minute something that happened."""
    at = START + timedelta(seconds=number)
    samples: list[Sample] = [
        Counter(component=f"nic:h0/mlx5_{n}/1", name=name, observed_at=at, delta=number, interval_s=1, value=number * number)
        for n in range(NICS)
        for name in ("port_xmit_data", "port_rcv_data")
    ]
    samples += [
        Gauge(component=f"gpu:h0/{n}", name="power_w", observed_at=at, value=float(number % 700)) for n in range(GPUS)
    ]
    if number % 60 == 0:
        samples.append(
            Event(
                component="nic:h0/mlx5_0/1",
                name=EventName.LINK_DOWN,
                observed_at=at,
                excerpt=f"{source} minute {number // 60}",
            )
        )
    return samples


class Hour:
    """A publisher, its bus switched off for an hour of simulated time, and what arrives afterwards."""

    def __init__(self, directory: Path, bytes_max: int) -> None:
        self.clock = Simulated()
        self.tasks = Tasks()
        self.bus = MemoryBus(self.clock)
        self.there = False
        self.spool = DiskSpool(directory, boot_id="b", bytes_max=bytes_max)
        self.publisher = Publisher(
            Origin(fabric="f", host="h0", boot_id="b"), self.spool, self._connect, clock=self.clock, tasks=self.tasks
        )
        self.arrived: list[Message] = []

    async def _connect(self) -> Bus:
        if not self.there:
            raise BusUnavailable("nobody listens")
        return self.bus

    async def run(self) -> None:
        async def hear(message: Message) -> None:
            self.arrived.append(message)

        await self.bus.consume(
            Consumer(durable="all", stream="TELEMETRY", subjects=("goodput.telemetry.>",), slots=64), hear
        )
        await self.publisher.start()
        for number in range(AWAY_S):
            self.clock.passed_s = float(number)
            for source in SOURCES:
                self.publisher.publish(source, Reading(samples=second(source, number)))
            if number % 5 == 0:
                self.publisher.heartbeat((), 5.0)
            if number % 100 == 0:
                await asyncio.sleep(0)
        self.there = True
        self.publisher.heartbeat((), 5.0)
        async with asyncio.timeout(60):
            while not self._all_here():  # noqa: ASYNC110 - a test may poll
                await asyncio.sleep(0.01)
        await self.publisher.close()
        await self.tasks.close()

    def _all_here(self) -> bool:
        last = f"f/h0/heartbeat/b/{AWAY_S // 5 + 1}"
        recent = (each.id for each in self.arrived[-1000:])  # what was held back may follow it
        return not self.spool.state().waiting and last in recent

    @property
    def batches(self) -> list[TelemetryBatch]:
        return [each.data for each in self.arrived if isinstance(each.data, TelemetryBatch)]

    @property
    def last_heartbeat(self) -> CollectorHeartbeat:
        return [each.data for each in self.arrived if isinstance(each.data, CollectorHeartbeat)][-1]


@pytest.mark.parametrize("bytes_max", [64 << 20, 1 << 20], ids=["roomy", "tight"])
async def test_after_an_hour_without_a_bus_the_spool_arrives_once_in_order_and_the_rest_is_stated(
    bytes_max: int, tmp_path: Path
) -> None:
    hour = Hour(tmp_path, bytes_max)
    await hour.run()

    numbers: dict[str, list[int]] = defaultdict(list)
    for message in hour.arrived:
        data = message.data
        assert isinstance(data, TelemetryBatch | CollectorHeartbeat)
        numbers[data.source if isinstance(data, TelemetryBatch) else "heartbeat"].append(data.seq)
    for source, seen in numbers.items():
        assert seen == list(range(seen[0], seen[0] + len(seen))), f"{source}: a hole, a double or another order"
    missing = sum(seen[0] - 1 for seen in numbers.values())
    assert hour.last_heartbeat.dropped_batches == missing
    assert (missing == 0) == (bytes_max == 64 << 20)


async def test_before_anything_is_evicted_measurements_are_told_less_often_and_no_count_is_lost(tmp_path: Path) -> None:
    hour = Hour(tmp_path, 24 << 20)
    await hour.run()
    assert hour.last_heartbeat.dropped_batches == 0
    assert hour.last_heartbeat.thinned_to_s > 0
    events = [each.excerpt for batch in hour.batches for each in batch.samples if isinstance(each, Event)]
    assert sorted(events) == sorted(f"{source} minute {minute}" for source in SOURCES for minute in range(60))
    hour_s = AWAY_S
    measured = [each for batch in hour.batches for each in batch.samples if isinstance(each, Gauge)]
    assert len(measured) < len(SOURCES) * GPUS * hour_s / 2
    told = sum(
        each.delta
        for batch in hour.batches
        for each in batch.samples
        if isinstance(each, Counter) and each.component == "nic:h0/mlx5_0/1" and each.name == "port_xmit_data"
    )
    still_held_max = len(SOURCES) * int(hour.last_heartbeat.thinned_to_s) * hour_s
    counted = len(SOURCES) * sum(range(hour_s))
    assert counted - still_held_max <= told <= counted
