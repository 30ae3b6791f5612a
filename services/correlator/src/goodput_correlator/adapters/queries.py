"""What readers ask of the database, each answer restricted to what the asker may see *inside* the statement: a row that
is not a tenant's never leaves the database on their behalf.

Lists are newest first and continue from a position, which is never reused; so pages stay whole while new rows come in. What
changes its position by changing (the newest version of a verdict) is listed as it was when the walk began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncEngine

from goodput_common.contracts.ids import host_id, rank_id
from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.verdict import Verdict, VerdictState
from goodput_correlator.adapters import schema
from goodput_correlator.adapters.errors import told_apart
from goodput_correlator.application import facts
from goodput_correlator.application.ports import JobProgress
from goodput_correlator.application.views import Incident
from goodput_correlator.domain.case import Observed
from goodput_topology import postgres as graph_store
from goodput_topology.graph import Fabric

REPORTS_A_HOST = 5  # newest messages of a host in which the newest report of each of its ranks is looked for
Jobs = frozenset[str] | None  # whose rows may be seen: None is everybody's


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictFilter:
    job: str | None = None
    host: str | None = None
    fault_class: str | None = None
    state: str | None = None
    component: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    all_versions: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentFilter:
    state: str | None = None
    job: str | None = None
    fault_class: str | None = None
    component: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    host: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a list: its position, whose it is, and its JSON."""

    position: int
    kind: str
    body: bytes


def _visible(table: sa.Table, jobs: Jobs) -> list[sa.ColumnElement[bool]]:
    """A tenant sees what is about one of its jobs; what has no job of its own if it touches one of them."""
    if jobs is None:
        return []
    own = sa.cast(sorted(jobs), ARRAY(sa.Text))
    return [sa.or_(table.c.job.in_(sorted(jobs)), sa.and_(table.c.job.is_(None), table.c.jobs.overlap(own)))]


