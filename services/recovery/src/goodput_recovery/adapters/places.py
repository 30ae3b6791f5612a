"""Where each rank runs: kept, because a registration comes only once, and counted, for shares of the cluster's size.

A row's `at` is when its rank is known to have been there: when it registered, and later, as long as its job speaks, about
when it was last heard (`still_there`). A host counts only while that is recent: machines that were sent back years ago are
no capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from goodput_common.contracts.job import RankRegistered
from goodput_recovery.adapters import schema
from goodput_recovery.application.ports import RankPlace

# Registrations are dated by the clocks of hosts and may be on their way: one that is a little older still wins.
_BEHIND = timedelta(seconds=60)


async def hosts_known(connection: AsyncConnection, fabric: str, since: datetime) -> int:
    """How many hosts carry, or lately carried, a rank of a job that was heard of since then."""
    table = schema.rank_place
    hosts = sa.select(sa.func.count(sa.distinct(table.c.host))).where(table.c.fabric == fabric, table.c.at > since)
    return int(await connection.scalar(hosts) or 0)


async def still_there(connection: AsyncConnection, fabric: str, jobs: Sequence[str], now: datetime) -> None:
    """The ranks of the newest generation of these jobs are where they were."""
    table, other = schema.rank_place, schema.rank_place.alias()
    newest = (
        sa.select(sa.func.max(other.c.generation))
        .where(other.c.fabric == table.c.fabric, other.c.job == table.c.job)
        .scalar_subquery()
    )
    await connection.execute(
        sa.update(table)
        .where(table.c.fabric == fabric, table.c.job.in_(jobs), table.c.generation == newest)
        .where(table.c.at < now - _BEHIND)
        .values(at=now - _BEHIND)
    )


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
