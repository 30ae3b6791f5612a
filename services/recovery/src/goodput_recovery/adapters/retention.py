"""Old rows go, a bounded number a round, so that pruning never holds up a decision for long.

An incident goes whole, and only if nothing of it is open and nothing happened to it since: every version of a verdict that
is heard, whether or not it changes anything, leaves a row in the audit log. The audit log itself is append-only but for
this: its trigger lets rows go that are older than a verdict can come again. The outbox prunes itself.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from goodput_common.store.inbox import prune_inbox
from goodput_recovery.adapters import schema
from goodput_recovery.domain.policy import Retention


async def prune(connection: AsyncConnection, fabric: str, keep: Retention, now: datetime) -> bool:
    """One round, under the fabric's lock; returns whether a limit was met, so that more may be waiting."""
    before = now - timedelta(seconds=keep.decisions_s)
    full = await _incidents(connection, fabric, before, keep.incidents_a_round) == keep.incidents_a_round
    rows = (
        await _places(connection, fabric, before, keep.rows_a_round),
        await _audit(connection, fabric, now - timedelta(seconds=keep.audit_s), keep.rows_a_round),
        await prune_inbox(connection, schema.inbox, rows_max=keep.rows_a_round),
    )
    return full or max(rows) == keep.rows_a_round


async def _incidents(connection: AsyncConnection, fabric: str, before: datetime, limit: int) -> int:
    incident, plan, audit = schema.incident, schema.plan, schema.audit
    alive = sa.exists().where(
        plan.c.fabric == incident.c.fabric,
        plan.c.incident == incident.c.id,
        plan.c.state.in_(schema.OPEN_STATES) | (plan.c.changed_at >= before),
    )
    lately = sa.exists().where(audit.c.fabric == incident.c.fabric, audit.c.incident == incident.c.id, audit.c.at >= before)
    old = (
        sa.select(incident.c.id, incident.c.verdict)
        .where(incident.c.fabric == fabric, incident.c.opened_at < before, ~alive, ~lately)
        .order_by(incident.c.opened_at)
        .limit(limit)
    )
    found = (await connection.execute(old)).all()
    if not found:
        return 0
    ids = [row.id for row in found]
    plans = sa.select(plan.c.id).where(plan.c.fabric == fabric, plan.c.incident.in_(ids))
    for table in (schema.asked, schema.deed):
        await connection.execute(sa.delete(table).where(table.c.plan.in_(plans)))
    await connection.execute(sa.delete(plan).where(plan.c.fabric == fabric, plan.c.incident.in_(ids)))
    verdicts = [row.verdict["id"] for row in found]
    await connection.execute(sa.delete(schema.verdict).where(schema.verdict.c.id.in_(verdicts)))
    await connection.execute(sa.delete(incident).where(incident.c.fabric == fabric, incident.c.id.in_(ids)))
    return len(ids)


async def _places(connection: AsyncConnection, fabric: str, before: datetime, limit: int) -> int:
    """Of jobs that fell silent so long ago; not while a plan for the job is open."""
    place, plan = schema.rank_place, schema.plan
    needed = sa.exists().where(
        plan.c.fabric == place.c.fabric, plan.c.job == place.c.job, plan.c.state.in_(schema.OPEN_STATES)
    )
    old = (
        sa.select(place.c.fabric, place.c.job, place.c.rank)
        .where(place.c.fabric == fabric, place.c.at < before, ~needed)
        .limit(limit)
    )
    key = sa.tuple_(place.c.fabric, place.c.job, place.c.rank)
    return int((await connection.execute(sa.delete(place).where(key.in_(old)))).rowcount)


async def _audit(connection: AsyncConnection, fabric: str, before: datetime, limit: int) -> int:
    audit, plan = schema.audit, schema.plan
    needed = sa.exists().where(
        plan.c.fabric == audit.c.fabric, plan.c.incident == audit.c.incident, plan.c.state.in_(schema.OPEN_STATES)
    )
    # In the order of their positions, which is that of time: the oldest few are looked at, not the whole log.
    oldest = (
        sa.select(audit.c.position, audit.c.at)
        .where(audit.c.fabric == fabric, ~needed)
        .order_by(audit.c.position)
        .limit(limit)
        .subquery()
    )
    old = sa.select(oldest.c.position).where(oldest.c.at < before)
    return int((await connection.execute(sa.delete(audit).where(audit.c.position.in_(old)))).rowcount)