class Queries:
    """Of one fabric. All methods raise StoreUnavailable."""

    def __init__(self, engine: AsyncEngine, fabric: str) -> None:
        self._engine = engine
        self._fabric = fabric

    async def _rows(self, statement: Any) -> Sequence[Any]:
        with told_apart():
            async with self._engine.connect() as connection:
                return (await connection.execute(statement)).all()

    # ------------------------------------------------------------------------------------------------- verdicts

    async def verdicts(
        self, wanted: VerdictFilter, jobs: Jobs, *, before: int | None, as_of: int | None, limit: int
    ) -> tuple[list[Row], int]:
        """The rows behind `before`, as they were when `as_of` was the newest of all; and that position."""
        table = schema.verdicts
        newest = sa.select(sa.func.max(table.c.position)).where(table.c.fabric == self._fabric).scalar_subquery()
        given: list[sa.ColumnElement[bool]] = [table.c.fabric == self._fabric, *_visible(table, jobs)]
        if not wanted.all_versions and as_of is None:
            given.append(table.c.latest)
        elif not wanted.all_versions:
            later = schema.verdicts.alias("later")
            follows = sa.select(later.c.position).where(later.c.id == table.c.id, later.c.version == table.c.version + 1)
            given.append(sa.or_(table.c.latest, follows.scalar_subquery() > as_of))
        if wanted.job is not None:
            given.append(table.c.jobs.contains([wanted.job]))
        if wanted.host is not None:
            given.append(table.c.hosts.contains([wanted.host]))
        if wanted.component is not None:
            given.append(table.c.components.contains([wanted.component]))
        if wanted.fault_class is not None:
            given.append(table.c.fault_class == wanted.fault_class)
        if wanted.state is not None:
            given.append(table.c.state == wanted.state)
        if wanted.since is not None:
            given.append(table.c.published_at >= wanted.since)
        if wanted.until is not None:
            given.append(table.c.published_at < wanted.until)
        if before is not None:
            given.append(table.c.position < before)
        listed = sa.select(table.c.position, table.c.body, newest.label("newest")).where(*given)
        rows = await self._rows(listed.order_by(table.c.position.desc()).limit(limit))
        began = as_of if as_of is not None else rows[0].newest if rows else 0
        return [Row(row.position, "verdict", row.body) for row in rows], began

    async def versions(self, verdict: str, jobs: Jobs) -> list[bytes]:
        """All versions, oldest first; empty when there is none that may be seen."""
        table = schema.verdicts
        chain = sa.select(table.c.body).where(table.c.fabric == self._fabric, table.c.id == verdict, *_visible(table, jobs))
        return [row.body for row in await self._rows(chain.order_by(table.c.version))]

    # ------------------------------------------------------------------------------------------------- incidents

    async def incidents(
        self, wanted: IncidentFilter, jobs: Jobs, *, before: int | None, limit: int
    ) -> list[tuple[int, Incident]]:
        """By the position of the version that opened them, which stays; an incident's own moves with each version."""
        table, first = schema.incidents, schema.verdicts
        given: list[sa.ColumnElement[bool]] = [first.c.fabric == self._fabric, first.c.version == 1, *_visible(table, jobs)]
        if wanted.state is not None:
            given.append(table.c.state == wanted.state)
        if wanted.job is not None:
            given.append(table.c.jobs.contains([wanted.job]))
        if wanted.fault_class is not None:
            given.append(table.c.fault_class == wanted.fault_class)
        if wanted.component is not None:
            given.append(table.c.component == wanted.component)
        if wanted.since is not None:
            given.append(table.c.opened_at >= wanted.since)
        if wanted.until is not None:
            given.append(table.c.opened_at < wanted.until)
        if before is not None:
            given.append(first.c.position < before)
        joined = first.join(table, table.c.id == first.c.incident)
        listed = sa.select(table, first.c.position.label("opened_by")).select_from(joined).where(*given)
        rows = await self._rows(listed.order_by(first.c.position.desc()).limit(limit))
        return [(row.opened_by, _incident(row)) for row in rows]

    async def incident(self, incident: str, jobs: Jobs) -> Incident | None:
        table = schema.incidents
        one = sa.select(table).where(table.c.fabric == self._fabric, table.c.id == incident, *_visible(table, jobs))
        rows = await self._rows(one)
        return _incident(rows[0]) if rows else None

    async def cited(self, verdict: str) -> list[Observed]:
        """The evidence that any version of a verdict rests on, in the order in which it arrived."""
        evidence, citations = schema.evidence, schema.citations
        rests_on = sa.select(citations.c.event_id, citations.c.kept_in).where(citations.c.verdict == verdict)
        ids = rests_on.distinct().subquery()
        listed = _EVIDENCE.add_columns(ids.c.event_id).join(ids, evidence.c.id == ids.c.kept_in)
        rows = await self._rows(listed.where(evidence.c.fabric == self._fabric))
        found = [seen for row in rows if (seen := _fact(row, row.event_id)) is not None]
        return sorted(found, key=lambda seen: seen.order)

    # ------------------------------------------------------------------------------------------------- evidence

    async def evidence(self, event_id: str) -> Observed | None:
        evidence, sample = schema.evidence, facts.row_of(event_id)
        ids = [event_id] if sample is None else [event_id, sample[0]]
        rows = await self._rows(_EVIDENCE.where(evidence.c.fabric == self._fabric, evidence.c.id.in_(ids)))
        found = {row.id: seen for row in rows if (seen := _fact(row, event_id)) is not None}
        return next((found[each] for each in ids if each in found), None)

    async def cites(self, event_id: str, jobs: frozenset[str]) -> bool:
        """Whether a verdict about one of `jobs` rests on this piece of evidence."""
        citations, verdicts = schema.citations, schema.verdicts
        joined = citations.join(
            verdicts, sa.and_(verdicts.c.id == citations.c.verdict, verdicts.c.version == citations.c.version)
        )
        found = sa.select(sa.literal(1)).select_from(joined)
        found = found.where(citations.c.event_id == event_id, verdicts.c.fabric == self._fabric, *_visible(verdicts, jobs))
        return bool(await self._rows(found.limit(1)))

    # ------------------------------------------------------------------------------------------------- jobs

    async def jobs(
        self, jobs: Jobs, wanted: JobFilter | None = None, *, after: str | None = None, limit: int | None = None
    ) -> list[tuple[JobProgress, bool]]:
        """By name, each with whether a verdict about it is open."""
        table, verdicts = schema.jobs, schema.verdicts
        is_open = sa.exists().where(
            verdicts.c.fabric == table.c.fabric,
            verdicts.c.job == table.c.job,
            verdicts.c.latest,
            verdicts.c.state != VerdictState.RESOLVED.value,
        )
        listed = sa.select(table, is_open.label("is_open")).where(table.c.fabric == self._fabric).order_by(table.c.job)
        if jobs is not None:
            listed = listed.where(table.c.job.in_(sorted(jobs)))
        if after is not None:
            listed = listed.where(table.c.job > after)
        if wanted is not None and wanted.since is not None:
            listed = listed.where(table.c.last_seen_at >= wanted.since)
        if wanted is not None and wanted.until is not None:
            listed = listed.where(table.c.last_seen_at < wanted.until)
        if wanted is not None and wanted.host is not None:
            placed = schema.registrations
            runs_there = sa.exists().where(
                placed.c.fabric == table.c.fabric,
                placed.c.job == table.c.job,
                placed.c.generation == table.c.generation,
                placed.c.host == wanted.host,
            )
            listed = listed.where(runs_there)
        rows = await self._rows(listed.limit(limit))
        names = list(JobProgress.__slots__)
        return [(JobProgress(**{name: getattr(row, name) for name in names}), row.is_open) for row in rows]

    async def placement(self, job: str, generation: int) -> list[RankRegistered]:
        table = schema.registrations
        placed = sa.select(sa.cast(table.c.body, sa.Text).label("body")).where(
            table.c.fabric == self._fabric, table.c.job == job, table.c.generation == generation
        )
        rows = await self._rows(placed.order_by(table.c.rank))
        return [msgspec.json.decode(row.body, type=RankRegistered) for row in rows]

    async def newest_progress(self, job: str, placed: Sequence[RankRegistered]) -> list[Observed]:
        """The newest report of each rank that has one left, told by itself or together with others of its host."""
        alone = await self._reports_alone([rank_id(job, each.rank) for each in placed])
        found = await self._reports_together(job, sorted({host_id(each.host) for each in placed}))
        for each in alone:
            known = found.get(facts.component_of(each.fact))
            if known is None or known.order < each.order:
                found[facts.component_of(each.fact)] = each
        return list(found.values())

    async def _reports_together(self, job: str, hosts: Sequence[str]) -> dict[str, Observed]:
        """Of each rank that is in one of the last messages of its host."""
        given = sa.func.unnest(sa.cast(list(hosts), ARRAY(sa.Text))).table_valued("component").render_derived()
        evidence = schema.evidence
        newest = (
            sa.select(evidence.c.id, evidence.c.kind, evidence.c.received_at, evidence.c.packed)
            .where(
                evidence.c.component == given.c.component,
                evidence.c.kind == facts.REPORTS,
                evidence.c.fabric == self._fabric,
                evidence.c.job == job,
            )
            .order_by(evidence.c.received_at.desc())
            .limit(REPORTS_A_HOST)
            .lateral("newest")
        )
        rows = await self._rows(sa.select(newest).select_from(given.join(newest, sa.true())))
        return facts.newest_reports(facts.unpack(row.id, row.kind, row.received_at, row.packed) for row in rows)

    async def _reports_alone(self, components: Sequence[str]) -> list[Observed]:
        given = sa.func.unnest(sa.cast(list(components), ARRAY(sa.Text))).table_valued("component").render_derived()
        evidence = schema.evidence
        newest = (
            _EVIDENCE.where(
                evidence.c.component == given.c.component,
                evidence.c.kind == "rank_progress",
                evidence.c.fabric == self._fabric,
            )
            .order_by(evidence.c.received_at.desc())
            .limit(1)
            .lateral("newest")
        )
        joined = sa.select(newest).select_from(given.join(newest, sa.true()))
        return [_observed(row) for row in await self._rows(joined)]

    async def hosts_of(self, jobs: frozenset[str]) -> frozenset[str]:
        """The hosts under the newest generation of these jobs."""
        placed, table = schema.registrations, schema.jobs
        newest = placed.join(
            table,
            sa.and_(
                table.c.fabric == placed.c.fabric,
                table.c.job == placed.c.job,
                table.c.generation == placed.c.generation,
            ),
        )
        hosts = sa.select(placed.c.host).select_from(newest).distinct()
        hosts = hosts.where(placed.c.fabric == self._fabric, placed.c.job.in_(sorted(jobs)))
        return frozenset(row.host for row in await self._rows(hosts))

    async def names(self) -> tuple[frozenset[str], frozenset[str]]:
        """All jobs and all hosts that any job ran on."""
        jobs = await self._rows(sa.select(schema.jobs.c.job).where(schema.jobs.c.fabric == self._fabric))
        placed = schema.registrations
        hosts = await self._rows(sa.select(placed.c.host).where(placed.c.fabric == self._fabric).distinct())
        return frozenset(row.job for row in jobs), frozenset(row.host for row in hosts)

    # ------------------------------------------------------------------------------------------------- events, graph

    async def events(self, jobs: Jobs, *, after: int, limit: int) -> list[Row]:
        """Oldest first, those behind position `after`."""
        table = schema.events
        given = [table.c.fabric == self._fabric, table.c.position > after, *_visible(table, jobs)]
        listed = (
            sa.select(table.c.position, table.c.kind, table.c.body).where(*given).order_by(table.c.position).limit(limit)
        )
        return [Row(row.position, row.kind, row.body) for row in await self._rows(listed)]

    async def kept_events(self) -> tuple[int, int]:
        """Positions of the oldest and the newest event kept; 0 where there is none."""
        table = schema.events
        ends = sa.select(sa.func.min(table.c.position), sa.func.max(table.c.position)).where(table.c.fabric == self._fabric)
        oldest, newest = (await self._rows(ends))[0]
        return oldest or 0, newest or 0

    async def topology_version(self) -> tuple[tuple[str, int], ...]:
        """Changes whenever the graph does."""
        source = schema.topology.source
        known = sa.select(source.c.source, source.c.version).where(source.c.fabric == self._fabric).order_by(source.c.source)
        return tuple((row.source, row.version) for row in await self._rows(known))

    async def topology(self) -> Fabric:
        with told_apart():
            async with self._engine.connect() as connection:
                return await graph_store.load(connection, schema.topology, self._fabric)


_EVIDENCE = sa.select(
    schema.evidence.c.id,
    schema.evidence.c.host,
    schema.evidence.c.source,
    schema.evidence.c.kind,
    schema.evidence.c.observed_at,
    schema.evidence.c.received_at,
    sa.cast(schema.evidence.c.body, sa.Text).label("body"),
    schema.evidence.c.packed,
)


def _fact(row: Any, event_id: str) -> Observed | None:
    """What a row of evidence holds under this id: itself, or a part of its batch."""
    if row.packed is None:
        return _observed(row) if row.id == event_id else None
    sample = facts.row_of(event_id)
    if sample is None or sample[0] != row.id:
        return None
    return facts.fact_in(facts.unpack(row.id, row.kind, row.received_at, row.packed), sample[1])


def _observed(row: Any) -> Observed:
    return Observed(row.id, row.host, row.source, row.observed_at, row.received_at, facts.decode(row.kind, row.body))


def _incident(row: Any) -> Incident:
    return msgspec.convert({name: getattr(row, name) for name in Incident.__struct_fields__}, Incident)


def verdict_of(body: bytes) -> Verdict:
    return msgspec.json.decode(body, type=Verdict)
