"""What the store can be asked both inside a transaction and outside: usage of the budgets, the pause, earlier recoveries."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from goodput_common.contracts.verdict import ActionKind
from goodput_recovery.adapters import places, schema
from goodput_recovery.application.ports import Control
from goodput_recovery.domain.budget import Spent, Usage

_USAGE_MAX = 10_000  # executed actions and incidents looked at; beyond it every budget is used up anyway


class PostgresReader:
    """Questions, on any connection."""

    def __init__(self, connection: AsyncConnection, fabric: str) -> None:
        self._connection, self._fabric = connection, fabric

    async def usage(self, since: datetime) -> Usage:
        table = schema.plan
        rows = await self._connection.execute(
            sa.select(table.c.id, table.c.job, table.c.action, table.c.host, table.c.acted_at, table.c.state)
            .where(table.c.fabric == self._fabric, table.c.acted_at.is_not(None))
            .where((table.c.acted_at > since) | table.c.state.in_(("executing", "verifying")))
            .order_by(table.c.acted_at.desc())
            .limit(_USAGE_MAX)
        )
        spent = tuple(
            Spent(
                plan=row.id,
                job=row.job,
                kind=ActionKind(row.action),
                host=row.host,
                at=row.acted_at,
                running=row.state in ("executing", "verifying"),
            )
            for row in rows
        )
        opened = await self._connection.execute(
            sa.select(schema.incident.c.opened_at)
            .where(schema.incident.c.fabric == self._fabric, schema.incident.c.opened_at > since)
            .order_by(schema.incident.c.opened_at.desc())
            .limit(_USAGE_MAX)
        )
        hosts = await places.hosts_known(self._connection, self._fabric, since)
        return Usage(spent=spent, incidents_opened=tuple(opened.scalars()), hosts_known=hosts or None)

    async def control(self) -> Control:
        table = schema.fabric
        row = (await self._connection.execute(sa.select(table).where(table.c.fabric == self._fabric))).first()
        if row is None:
            return Control()
        return Control(
            last_token=row.last_token, paused_by=row.paused_by, paused_why=row.paused_why, paused_at=row.paused_at
        )

    async def job_recovered_at(self, job: str, other_than: str) -> datetime | None:
        table = schema.plan
        statement = sa.select(sa.func.max(table.c.changed_at)).where(
            table.c.fabric == self._fabric,
            table.c.job == job,
            table.c.incident != other_than,
            table.c.state == "recovered",
            table.c.fencing_token > 0,
        )
        found: datetime | None = await self._connection.scalar(statement)
        return found
