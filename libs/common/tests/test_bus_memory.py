"""The in-memory bus's faults and its use of a clock that stands still. The behaviour it shares with the server is in
tests/contract."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from goodput_common.bus.errors import BusUnavailable, Retry
from goodput_common.bus.memory import FaultPlan, MemoryBus
from goodput_common.bus.ports import Consumer, Message
from goodput_common.contracts import subjects
from goodput_common.contracts.job import RankExited
from goodput_common.runtime.clock import ManualClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONSUMER = Consumer(durable="d", stream="JOB", subjects=("goodput.job.>",), ack_wait_s=10.0, slots=64)
SUBJECT = subjects.job("f", "j", "rank_exited")


async def publish(bus: MemoryBus, rank: int) -> None:
    data = RankExited(fabric="f", job="j", rank=rank, host="h", at=NOW)
    await bus.publish(SUBJECT, data, id=f"m{rank}", source="test")
    await bus.settle()


async def run(faults: FaultPlan, count: int = 200) -> list[int]:
    """Ranks in the order in which a run with these faults delivers them."""
    clock = ManualClock(NOW)
    bus = MemoryBus(clock, faults)
    got: list[int] = []

    async def keep(message: Message) -> None:
        got.append(message.data.rank)

    subscription = await bus.consume(CONSUMER, keep)
    for rank in range(count):
        await publish(bus, rank)
        await clock.advance(0.01)
        await bus.settle()
    for _ in range(1000):
        if await subscription.pending() == 0:
            break
        await clock.advance(0.5)
        await bus.settle()
    assert await subscription.pending() == 0
    await bus.close()
    return got


async def test_without_faults_delivery_is_in_order_and_once() -> None:
    assert await run(FaultPlan()) == list(range(200))


async def test_every_message_arrives_under_all_faults_at_once() -> None:
    got = await run(FaultPlan(seed=7, drop=0.2, double=0.2, delay_s=1.0, reorder=0.3))
    assert set(got) == set(range(200))
    assert len(got) > 200
    assert got != sorted(got)


async def test_dropped_deliveries_come_again_after_the_ack_wait() -> None:
    clock = ManualClock(NOW)
    bus = MemoryBus(clock, FaultPlan(drop=1.0))
    got: list[int] = []

    async def keep(message: Message) -> None:
        got.append(message.deliveries)

    await bus.consume(CONSUMER, keep)
    await publish(bus, 1)
    await clock.advance(9.0)
    await bus.settle()
    assert got == []
    bus._faults = FaultPlan(drop=0.0)
    await clock.advance(2.0)
    await bus.settle()
    assert got == [2]
    await bus.close()


async def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    def plan(seed: int) -> FaultPlan:
        return FaultPlan(seed=seed, drop=0.1, double=0.1, delay_s=2.0, reorder=0.2)

    assert await run(plan(3)) == await run(plan(3))
    assert await run(plan(3)) != await run(plan(4))


async def test_a_retry_waits_by_the_given_clock() -> None:
    clock = ManualClock(NOW)
    bus = MemoryBus(clock)
    deliveries: list[int] = []

    async def later(message: Message) -> None:
        deliveries.append(message.deliveries)
        if message.deliveries == 1:
            raise Retry("later", delay_s=60.0)

    await bus.consume(CONSUMER, later)
    await publish(bus, 1)
    await clock.advance(59.0)
    await bus.settle()
    assert deliveries == [1]
    await clock.advance(2.0)
    await bus.settle()
    assert deliveries == [1, 2]
    await bus.close()


async def test_a_message_is_forgotten_as_a_double_after_the_duplicate_window() -> None:
    clock = ManualClock(NOW)
    bus = MemoryBus(clock)
    got: list[int] = []

    async def keep(message: Message) -> None:
        got.append(message.sequence)

    await bus.consume(CONSUMER, keep)
    await publish(bus, 1)
    await publish(bus, 1)
    await clock.advance(121.0)
    await bus.settle()
    await publish(bus, 1)
    await clock.advance(1.0)
    await bus.settle()
    assert got == [1, 2]
    await bus.close()


async def test_an_unavailable_bus_takes_and_delivers_nothing_until_it_is_back() -> None:
    clock = ManualClock(NOW)
    bus = MemoryBus(clock)
    got: list[int] = []

    async def keep(message: Message) -> None:
        got.append(message.data.rank)

    await publish(bus, 1)
    bus.set_available(False)
    await bus.consume(CONSUMER, keep)
    with pytest.raises(BusUnavailable):
        await publish(bus, 2)
    assert not await bus.healthy()
    await clock.advance(1.0)
    await bus.settle()
    assert got == []
    bus.set_available(True)
    await clock.advance(1.0)
    await bus.settle()
    assert got == [1]
    await bus.close()


async def test_publishes_fail_as_often_as_planned() -> None:
    bus = MemoryBus(ManualClock(NOW), FaultPlan(seed=1, publish_unavailable=0.5))
    failed = 0
    for rank in range(100):
        try:
            await publish(bus, rank)
        except BusUnavailable:
            failed += 1
    assert 30 < failed < 70


async def test_a_full_stream_loses_its_oldest_messages() -> None:
    bus = MemoryBus(ManualClock(NOW), messages_max=3)
    for rank in range(5):
        await publish(bus, rank)
    got: list[int] = []

    async def keep(message: Message) -> None:
        got.append(message.data.rank)

    await bus.consume(CONSUMER, keep)
    await bus.settle()
    assert got == [2, 3, 4]
    await bus.close()


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("*.b", "a.b", True),
        ("a.b", "a", False),
        ("a", "a.b", False),
    ],
)
def test_subjects_match_like_on_the_server(pattern: str, subject: str, expected: bool) -> None:
    assert subjects.matches(pattern, subject) is expected
