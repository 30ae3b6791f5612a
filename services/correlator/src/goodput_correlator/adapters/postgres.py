"""The store in Postgres: what the application's `Store` port promises, one transaction a call.

Evidence is written by `INSERT … SELECT unnest(…)`: one statement a group however many rows, which the driver prepares
once. A telemetry batch is one row, compressed. Every writing transaction first takes a shared lock on the fabric's lease
row and compares the token. A take-over updates that row, so it waits for writes under way and none of the old term can
follow it: what a new term reads at its start is all that the old one ever acknowledged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.topology import TopologySnapshot
from goodput_common.contracts.verdict import Verdict, VerdictState
from goodput_common.store.lease import Lease, LeaseLost
from goodput_correlator.adapters import chains, retention, schema
from goodput_correlator.adapters.errors import told_apart
from goodput_correlator.application import facts
from goodput_correlator.application.ports import (
    Deposed,
    JobProgress,
    Registration,
    Reign,
    Restored,
    Retention,
    StoreRefused,
    Tick,
    Write,
    Written,
)
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.remembered import Batch
from goodput_correlator.domain.timeline import READ
from goodput_topology import postgres as graph_store
from goodput_topology.build import InvalidFabric
from goodput_topology.graph import Fabric
from goodput_topology.merge import check
from goodput_topology.snapshot import Assembly

WORDS_A_RANK = 2  # its last report and its exit
WORDS_A_HOST = 64  # last messages of a host's ranks in which the last report of each is looked for
_READ_KINDS = sorted(
    [facts.BATCH, facts.REPORTS, *(kind for kind, struct in facts.KINDS.items() if issubclass(struct, READ))]
)
_INSERT_EVIDENCE = sa.text(f"""
    INSERT INTO {schema.SCHEMA}.evidence
        (id, fabric, host, source, kind, component, job, observed_at, received_at, body, packed)
    SELECT id, :fabric, host, source, kind, component, job, observed_at, received_at, body::json, packed
    FROM unnest(
        cast(:id AS text[]), cast(:host AS text[]), cast(:source AS text[]), cast(:kind AS text[]),
        cast(:component AS text[]), cast(:job AS text[]), cast(:observed_at AS timestamptz[]),
        cast(:received_at AS timestamptz[]), cast(:body AS text[]), cast(:packed AS bytea[])
    ) AS given (id, host, source, kind, component, job, observed_at, received_at, body, packed)
    ON CONFLICT (id) DO NOTHING RETURNING id
""")
_PROGRESS_COLUMNS = (
    "job", "generation", "last_seen_at", "step_min", "step_max", "step_at", "exited_clean", "exited_failed"
)  # fmt: skip
_UPDATE_PROGRESS = sa.text(f"""
    UPDATE {schema.SCHEMA}.jobs SET
        last_seen_at = given.last_seen_at, step_min = given.step_min, step_max = given.step_max, step_at = given.step_at,
        exited_clean = given.exited_clean, exited_failed = given.exited_failed
    FROM unnest(
        cast(:job AS text[]), cast(:generation AS int[]), cast(:last_seen_at AS timestamptz[]),
        cast(:step_min AS bigint[]), cast(:step_max AS bigint[]), cast(:step_at AS timestamptz[]),
        cast(:exited_clean AS int[]), cast(:exited_failed AS int[])
    ) AS given ({", ".join(_PROGRESS_COLUMNS)})
    WHERE jobs.fabric = :fabric AND jobs.job = given.job AND jobs.generation = given.generation
""")
_READ = f"(kind = ANY(:kinds) OR (kind = '{facts.MEASURED}' AND received_at > :measured_since))"
# Where the newest `rows_max` begin: behind the key of the first that does not fit. No row: all fit.
_TOO_OLD = sa.text(f"""
    SELECT received_at, id FROM {schema.SCHEMA}.evidence
    WHERE fabric = :fabric AND received_at > :since AND {_READ}
    ORDER BY received_at DESC, id DESC OFFSET :rows_max LIMIT 1
