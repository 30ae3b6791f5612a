"""The outbox on a real Postgres: stored with its cause, published in order, and handed on at a stop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from goodput_common.contracts.job import RankExited
from goodput_common.contracts.topology import ComponentRecord
from goodput_common.store.outbox import OutboxPublisher, enqueue
from goodput_common.store.testing import (
    AT,
    OUTBOX,
    FakeBus,
    all_sent,
    put,
    put_all,
    rows,
    until,
)


async def test_a_message_is_stored_exactly_when_its_transaction_is(engine: AsyncEngine) -> None:
    with pytest.raises(ZeroDivisionError):
        async with engine.begin() as connection:
            await put(connection, "rolled-back")
            raise ZeroDivisionError
    with pytest.raises(DBAPIError):
        async with engine.begin() as connection:
            await put(connection, "killed")
            pid = (await connection.execute(sa.text("SELECT pg_backend_pid()"))).scalar_one()
            async with engine.begin() as other:
                await other.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
            await connection.execute(sa.text("SELECT 1"))
    await put_all(engine, ["committed"])
    assert await rows(engine, "message_id") == ["committed"]


async def test_the_same_id_is_stored_once(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        assert await put(connection, "m1", rank=1)
        assert not await put(connection, "m1", rank=2)
    async with engine.begin() as connection:
        assert not await put(connection, "m1", rank=3)
    assert [json.loads(data)["rank"] for data in await rows(engine, "data")] == [1]


async def test_a_struct_that_is_no_message_is_refused(engine: AsyncEngine) -> None:
    record = ComponentRecord(id="host:h", kind="host")  # type: ignore[arg-type]
    async with engine.begin() as connection:
        with pytest.raises(TypeError, match="ComponentRecord is not a message"):
            await enqueue(connection, OUTBOX, subject="x", id="1", data=record, source="s", key="k")


async def test_positions_of_a_key_follow_the_order_of_commits(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    """The first transaction to enqueue a key holds up the others of that key, and of no other key."""
    bus = FakeBus()
    await publisher_of(bus).start()
    async with engine.connect() as slow:
        begun = await slow.begin()
        await put(slow, "a1", key="a")
        waiting = asyncio.create_task(put_all(engine, ["a2"], key="a"))
        await put_all(engine, ["b1"], key="b")
        await bus.until(lambda: "b1" in bus.ids)
        assert not waiting.done()
        await begun.commit()
    await waiting
    await bus.until(lambda: "a2" in bus.ids)
    assert bus.ids == ["b1", "a1", "a2"]


async def test_what_is_published_is_what_was_stored(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    bus = FakeBus()
    async with engine.begin() as connection:
        await put(connection, "m1", rank=7, time=AT)
        await put(connection, "m2")
    await publisher_of(bus).start()
    await all_sent(engine)
    assert bus.published[0] == ("m1", RankExited(fabric="f", job="j", rank=7, host="h", at=AT))
    assert bus.times["m1"] == AT
    assert bus.times["m2"] == (await rows(engine, "created_at"))[1]


async def test_a_commit_wakes_the_publisher_without_a_poll(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    bus = FakeBus()
    await publisher_of(bus, poll_s=3600).start()
    for number in range(5):
        await put_all(engine, [f"m{number}"])
        await bus.until(lambda number=number: f"m{number}" in bus.ids)  # type: ignore[misc]


async def test_a_row_whose_notification_was_missed_is_found_by_the_poll(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    bus = FakeBus()
    await publisher_of(bus).start()
    await put_all(engine, ["m1"])
    await bus.until(lambda: "m1" in bus.ids)
    async with engine.begin() as connection:  # a copy made without enqueue, hence without a notification
        columns = [c.name for c in OUTBOX.c if c.name not in ("position", "message_id", "sent_at")]
        copy = sa.select(sa.literal("m2"), *(OUTBOX.c[name] for name in columns))
        await connection.execute(OUTBOX.insert().from_select(["message_id", *columns], copy))
    await bus.until(lambda: "m2" in bus.ids)


async def test_sent_rows_are_pruned_after_their_time_and_waiting_ones_never(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    await put_all(engine, ["old", "recent", "waiting", "parked"])
    async with engine.begin() as connection:
        now = sa.func.now()
        for id, values in {
            "old": {"sent_at": now - timedelta(days=2)},
            "recent": {"sent_at": now - timedelta(hours=2)},
            "waiting": {"created_at": now - timedelta(days=9)},
            "parked": {"parked_at": now - timedelta(days=9)},
        }.items():
            await connection.execute(OUTBOX.update().where(OUTBOX.c.message_id == id).values(**values))
    bus = FakeBus()
    await publisher_of(bus, keep_sent=timedelta(days=1)).start()
    await until(engine, lambda ids: "old" not in ids, "message_id")
    await all_sent(engine)
    assert await rows(engine, "message_id") == ["recent", "waiting", "parked"]


async def test_a_stop_sends_what_is_waiting(engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]) -> None:
    release = asyncio.Event()

    async def fault(_: str) -> None:
        await release.wait()

    bus = FakeBus(fault=fault)
    publisher = publisher_of(bus, batch=4)
    await put_all(engine, [f"m{number}" for number in range(20)])
    await publisher.start()
    flushing = asyncio.create_task(publisher.flush())
    await asyncio.sleep(0.05)
    release.set()
    await flushing
    assert all(await rows(engine, "sent_at"))
