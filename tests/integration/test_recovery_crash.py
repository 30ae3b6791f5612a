"""A crash at every boundary, enumerated: before and after the commit of each transaction, and inside the actuator.

The service's own parts run against a real Postgres; a crash is an exception that nobody catches, after which all that was
in memory is thrown away and built anew, and the verdict is delivered again.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from goodput_common.bus.memory import MemoryBus
from goodput_common.bus.ports import Message
from goodput_common.contracts.job import RankProgress, RankRegistered
from goodput_common.contracts.recovery import PlanState
from goodput_common.contracts.verdict import Verdict
from goodput_common.runtime.clock import Clock
from goodput_common.runtime.metrics import Metrics
from goodput_common.runtime.tasks import Tasks
from goodput_common.store.engine import create_engine
from goodput_common.store.migrate import upgrade
from goodput_recovery.adapters import schema
from goodput_recovery.adapters.agent import AgentCommander
from goodput_recovery.adapters.decisions import PostgresUnit
from goodput_recovery.adapters.dry_run import DryRun
from goodput_recovery.adapters.postgres import PostgresStore
from goodput_recovery.application.context import Contexts
from goodput_recovery.application.execute import Executor
from goodput_recovery.application.measure import Measures
from goodput_recovery.application.ports import Observation, Outcome
from goodput_recovery.application.propose import Proposer
from goodput_recovery.application.verify import Ranks, Verifier
from goodput_recovery.domain.incident import Incident, judged
from goodput_recovery.domain.plan import Plan
from goodput_recovery.domain.policy import Policy
from goodput_recovery.domain.progress import Outcome as Judgement
from goodput_recovery.testing import make_verdict

POLICY = Policy(settle_s=0.0, verify_hold_s=0.0, verify_watch_s_min=1.0, link_wait_s=0.0, spare_nodes=100)
POINTS = 12  # more than a whole recovery has transactions


class Crash(BaseException):
    """kill -9: nothing catches it."""


class StandingClock:
    """Now is now, and nothing waits."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        return None


class AlwaysOurs:
    """A lease that is held."""

    async def check(self, connection: AsyncConnection) -> int:
        return 1


@dataclass
class Fuse:
    """Burns at the n-th boundary that is passed; -1 never."""

    at: int
    passed: int = 0
    burnt: bool = False

    def pass_(self) -> None:
        if self.passed == self.at:
            self.burnt = True
            raise Crash
        self.passed += 1


class FusedStore(PostgresStore):
    """Each transaction has two boundaries: before its commit and after it."""

    fuse: Fuse

    @contextlib.asynccontextmanager
    async def transaction(self, *, leading: bool = True) -> AsyncIterator[PostgresUnit]:
        async with super().transaction(leading=leading) as unit:
            yield unit
            self.fuse.pass_()
        self.fuse.pass_()


@dataclass
class CountingActuator:
    """The dry run, with a boundary on both sides and a count of what it was told."""

    inner: DryRun
    fuse: Fuse
    told: list[tuple[str, int]] = field(default_factory=list)
    name: str = "dry_run"

    @property
    def offers(self) -> Any:
        return self.inner.offers

    async def observe(self, plan: Plan) -> Observation:
        return await self.inner.observe(plan)

    async def act(self, plan: Plan) -> Outcome:
        self.fuse.pass_()
        self.told.append((plan.id, plan.fencing_token))
        outcome = await self.inner.act(plan)
        self.fuse.pass_()
        return outcome

    async def verify(self, plan: Plan) -> Observation:
        return await self.inner.verify(plan)


class Life:
    """One life of the service between two crashes."""

    def __init__(self, engine: AsyncEngine, fabric: str, fuse: Fuse, told: list[tuple[str, int]]) -> None:
        clock: Clock = StandingClock()
        self.store = FusedStore(engine, fabric, AlwaysOurs())  # type: ignore[arg-type]
        self.store.fuse = fuse
        measures = Measures(Metrics(process=False))
        self.ranks = Ranks(self.store)
        actuator = CountingActuator(DryRun(self.store), fuse, told)
        self.proposer = Proposer(
            self.store, Contexts(POLICY, actuator, self.ranks, clock), self.ranks, clock, measures, fabric=fabric
        )
        bus = MemoryBus(clock)
        self.executor = Executor(
            self.store,
            self.proposer,
            actuator,
            AgentCommander(bus, fabric, clock),
            self.ranks,
            clock,
            Tasks(),
            measures,
            evidence_within_s=0.2,
        )
        self.verifier = Verifier(self.ranks, POLICY, clock, bus.healthy)

    async def live(self, verdict: Verdict, ranks: Sequence[Message]) -> None:
        """From the (re)delivered verdict to the end of its plan."""
        for message in ranks:
            await self.ranks.handle(message)
        await self.proposer.handle(a_message(verdict, f"{verdict.id}/{verdict.version}"))
        for _ in range(10):
            incidents = await self.store.open_incidents()
            for incident in incidents:
                plan = incident.open_plan
                assert plan is not None
                if plan.state is PlanState.EXECUTING:
                    await self.executor.carry_out(plan)
                elif plan.state is PlanState.VERIFYING:
                    await self._verify(incident, plan)
                else:
                    await self.proposer.advance(incident)

    async def _verify(self, incident: Incident, plan: Plan) -> None:
        for step in (1, 2):
            for message in reports(incident.fabric, generation=1, step=200 + step, seq=step):
                await self.ranks.handle(message)
            seen = (await self.verifier.look([(incident, plan)]))[plan.id]
            if seen.outcome is not Judgement.WAIT:
                await self.proposer.decide(
                    plan.incident, lambda incident, ctx, seen=seen: judged(incident, plan.id, seen, ctx)
                )


