"""The inbox on a real Postgres: a message acts once, whatever dies in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from goodput_common.store.inbox import first_time, inbox_table, prune_inbox
from goodput_common.store.testing import schema_in

METADATA = sa.MetaData(schema="svc")
INBOX = inbox_table(METADATA)
EFFECTS = sa.Table("effects", METADATA, sa.Column("message_id", sa.Text))


@pytest.fixture
async def engine(fresh_database: str) -> AsyncIterator[AsyncEngine]:
    async with schema_in(fresh_database, METADATA) as made:
        yield made


async def _handle(engine: AsyncEngine, message_id: str) -> bool:
    async with engine.begin() as connection:
        if not await first_time(connection, INBOX, "recovery", message_id):
            return False
        await asyncio.sleep(0.01)
        await connection.execute(EFFECTS.insert().values(message_id=message_id))
        return True


async def _effects(engine: AsyncEngine) -> list[str]:
    async with engine.connect() as connection:
        return sorted((await connection.execute(sa.select(EFFECTS.c.message_id))).scalars())


async def test_a_redelivery_does_nothing_and_consumers_are_apart(engine: AsyncEngine) -> None:
    assert [await _handle(engine, "m1") for _ in range(3)] == [True, False, False]
    async with engine.begin() as connection:
        assert await first_time(connection, INBOX, "other", "m1")
    assert await _effects(engine) == ["m1"]


async def test_deliveries_handled_at_the_same_moment_act_once(engine: AsyncEngine) -> None:
    outcomes = await asyncio.gather(*(_handle(engine, f"m{number % 3}") for number in range(9)))
    assert sum(outcomes) == 3
    assert await _effects(engine) == ["m0", "m1", "m2"]


async def test_a_handler_that_fails_leaves_the_message_for_next_time(engine: AsyncEngine) -> None:
    with pytest.raises(ZeroDivisionError):
        async with engine.begin() as connection:
            assert await first_time(connection, INBOX, "recovery", "m1")
            raise ZeroDivisionError
    assert await _handle(engine, "m1")


async def test_a_backend_killed_in_mid_transaction_leaves_the_message_for_next_time(engine: AsyncEngine) -> None:
    with pytest.raises(DBAPIError):
        async with engine.begin() as connection:
            assert await first_time(connection, INBOX, "recovery", "m1")
            await connection.execute(EFFECTS.insert().values(message_id="m1"))
            pid = (await connection.execute(sa.text("SELECT pg_backend_pid()"))).scalar_one()
            async with engine.begin() as other:
                await other.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
            await connection.execute(sa.text("SELECT 1"))
    assert await _effects(engine) == []
    assert await _handle(engine, "m1")
    assert await _effects(engine) == ["m1"]


async def test_only_what_is_older_than_the_bound_is_forgotten(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        for number in range(6):
            await first_time(connection, INBOX, "recovery", f"m{number}")
        old = INBOX.update().where(INBOX.c.message_id < "m4").values(seen_at=sa.func.now() - timedelta(days=40))
        await connection.execute(old)
        assert await prune_inbox(connection, INBOX, rows_max=3) == 3
        assert await prune_inbox(connection, INBOX, rows_max=3) == 1
    async with engine.begin() as connection:
        assert [await first_time(connection, INBOX, "recovery", f"m{n}") for n in (0, 4, 5)] == [True, False, False]
