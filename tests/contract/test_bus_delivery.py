"""Publish and consume: what is stored reaches who asked for it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from goodput_common.bus.errors import (
    BusUnavailable,
)
from goodput_common.bus.ports import Message
from goodput_common.bus.testing import (
    GOOD,
    LONG_S,
    NOW,
    SUBJECT,
    AnyBus,
    Collected,
    exited,
    job_consumer,
    nothing_pending,
    publish,
)
from goodput_common.contracts import subjects


async def test_a_message_arrives_with_its_data_and_attributes(bus: AnyBus) -> None:
    got = Collected()
    await bus.consume(job_consumer(), got)
    await bus.publish(SUBJECT, exited(3), id="id 1%\n", source="goodput://höst/a b", component="rank:j/3", time=NOW)
    await got.count(1)
    message = got.messages[0]
    assert message.data == exited(3)
    assert (message.id, message.type, message.source) == ("id 1%\n", "goodput.job.rank_exited.v1", "goodput://höst/a b")
    assert (message.subject, message.component, message.time) == (SUBJECT, "rank:j/3", NOW)
    assert (message.stream, message.sequence, message.deliveries) == ("JOB", 1, 1)
    assert abs(message.received_at - datetime.now(UTC)) < timedelta(minutes=1)


async def test_messages_published_before_the_consumer_exist_for_it(bus: AnyBus) -> None:
    for rank in range(5):
        await publish(bus, rank)
    got = Collected()
    await bus.consume(job_consumer(), got)
    await got.count(5)
    assert sorted(got.ranks) == [0, 1, 2, 3, 4]


async def test_deliver_new_only_skips_what_was_there_before(bus: AnyBus) -> None:
    await publish(bus, 1)
    got = Collected()
    await bus.consume(job_consumer(deliver_new_only=True), got)
    await publish(bus, 2)
    await got.count(1)
    assert got.ranks == [2]


async def test_a_consumer_gets_only_its_subjects(bus: AnyBus) -> None:
    got = Collected()
    await bus.consume(job_consumer(subjects=("goodput.job.f.wanted.>", "goodput.job.*.other.rank_exited")), got)
    await publish(bus, 1, subject=subjects.job("f", "unwanted", "rank_exited"))
    await publish(bus, 2, subject=subjects.job("f", "wanted", "rank_exited"))
    await publish(bus, 3, subject=subjects.job("g", "other", "rank_exited"))
    await got.count(2)
    assert sorted(got.ranks) == [2, 3]


async def test_two_durables_each_get_every_message(bus: AnyBus) -> None:
    one, other = Collected(), Collected()
    await bus.consume(job_consumer(durable="one"), one)
    await bus.consume(job_consumer(durable="other"), other)
    await publish(bus, 1)
    await publish(bus, 2)
    await one.count(2)
    await other.count(2)
    assert sorted(one.ranks) == sorted(other.ranks) == [1, 2]


async def test_subscriptions_of_one_durable_share_its_messages(bus: AnyBus) -> None:
    got = Collected()
    await bus.consume(job_consumer(slots=2), got)
    await bus.consume(job_consumer(slots=2), got)
    for rank in range(40):
        await publish(bus, rank)
    await got.count(40)
    assert sorted(got.ranks) == list(range(40))


async def test_the_same_id_is_stored_once(bus: AnyBus) -> None:
    got = Collected()
    await bus.consume(job_consumer(), got)
    await publish(bus, 1, id="same")
    await publish(bus, 2, id="same")
    await publish(bus, 3, id="other")
    await got.count(2)
    assert sorted(got.ranks) == [1, 3]


async def test_unknown_fields_are_ignored(bus: AnyBus) -> None:
    got = Collected()
    await bus.consume(job_consumer(), got)
    await bus.publish_raw(SUBJECT, GOOD.body[:-1] + b',"added_later":[1,2]}', GOOD.headers)
    await got.count(1)
    assert got.messages[0].data == exited(1)


async def test_a_cancelled_publisher_stops(bus: AnyBus) -> None:
    async def for_ever() -> None:
        while True:
            await publish(bus, 1)

    for turns in range(40):  # wherever in a publish the cancellation hits
        task = asyncio.create_task(for_ever())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=LONG_S)
        assert done
        assert task.cancelled()


async def test_no_more_handlers_run_at_once_than_there_are_slots(bus: AnyBus) -> None:
    running = most = 0

    async def measure(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1

    got = Collected(measure)
    await bus.consume(job_consumer(slots=3), got)
    for rank in range(30):
        await publish(bus, rank)
    await got.count(30)
    assert most == 3
    assert sorted(got.ranks) == list(range(30))


async def test_drain_finishes_what_is_in_hand_and_takes_no_more(bus: AnyBus) -> None:
    gate = asyncio.Event()

    async def held(message: Message) -> None:
        await gate.wait()

    first = Collected(held)
    subscription = await bus.consume(job_consumer(slots=2), first)
    for rank in range(6):
        await publish(bus, rank)
    await first.until(lambda: len(first.messages) == 2)
    draining = asyncio.create_task(subscription.drain())
    await asyncio.sleep(0.2)
    assert not draining.done()
    gate.set()
    async with asyncio.timeout(LONG_S):
        await draining
    assert sorted(first.finished) == sorted(first.ranks)
    assert len(first.finished) == 2
    second = Collected()
    await bus.consume(job_consumer(slots=2), second)
    await second.count(4)
    assert sorted(first.finished + second.finished) == list(range(6))


async def test_pending_counts_what_no_handler_has_finished(bus: AnyBus) -> None:
    gate = asyncio.Event()

    async def held(message: Message) -> None:
        await gate.wait()

    got = Collected(held)
    for rank in range(5):
        await publish(bus, rank)
    subscription = await bus.consume(job_consumer(slots=2), got)
    await got.until(lambda: len(got.messages) == 2)
    assert await subscription.pending() == 5
    gate.set()
    await nothing_pending(subscription)
    assert len(got.finished) == 5


async def test_a_closed_bus_is_not_healthy_and_takes_nothing(bus: AnyBus) -> None:
    assert await bus.healthy()
    await bus.close()
    assert not await bus.healthy()
    with pytest.raises(BusUnavailable):
        await publish(bus, 1)
