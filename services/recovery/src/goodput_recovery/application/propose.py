"""From verdicts to plans, and plans up to the point of execution.

Each thing that happens to an incident is one transaction: take the fabric's lock, load the incident, ask the domain, store
what it says. A message is marked as handled in the same transaction, so it is handled once however often it is delivered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from goodput_common.bus.errors import Reject, Retry
from goodput_common.bus.ports import Message
from goodput_common.contracts.verdict import Verdict
from goodput_common.runtime.clock import Clock
from goodput_common.runtime.logs import get_logger
from goodput_recovery.application.context import Contexts, inputs_of
from goodput_recovery.application.measure import Measures
from goodput_recovery.application.ports import NotLeading, Reader, Store, StoreUnavailable
from goodput_recovery.application.verify import Ranks
from goodput_recovery.domain.gate import Context
from goodput_recovery.domain.incident import Decision, Incident, Moved, heard, ticked
from goodput_recovery.domain.policy import Policy

CONSUMER = "verdicts"

_log = get_logger(__name__)
Decide = Callable[[Incident, Context], Decision]


class Proposer:
    """`handle` takes verdicts from the bus, `advance` lets time act on an open incident, `decide` is how both do it."""

    def __init__(
        self, store: Store, contexts: Contexts, ranks: Ranks, clock: Clock, measures: Measures, *, fabric: str
    ) -> None:
        self._store, self._contexts, self._ranks, self._clock = store, contexts, ranks, clock
        self._fabric, self._measures = fabric, measures

    @property
    def policy(self) -> Policy:
        """By which it decides."""
        return self._contexts.policy

    async def handle(self, message: Message) -> None:
        """A message of the VERDICT stream."""
        verdict = message.data
        if not isinstance(verdict, Verdict):
            raise Reject(f"{type(verdict).__name__} is no verdict")
        if verdict.fabric != self._fabric:
            raise Reject(f"verdict {verdict.id} is of fabric {verdict.fabric}, this service acts for {self._fabric}")
        try:
            if verdict.job is not None:
                await self._ranks.recall(verdict.job)
            async with self._store.transaction() as unit:
                if not await unit.first_time(CONSUMER, message.id):
                    return
                now = self._clock.now()
                await unit.keep_verdict(verdict, now)
                incident = await unit.incident(verdict.incident)
                ctx = await self._contexts.of(unit, verdict)
                decision = heard(incident, verdict, ctx)
                await unit.save(decision, inputs_of(ctx, verdict), now)
        except (StoreUnavailable, NotLeading) as error:
            raise Retry(str(error), delay_s=1.0) from error
        self.tell(decision)

    async def advance(self, incident: Incident, reader: Reader | None = None) -> None:
        """Let the gate look at an incident; the lock is taken only if something would change."""
        ctx = await self._contexts.of(reader or self._store, incident.verdict)
        preview = ticked(incident, ctx)
        if preview.events or preview.incident != incident:
            await self.decide(incident.id, ticked)

    async def decide(self, incident_id: str, decide: Decide, *, before_save: Any = None) -> Decision:
        """Run one domain function on an incident under the lock. `before_save` may write more in the same transaction."""
        async with self._store.transaction() as unit:
            incident = await unit.incident(incident_id)
            if incident is None:
                raise KeyError(incident_id)
            ctx = await self._contexts.of(unit, incident.verdict)
            decision = decide(incident, ctx)
            if before_save is not None:
                await before_save(unit, ctx)
            if decision.events or decision.incident != incident:
                await unit.save(decision, inputs_of(ctx, decision.incident.verdict), ctx.now)
        self.tell(decision)
        return decision

    def tell(self, decision: Decision) -> None:
        """Log and count what was decided, once it is stored."""
        for event in decision.events:
            if isinstance(event, Moved):
                plan = event.plan
                self._measures.moved(plan, decision.incident.verdict)
                _log.info(
                    "plan",
                    plan=plan.id,
                    state=str(plan.state),
                    was=str(event.previous) if event.previous else "",
                    action=str(plan.action),
                    target=plan.target,
                    job=plan.job,
                    reason=plan.reason,
                )
