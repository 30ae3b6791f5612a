"""The correlator's store on a real Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncEngine

from goodput_common.contracts.ids import ComponentKind
from goodput_common.contracts.job import HostProgress, RankExited, RankProgress, RankRegistered
from goodput_common.contracts.telemetry import Counter, Event, EventName, Gauge, Sample, Source, TelemetryBatch
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, Relation, TopologySnapshot
from goodput_common.contracts.verdict import (
    Action,
    ActionKind,
    Affected,
    Culprit,
    Evidence,
    FaultClass,
    Verdict,
    VerdictState,
)
from goodput_common.store.engine import create_engine
from goodput_common.store.lease import Lease
from goodput_common.store.migrate import upgrade
from goodput_correlator.adapters import schema
from goodput_correlator.adapters.postgres import PostgresStore
from goodput_correlator.adapters.queries import Queries
from goodput_correlator.application.ports import (
    Deposed,
    JobProgress,
    Registration,
    Reign,
    Retention,
    StoreRefused,
    Tick,
    Write,
)
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.remembered import Batch

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def seen(n: int, *, excerpt: str = "x", component: str = "gpu:h1/0") -> Observed:
    fact = Event(component=component, name=EventName.XID, observed_at=at(n), excerpt=excerpt, attrs={"xid": "79"})
    return Observed(f"e{n}", "h1", "kernel_log", at(n), at(n), fact)


def verdict(version: int = 1, *, state: VerdictState = VerdictState.OPEN, cites: tuple[str, ...] = ("e1",)) -> Verdict:
    return Verdict(
        id="v1",
        version=version,
        incident="i1",
        fabric="f",
        job="j",
        state=state,
        fault_class=FaultClass.GPU_OFF_BUS,
        culprit=Culprit(component="gpu:h1/0", kind=ComponentKind.GPU, host="h1", ranks=(0,)),
        confidence=0.9,
        alternatives=(),
        evidence=tuple(Evidence(event_id=e, component="gpu:h1/0", excerpt="x", observed_at=T0, why="w") for e in cites),
        explained=(),
        affected=Affected(jobs=("j",), ranks=(0, 1), hosts=("h1",)),
        action=Action(kind=ActionKind.SWAP_NODE, target="host:h1", reason="r"),
        first_evidence_at=at(1),
        detected_at=at(2),
        published_at=at(2 + version),
        diagnosed_by="gpu_off_bus/1",
    )


def registered(rank: int, *, generation: int = 0, host: str = "h1") -> tuple[Observed, Registration]:
    body = RankRegistered(fabric="f", job="j", rank=rank, world_size=2, host=host, pid=1, at=T0, generation=generation)
    key = f"r{generation}.{rank}.{host}"
    received_at = at(generation + 0.1)
    return Observed(key, host, "agent", T0, received_at, body), Registration(id=key, received_at=received_at, body=body)


@pytest.fixture
async def engine(fresh_database: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(fresh_database)
    await upgrade(engine, "goodput_correlator", "correlator")
    yield engine
    await engine.dispose()


def lease_of(engine: AsyncEngine) -> Lease:
    return Lease(engine, schema.lease, service="correlator", fabric="f", holder="test", retry_s=0.05)


@pytest.fixture
async def lease(engine: AsyncEngine) -> AsyncIterator[Lease]:
    lease = lease_of(engine)
    await lease.acquire()
    yield lease
    await lease.release()


@pytest.fixture
def store(engine: AsyncEngine, lease: Lease) -> PostgresStore:
    return PostgresStore(engine, lease)


@pytest.fixture
def reign(lease: Lease) -> Reign:
    return Reign("f", lease.token)


async def kept(
    store: PostgresStore, since: datetime | None = None, *, rows_max: int = 100, page_rows: int = 2
) -> list[Observed | Batch]:
    pages = store.evidence_pages("f", since=since, rows_max=rows_max, page_rows=page_rows)
    return [each async for page in pages for each in page]


async def test_the_migrations_make_the_tables_that_the_code_describes(engine: AsyncEngine) -> None:
    def differences(connection: sa.Connection) -> list[object]:
        options = {"include_schemas": True, "include_name": _only_ours, "version_table_schema": "correlator"}
        context = MigrationContext.configure(connection, opts={**options, "version_table": "schema_version"})
        return list(compare_metadata(context, schema.metadata))

    def _only_ours(name: str | None, kind: str, _parents: object) -> bool:
        return kind != "schema" or name == "correlator"

    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_evidence_written_twice_is_new_once_and_comes_back_as_it_was(store: PostgresStore, reign: Reign) -> None:
    odd = seen(2, excerpt='NUL \x00 and "quotes" and \N{SNOWMAN}')
    progress = RankProgress(
        fabric="f", job="j", rank=0, host="h1", seq=1, at=T0, step=3, step_ms_mean=0.1 + 0.2, phases_ms={"b": 1e-9, "a": 2.5}
    )
    report = Observed("p1", "h1", "agent", T0, at(3), progress)
    first = await store.write(reign, [Write(observed=(seen(1), odd)), Write(observed=(report,))])
    again = await store.write(reign, [Write(observed=(seen(1), odd, seen(4)))])
    assert (first.new, again.new) == ({"e1", "e2", "p1"}, {"e4"})
    assert await kept(store) == [seen(1), odd, report, seen(4)]
    assert (await store.restore("f", window_s=300, jobs_s=3600)).ticked_to is None


async def test_a_tick_stores_the_version_its_citation_its_events_and_its_message_at_once(
    store: PostgresStore, reign: Reign, engine: AsyncEngine
) -> None:
    await store.write(reign, [Write(observed=(seen(1),))])
    assert await store.commit(reign, Tick(previous=None, now=at(3), verdicts=(verdict(),))) == ()
    async with engine.connect() as connection:
        bodies = (await connection.execute(sa.select(schema.verdicts.c.body))).scalars().all()
        queued = (await connection.execute(sa.select(schema.outbox.c.data, schema.outbox.c.message_id))).all()
        kinds = (
            (await connection.execute(sa.select(schema.events.c.kind).order_by(schema.events.c.position))).scalars().all()
        )
        pinned = (await connection.execute(sa.select(schema.evidence.c.pinned))).scalars().all()
    assert bodies == [msgspec.json.encode(verdict())]
    assert [tuple(row) for row in queued] == [(bodies[0].decode(), "v1.1")]
    assert (kinds, pinned) == (["verdict", "incident"], [True])
    restored = await store.restore("f", window_s=300, jobs_s=3600)
    assert (restored.ticked_to, restored.verdicts) == (at(3), (verdict(),))


async def test_the_same_tick_twice_changes_nothing(store: PostgresStore, reign: Reign, engine: AsyncEngine) -> None:
    tick = Tick(previous=None, now=at(3), verdicts=(verdict(),))
    await store.commit(reign, tick)
    assert await store.commit(reign, tick) == ()
    async with engine.connect() as connection:
        assert (await connection.execute(sa.select(sa.func.count()).select_from(schema.verdicts))).scalar() == 1


async def test_a_version_that_is_there_or_skips_one_is_left_out_and_the_rest_is_stored(
    store: PostgresStore, reign: Reign
) -> None:
    await store.commit(reign, Tick(previous=None, now=at(3), verdicts=(verdict(),)))
    skips, doubled, follows = verdict(3), verdict(1), verdict(2, state=VerdictState.REVISED)
    unfit = await store.commit(reign, Tick(previous=at(3), now=at(4), verdicts=(skips, doubled, follows)))
    assert unfit == (skips, doubled)
    assert (await store.restore("f", window_s=300, jobs_s=3600)).verdicts == (follows,)


async def test_a_term_that_has_ended_can_neither_write_nor_tick(
    store: PostgresStore, reign: Reign, lease: Lease, engine: AsyncEngine
) -> None:
    await store.commit(reign, Tick(previous=None, now=at(3)))
    await lease.release()
    successor = lease_of(engine)
    token = await successor.acquire()
    with pytest.raises(Deposed):
        await store.write(reign, [Write(observed=(seen(1),))])
    later = PostgresStore(engine, successor)
    with pytest.raises(Deposed):
        await later.write(reign, [Write(observed=(seen(1),))])
    with pytest.raises(Deposed):
        await later.commit(reign, Tick(previous=at(3), now=at(4), verdicts=(verdict(),)))
    await later.commit(Reign("f", token), Tick(previous=at(3), now=at(4)))
    assert await kept(later) == []
    await successor.release()


async def test_a_take_over_waits_for_a_write_under_way(store: PostgresStore, lease: Lease, engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await lease.check(connection)
        taking = asyncio.create_task(_take(engine))
        await asyncio.sleep(0.2)
        assert not taking.done()
    await taking


async def _take(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(sa.update(schema.lease).values(token=schema.lease.c.token + 1))


async def test_a_value_that_postgres_cannot_hold_is_refused_with_the_reason(store: PostgresStore, reign: Reign) -> None:
    with pytest.raises(StoreRefused, match="22"):
        await store.write(reign, [Write(observed=(seen(1, component="gpu:h1/\x00"),))])


async def test_the_window_is_read_in_pages_in_order_and_only_what_a_diagnosis_reads(
    store: PostgresStore, reign: Reign
) -> None:
    counter = Counter(component="nic:h1/a/1", name="symbol_error", observed_at=at(2), delta=1, interval_s=1.0, value=1)
    unread = Observed("c1", "h1", "rdma", at(2), at(2), counter)
    together = [replace(seen(n), received_at=at(5)) for n in range(5, 12)]  # more of one instant than a page takes
    shuffled = [*reversed(together), seen(3), unread, seen(1), seen(2), seen(20)]
    await store.write(reign, [Write(observed=tuple(shuffled))])
    in_order = sorted((each for each in shuffled if each is not unread), key=lambda o: o.order)
    for page_rows in (1, 2, 3, 100):
        assert await kept(store, page_rows=page_rows) == in_order
        assert await kept(store, at(2), page_rows=page_rows) == in_order[2:]
        assert await kept(store, rows_max=4, page_rows=page_rows) == in_order[-4:]
    assert [len(page) async for page in store.evidence_pages("f", since=at(4), rows_max=7, page_rows=3)] == [3, 3, 1]


async def test_registrations_come_back_however_old_in_the_newest_generation_only(store: PostgresStore, reign: Reign) -> None:
    old, young = registered(0), registered(0, generation=1, host="h2")
    other = registered(1, generation=1, host="h3")
    for each, placed in (young, old, other):
        await store.write(reign, [Write(observed=(each,), registrations=(placed,))])
    await store.commit(reign, Tick(previous=None, now=at(2)))
    restored = await store.restore("f", window_s=0.0, jobs_s=3600)
    assert {each.id for each in restored.observed} == {"r1.0.h2", "r1.1.h3"}


def progress(seconds: float, *, rank: int = 0, step: int = 1) -> Observed:
    fact = RankProgress(fabric="f", job="j", rank=rank, host="h1", seq=int(seconds), at=at(seconds), step=step)
    return Observed(f"p{rank}/{seconds}", "h1", "agent", at(seconds), at(seconds), fact)


async def test_a_quiet_job_comes_back_with_its_row_and_with_what_its_ranks_said_last(
    store: PostgresStore, reign: Reign
) -> None:
    left = RankExited(fabric="f", job="j", rank=1, host="h1", at=at(8), clean=True)
    words = (progress(6, step=1), progress(7, step=2), progress(7, rank=1, step=2))
    gone = Observed("x1", "h1", "agent", at(8), at(8), left)
    for each, placed in (registered(0), registered(1)):
        await store.write(reign, [Write(observed=(each,), registrations=(placed,))])
    await store.write(reign, [Write(observed=(progress(5), *words, gone))])
    row = JobProgress(
        job="j", generation=0, world_size=2, first_seen_at=at(0.1), last_seen_at=at(8), step_min=2, step_max=2,
        step_at=at(7), exited_clean=1,
    )  # fmt: skip
    await store.commit(reign, Tick(previous=None, now=at(1000), jobs=(row,)))
    restored = await store.restore("f", window_s=300, jobs_s=3600)
    assert restored.jobs == (row,)
    assert {each.id for each in restored.observed} == {"r0.0.h1", "r0.1.h1", "p0/6", "p0/7", "p1/7", "x1"}
    forgotten = await store.restore("f", window_s=300, jobs_s=900)
    assert (forgotten.jobs, forgotten.observed) == ((), ())


def reports(seconds: float, *ranks: int, key: str = "") -> Batch:
    """What the collector of h1 sent on of these ranks."""
    told = tuple(
        RankProgress(fabric="f", job="j", rank=rank, host="h1", seq=int(seconds), at=at(seconds), step=int(seconds))
        for rank in ranks
    )
    data = HostProgress(fabric="f", job="j", host="h1", at=at(seconds), reports=told)
    return Batch(key or f"m{seconds:g}", at(seconds), data)


async def test_reports_told_together_are_one_row_cited_one_by_one(
    store: PostgresStore, reign: Reign, engine: AsyncEngine
) -> None:
    given = reports(3, 0, 1)
    assert (await store.write(reign, [Write(batch=given)])).new == {"m3"}
    assert not (await store.write(reign, [Write(batch=given)])).new
    assert await restored(store, since=0, measured_since=900) == [given]
    assert await Queries(engine, "f").evidence("m3#1") == given.observed(1)


async def test_the_newest_report_of_a_rank_is_found_whoever_sent_it(
    store: PostgresStore, reign: Reign, engine: AsyncEngine
) -> None:
    alone = progress(5, rank=1, step=5)
    await store.write(reign, [Write(batch=reports(3, 0, 1)), Write(batch=reports(4, 0)), Write(observed=(alone,))])
    placed = [registered(rank)[1].body for rank in (0, 1, 2)]
    found = await Queries(engine, "f").newest_progress("j", placed)
    assert sorted(each.id for each in found) == ["m4#0", alone.id]


async def test_a_quiet_job_comes_back_with_what_its_ranks_said_last_together(store: PostgresStore, reign: Reign) -> None:
    for each, placed in (registered(0), registered(1)):
        await store.write(reign, [Write(observed=(each,), registrations=(placed,))])
    await store.write(reign, [Write(batch=reports(5, 0, 1)), Write(batch=reports(6, 0, 1)), Write(batch=reports(7, 0))])
    row = JobProgress(job="j", generation=0, world_size=2, first_seen_at=at(0.1), last_seen_at=at(7), step_max=7)
    await store.commit(reign, Tick(previous=None, now=at(1000), jobs=(row,)))
    back = await store.restore("f", window_s=300, jobs_s=3600)
    assert {each.id for each in back.observed} == {"r0.0.h1", "r0.1.h1", "m7#0", "m6#1"}


def snapshot(part: int, parts: int = 2, version: int = 1) -> TopologySnapshot:
    host = ComponentRecord(id="host:h1", kind=ComponentKind.HOST)
    gpu = ComponentRecord(id="gpu:h1/0", kind=ComponentKind.GPU)
    edge = EdgeRecord(a="gpu:h1/0", b="host:h1", relation=Relation.PART_OF)
    components, edges = ((host,), ()) if part == 1 else ((gpu,), (edge,))
    return TopologySnapshot(
        fabric="f", source="s", version=version, at=T0, part=part, parts=parts, components=components, edges=edges
    )


async def test_the_graph_changes_once_all_parts_are_there_in_whatever_order_and_however_often(
    store: PostgresStore, reign: Reign
) -> None:
    for part in (snapshot(2), snapshot(2)):
        assert (await store.write(reign, [Write(topology=(part,))])).topology is None
    whole = (await store.write(reign, [Write(topology=(snapshot(1),))])).topology
    assert whole is not None and set(whole.components) == {"host:h1", "gpu:h1/0"}
    for part in (snapshot(1), snapshot(2)):
        assert (await store.write(reign, [Write(topology=(part,))])).topology is None
    assert set((await store.restore("f", window_s=1, jobs_s=3600)).topology.components) == {
        "host:h1",
        "gpu:h1/0",
    }


async def test_a_snapshot_that_contradicts_itself_is_refused_and_leaves_the_graph_alone(
    store: PostgresStore, reign: Reign
) -> None:
    dangling = snapshot(2, parts=1)
    dangling = msgspec.structs.replace(dangling, part=1)
    with pytest.raises(StoreRefused, match="host:h1"):
        await store.write(reign, [Write(topology=(msgspec.structs.replace(dangling, components=()),))])
    assert len((await store.restore("f", window_s=1, jobs_s=3600)).topology) == 0


async def test_pruning_keeps_what_a_verdict_cites_until_the_verdict_goes(store: PostgresStore, reign: Reign) -> None:
    await store.write(reign, [Write(observed=tuple(seen(n) for n in range(1, 6)))])
    resolved = verdict(2, state=VerdictState.RESOLVED)
    await store.commit(reign, Tick(previous=None, now=at(5), verdicts=(verdict(), resolved)))
    keep = Retention(evidence_s=60, verdicts_s=3600)
    assert await store.prune("f", keep, at(63.5)) == 2  # e2 and e3; e1 is cited
    assert {o.id for o in await kept(store)} == {"e1", "e4", "e5"}
    while await store.prune("f", keep, at(7200)):
        pass
    assert await kept(store) == []
    assert (await store.restore("f", window_s=9000, jobs_s=3600)).verdicts == ()


async def test_pruning_by_number_lets_the_oldest_go(store: PostgresStore, reign: Reign) -> None:
    await store.write(reign, [Write(observed=tuple(seen(n) for n in range(1, 6)))])
    await store.prune("f", Retention(evidence_rows_max=2), at(6))
    assert {o.id for o in await kept(store)} == {"e4", "e5"}


# ------------------------------------------------------------------------------------------------- batches


def batch(seq: int, *samples: Sample) -> Batch:
    """Batch number `seq` of a host, received in that second."""
    data = TelemetryBatch(
        fabric="f", host="h1", source=Source.NVML, boot_id="b", seq=seq, observed_from=at(seq), observed_to=at(seq),
        samples=samples,
    )  # fmt: skip
    return Batch(f"f/h1/nvml/b/{seq}", at(seq), data)


def hot(value: float) -> Gauge:
    return Gauge(component="gpu:h1/0", name="temperature_c", observed_at=T0, value=value)


def fell_off(n: int) -> Event:
    return Event(component="gpu:h1/0", name=EventName.XID, observed_at=at(n), attrs={"xid": "79"})


async def restored(store: PostgresStore, *, since: float, measured_since: float) -> list[Observed | Batch]:
    pages = store.evidence_pages("f", since=at(since), measured_since=at(measured_since), rows_max=100, page_rows=2)
    return [each async for page in pages for each in page]


async def test_a_batch_is_one_row_new_once_and_comes_back_as_it_was(
    store: PostgresStore, reign: Reign, engine: AsyncEngine
) -> None:
    given = batch(1, hot(61.5), fell_off(1), hot(1 / 3))
    first = await store.write(reign, [Write(batch=given), Write(observed=(seen(2),))])
    again = await store.write(reign, [Write(batch=given)])
    assert first.new == {given.id, "e2"}
    assert not again.new
    assert await restored(store, since=0, measured_since=0) == [given, seen(2)]
    queries = Queries(engine, "f")
    assert await queries.evidence(f"{given.id}#2") == given.observed(2)
    assert await queries.evidence(f"{given.id}#3") is None
    assert await queries.evidence(given.id) is None


async def test_of_batches_that_only_measure_a_restart_reads_the_newest(store: PostgresStore, reign: Reign) -> None:
    batches = [batch(1, hot(1)), batch(2, fell_off(2), hot(2)), batch(3, hot(3))]
    await store.write(reign, [Write(batch=each) for each in batches])
    assert await restored(store, since=0, measured_since=2.5) == batches[1:]


async def test_measurements_go_first_and_a_batch_that_is_cited_stays_with_its_verdict(
    store: PostgresStore, reign: Reign, engine: AsyncEngine
) -> None:
    batches = [batch(1, hot(1)), batch(2, hot(2)), batch(3, fell_off(3), hot(3)), batch(4, hot(4))]
    await store.write(reign, [Write(batch=each) for each in batches])
    cites = (f"{batches[0].id}#0",)
    resolved = verdict(2, state=VerdictState.RESOLVED, cites=cites)
    await store.commit(reign, Tick(previous=None, now=at(5), verdicts=(verdict(cites=cites), resolved)))
    assert [each.id for each in await Queries(engine, "f").cited("v1")] == [*cites]
    keep = Retention(evidence_s=600, measured_s=60, verdicts_s=3600)
    await store.prune("f", keep, at(63))
    assert await restored(store, since=0, measured_since=0) == [batches[0], *batches[2:]]
    while await store.prune("f", keep, at(7200)):
        pass
    assert await restored(store, since=0, measured_since=0) == []
