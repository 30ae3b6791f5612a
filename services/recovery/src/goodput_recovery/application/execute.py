"""Carrying out a plan that is in `executing`, so that any line may be the last one before a crash.

    ask the ranks (dump, pause)   ->  observe: in place already?  ->  release: recorded and announced, one transaction
    -> act  ->  verify: in place?  ->  ask the ranks (resume)     ->  verifying or failed, one transaction

The fencing token was stored with the plan before the first of these lines. After a crash the same plan comes again with
the same token and walks through all of it: commands have the same ids, the record and its announcement are made once, and
actuators are idempotent by plan id. So the order of the world is: recorded, then announced and done, then verified.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from goodput_common.contracts.recovery import AgentCommandKind
from goodput_common.runtime.clock import Clock
from goodput_common.runtime.logs import get_logger
from goodput_common.runtime.tasks import Tasks
from goodput_recovery.application.measure import Measures
from goodput_recovery.application.ports import (
    Actuator,
    Asked,
    Commander,
    Fenced,
    NotLeading,
    Outcome,
    Store,
    StoreUnavailable,
    Unit,
)
from goodput_recovery.application.propose import Proposer
from goodput_recovery.application.verify import Ranks
from goodput_recovery.domain.gate import Context
from goodput_recovery.domain.incident import acted
from goodput_recovery.domain.ladder import LADDER
from goodput_recovery.domain.plan import Plan

AT_ONCE = 32
DUMPS_MAX = 64  # ranks asked for a dump; evenly spread when the job is larger
_log = get_logger(__name__)


class Executor:
    """`ensure` is called again and again with the plans that are executing; each is in hand at most once."""

    def __init__(
        self,
        store: Store,
        proposer: Proposer,
        actuator: Actuator,
        commander: Commander,
        ranks: Ranks,
        clock: Clock,
        tasks: Tasks,
        measures: Measures,
        *,
        evidence_within_s: float = 1.5,
        act_within_s: float = 60.0,
        attempts_max: int = 5,
    ) -> None:
        self._store, self._proposer, self._actuator, self._commander = store, proposer, actuator, commander
        self._ranks, self._clock, self._tasks, self._measures = ranks, clock, tasks, measures
        self._evidence_within_s, self._act_within_s, self._attempts_max = evidence_within_s, act_within_s, attempts_max
        self._in_hand: dict[str, asyncio.Task[None]] = {}

    def ensure(self, plans: Sequence[Plan]) -> None:
        """Start what is not yet in hand; at `AT_ONCE` the rest waits for the next call."""
        for plan in plans:
            if plan.id in self._in_hand or len(self._in_hand) >= AT_ONCE:
                continue
            self._in_hand[plan.id] = self._tasks.spawn(f"execute {plan.id}", self._run(plan))

    async def drain(self, *, within_s: float) -> None:
        """Let what is in hand finish; what does not is cancelled and comes again after the next start."""
        running = list(self._in_hand.values())
        if running:
            await asyncio.wait(running, timeout=within_s)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def _run(self, plan: Plan) -> None:
        try:
            await self.carry_out(plan)
        except (StoreUnavailable, NotLeading) as error:
            _log.warning("execution interrupted, it comes again", plan=plan.id, reason=str(error))
            await self._clock.sleep(0.5)
        finally:
            self._in_hand.pop(plan.id, None)

    async def carry_out(self, plan: Plan) -> None:
        """Walk through all stages once. Raises StoreUnavailable or NotLeading when it must come again."""
        rung = LADDER[plan.action]
        for kind in rung.prepare:
            await self._ask(plan, kind)
        try:
            outcome = await self._act(plan)
        except Fenced as error:
            outcome = Outcome(False, f"not carried out: {error}")
        if rung.release:
            await self._release_ranks(plan)

        async def finish(unit: Unit, ctx: Context) -> None:
            await unit.finish(plan.id, done=outcome.done, result=outcome.text, at=ctx.now)

        await self._proposer.decide(
            plan.incident,
            lambda incident, ctx: acted(incident, plan.id, done=outcome.done, result=outcome.text, ctx=ctx),
            before_save=finish,
        )

    async def _act(self, plan: Plan) -> Outcome:
        """Observe, record, act, verify. An actuator that raises is asked again, a bounded number of times."""
        last = ""
        for attempt in range(self._attempts_max):
            try:
                async with asyncio.timeout(self._act_within_s):
                    before = await self._actuator.observe(plan)
                    async with self._store.transaction() as unit:
                        if await unit.release(plan, self._clock.now()):
                            _log.info("action released", plan=plan.id, action=str(plan.action), token=plan.fencing_token)
                    outcome = Outcome(True, before.text) if before.applied else await self._actuator.act(plan)
                    if not outcome.done:
                        return outcome
                    after = await self._actuator.verify(plan)
                    if after.applied is False:
                        return Outcome(False, f"{outcome.text}, but {after.text}")
                    return outcome
            except (StoreUnavailable, NotLeading, Fenced):
                raise
            except Exception as error:  # noqa: BLE001 - whatever an actuator raises means "not known": ask again
                last = repr(error)
                _log.warning("actuator failed", plan=plan.id, actuator=self._actuator.name, attempt=attempt + 1, error=last)
                await self._clock.sleep(min(10.0, 0.5 * 2**attempt))
        return Outcome(False, f"actuator {self._actuator.name} failed {self._attempts_max} times, last with {last}")

    async def _ask(self, plan: Plan, kind: AgentCommandKind) -> None:
        """Ask the ranks that concern this command; whatever they answer, or do not, is kept and stops nothing."""
        ranks = await self._ranks_for(plan, kind)
        if not ranks:
            return
        known = {each.rank for each in await self._store.asked(plan.id) if each.kind is kind and each.took}
        missing = [rank for rank in ranks if rank not in known]
        await self._keep(await self._commander.ask(plan, kind, missing, within_s=self._evidence_within_s))

    async def _ranks_for(self, plan: Plan, kind: AgentCommandKind) -> list[int]:
        if plan.job is None:
            return []
        progress = await self._ranks.recall(plan.job)
        everyone = sorted(set(progress.ranks) | set(range(progress.world_size or 0)))
        if kind is AgentCommandKind.PAUSE:
            # Ranks inside a hung collective reach no step boundary: pausing is for jobs that still move.
            return everyone if progress.moving(self._clock.now()) else []
        healthy = [rank for rank in everyone if rank not in plan.culprit_ranks and rank not in progress.left]
        stride = max(1, -(-len(healthy) // DUMPS_MAX))
        return healthy[::stride]

    async def _release_ranks(self, plan: Plan) -> None:
        """Whoever we have paused, and nobody else, may go on."""
        asked = await self._store.asked(plan.id)
        paused = sorted({each.rank for each in asked if each.kind is AgentCommandKind.PAUSE and each.took})
        resumed = {each.rank for each in asked if each.kind is AgentCommandKind.RESUME and each.took}
        if missing := [rank for rank in paused if rank not in resumed]:
            within_s = self._evidence_within_s
            await self._keep(await self._commander.ask(plan, AgentCommandKind.RESUME, missing, within_s=within_s))

    async def _keep(self, asked: Sequence[Asked]) -> None:
        for each in asked:
            self._measures.asked(str(each.kind), str(each.status))
        await self._store.keep_asked(asked)
