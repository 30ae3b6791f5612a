"""The fixtures that all integration tests stand on: real servers, and each test apart from the others."""

from __future__ import annotations

import asyncpg
import nats
import pytest


async def tables(url: str) -> int:
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        await connection.execute("create table left_behind (x int)")
        count: int = await connection.fetchval("select count(*) from pg_tables where schemaname = 'public'")
        return count
    finally:
        await connection.close()


@pytest.mark.parametrize("turn", [1, 2])
async def test_each_test_has_an_empty_database(fresh_database: str, turn: int) -> None:
    assert await tables(fresh_database) == 1


async def test_a_database_is_dropped_though_a_connection_is_open(
    fresh_database: str, request: pytest.FixtureRequest
) -> None:
    connection = await asyncpg.connect(fresh_database.replace("+asyncpg", ""))
    request.config.stash[LEAKED] = connection
    assert await connection.fetchval("select 1") == 1


LEAKED = pytest.StashKey[asyncpg.Connection]()


@pytest.mark.parametrize("turn", [1, 2])
async def test_each_test_has_a_server_without_streams(clean_streams: str, turn: int) -> None:
    client = await nats.connect(clean_streams)
    js = client.jetstream()
    assert await js.streams_info() == []
    await js.add_stream(name="LEFT", subjects=["left.>"])
    await client.close()