""")
_READ_PAGE = sa.text(f"""
    SELECT id, host, source, kind, observed_at, received_at, body::text AS body, packed FROM {schema.SCHEMA}.evidence
    WHERE fabric = :fabric AND received_at >= :at AND (received_at, id) > (:at, :id) AND {_READ}
    ORDER BY received_at, id LIMIT :page_rows
""")
_READ_REGISTRATIONS = sa.text(f"""
    SELECT id, received_at, body::text AS body FROM {schema.SCHEMA}.registrations
    JOIN {schema.SCHEMA}.jobs USING (fabric, job, generation)
    WHERE fabric = :fabric AND last_seen_at > :jobs_since
""")
# What the ranks of a job said last before the window: of jobs that say nothing in it, and of those of which some have left.
_READ_LAST_WORDS = sa.text(f"""
    SELECT word.* FROM {schema.SCHEMA}.jobs JOIN {schema.SCHEMA}.registrations placed USING (fabric, job, generation)
    CROSS JOIN LATERAL (
        SELECT id, host, source, kind, observed_at, received_at, body::text AS body FROM {schema.SCHEMA}.evidence
        WHERE component = 'rank:' || placed.job || '/' || placed.rank AND evidence.fabric = :fabric
            AND received_at <= :since AND received_at >= placed.received_at AND kind IN ('rank_progress', 'rank_exited')
        ORDER BY received_at DESC, id DESC LIMIT {WORDS_A_RANK}
    ) word
    WHERE fabric = :fabric AND last_seen_at > :jobs_since AND (last_seen_at <= :since OR exited_clean + exited_failed > 0)
""")
# The same where they reported together: a rank that fell silent before its host's others did is in an older message.
_READ_LAST_REPORTS = sa.text(f"""
    SELECT word.* FROM {schema.SCHEMA}.jobs JOIN (
        SELECT fabric, job, generation, host, min(received_at) AS began_at FROM {schema.SCHEMA}.registrations
        GROUP BY fabric, job, generation, host
    ) placed USING (fabric, job, generation)
    CROSS JOIN LATERAL (
        SELECT id, kind, received_at, packed FROM {schema.SCHEMA}.evidence
        WHERE component = 'host:' || placed.host AND evidence.fabric = :fabric AND evidence.job = placed.job
            AND received_at <= :since AND received_at >= placed.began_at AND kind = '{facts.REPORTS}'
        ORDER BY received_at DESC, id DESC LIMIT {WORDS_A_HOST}
    ) word
    WHERE fabric = :fabric AND last_seen_at > :jobs_since AND (last_seen_at <= :since OR exited_clean + exited_failed > 0)
