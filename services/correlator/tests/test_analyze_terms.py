"""Terms of the correlator on the in-memory twins: every second is judged once, whoever crashes in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from goodput_common.bus.memory import MemoryBus
from goodput_common.contracts import subjects
from goodput_common.contracts.job import RankProgress, RankRegistered
from goodput_common.contracts.telemetry import Event, EventName, Severity, Source, TelemetryBatch
from goodput_common.contracts.verdict import Verdict, VerdictState
from goodput_common.runtime.clock import ManualClock
from goodput_common.runtime.metrics import Metrics
from goodput_common.runtime.tasks import Tasks
from goodput_correlator.adapters.memory import MemoryStore
from goodput_correlator.application.correlator import Correlator, Phase
from goodput_correlator.application.metrics import CorrelatorMetrics
from goodput_correlator.application.ports import Retention

T0 = datetime(2026, 1, 1, tzinfo=UTC)
RANKS = 4


class MemoryLease:
    """A lease that is free whenever nobody holds it; its token is the store's."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.gone = asyncio.Event()

    async def acquire(self) -> int:
        self._store.token += 1
        self.gone = asyncio.Event()
        return self._store.token

    async def lost(self) -> None:
        await self.gone.wait()

    async def release(self) -> None:
        self.gone.set()


async def turns(count: int) -> None:
    """Let the others run; the clock stands still, so that a disturbance takes no time and the log stays the same."""
    for _ in range(count):
        await asyncio.sleep(0)


class World:
    """A job of four ranks that finishes ten steps a second until it stands still, and correlators that come and go."""

    def __init__(self) -> None:
        self.clock = ManualClock(T0)
        self.bus = MemoryBus(self.clock)
        self.store = MemoryStore("f")
        self.lease = MemoryLease(self.store)
        self.metrics = CorrelatorMetrics(Metrics(process=False))
        self.correlator: Correlator | None = None
        self.tasks = Tasks()
        self.second = 0

    async def start(self) -> Correlator:
        self.tasks = Tasks()
        self.correlator = Correlator(
            fabric="f", bus=self.bus, store=self.store, lease=self.lease, clock=self.clock, tasks=self.tasks,
            metrics=self.metrics, retention=Retention(), slots=16,
        )  # fmt: skip
        await self.correlator.start()
        await turns(50)
        return self.correlator

    async def stop(self) -> None:
        """As on SIGTERM."""
        assert self.correlator is not None
        await self.correlator.stop_pulling()
        draining = asyncio.create_task(self.correlator.drain())
        while not draining.done():
            await turns(1)
        await self.correlator.close()

    async def kill(self) -> None:
        """As kill -9: nothing is finished, nothing is given back."""
        for subscription in self.bus._subscriptions:
            subscription._loop.cancel()
            for task in list(subscription._in_hand):
                task.cancel()
        self.bus._subscriptions.clear()
        await self.tasks.close(within_s=0.5)
        self.lease.gone.set()

    async def register(self) -> None:
        for rank in range(RANKS):
            fact = RankRegistered(
                fabric="f", job="j", rank=rank, world_size=RANKS, host=f"h{rank}", pid=100 + rank, at=self.clock.now(), gpu=0
            )
            await self.bus.publish(subjects.job("f", "j", "rank_registered"), fact, id=f"reg{rank}", source="test")

    async def pass_second(self, *, stalled: bool = False) -> None:
        """One report of every rank, then the second's rest in small steps."""
        self.second += 1
        step = 10 * self.second if not stalled else 10 * self._last_moving
        if not stalled:
            self._last_moving = self.second
        for rank in range(RANKS):
            report = RankProgress(
                fabric="f", job="j", rank=rank, host=f"h{rank}", seq=self.second, at=self.clock.now(), step=step,
                step_at=self.clock.now() - timedelta(seconds=self.second - self._last_moving), steps=0 if stalled else 10,
                step_ms_mean=0.0 if stalled else 100.0, step_ms_max=0.0 if stalled else 110.0,
            )  # fmt: skip
            key = f"p{rank}.{self.second}"
            await self.bus.publish(subjects.job("f", "j", "rank_progress"), report, id=key, source="test")
        await self.pass_time(1.0)

    async def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            await self.clock.advance(0.1)
            await turns(20)  # advancing alone runs nothing when nobody sleeps

    _last_moving = 0

    async def gpu_falls_off(self) -> None:
        now = self.clock.now()
        line = "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
        event = Event(
            component="gpu:h2/0",
            name=EventName.XID,
            observed_at=now,
            severity=Severity.FATAL,
            excerpt=line,
            attrs={"xid": "79"},
        )
        batch = TelemetryBatch(
            fabric="f", host="h2", source=Source.KERNEL_LOG, boot_id="b", seq=1, observed_from=now, observed_to=now,
            samples=(event,),
        )  # fmt: skip
        await self.bus.publish(subjects.telemetry("f", "h2", "kernel_log"), batch, id="f/h2/kernel_log/b/1", source="test")

    @property
    def chains(self) -> Sequence[Sequence[Verdict]]:
        return list(self.store.chains.values())


