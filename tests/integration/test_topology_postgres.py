"""A fabric in a real Postgres: what each source said last, replaced as a whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from goodput_common.store.engine import create_engine
from goodput_topology import postgres
from goodput_topology.generate import h100_pod, lab
from goodput_topology.graph import Fabric
from goodput_topology.snapshot import to_snapshots

AT = datetime(2026, 1, 1, tzinfo=UTC)
METADATA = sa.MetaData(schema="somebody")
TABLES = postgres.topology_tables(METADATA)


@pytest.fixture
async def engine(fresh_database: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(fresh_database)
    async with engine.begin() as connection:
        await connection.execute(sa.text("CREATE SCHEMA somebody"))
        await connection.run_sync(METADATA.create_all)
    yield engine
    await engine.dispose()


async def save(engine: AsyncEngine, fabric: Fabric, version: int, source: str = "t") -> bool:
    async with engine.begin() as connection:
        return await postgres.save(connection, TABLES, to_snapshots(fabric, source=source, version=version, at=AT))


async def load(engine: AsyncEngine, name: str = "default") -> Fabric:
    async with engine.connect() as connection:
        return await postgres.load(connection, TABLES, name)


async def test_a_fabric_of_several_parts_comes_back_whole(engine: AsyncEngine) -> None:
    fabric = h100_pod(hosts=64, pods=2)
    assert len(to_snapshots(fabric, source="t", version=1, at=AT)) > 1
    assert await save(engine, fabric, 1)
    again = await load(engine)
    assert dict(again.components) == dict(fabric.components)
    assert set(map(msgspec.json.encode, again.edges)) == set(map(msgspec.json.encode, fabric.edges))
    assert again.path("nic:h0/mlx5_0/1", "nic:h99/mlx5_0/1") == fabric.path("nic:h0/mlx5_0/1", "nic:h99/mlx5_0/1")


async def test_nothing_stored_is_an_empty_fabric(engine: AsyncEngine) -> None:
    fabric = await load(engine, "unheard-of")
    assert (fabric.name, len(fabric)) == ("unheard-of", 0)


async def test_a_newer_version_replaces_all_and_an_older_or_equal_one_nothing(engine: AsyncEngine) -> None:
    assert await save(engine, lab(hosts=4), 2)
    assert not await save(engine, lab(hosts=3), 2)
    assert not await save(engine, lab(hosts=3), 1)
    assert len((await load(engine)).hosts()) == 4
    assert await save(engine, lab(hosts=2), 3)
    assert (await load(engine)).hosts() == ("h0", "h1")


async def test_sources_are_kept_apart_and_joined_when_read(engine: AsyncEngine) -> None:
    await save(engine, lab(hosts=2), 1, source="a")
    await save(engine, lab(hosts=3), 1, source="b")
    assert len((await load(engine)).hosts()) == 3
    await save(engine, lab(hosts=1), 2, source="b")
    assert len((await load(engine)).hosts()) == 2


async def test_fabrics_do_not_see_each_other(engine: AsyncEngine) -> None:
    await save(engine, lab(hosts=2, name="eu"), 1)
    await save(engine, lab(hosts=3, name="us"), 1)
    assert len((await load(engine, "eu")).hosts()) == 2
    assert len((await load(engine, "us")).hosts()) == 3


async def test_a_transaction_that_fails_leaves_the_old_fabric(engine: AsyncEngine) -> None:
    await save(engine, lab(hosts=2), 1)
    with pytest.raises(RuntimeError):
        async with engine.begin() as connection:
            await postgres.save(connection, TABLES, to_snapshots(lab(hosts=4), source="t", version=2, at=AT))
            raise RuntimeError("the service dies here")
    assert len((await load(engine)).hosts()) == 2
    assert await save(engine, lab(hosts=4), 2)


async def test_two_writers_at_once_leave_exactly_one_version(engine: AsyncEngine) -> None:
    fabrics = {version: h100_pod(hosts=version + 1, spines=1) for version in range(1, 5)}
    await asyncio.gather(*(save(engine, fabric, version) for version, fabric in fabrics.items()))
    stored = await load(engine)
    assert dict(stored.components) == dict(fabrics[4].components)


async def test_half_a_snapshot_is_refused(engine: AsyncEngine) -> None:
    parts = to_snapshots(h100_pod(hosts=64, pods=2), source="t", version=1, at=AT)
    mixed = (parts[0], *(msgspec.structs.replace(part, version=2) for part in parts[1:]))
    async with engine.begin() as connection:
        for some in (parts[:-1], parts[1:], mixed, (*parts, parts[0])):
            with pytest.raises(postgres.IncompleteSnapshot):
                await postgres.save(connection, TABLES, some)
