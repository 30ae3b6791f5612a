"""Where each rank runs: kept, because a registration comes only once, and counted, for shares of the cluster's size."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from goodput_common.contracts.job import RankRegistered
from goodput_recovery.adapters import schema
from goodput_recovery.application.ports import RankPlace


async def hosts_known(connection: AsyncConnection, fabric: str) -> int:
    table = schema.rank_place
    hosts = sa.select(sa.func.count(sa.distinct(table.c.host))).where(table.c.fabric == fabric)
    return int(await connection.scalar(hosts) or 0)


async def place(connection: AsyncConnection, fabric: str, rank: RankRegistered) -> None:
    values = {
        "fabric": fabric,
        "job": rank.job,
        "rank": rank.rank,
        "host": rank.host,
        "generation": rank.generation,
        "world_size": rank.world_size,
        "at": rank.at,
    }
    table = schema.rank_place
    upsert = insert(table).values(values)
    upsert = upsert.on_conflict_do_update(
        index_elements=["fabric", "job", "rank"],
        set_={name: upsert.excluded[name] for name in ("host", "generation", "world_size", "at")},
        where=(table.c.generation < upsert.excluded.generation)
        | ((table.c.generation == upsert.excluded.generation) & (table.c.at < upsert.excluded.at)),
    )
    await connection.execute(upsert)


async def places(connection: AsyncConnection, fabric: str, job: str) -> dict[int, RankPlace]:
    table = schema.rank_place
    rows = await connection.execute(sa.select(table).where(table.c.fabric == fabric, table.c.job == job))
    return {
        row.rank: RankPlace(rank=row.rank, host=row.host, generation=row.generation, world_size=row.world_size)
        for row in rows
    }