""")
_TICK = timedelta(microseconds=1)
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_ENCODER = msgspec.json.Encoder()


class PostgresStore:
    """See `application.ports.Store` for what each method promises."""

    def __init__(self, engine: AsyncEngine, lease: Lease) -> None:
        self._engine = engine
        self._lease = lease

    async def _under(self, connection: AsyncConnection, reign: Reign) -> None:
        """Raise Deposed unless `reign` is the newest term; it stays so until this transaction ends."""
        try:
            token = await self._lease.check(connection)
        except LeaseLost as lost:
            raise Deposed(str(lost)) from lost
        if token != reign.token:
            raise Deposed(f"fabric {reign.fabric}: this was term {reign.token}, now it is term {token}")

    # ------------------------------------------------------------------------------------------------- writing

    async def write(self, reign: Reign, writes: Sequence[Write]) -> Written:
        with told_apart():
            async with self._engine.begin() as connection:
                await self._under(connection, reign)
                new = await self._evidence(connection, reign.fabric, [row for each in writes for row in _rows(each)])
                await self._registrations(connection, reign.fabric, [each for w in writes for each in w.registrations])
                graph = await self._topology(connection, reign.fabric, [part for w in writes for part in w.topology])
        return Written(new=new, topology=graph)

    async def _evidence(self, connection: AsyncConnection, fabric: str, rows: Sequence[tuple[Any, ...]]) -> frozenset[str]:
        if not rows:
            return frozenset()
        columns = dict(zip(_COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
        written = await connection.execute(_INSERT_EVIDENCE, {"fabric": fabric, **columns})
        return frozenset(written.scalars())

    async def _registrations(self, connection: AsyncConnection, fabric: str, given: Sequence[Registration]) -> None:
        """A rank that registers again in the same generation (restarted in place) replaces its earlier process."""
        if not given:
            return
        table = schema.registrations
        placed = insert(table)
        newer = placed.on_conflict_do_update(
            index_elements=["fabric", "job", "generation", "rank"],
            set_={name: placed.excluded[name] for name in ("host", "world_size", "id", "received_at", "body")},
            where=table.c.received_at < placed.excluded.received_at,
        )
        await connection.execute(newer, [_registration_row(fabric, each) for each in given])
        await self._seen(connection, fabric, given)

    async def _seen(self, connection: AsyncConnection, fabric: str, given: Sequence[Registration]) -> None:
        """The jobs of these registrations, in their newest generation; an older one changes nothing."""
        jobs = schema.jobs
        newest: dict[str, Registration] = {}
        for each in given:
            held = newest.get(each.body.job)
            if held is None or held.body.generation <= each.body.generation:
                newest[each.body.job] = each
        seen = insert(jobs)
        later = seen.excluded.generation > jobs.c.generation
        upsert = seen.on_conflict_do_update(
            index_elements=["fabric", "job"],
            set_={
                "generation": sa.func.greatest(jobs.c.generation, seen.excluded.generation),
                "world_size": sa.case(
                    (seen.excluded.generation >= jobs.c.generation, seen.excluded.world_size), else_=jobs.c.world_size
                ),
                "last_seen_at": sa.func.greatest(jobs.c.last_seen_at, seen.excluded.last_seen_at),
                "exited_clean": sa.case((later, 0), else_=jobs.c.exited_clean),
                "exited_failed": sa.case((later, 0), else_=jobs.c.exited_failed),
            },
        )
        rows = [
            {
                "fabric": fabric, "job": job, "generation": each.body.generation, "world_size": each.body.world_size,
                "first_seen_at": each.received_at, "last_seen_at": each.received_at,
            }
            for job, each in sorted(newest.items())
        ]  # fmt: skip
        await connection.execute(upsert, rows)

    async def _topology(self, connection: AsyncConnection, fabric: str, given: Sequence[TopologySnapshot]) -> Fabric | None:
        """Keep parts until a version of a source is whole, then let it replace what that source said before."""
        table, changed = schema.topology_parts, False
        for part in given:
            kept = insert(table).values(
                fabric=fabric, source=part.source, version=part.version, part=part.part, parts=part.parts,
                body=_ENCODER.encode(part),
            )  # fmt: skip
            await connection.execute(kept.on_conflict_do_nothing())
            of_source = sa.and_(table.c.fabric == fabric, table.c.source == part.source)
            held = await connection.execute(sa.select(table.c.body).where(of_source, table.c.version == part.version))
            whole = _assembled([msgspec.json.decode(body, type=TopologySnapshot) for body in held.scalars()])
            if whole is not None:
                _check(whole)
                changed = await graph_store.save(connection, schema.topology, whole) or changed
                await connection.execute(sa.delete(table).where(of_source, table.c.version <= part.version))
        return await graph_store.load(connection, schema.topology, fabric) if changed else None

    # ------------------------------------------------------------------------------------------------- the grid

    async def commit(self, reign: Reign, tick: Tick) -> tuple[Verdict, ...]:
        with told_apart():
            async with self._engine.begin() as connection:
                await self._under(connection, reign)
                if not await self._advance(connection, reign, tick):
                    return ()
                unfit = await chains.store(connection, reign.fabric, tick.verdicts)
                await self._progress(connection, reign.fabric, tick.jobs)
        return unfit

    async def _advance(self, connection: AsyncConnection, reign: Reign, tick: Tick) -> bool:
        """Whether the grid moved. False: this very tick is stored already. Any other place is somebody else's doing."""
        grid = schema.grid
        if tick.previous is None:
            first = insert(grid).values(fabric=reign.fabric, ticked_to=tick.now, token=reign.token)
            moved = (await connection.execute(first.on_conflict_do_nothing().returning(grid.c.fabric))).first()
        else:
            onward = (
                sa.update(grid)
                .where(grid.c.fabric == reign.fabric, grid.c.ticked_to == tick.previous)
                .values(ticked_to=tick.now, token=reign.token)
                .returning(grid.c.fabric)
            )
            moved = (await connection.execute(onward)).first()
        if moved is not None:
            return True
        stands = sa.select(grid.c.ticked_to, grid.c.token).where(grid.c.fabric == reign.fabric)
        row = (await connection.execute(stands)).one_or_none()
        if row is not None and tuple(row) == (tick.now, reign.token):
            return False
        raise Deposed(f"fabric {reign.fabric}: the grid stands at {row}, not at {tick.previous}")

    async def _progress(self, connection: AsyncConnection, fabric: str, given: Sequence[JobProgress]) -> None:
        """One statement, however many jobs have moved."""
        if given:
            columns = {name: [getattr(each, name) for each in given] for name in _PROGRESS_COLUMNS}
            await connection.execute(_UPDATE_PROGRESS, {"fabric": fabric, **columns})

    # ------------------------------------------------------------------------------------------------- restoring

    async def restore(self, fabric: str, *, window_s: float, jobs_s: float) -> Restored:
        with told_apart():
            async with self._engine.connect() as connection:
                grid = schema.grid
                ticked_to = (
                    await connection.execute(sa.select(grid.c.ticked_to).where(grid.c.fabric == fabric))
                ).scalar_one_or_none()
                since = ticked_to - timedelta(seconds=window_s) if ticked_to else _LONG_AGO
                jobs_since = ticked_to - timedelta(seconds=jobs_s) if ticked_to else _LONG_AGO
                asked = {"fabric": fabric, "jobs_since": jobs_since}
                observed = []
                for row in await connection.execute(_READ_REGISTRATIONS, asked):
                    body = msgspec.json.decode(row.body, type=RankRegistered)
                    observed.append(Observed(row.id, body.host, "agent", body.at, row.received_at, body))
                words = await connection.execute(_READ_LAST_WORDS, {**asked, "since": since})
                observed += [_observed(row) for row in words]
                observed += _last_reports(await connection.execute(_READ_LAST_REPORTS, {**asked, "since": since}))
                jobs = schema.jobs
                heard = sa.select(jobs).where(jobs.c.fabric == fabric, jobs.c.last_seen_at > jobs_since)
                rows = await connection.execute(heard)
                known = tuple(JobProgress(**{name: getattr(row, name) for name in JobProgress.__slots__}) for row in rows)
                verdicts = await self._chains(connection, fabric, jobs_since)
                graph = await graph_store.load(connection, schema.topology, fabric)
        return Restored(ticked_to=ticked_to, jobs=known, observed=tuple(observed), topology=graph, verdicts=verdicts)

    async def evidence_pages(
        self, fabric: str, *, since: datetime | None, measured_since: datetime | None = None, rows_max: int, page_rows: int
    ) -> AsyncIterator[tuple[Observed | Batch, ...]]:
        """Nobody else writes while a term restores, so pages need no common snapshot."""
        asked = {"fabric": fabric, "kinds": _READ_KINDS, "measured_since": measured_since or _LONG_AGO}
        at, key, left = since or _LONG_AGO, "", rows_max
        with told_apart():
            async with self._engine.connect() as connection:
                cut = await connection.execute(_TOO_OLD, {**asked, "since": at, "rows_max": rows_max})
                if (row := cut.first()) is not None:
                    at, key = row.received_at, row.id
                else:
                    at += _TICK  # strictly behind `since`
        while left > 0:
            limit = min(page_rows, left)
            with told_apart():
                async with self._engine.connect() as connection:
                    rows = (await connection.execute(_READ_PAGE, {**asked, "at": at, "id": key, "page_rows": limit})).all()
            if rows:
                yield tuple(_kept(row) for row in rows)
                at, key, left = rows[-1].received_at, rows[-1].id, left - len(rows)
            if len(rows) < limit:
                return

    async def _chains(self, connection: AsyncConnection, fabric: str, since: datetime) -> tuple[Verdict, ...]:
        verdicts = schema.verdicts
        lately = sa.or_(verdicts.c.state != VerdictState.RESOLVED.value, verdicts.c.published_at > since)
        newest = sa.select(verdicts.c.body).where(verdicts.c.fabric == fabric, verdicts.c.latest, lately)
        bodies = (await connection.execute(newest.order_by(verdicts.c.position))).scalars()
        return tuple(msgspec.json.decode(body, type=Verdict) for body in bodies)

    async def prune(self, fabric: str, keep: Retention, now: datetime) -> int:
        with told_apart():
            async with self._engine.begin() as connection:
                return await retention.prune(connection, fabric, keep, now)


