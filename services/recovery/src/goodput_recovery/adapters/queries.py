"""Reading for the API: pages of plans and deeds, and all that is known of one plan. Never locks anything."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from goodput_common.contracts.recovery import PlanState
from goodput_recovery.adapters import records, schema
from goodput_recovery.adapters.connection import reading
from goodput_recovery.application.ports import Asked, Deed
from goodput_recovery.domain.plan import Plan

AUDIT_MAX = 1000  # entries of one plan and its incident


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One decision. `inputs` is what it was made from; the verdict's version named there is kept, too."""

    position: int
    at: datetime
    incident: str | None
    plan: str | None
    actor: str
    decision: str
    previous: str | None
    state: str | None
    reason: str
    inputs: dict[str, Any]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One state that a plan reached."""

    state: PlanState
    previous: PlanState | None
    at: datetime
    actor: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFilter:
    job: str | None = None
    incident: str | None = None
    states: tuple[PlanState, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanRow:
    position: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class DeedRow:
    position: int
    deed: Deed


class Queries:
    """`jobs` limits what is seen to those jobs; None sees all."""

    def __init__(self, engine: AsyncEngine, fabric: str) -> None:
        self._engine, self._fabric = engine, fabric

    async def plans(
        self, wanted: PlanFilter, jobs: Collection[str] | None, *, before: int | None, limit: int
    ) -> Sequence[PlanRow]:
        """Newest first."""
        table = schema.plan
        statement = sa.select(table.c.position, table.c.body).where(table.c.fabric == self._fabric)
        if jobs is not None:
            statement = statement.where(table.c.job.in_(list(jobs)))
        if wanted.job is not None:
            statement = statement.where(table.c.job == wanted.job)
        if wanted.incident is not None:
            statement = statement.where(table.c.incident == wanted.incident)
        if wanted.states:
            statement = statement.where(table.c.state.in_([str(state) for state in wanted.states]))
        if before is not None:
            statement = statement.where(table.c.position < before)
        async with reading(self._engine) as connection:
            rows = await connection.execute(statement.order_by(table.c.position.desc()).limit(limit))
            return [PlanRow(row.position, msgspec.convert(row.body, Plan)) for row in rows]

    async def plan(self, id: str) -> Plan | None:
        table = schema.plan
        async with reading(self._engine) as connection:
            body = await connection.scalar(sa.select(table.c.body).where(table.c.fabric == self._fabric, table.c.id == id))
        return msgspec.convert(body, Plan) if body is not None else None

    async def deeds(
        self, job: str | None, jobs: Collection[str] | None, *, before: int | None, limit: int
    ) -> Sequence[DeedRow]:
        """Executed actions, newest first."""
        table = schema.deed
        statement = sa.select(table).where(table.c.fabric == self._fabric)
        if jobs is not None:
            statement = statement.where(table.c.job.in_(list(jobs)))
        if job is not None:
            statement = statement.where(table.c.job == job)
        if before is not None:
            statement = statement.where(table.c.position < before)
        async with reading(self._engine) as connection:
            rows = await connection.execute(statement.order_by(table.c.position.desc()).limit(limit))
            return [DeedRow(row.position, records.deed_of(row)) for row in rows]

    async def deed(self, plan: str) -> Deed | None:
        async with reading(self._engine) as connection:
            return await records.deed(connection, plan)

    async def asked(self, plan: str) -> Sequence[Asked]:
        async with reading(self._engine) as connection:
            return await records.asked(connection, plan)

    async def audit(self, plan: Plan) -> Sequence[AuditEntry]:
        """All decisions about the plan's incident, oldest first, at most `AUDIT_MAX`."""
        table = schema.audit
        statement = (
            sa.select(table)
            .where(table.c.fabric == self._fabric, table.c.incident == plan.incident)
            .order_by(table.c.position)
            .limit(AUDIT_MAX)
        )
        async with reading(self._engine) as connection:
            rows = await connection.execute(statement)
            return [
                AuditEntry(
                    position=row.position,
                    at=row.at,
                    incident=row.incident,
                    plan=row.plan,
                    actor=row.actor,
                    decision=row.decision,
                    previous=row.previous,
                    state=row.state,
                    reason=row.reason,
                    inputs=row.inputs,
                )
                for row in rows
            ]


def history_of(plan: Plan, audit: Sequence[AuditEntry]) -> list[Change]:
    """The states that the plan went through, oldest first."""
    return [
        Change(
            state=PlanState(entry.state),
            previous=PlanState(entry.previous) if entry.previous else None,
            at=entry.at,
            actor=entry.actor,
            reason=entry.reason,
        )
        for entry in audit
        if entry.plan == plan.id and entry.state
    ]
