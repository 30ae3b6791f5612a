"""The store of the recovery service in Postgres.

Everything that decides runs in one transaction that first locks the fabric's row: decisions of one fabric happen one after
the other, whoever takes them, so budgets cannot be overdrawn by two at once and fencing tokens grow in commit order. The
transactions are a few statements long.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

import asyncpg
import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from goodput_common.contracts import subjects
from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.recovery import AgentCommandKind, PlanState
from goodput_common.contracts.verdict import ActionKind, Verdict
from goodput_common.store.inbox import first_time, prune_inbox
from goodput_common.store.lease import Lease, LeaseLost
from goodput_common.store.outbox import enqueue
from goodput_recovery.adapters import schema
from goodput_recovery.application.ports import (
    Asked,
    AskStatus,
    Control,
    Deed,
    Fenced,
    NotLeading,
    RankPlace,
    StoreUnavailable,
)
from goodput_recovery.domain.budget import Spent, Usage
from goodput_recovery.domain.incident import Decision, Incident, Moved
from goodput_recovery.domain.plan import Plan, update_of

SOURCE = "goodput-recovery"
_AWAY = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, SQLAlchemyError)
_USAGE_MAX = 10_000  # executed actions and incidents looked at; beyond it every budget is used up anyway
_OPEN_MAX = 2_000  # incidents looked at in one round; the oldest go first


@contextlib.contextmanager
def _translated() -> Any:
    """Trouble with the database as StoreUnavailable. A broken promise of the schema (a constraint) is a bug, and stays."""
    try:
        yield
    except LeaseLost as error:
        raise NotLeading(str(error)) from error
    except sa.exc.IntegrityError:
        raise
    except _AWAY as error:
        raise StoreUnavailable(f"database: {type(error).__name__}: {error}") from error


@contextlib.asynccontextmanager
async def reading(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection for questions. Raises StoreUnavailable."""
    with _translated():
        async with engine.connect() as connection:
            yield connection


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
        places = schema.rank_place
        hosts = await self._connection.scalar(
            sa.select(sa.func.count(sa.distinct(places.c.host))).where(places.c.fabric == self._fabric)
        )
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


class PostgresUnit(PostgresReader):
    """One transaction that holds the fabric's lock."""

    async def first_time(self, consumer: str, message_id: str) -> bool:
        return await first_time(self._connection, schema.inbox, consumer, message_id)

    async def incident(self, id: str) -> Incident | None:
        table = schema.incident
        row = (
            await self._connection.execute(sa.select(table).where(table.c.fabric == self._fabric, table.c.id == id))
        ).first()
        if row is None:
            return None
        plans = await self._connection.execute(
            sa.select(schema.plan.c.body)
            .where(schema.plan.c.fabric == self._fabric, schema.plan.c.incident == id)
            .order_by(schema.plan.c.ordinal)
        )
        return _incident(row, [_plan(body) for body in plans.scalars()])

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
            table = schema.fabric
            grow = sa.update(table).where(table.c.fabric == self._fabric, table.c.last_token < plan.fencing_token)
            await self._connection.execute(grow.values(last_token=plan.fencing_token))

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
                reason=_text(event.plan.reason if moved else event.reason),
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
        table = schema.deed
        if plan.job is not None:
            newest = await self._connection.scalar(
                sa.select(sa.func.max(table.c.fencing_token)).where(table.c.fabric == self._fabric, table.c.job == plan.job)
            )
            if newest is not None and newest > plan.fencing_token:
                raise Fenced(f"token {plan.fencing_token} is overtaken, {newest} has acted on job {plan.job}")
        values = {
            "plan": plan.id,
            "fabric": self._fabric,
            "incident": plan.incident,
            "job": plan.job,
            "action": str(plan.action),
            "target": plan.target,
            "actuator": plan.actuator,
            "fencing_token": plan.fencing_token,
            "at": at,
        }
        statement = insert(table).values(values).on_conflict_do_nothing().returning(table.c.plan)
        if (await self._connection.execute(statement)).first() is None:
            return False
        await self._announce(plan, PlanState.APPROVED)
        return True

    async def finish(self, plan: str, *, done: bool, result: str, at: datetime) -> None:
        table = schema.deed
        await self._connection.execute(
            sa.update(table)
            .where(table.c.plan == plan, table.c.finished_at.is_(None))
            .values(finished_at=at, done=done, result=_text(result))
        )

    async def set_paused(self, who: str, why: str, at: datetime, *, paused: bool) -> Control:
        before = await self.control()
        if bool(before.paused_by) == paused:
            return before
        values = {"paused_by": who, "paused_why": why, "paused_at": at} if paused else _NOT_PAUSED
        table = schema.fabric
        await self._connection.execute(sa.update(table).where(table.c.fabric == self._fabric).values(values))
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


