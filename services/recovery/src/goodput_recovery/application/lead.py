"""The leader's loop: while this replica holds the lease it listens, decides, acts and verifies; otherwise it stands by.

A term begins with consumers being started and ends with everything in hand stopped. Losing the lease (or the database that
keeps it) is no crash: the next term is waited for. That a replica which wrongly believes to lead does no harm is seen to by
the store, which checks the lease inside every transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from goodput_common.bus.errors import BusError
from goodput_common.bus.ports import Bus, Consumer, Subscription
from goodput_common.contracts import subjects
from goodput_common.contracts.recovery import PlanState
from goodput_common.runtime.clock import Clock
from goodput_common.runtime.lifecycle import Part
from goodput_common.runtime.logs import StateLog, get_logger
from goodput_common.runtime.tasks import Tasks, stop_task
from goodput_recovery.application.context import Snapshot
from goodput_recovery.application.execute import Executor
from goodput_recovery.application.measure import Measures
from goodput_recovery.application.ports import NotLeading, Store, StoreUnavailable
from goodput_recovery.application.propose import Decide, Proposer
from goodput_recovery.application.verify import Ranks, Verifier
from goodput_recovery.domain.incident import Incident, judged
from goodput_recovery.domain.plan import Plan
from goodput_recovery.domain.progress import Outcome, Seen

_log = get_logger(__name__)
_GATED = frozenset({PlanState.PROPOSED, PlanState.AWAITING_APPROVAL, PlanState.APPROVED})
_PRUNE_EVERY_S = 600.0
_PRUNE_AGAIN_S = 5.0  # where a round met its limit
_HEARD_EVERY_S = 60.0
# A verdict must not end as rejected because the database was away for long: practically without end, a second apart.
_DELIVERIES_MAX = 1_000_000
# What a killed predecessor had in hand comes again after this; it may be short, for a running handler sends signs of life.
_ACK_WAIT_S = 5.0


class Leadership(Protocol):
    """A lease. See goodput_common.store.lease."""

    async def acquire(self) -> int: ...

    async def lost(self) -> None: ...

    async def release(self) -> None: ...


class Leader(Part):
    name = "leader"

    def __init__(
        self,
        lease: Leadership,
        bus: Bus,
        store: Store,
        proposer: Proposer,
        executor: Executor,
        verifier: Verifier,
        ranks: Ranks,
        clock: Clock,
        tasks: Tasks,
        measures: Measures,
        *,
        fabric: str,
        tick_s: float = 0.25,
    ) -> None:
        self._lease, self._bus, self._store, self._clock, self._tasks = lease, bus, store, clock, tasks
        self._proposer, self._executor, self._verifier, self._ranks = proposer, executor, verifier, ranks
        self._measures, self._fabric, self._tick_s = measures, fabric, tick_s
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._state = StateLog(_log)
        self._role = "starting"
        self._prune_at_s = self._heard_at_s = 0.0

    @property
    def role(self) -> str:
        """leader, standby or starting."""
        return self._role

    async def start(self) -> None:
        self._task = self._tasks.spawn("leader", self._terms())

    async def stop_pulling(self) -> None:
        self._stopping.set()

    async def drain(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        await stop_task(self._task)
        await self._lease.release()

    async def _terms(self) -> None:
        while not self._stopping.is_set():
            self._role = "standby"
            if not await self._until_stopped(self._lease.acquire()):
                return
            self._role = "leader"
            self._measures.leading(True)
            try:
                await self._term()
            finally:
                self._measures.leading(False)
                self._role = "standby"
        await self._lease.release()

    async def _term(self) -> None:
        self._ranks.forget_all()
        self._verifier.forget_all()
        lost = asyncio.create_task(self._lease.lost())
        subscriptions: list[Subscription] = []
        try:
            for consumer, handler in self._consumers():
                while not (self._stopping.is_set() or lost.done()):
                    try:
                        subscriptions.append(await self._bus.consume(consumer, handler))
                        break
                    except BusError as error:
                        self._state.report("bus", repr(error), "cannot listen yet", level="warning", error=str(error))
                        await self._until_stopped(self._clock.sleep(1.0))
            while not (self._stopping.is_set() or lost.done()):
                await self._guarded(self._tick)
                await self._until_stopped(self._clock.sleep(self._tick_s))
        finally:
            lost.cancel()
            await asyncio.gather(*(each.drain() for each in subscriptions), return_exceptions=True)
            await self._executor.drain(within_s=2.0)

    def _consumers(self) -> list[tuple[Consumer, Callable[..., Awaitable[None]]]]:
        own = subjects.token(self._fabric)
        listens = (subjects.job_events(self._fabric, "rank_registered"), subjects.job_events(self._fabric, "rank_exited"))
        return [
            (
                Consumer(durable=f"recovery-{own}-ranks", stream="JOB", subjects=listens, ack_wait_s=_ACK_WAIT_S),
                self._ranks.handle,
            ),
            (
                Consumer(
                    durable=f"recovery-{own}-progress",
                    stream="JOB",
                    subjects=tuple(subjects.job_events(self._fabric, each) for each in ("rank_progress", "host_progress")),
                    slots=64,
                    ack_wait_s=_ACK_WAIT_S,
                    deliver_new_only=True,
                ),
                self._ranks.handle,
            ),
            (
                Consumer(
                    durable=f"recovery-{own}-verdicts",
                    stream="VERDICT",
                    subjects=(subjects.of_fabric("VERDICT", self._fabric),),
                    slots=4,
                    ack_wait_s=_ACK_WAIT_S,
                    max_deliveries=_DELIVERIES_MAX,
                ),
                self._proposer.handle,
            ),
        ]

    async def _tick(self) -> None:
        incidents = await self._store.open_incidents()
        plans = [(incident, plan) for incident in incidents if (plan := incident.open_plan) is not None]
        self._measures.open_plans([plan for _, plan in plans])
        snapshot = Snapshot(self._store)
        for incident, plan in plans:
            if plan.state in _GATED or (plan.state is PlanState.VERIFYING and plan.job is None):
                await self._proposer.advance(incident, snapshot)
        self._executor.ensure([plan for _, plan in plans if plan.state is PlanState.EXECUTING])
        await self._verify([(incident, plan) for incident, plan in plans if plan.state is PlanState.VERIFYING])
        await self._keep_house()

    async def _keep_house(self) -> None:
        """Once in a while: tell the store which jobs are heard, and let go of what is old."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._heard_at_s and (jobs := self._ranks.heard()):
            self._heard_at_s = now_s + _HEARD_EVERY_S
            await self._store.still_there(jobs, self._clock.now())
        if now_s >= self._prune_at_s:
            self._prune_at_s = now_s + _PRUNE_EVERY_S
            if await self._store.prune(self._proposer.policy.keep, self._clock.now()):
                self._prune_at_s = now_s + _PRUNE_AGAIN_S

    async def _verify(self, plans: list[tuple[Incident, Plan]]) -> None:
        seen = await self._verifier.look(plans)
        for incident, plan in plans:
            what = seen[plan.id]
            if what.outcome is Outcome.WAIT and what.text == plan.waiting:
                continue
            await self._proposer.decide(incident.id, _judge(plan.id, what))

    async def _guarded(self, step: Callable[[], Awaitable[None]]) -> None:
        """A database that is away, or a lease that has moved on, ends a step and not the service."""
        try:
            await step()
            self._state.report("store", "answers", "store answers", level="debug")
        except (StoreUnavailable, NotLeading) as error:
            self._state.report("store", "away", "cannot decide now", level="warning", error=str(error))
            await self._until_stopped(self._clock.sleep(0.5))

    async def _until_stopped(self, waiting: Awaitable[object]) -> bool:
        """Wait for `waiting` or for the end of the service; returns whether `waiting` came to its end."""
        stop = asyncio.ensure_future(self._stopping.wait())
        work = asyncio.ensure_future(waiting)
        try:
            await asyncio.wait([stop, work], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
                return True
            return False
        finally:
            stop.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait([work])


def _judge(plan: str, seen: Seen) -> Decide:
    return lambda incident, ctx: judged(incident, plan, seen, ctx)
