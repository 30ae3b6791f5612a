"""What recovery lets go of, what it keeps, and which hosts it counts, on a real Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.recovery import AgentCommandKind
from goodput_common.contracts.verdict import VerdictState
from goodput_common.store.engine import create_engine
from goodput_common.store.lease import LeaseLost
from goodput_common.store.migrate import upgrade
from goodput_recovery.adapters import schema
from goodput_recovery.adapters.postgres import PostgresStore
from goodput_recovery.application.ports import Asked, AskStatus, NotLeading
from goodput_recovery.domain import incident as chain
from goodput_recovery.domain.policy import Retention
from goodput_recovery.testing import make_context, make_verdict

NOW = datetime.now(UTC)
KEEP = Retention()
LONG_AGO, LATELY = NOW - timedelta(days=400), NOW - timedelta(days=2)
FABRIC = "f"


class Ours:
    """A lease that is held, until it is not."""

    held = True

    async def check(self, connection: AsyncConnection) -> int:
        if not self.held:
            raise LeaseLost("somebody else leads")
        return 1


@pytest.fixture
async def engine(fresh_database: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(fresh_database)
    await upgrade(engine, "goodput_recovery", schema.SCHEMA)
    yield engine
    await engine.dispose()


def store_of(engine: AsyncEngine, lease: Ours | None = None) -> PostgresStore:
    return PostgresStore(engine, FABRIC, lease or Ours())  # type: ignore[arg-type]


async def live(store: PostgresStore, incident: str, at: datetime, token: int, *, ends: bool = True) -> None:
    """An incident with one executed plan, its deed and one command. It ends by failing, and by the verdict being resolved
    before the person was asked."""

    def seconds(n: float) -> datetime:
        return at + timedelta(seconds=n)

    verdict = make_verdict(fabric=FABRIC, incident=incident, job=f"job-of-{incident}", at=at)
    decisions = [chain.heard(None, verdict, make_context(at))]
    for n in (10, 11):
        decisions.append(chain.ticked(decisions[-1].incident, make_context(seconds(n), token=token)))
    plan = decisions[-1].incident.plans[-1]
    if ends:
        failed = chain.acted(decisions[-1].incident, plan.id, done=False, result="no", ctx=make_context(seconds(12)))
        resolved = make_verdict(
            fabric=FABRIC, incident=incident, job=verdict.job, version=2, state=VerdictState.RESOLVED, at=seconds(13)
        )
        decisions += [failed, chain.heard(failed.incident, resolved, make_context(seconds(13)))]
    async with store.transaction() as unit:
        for decision in decisions:
            await unit.keep_verdict(decision.incident.verdict, at)
            await unit.save(decision, {}, decision.incident.plans[-1].changed_at)
        assert await unit.release(plan, seconds(11))
    asked = Asked(
        id=f"{plan.id}/0",
        plan=plan.id,
        rank=0,
        kind=AgentCommandKind.DUMP,
        fencing_token=token,
        at=at,
        status=AskStatus.DONE,
    )
    await store.keep_asked([asked])


async def rows(engine: AsyncEngine) -> dict[str, int]:
    tables = (schema.incident, schema.verdict, schema.plan, schema.deed, schema.asked, schema.audit, schema.rank_place)
    async with engine.connect() as connection:
        return {
            each.name: int(await connection.scalar(sa.select(sa.func.count()).select_from(each)) or 0) for each in tables
        }


async def incidents(engine: AsyncEngine) -> set[str]:
    async with engine.connect() as connection:
        return set((await connection.execute(sa.select(schema.incident.c.id))).scalars())


async def test_an_ended_incident_goes_whole_and_an_open_or_a_recent_one_stays(engine: AsyncEngine) -> None:
    store = store_of(engine)
    await live(store, "old", LONG_AGO, 1)
    before = await rows(engine)
    assert all(before[name] for name in ("incident", "verdict", "plan", "deed", "asked", "audit"))
    await live(store, "old-but-open", LONG_AGO, 2, ends=False)
    await live(store, "recent", LATELY, 3)
    assert await store.prune(KEEP, NOW) is False
    assert await incidents(engine) == {"old-but-open", "recent"}
    async with store.transaction() as unit:
        kept = await unit.incident("old-but-open")
        assert kept is not None and kept.open_plan is not None
        assert await unit.incident("old") is None
        assert (await unit.control()).last_token == 3, "tokens grow on, whatever is forgotten"
    async with engine.connect() as connection:
        audited = await connection.execute(sa.select(schema.audit.c.incident).distinct())
        assert set(audited.scalars()) == {"old-but-open", "recent"}


async def test_an_incident_of_which_something_was_heard_lately_stays(engine: AsyncEngine) -> None:
    store = store_of(engine)
    await live(store, "old", LONG_AGO, 1)
    async with store.transaction() as unit:
        incident = await unit.incident("old")
        assert incident is not None
        stale = chain.heard(incident, make_verdict(fabric=FABRIC, incident="old", at=LATELY), make_context(LATELY))
        await unit.save(stale, {}, LATELY)
    await store.prune(KEEP, NOW)
    assert await incidents(engine) == {"old"}


async def test_a_round_is_bounded_and_says_that_more_is_waiting(engine: AsyncEngine) -> None:
    store = store_of(engine)
    for n in range(5):
        await live(store, f"old-{n}", LONG_AGO + timedelta(hours=n), n + 1)
    few = Retention(incidents_a_round=2, rows_a_round=1000)
    assert await store.prune(few, NOW) is True
    assert await incidents(engine) == {"old-2", "old-3", "old-4"}
    assert await store.prune(few, NOW) is True
    assert await store.prune(few, NOW) is False
    assert {name: count for name, count in (await rows(engine)).items() if count} == {}


async def test_only_the_leader_prunes(engine: AsyncEngine) -> None:
    lease = Ours()
    store = store_of(engine, lease)
    await live(store, "old", LONG_AGO, 1)
    lease.held = False
    with pytest.raises(NotLeading):
        await store.prune(KEEP, NOW)
    assert await incidents(engine) == {"old"}


async def register(store: PostgresStore, job: str, hosts: list[str], at: datetime, generation: int = 0) -> None:
    for rank, host in enumerate(hosts):
        await store.place(
            RankRegistered(
                fabric=FABRIC,
                job=job,
                rank=rank,
                world_size=len(hosts),
                host=host,
                pid=1,
                at=at,
                generation=generation,
            )
        )


async def test_only_hosts_of_jobs_that_were_heard_lately_count(engine: AsyncEngine) -> None:
    store, since = store_of(engine), NOW - timedelta(days=1)
    await register(store, "gone", [f"old{n}" for n in range(40)], LONG_AGO)
    await register(store, "new", ["h0", "h1"], NOW)
    assert (await store.usage(since)).hosts_known == 2
    await register(store, "long", ["h2", "h3", "h4"], LONG_AGO)
    await register(store, "long", ["h2", "h3"], LONG_AGO + timedelta(hours=1), generation=1)
    assert (await store.usage(since)).hosts_known == 2
    await store.still_there(["long"], NOW)
    assert (await store.usage(since)).hosts_known == 4, (
        "two of the running job's newest generation, whenever they registered"
    )
    await store.prune(KEEP, NOW)
    assert (await store.places("gone"), set(await store.places("long"))) == ({}, {0, 1})


async def test_a_rank_that_moves_after_its_job_was_heard_is_found_at_its_new_host(engine: AsyncEngine) -> None:
    store = store_of(engine)
    await register(store, "long", ["h2"], LONG_AGO)
    await store.still_there(["long"], NOW)
    await register(store, "long", ["h9"], NOW - timedelta(seconds=2))
    assert (await store.places("long"))[0].host == "h9"


async def test_the_places_of_a_silent_job_stay_while_a_plan_for_it_is_open(engine: AsyncEngine) -> None:
    store = store_of(engine)
    await live(store, "old-but-open", LONG_AGO, 1, ends=False)
    await register(store, "job-of-old-but-open", ["h0"], LONG_AGO)
    await store.prune(KEEP, NOW)
    assert set(await store.places("job-of-old-but-open")) == {0}
