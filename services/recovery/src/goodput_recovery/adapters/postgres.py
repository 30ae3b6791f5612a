"""The store of the recovery service in Postgres.

Everything that decides runs in one transaction that first locks the fabric's row: decisions of one fabric happen one after
the other, whoever takes them, so budgets cannot be overdrawn by two at once and fencing tokens grow in commit order. The
transactions are a few statements long. The statements are with what they are about: `decisions`, `fencing`, `records`,
`places`, `reader`, `retention`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from goodput_common.contracts.job import RankRegistered
from goodput_common.store.lease import Lease, LeaseLost
from goodput_recovery.adapters import decisions, fencing, places, records, retention
from goodput_recovery.adapters.connection import reading, translated, writing
from goodput_recovery.adapters.decisions import PostgresUnit
from goodput_recovery.adapters.reader import PostgresReader
from goodput_recovery.application.ports import Asked, Control, Deed, RankPlace
from goodput_recovery.domain.budget import Usage
from goodput_recovery.domain.incident import Incident
from goodput_recovery.domain.policy import Retention


class PostgresStore:
    """See `application.ports.Store`."""

    def __init__(self, engine: AsyncEngine, fabric: str, lease: Lease) -> None:
        self._engine, self._fabric, self._lease = engine, fabric, lease

    @contextlib.asynccontextmanager
    async def transaction(self, *, leading: bool = True) -> AsyncIterator[PostgresUnit]:
        async with self._alone(leading=leading) as connection:
            yield PostgresUnit(connection, self._fabric)

    async def usage(self, since: datetime) -> Usage:
        async with reading(self._engine) as connection:
            return await PostgresReader(connection, self._fabric).usage(since)

    async def control(self) -> Control:
        async with reading(self._engine) as connection:
            return await PostgresReader(connection, self._fabric).control()

    async def job_recovered_at(self, job: str, other_than: str) -> datetime | None:
        async with reading(self._engine) as connection:
            return await PostgresReader(connection, self._fabric).job_recovered_at(job, other_than)

    async def open_incidents(self) -> Sequence[Incident]:
        async with reading(self._engine) as connection:
            return await decisions.open_incidents(connection, self._fabric)

    async def deed(self, plan: str) -> Deed | None:
        async with reading(self._engine) as connection:
            return await records.deed(connection, plan)

    async def keep_asked(self, asked: Sequence[Asked]) -> None:
        if asked:
            async with writing(self._engine) as connection:
                await records.keep_asked(connection, asked)

    async def asked(self, plan: str) -> Sequence[Asked]:
        async with reading(self._engine) as connection:
            return await records.asked(connection, plan)

    async def place(self, rank: RankRegistered) -> None:
        async with writing(self._engine) as connection:
            await places.place(connection, self._fabric, rank)

    async def places(self, job: str) -> dict[int, RankPlace]:
        async with reading(self._engine) as connection:
            return await places.places(connection, self._fabric, job)

    async def still_there(self, jobs: Sequence[str], now: datetime) -> None:
        async with writing(self._engine) as connection:
            await places.still_there(connection, self._fabric, jobs, now)

    async def prune(self, keep: Retention, now: datetime) -> bool:
        async with self._alone(leading=True) as connection:
            return await retention.prune(connection, self._fabric, keep, now)

    @contextlib.asynccontextmanager
    async def _alone(self, *, leading: bool) -> AsyncIterator[AsyncConnection]:
        with translated():
            async with self._engine.begin() as connection:
                if leading:
                    await self._lease.check(connection)
                await fencing.lock(connection, self._fabric)
                yield connection


class PostgresLeadership:
    """The lease as the leader's loop wants it: trouble while acquiring is one more reason to wait."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    async def acquire(self) -> int:
        while True:
            with contextlib.suppress(LeaseLost):
                return await self._lease.acquire()

    async def lost(self) -> None:
        await self._lease.lost()

    async def release(self) -> None:
        await self._lease.release()
