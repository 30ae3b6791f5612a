"""Reading what was done, and what the ranks were asked before and after it: deeds and commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from goodput_common.contracts.recovery import AgentCommandKind
from goodput_common.contracts.verdict import ActionKind
from goodput_recovery.adapters import schema
from goodput_recovery.adapters.connection import plain
from goodput_recovery.application.ports import Asked, AskStatus, Deed


async def deed(connection: AsyncConnection, plan: str) -> Deed | None:
    row = (await connection.execute(sa.select(schema.deed).where(schema.deed.c.plan == plan))).first()
    return deed_of(row) if row is not None else None


async def asked(connection: AsyncConnection, plan: str) -> list[Asked]:
    table = schema.asked
    rows = await connection.execute(sa.select(table).where(table.c.plan == plan).order_by(table.c.at, table.c.rank))
    return [_asked_of(row) for row in rows]


async def keep_asked(connection: AsyncConnection, asked: Sequence[Asked]) -> None:
    rows = [
        {
            "id": each.id,
            "plan": each.plan,
            "rank": each.rank,
            "kind": str(each.kind),
            "fencing_token": each.fencing_token,
            "at": each.at,
            "status": str(each.status),
            "reason": plain(each.reason)[:500],
            "step": each.step,
        }
        for each in asked
    ]
    statement = insert(schema.asked)
    statement = statement.on_conflict_do_update(
        index_elements=["id"],
        set_={name: statement.excluded[name] for name in ("at", "status", "reason", "step")},
    )
    await connection.execute(statement, rows)


def deed_of(row: Any) -> Deed:
    return Deed(
        plan=row.plan,
        incident=row.incident,
        job=row.job,
        action=ActionKind(row.action),
        target=row.target,
        actuator=row.actuator,
        fencing_token=row.fencing_token,
        at=row.at,
        finished_at=row.finished_at,
        done=row.done,
        result=row.result,
    )


def _asked_of(row: Any) -> Asked:
    return Asked(
        id=row.id,
        plan=row.plan,
        rank=row.rank,
        kind=AgentCommandKind(row.kind),
        fencing_token=row.fencing_token,
        at=row.at,
        status=AskStatus(row.status),
        reason=row.reason,
        step=row.step,
    )