@pytest.fixture
def world() -> World:
    return World()


async def play(world: World, *, disturb: int | None = None, how: str = "kill") -> bytes:
    """A fault at second 8, repaired at 24. At second `disturb` the correlator is disturbed, and stands up a second later."""
    await world.start()
    await world.register()
    for second in range(40):
        if second == 8:
            await world.gpu_falls_off()
        if second == disturb:
            await (world.kill() if how == "kill" else world.stop())
        if disturb is not None and second == disturb + 1:
            await world.start()
        await world.pass_second(stalled=8 <= second < 24)
    await world.stop()
    return msgspec.json.encode(world.chains)


_undisturbed: list[bytes] = []


async def undisturbed() -> bytes:
    """The chain without a disturbance, played once."""
    if not _undisturbed:
        _undisturbed.append(await play(World()))
    return _undisturbed[0]


async def test_a_stalled_job_gets_one_chain_that_opens_and_is_resolved(world: World) -> None:
    await play(world)
    assert len(world.chains) == 1
    (chain,) = world.chains
    assert [each.version for each in chain] == list(range(1, len(chain) + 1))
    assert (chain[0].state, chain[-1].state) == (VerdictState.OPEN, VerdictState.RESOLVED)
    assert chain[0].job == "j"


@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize("second", [3, 8, 9, 10, 12, 15, 23, 24, 26])
async def test_a_crash_or_restart_in_any_second_gives_the_same_chain_as_none(second: int, how: str) -> None:
    assert await play(World(), disturb=second, how=how) == await undisturbed()


async def test_a_database_that_goes_away_for_seconds_delays_the_chain_and_changes_nothing_in_it() -> None:
    world = World()
    await world.start()
    await world.register()
    for second in range(40):
        if second == 8:
            await world.gpu_falls_off()
        world.store.away = 9 <= second < 15
        await world.pass_second(stalled=8 <= second < 24)
    assert msgspec.json.encode(world.chains) == await undisturbed()
    await world.stop()


async def test_a_lost_lease_ends_the_term_and_the_next_one_goes_on(world: World) -> None:
    correlator = await world.start()
    await world.register()
    for _ in range(3):
        await world.pass_second()
    before = world.store.token
    world.lease.gone.set()
    await world.pass_second()
    await world.pass_second()
    assert world.store.token > before
    assert correlator.phase is Phase.ACTIVE
    await correlator.check()
    await world.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        await correlator.check()


async def test_a_correlator_that_was_deposed_writes_nothing_more(world: World) -> None:
    await world.start()
    await world.register()
    await world.pass_second()
    world.store.token += 1  # another took over; this one has not noticed
    held = dict(world.store.evidence)
    await world.bus.publish(
        subjects.job("f", "j", "rank_progress"),
        RankProgress(fabric="f", job="j", rank=0, host="h0", seq=99, at=T0),
        id="late",
        source="test",
    )
    for _ in range(3):
        await world.clock.advance(0.01)
    assert world.store.evidence == held
    await world.kill()
