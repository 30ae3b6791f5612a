"""Incidents, their verdicts and plans, and the audit log of what was decided about them; one transaction a decision."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from goodput_common.contracts import subjects
from goodput_common.contracts.recovery import PlanState
from goodput_common.contracts.verdict import Verdict
from goodput_common.store.inbox import first_time
from goodput_common.store.outbox import enqueue
from goodput_recovery.adapters import fencing, schema
from goodput_recovery.adapters.connection import plain
from goodput_recovery.adapters.reader import PostgresReader
from goodput_recovery.application.ports import Control
from goodput_recovery.domain.incident import Decision, Incident, Moved
from goodput_recovery.domain.plan import Plan, update_of

SOURCE = "goodput-recovery"
_OPEN_MAX = 2_000  # incidents looked at in one round; the oldest go first


async def incidents(connection: AsyncConnection, fabric: str, ids: Sequence[str]) -> list[Incident]:
    """Those of `ids` that there are, in that order, each with all of its plans."""
    table, plan = schema.incident, schema.plan
    rows = await connection.execute(sa.select(table).where(table.c.fabric == fabric, table.c.id.in_(ids)))
    bodies = await connection.execute(
        sa.select(plan.c.incident, plan.c.body)
        .where(plan.c.fabric == fabric, plan.c.incident.in_(ids))
        .order_by(plan.c.ordinal)
    )
    plans: dict[str, list[Plan]] = {}
    for incident, body in bodies:
        plans.setdefault(incident, []).append(msgspec.convert(body, Plan))
    found = {row.id: _incident(row, plans.get(row.id, [])) for row in rows}
    return [found[id] for id in ids if id in found]


async def open_incidents(connection: AsyncConnection, fabric: str) -> list[Incident]:
    """Those with an open plan, oldest first."""
    open_ = (
        sa.select(schema.plan.c.incident)
        .where(schema.plan.c.fabric == fabric, sa.text(schema.IS_OPEN))
        .order_by(schema.plan.c.position)
        .limit(_OPEN_MAX)
    )
    ids = list((await connection.execute(open_)).scalars())
    return await incidents(connection, fabric, ids) if ids else []


class PostgresUnit(PostgresReader):
    """One transaction that holds the fabric's lock."""

    async def first_time(self, consumer: str, message_id: str) -> bool:
        return await first_time(self._connection, schema.inbox, consumer, message_id)

    async def incident(self, id: str) -> Incident | None:
        return next(iter(await incidents(self._connection, self._fabric, [id])), None)

    async def incident_of_plan(self, plan: str) -> Incident | None:
        table = schema.plan
        incident = await self._connection.scalar(
            sa.select(table.c.incident).where(table.c.fabric == self._fabric, table.c.id == plan)
        )
        return await self.incident(incident) if incident is not None else None

    async def keep_verdict(self, verdict: Verdict, at: datetime) -> None:
        await self._connection.execute(
            insert(schema.verdict)
            .values(
                id=verdict.id,
                version=verdict.version,
                fabric=verdict.fabric,
                incident=verdict.incident,
                heard_at=at,
                body=verdict,
            )
            .on_conflict_do_nothing()
        )

    async def save(self, decision: Decision, inputs: dict[str, Any], at: datetime) -> None:
        incident = decision.incident
        values = {
            "fabric": self._fabric,
            "id": incident.id,
            "job": incident.verdict.job,
            "opened_at": incident.opened_at,
            "verdict": incident.verdict,
        }
        upsert = insert(schema.incident).values(values)
        upsert = upsert.on_conflict_do_update(index_elements=["fabric", "id"], set_={"verdict": upsert.excluded.verdict})
        await self._connection.execute(upsert)
        # Ended plans first: only one plan of an incident may be open at any moment.
        for plan in sorted(incident.plans, key=lambda each: each.open):
            await self._save_plan(plan)
        for event in decision.events:
            await self._audit(incident, event, inputs, at)
            if isinstance(event, Moved) and event.plan.state is not PlanState.EXECUTING:
                await self._announce(event.plan, event.previous)

    async def _save_plan(self, plan: Plan) -> None:
        values = {
            "id": plan.id,
            "fabric": plan.fabric,
            "incident": plan.incident,
            "ordinal": plan.ordinal,
            "job": plan.job,
            "host": plan.host,
            "action": str(plan.action),
            "state": str(plan.state),
            "fencing_token": plan.fencing_token,
            "created_at": plan.created_at,
            "changed_at": plan.changed_at,
            "acted_at": plan.acted_at,
            "body": plan,
        }
        upsert = insert(schema.plan).values(values)
        changing = ("state", "fencing_token", "changed_at", "acted_at", "body")
        upsert = upsert.on_conflict_do_update(
            index_elements=["id"],
            set_={name: upsert.excluded[name] for name in changing},
            where=sa.cast(schema.plan.c.body, sa.Text) != sa.cast(upsert.excluded.body, sa.Text),
        )
        await self._connection.execute(upsert)
        if plan.fencing_token:
            await fencing.use_up(self._connection, self._fabric, plan.fencing_token)

    async def _audit(self, incident: Incident, event: Any, inputs: dict[str, Any], at: datetime) -> None:
        moved = isinstance(event, Moved)
        await self._connection.execute(
            sa.insert(schema.audit).values(
                at=at,
                fabric=self._fabric,
                incident=incident.id,
                job=incident.verdict.job,
                plan=event.plan.id if moved else event.plan,
                actor=event.actor,
                decision="moved" if moved else event.what,
                previous=(str(event.previous) if event.previous else None) if moved else None,
                state=str(event.plan.state) if moved else None,
                reason=plain(event.plan.reason if moved else event.reason),
                inputs=inputs,
            )
        )

    async def _announce(self, plan: Plan, previous: PlanState | None) -> None:
        await enqueue(
            self._connection,
            schema.outbox,
            subject=subjects.recovery(plan.fabric, plan.job, plan.state),
            id=f"{plan.id}/{plan.state}",
            data=update_of(plan, previous),
            source=SOURCE,
            key=plan.incident,
            component=plan.target or "",
            time=plan.changed_at,
        )

    async def release(self, plan: Plan, at: datetime) -> bool:
        released = await fencing.release(self._connection, self._fabric, plan, at)
        if released:
            await self._announce(plan, PlanState.APPROVED)
        return released

    async def finish(self, plan: str, *, done: bool, result: str, at: datetime) -> None:
        await fencing.finish(self._connection, plan, done=done, result=result, at=at)

    async def set_paused(self, who: str, why: str, at: datetime, *, paused: bool) -> Control:
        before = await self.control()
        if bool(before.paused_by) == paused:
            return before
        await fencing.set_paused(self._connection, self._fabric, who, why, at, paused=paused)
        await self._connection.execute(
            sa.insert(schema.audit).values(
                at=at,
                fabric=self._fabric,
                actor=who,
                decision="paused" if paused else "resumed",
                reason=why,
                inputs={"was_paused_by": before.paused_by},
            )
        )
        return await self.control()


def _incident(row: Any, plans: list[Plan]) -> Incident:
    verdict = msgspec.convert(row.verdict, Verdict)
    return Incident(fabric=row.fabric, id=row.id, verdict=verdict, opened_at=row.opened_at, plans=tuple(plans))
