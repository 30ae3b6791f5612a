"""The fabric's row, which is the lock of every decision, and the fencing of actions.

Tokens grow in commit order because whoever takes one holds the lock. A *deed* is the record of an executed action: written
before the action is done, once a plan, and never for a token that a later action on the same job has overtaken.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from goodput_recovery.adapters import schema
from goodput_recovery.adapters.connection import plain
from goodput_recovery.application.ports import Fenced
from goodput_recovery.domain.plan import Plan

_NOT_PAUSED: dict[str, Any] = {"paused_by": "", "paused_why": "", "paused_at": None}


async def lock(connection: AsyncConnection, fabric: str) -> None:
    """Be alone on this fabric until the transaction ends."""
    table = schema.fabric
    mine = sa.select(table.c.fabric).where(table.c.fabric == fabric).with_for_update()
    if (await connection.execute(mine)).first() is None:
        await connection.execute(insert(table).values(fabric=fabric).on_conflict_do_nothing())
        await connection.execute(mine)


async def use_up(connection: AsyncConnection, fabric: str, token: int) -> None:
    """The next plan gets a larger token than this."""
    table = schema.fabric
    grow = sa.update(table).where(table.c.fabric == fabric, table.c.last_token < token)
    await connection.execute(grow.values(last_token=token))


async def release(connection: AsyncConnection, fabric: str, plan: Plan, at: datetime) -> bool:
    """Record that the action is carried out from now on; False if that was done before. Raises Fenced."""
    table = schema.deed
    if plan.job is not None:
        newest = await connection.scalar(
            sa.select(sa.func.max(table.c.fencing_token)).where(table.c.fabric == fabric, table.c.job == plan.job)
        )
        if newest is not None and newest > plan.fencing_token:
            raise Fenced(f"token {plan.fencing_token} is overtaken, {newest} has acted on job {plan.job}")
    values = {
        "plan": plan.id,
        "fabric": fabric,
        "incident": plan.incident,
        "job": plan.job,
        "action": str(plan.action),
        "target": plan.target,
        "actuator": plan.actuator,
        "fencing_token": plan.fencing_token,
        "at": at,
    }
    statement = insert(table).values(values).on_conflict_do_nothing().returning(table.c.plan)
    return (await connection.execute(statement)).first() is not None


async def finish(connection: AsyncConnection, plan: str, *, done: bool, result: str, at: datetime) -> None:
    """The actuator's answer, once."""
    table = schema.deed
    await connection.execute(
        sa.update(table)
        .where(table.c.plan == plan, table.c.finished_at.is_(None))
        .values(finished_at=at, done=done, result=plain(result))
    )


async def set_paused(connection: AsyncConnection, fabric: str, who: str, why: str, at: datetime, *, paused: bool) -> None:
    values = {"paused_by": who, "paused_why": why, "paused_at": at} if paused else _NOT_PAUSED
    await connection.execute(sa.update(schema.fabric).where(schema.fabric.c.fabric == fabric).values(values))