_COLUMNS = (
    "id", "host", "source", "kind", "component", "job", "observed_at", "received_at", "body", "packed"
)  # fmt: skip


def _rows(write: Write) -> Iterator[tuple[Any, ...]]:
    """Rows of evidence, as `_COLUMNS` has them."""
    for each in write.observed:
        yield (
            each.id, each.host, each.source, facts.kind_of(each.fact), facts.component_of(each.fact), each.job,
            each.observed_at, each.received_at, facts.encode(each.fact), None,
        )  # fmt: skip
    batch = write.batch
    if batch is not None:
        component, job, at = facts.row_about(batch)
        yield (
            batch.id, batch.data.host, batch.source, facts.kind_of_batch(batch), component, job, at, batch.received_at, None,
            facts.pack(batch),
        )  # fmt: skip


def _kept(row: Any) -> Observed | Batch:
    return facts.unpack(row.id, row.kind, row.received_at, row.packed) if row.packed is not None else _observed(row)


def _last_reports(rows: Iterable[Any]) -> list[Observed]:
    """The newest report of each rank, of the messages of their hosts."""
    return list(facts.newest_reports(facts.unpack(r.id, r.kind, r.received_at, r.packed) for r in rows).values())


def _observed(row: Any) -> Observed:
    return Observed(row.id, row.host, row.source, row.observed_at, row.received_at, facts.decode(row.kind, row.body))


def _registration_row(fabric: str, given: Registration) -> dict[str, Any]:
    body = given.body
    return {
        "fabric": fabric, "job": body.job, "generation": body.generation, "rank": body.rank, "host": body.host,
        "world_size": body.world_size, "id": given.id, "received_at": given.received_at, "body": msgspec.to_builtins(body),
    }  # fmt: skip


def _check(whole: Sequence[TopologySnapshot]) -> None:
    """Sources may contradict each other, but not themselves. Raises StoreRefused: the group is rolled back, and halving it
    finds the snapshot that made it so."""
    try:
        check(whole)
    except InvalidFabric as error:
        raise StoreRefused(str(error)) from error


def _assembled(parts: Sequence[TopologySnapshot]) -> tuple[TopologySnapshot, ...] | None:
    assembly, whole = Assembly(), None
    for part in parts:
        whole = assembly.add(part) or whole
    return whole
