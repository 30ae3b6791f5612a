"""The engine and waiting for its server, on a real Postgres."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from goodput_common.contracts.job import RankExited
from goodput_common.embedded import EmbeddedPostgres
from goodput_common.runtime.lifecycle import StartError
from goodput_common.store.engine import create_engine
from goodput_common.store.wait import database_answers, wait_for_database


def _variants(url: str) -> list[str]:
    plain = url.replace("postgresql+asyncpg://", "postgresql://", 1)
    return [url, plain, plain.replace("postgresql://", "postgres://", 1), f"{plain}?sslmode=prefer"]


async def test_every_usual_form_of_the_url_connects(fresh_database: str) -> None:
    for url in _variants(fresh_database):
        engine = create_engine(url)
        assert await database_answers(engine)
        await engine.dispose()


@pytest.mark.parametrize("url", ["mysql://u:pa55word@h/d", "postgresql+psycopg2://u:pa55word@h/d", "not a url", ""])
def test_any_other_url_is_refused_without_showing_the_password(url: str) -> None:
    with pytest.raises(StartError) as raised:
        create_engine(url)
    assert "GOODPUT_DATABASE_URL" in raised.value.do_next
    assert "pa55word" not in str(raised.value)


async def test_a_statement_over_its_time_is_cancelled_by_the_server(fresh_database: str) -> None:
    engine = create_engine(fresh_database, statement_timeout_s=0.1)
    with pytest.raises(DBAPIError, match="statement timeout"):
        async with engine.connect() as connection:
            await connection.execute(sa.text("SELECT pg_sleep(30)"))
    assert await database_answers(engine)
    await engine.dispose()


async def test_a_transaction_left_idle_loses_its_connection_and_its_locks(fresh_database: str) -> None:
    engine = create_engine(fresh_database, idle_in_transaction_timeout_s=0.1)
    async with engine.connect() as connection:
        await connection.execute(sa.text("SELECT 1"))
        await asyncio.sleep(0.5)
        with pytest.raises(DBAPIError):
            await connection.execute(sa.text("SELECT 1"))
        await connection.invalidate()
    await engine.dispose()


async def test_the_pool_is_bounded_and_says_so(fresh_database: str) -> None:
    engine = create_engine(fresh_database, pool_size=1, pool_overflow=0, pool_wait_s=0.1)
    async with engine.connect():
        with pytest.raises(PoolTimeout):
            await engine.connect()
    await engine.dispose()


async def test_structs_and_times_go_into_json_columns(fresh_database: str) -> None:
    engine = create_engine(fresh_database)
    table = sa.Table("documents", sa.MetaData(), sa.Column("body", JSONB))
    exited = RankExited(fabric="f", job="j", rank=3, host="h", at=datetime(2026, 1, 2, tzinfo=UTC), reason='"é')
    async with engine.begin() as connection:
        await connection.run_sync(table.create)
        await connection.execute(table.insert().values(body=exited))
        stored = (await connection.execute(sa.select(table.c.body))).scalar_one()
    assert stored["at"] == "2026-01-02T00:00:00Z"
    assert stored["reason"] == '"é'
    await engine.dispose()


async def test_a_wrong_password_and_a_missing_database_end_the_wait_at_once(fresh_database: str) -> None:
    url = make_url(fresh_database)
    wrong = create_engine(url.set(password="nope").render_as_string(hide_password=False))
    with pytest.raises(StartError, match="refused us") as raised:
        await wait_for_database(wrong, within_s=600)
    assert "check user and password" in raised.value.do_next
    assert "nope" not in str(raised.value)
    missing = create_engine(url.set(database="no_such_database").render_as_string(hide_password=False))
    with pytest.raises(StartError, match="does not exist") as raised:
        await wait_for_database(missing, within_s=600)
    assert "create the database" in raised.value.do_next
    await wrong.dispose()
    await missing.dispose()


@pytest.mark.parametrize("host", ["127.0.0.1:1", "no-such-host.invalid:5432"])
async def test_a_server_that_does_not_come_ends_the_wait_with_what_was_seen_last(host: str) -> None:
    engine = create_engine(f"postgresql://goodput:pa55word@{host}/goodput")
    with pytest.raises(StartError, match=r"did not answer within 0\.3 s; last: ") as raised:
        await wait_for_database(engine, within_s=0.3)
    assert host in str(raised.value)
    assert "pa55word" not in str(raised.value)
    await engine.dispose()


async def test_a_server_that_starts_late_is_waited_for(tmp_path: Path) -> None:
    async with EmbeddedPostgres(tmp_path, fsync=False) as server:
        engine = create_engine(server.url)
        assert await database_answers(engine)
        server.kill()
        waiting = asyncio.create_task(wait_for_database(engine, within_s=60))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await server.restart()
        await waiting
        await engine.dispose()