_NOT_PAUSED: dict[str, Any] = {"paused_by": "", "paused_why": "", "paused_at": None}


class PostgresStore:
    """See `application.ports.Store`."""

    def __init__(self, engine: AsyncEngine, fabric: str, lease: Lease) -> None:
        self._engine, self._fabric, self._lease = engine, fabric, lease

    @contextlib.asynccontextmanager
    async def transaction(self, *, leading: bool = True) -> AsyncIterator[PostgresUnit]:
        with _translated():
            async with self._engine.begin() as connection:
                if leading:
                    await self._lease.check(connection)
                table = schema.fabric
                lock = sa.select(table.c.fabric).where(table.c.fabric == self._fabric).with_for_update()
                if (await connection.execute(lock)).first() is None:
                    await connection.execute(insert(table).values(fabric=self._fabric).on_conflict_do_nothing())
                    await connection.execute(lock)
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
        open_ = (
            sa.select(schema.plan.c.incident)
            .where(schema.plan.c.fabric == self._fabric, sa.text(schema.IS_OPEN))
            .order_by(schema.plan.c.position)
            .limit(_OPEN_MAX)
        )
        async with reading(self._engine) as connection:
            ids = list((await connection.execute(open_)).scalars())
            if not ids:
                return []
            table = schema.incident
            rows = await connection.execute(sa.select(table).where(table.c.fabric == self._fabric, table.c.id.in_(ids)))
            bodies = await connection.execute(
                sa.select(schema.plan.c.incident, schema.plan.c.body)
                .where(schema.plan.c.fabric == self._fabric, schema.plan.c.incident.in_(ids))
                .order_by(schema.plan.c.ordinal)
            )
            plans: dict[str, list[Plan]] = {}
            for incident, body in bodies:
                plans.setdefault(incident, []).append(_plan(body))
            found = {row.id: _incident(row, plans.get(row.id, [])) for row in rows}
        return [found[id] for id in ids if id in found]

    async def deed(self, plan: str) -> Deed | None:
        async with reading(self._engine) as connection:
            row = (await connection.execute(sa.select(schema.deed).where(schema.deed.c.plan == plan))).first()
        return deed_of(row) if row is not None else None

    async def keep_asked(self, asked: Sequence[Asked]) -> None:
        if not asked:
            return
        rows = [
            {
                "id": each.id,
                "plan": each.plan,
                "rank": each.rank,
                "kind": str(each.kind),
                "fencing_token": each.fencing_token,
                "at": each.at,
                "status": str(each.status),
                "reason": _text(each.reason)[:500],
                "step": each.step,
            }
            for each in asked
        ]
        statement = insert(schema.asked)
        statement = statement.on_conflict_do_update(
            index_elements=["id"],
            set_={name: statement.excluded[name] for name in ("at", "status", "reason", "step")},
        )
        with _translated():
            async with self._engine.begin() as connection:
                await connection.execute(statement, rows)

    async def asked(self, plan: str) -> Sequence[Asked]:
        table = schema.asked
        async with reading(self._engine) as connection:
            rows = await connection.execute(sa.select(table).where(table.c.plan == plan).order_by(table.c.at, table.c.rank))
            return [asked_of(row) for row in rows]

    async def place(self, rank: RankRegistered) -> None:
        values = {
            "fabric": self._fabric,
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
        with _translated():
            async with self._engine.begin() as connection:
                await connection.execute(upsert)

    async def places(self, job: str) -> dict[int, RankPlace]:
        table = schema.rank_place
        statement = sa.select(table).where(table.c.fabric == self._fabric, table.c.job == job)
        async with reading(self._engine) as connection:
            rows = await connection.execute(statement)
            return {
                row.rank: RankPlace(rank=row.rank, host=row.host, generation=row.generation, world_size=row.world_size)
                for row in rows
            }

    async def prune(self) -> None:
        with _translated():
            async with self._engine.begin() as connection:
                await prune_inbox(connection, schema.inbox)


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


def asked_of(row: Any) -> Asked:
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


def _text(text: str) -> str:
    """A text column takes no NUL, and what others wrote may hold one."""
    return text.replace("\x00", "\ufffd")


def _plan(body: Any) -> Plan:
    return msgspec.convert(body, Plan)


def _incident(row: Any, plans: list[Plan]) -> Incident:
    verdict = msgspec.convert(row.verdict, Verdict)
    return Incident(fabric=row.fabric, id=row.id, verdict=verdict, opened_at=row.opened_at, plans=tuple(plans))
