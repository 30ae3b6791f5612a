"""What a person may do: approve, veto, pause, resume. Works on any replica: it only changes what is stored, and the leader
sees it at its next look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from goodput_common.runtime.clock import Clock
from goodput_recovery.application.context import Contexts, inputs_of
from goodput_recovery.application.ports import Control, Store
from goodput_recovery.application.propose import Proposer
from goodput_recovery.domain.gate import Context
from goodput_recovery.domain.incident import Decision, Incident, approve, veto
from goodput_recovery.domain.plan import Plan

Act = Callable[[Incident, str, str, str, Context], Decision]


class UnknownPlan(KeyError):
    """There is no such plan here."""


class Operator:
    def __init__(self, store: Store, contexts: Contexts, proposer: Proposer, clock: Clock) -> None:
        self._store, self._contexts, self._proposer, self._clock = store, contexts, proposer, clock

    async def approve(self, plan: str, who: str, why: str) -> Plan:
        """Raises UnknownPlan, IllegalTransition, StoreUnavailable."""
        return await self._do(approve, plan, who, why)

    async def veto(self, plan: str, who: str, why: str) -> Plan:
        """Raises UnknownPlan, IllegalTransition, StoreUnavailable."""
        return await self._do(veto, plan, who, why)

    async def pause(self, who: str, why: str, *, paused: bool) -> Control:
        """Stop or allow new executions on the fabric; what is under way is finished and verified."""
        async with self._store.transaction(leading=False) as unit:
            return await unit.set_paused(who, why, self._clock.now(), paused=paused)

    async def _do(self, act: Act, plan: str, who: str, why: str) -> Plan:
        async with self._store.transaction(leading=False) as unit:
            incident = await unit.incident_of_plan(plan)
            if incident is None:
                raise UnknownPlan(plan)
            ctx = await self._contexts.of(unit, incident.verdict)
            decision = act(incident, plan, who, why, ctx)
            if decision.events:
                inputs: dict[str, Any] = inputs_of(ctx, incident.verdict) | {"who": who, "why": why}
                await unit.save(decision, inputs, ctx.now)
        self._proposer.tell(decision)
        return decision.incident.plan(plan)