def a_message(data: Any, id: str) -> Message:
    now = datetime.now(UTC)
    return Message(id=id, type="t", source="test", subject="s", time=now, data=data, received_at=now)


def registrations(fabric: str, generation: int) -> list[Message]:
    now = datetime.now(UTC)
    return [
        a_message(
            RankRegistered(
                fabric=fabric, job="job-1", rank=rank, world_size=2, host=f"h{rank}", pid=1, at=now, generation=generation
            ),
            f"r{rank}",
        )
        for rank in range(2)
    ]


def reports(fabric: str, *, generation: int, step: int, seq: int) -> list[Message]:
    now = datetime.now(UTC)
    return [
        a_message(
            RankProgress(
                fabric=fabric,
                job="job-1",
                rank=rank,
                host=f"h{rank}",
                seq=seq,
                at=now,
                generation=generation,
                step=step,
                steps=1,
            ),
            f"p{rank}",
        )
        for rank in range(2)
    ]


@pytest.fixture
async def engine(fresh_database: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(fresh_database)
    await upgrade(engine, "goodput_recovery", schema.SCHEMA)
    yield engine
    await engine.dispose()


async def test_a_crash_at_any_boundary_leaves_one_chain_and_one_action(engine: AsyncEngine) -> None:
    crashed = 0
    for point in range(2 * POINTS):
        fabric = f"f{point}"
        fuse, told = Fuse(at=point), list[tuple[str, int]]()
        verdict = make_verdict(fabric=fabric, at=datetime.now(UTC))
        before = registrations(fabric, 0) + reports(fabric, generation=0, step=100, seq=1)
        try:
            await Life(engine, fabric, fuse, told).live(verdict, before)
        except Crash:
            crashed += 1
            await Life(engine, fabric, Fuse(at=-1), told).live(verdict, before)
        await check(engine, fabric, told, point)
    assert 8 <= crashed < 2 * POINTS, "every boundary was tried, and the last tries went through without a crash"


async def check(engine: AsyncEngine, fabric: str, told: list[tuple[str, int]], point: int) -> None:
    async with engine.connect() as connection:
        plans = list(
            await connection.execute(
                sa.select(schema.plan.c.id, schema.plan.c.state, schema.plan.c.fencing_token).where(
                    schema.plan.c.fabric == fabric
                )
            )
        )
        assert [each.state for each in plans] == ["recovered"], f"boundary {point}"
        deeds = await connection.scalar(sa.select(sa.func.count()).where(schema.deed.c.fabric == fabric))
        assert deeds == 1, f"boundary {point}"
        announced = list(
            (
                await connection.execute(
                    sa.select(schema.outbox.c.message_id)
                    .where(schema.outbox.c.message_id.startswith(f"{plans[0].id}/"))
                    .order_by(schema.outbox.c.position)
                )
            ).scalars()
        )
    states = ["proposed", "approved", "executing", "verifying", "recovered"]
    assert announced == [f"{plans[0].id}/{state}" for state in states], f"boundary {point}"
    assert set(told) == {(plans[0].id, plans[0].fencing_token)}, (
        "an actuator is asked again only with the same plan and token"
    )
    assert len(told) <= 2


async def test_a_lower_token_does_not_act_after_a_higher_one(engine: AsyncEngine) -> None:
    fabric, told = "fenced", list[tuple[str, int]]()
    life = Life(engine, fabric, Fuse(at=-1), told)
    verdict = make_verdict(fabric=fabric, at=datetime.now(UTC))
    await life.proposer.handle(a_message(verdict, "v1"))
    for _ in range(2):
        await life.proposer.advance((await life.store.open_incidents())[0])
    slow = (await life.store.open_incidents())[0].open_plan
    assert slow is not None and slow.state is PlanState.EXECUTING
    async with engine.begin() as connection:
        other = {"fabric": fabric, "incident": slow.incident, "job": slow.job, "action": "swap_node", "actuator": "dry_run"}
        await connection.execute(sa.text("SET session_replication_role = replica"))  # a deed without its plan
        await connection.execute(
            sa.insert(schema.deed).values(plan="later", fencing_token=slow.fencing_token + 1, at=datetime.now(UTC), **other)
        )
    await life.executor.carry_out(slow)
    async with engine.connect() as connection:
        row = (await connection.execute(sa.select(schema.plan).where(schema.plan.c.id == slow.id))).one()
    assert row.state == "failed"
    assert "overtaken" in row.body["result"]
    assert told == []


async def test_a_budget_cannot_be_overdrawn_by_two_decisions_at_once(engine: AsyncEngine) -> None:
    import asyncio

    fabric = "storm"
    life = Life(engine, fabric, Fuse(at=-1), [])
    verdicts = [
        make_verdict(fabric=fabric, at=datetime.now(UTC), job=f"job-{n}", incident=f"i{n}", component=f"gpu:h{n}/0")
        for n in range(12)
    ]
    await asyncio.gather(*(life.proposer.handle(a_message(verdict, verdict.id)) for verdict in verdicts))
    for _ in range(2):
        incidents = await life.store.open_incidents()
        await asyncio.gather(*(life.proposer.advance(incident) for incident in incidents))
    states = [plan.state for incident in await life.store.open_incidents() if (plan := incident.open_plan)]
    assert states.count(PlanState.EXECUTING) == 1, "one node of a small or unknown fabric may leave"
    async with engine.connect() as connection:
        tokens = list((await connection.execute(sa.select(schema.plan.c.fencing_token))).scalars())
    assert sorted(token for token in tokens if token) == list(range(1, 1 + sum(token > 0 for token in tokens)))
