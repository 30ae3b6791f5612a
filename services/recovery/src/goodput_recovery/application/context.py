"""Puts together what a decision may know, from the store, the ranks and the configuration."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from goodput_common.contracts.verdict import ActionKind, Verdict
from goodput_common.runtime.clock import Clock
from goodput_recovery.application.ports import Actuator, Control, Reader
from goodput_recovery.application.verify import Ranks
from goodput_recovery.domain.budget import Usage, left, window_s_max
from goodput_recovery.domain.facts import Facts
from goodput_recovery.domain.gate import Context
from goodput_recovery.domain.policy import Policy

_SPARE_BACK_S = 24 * 3600.0  # a spare that was used is counted as used for a day


class Snapshot:
    """A reader that asks once: for previews of many plans in one round. What is decided is read again under the lock."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._usage: Usage | None = None
        self._control: Control | None = None
        self._recovered: dict[tuple[str, str], datetime | None] = {}

    async def usage(self, since: datetime) -> Usage:
        if self._usage is None:
            self._usage = await self._reader.usage(since)
        return self._usage

    async def control(self) -> Control:
        if self._control is None:
            self._control = await self._reader.control()
        return self._control

    async def job_recovered_at(self, job: str, other_than: str) -> datetime | None:
        key = (job, other_than)
        if key not in self._recovered:
            self._recovered[key] = await self._reader.job_recovered_at(job, other_than)
        return self._recovered[key]


class Contexts:
    def __init__(self, policy: Policy, actuator: Actuator, ranks: Ranks, clock: Clock) -> None:
        self.policy, self._actuator, self._ranks, self._clock = policy, actuator, ranks, clock

    def usage_since(self) -> datetime:
        return self._clock.now() - timedelta(seconds=max(window_s_max(self.policy.budget), _SPARE_BACK_S))

    async def of(self, reader: Reader, verdict: Verdict) -> Context:
        """As of now, for the incident of `verdict`."""
        now = self._clock.now()
        usage = await reader.usage(self.usage_since())
        control = await reader.control()
        recovered_at = await reader.job_recovered_at(verdict.job, verdict.incident) if verdict.job else None
        progress = self._ranks.known(verdict.job)
        return Context(
            now=now,
            policy=self.policy,
            facts=self._ranks.facts(self._base(usage, now), verdict.job, now),
            usage=usage,
            token=control.last_token + 1,
            actuator=self._actuator.name,
            paused=control.paused,
            job_recovered_at=recovered_at,
            stall_generation=progress.generation if progress else 0,
            stall_step=progress.step if progress else None,
        )

    def _base(self, usage: Usage, now: datetime) -> Facts:
        spares = self.policy.spare_nodes
        if spares is not None:
            since = now - timedelta(seconds=_SPARE_BACK_S)
            used = sum(each.kind is ActionKind.SWAP_NODE and each.at > since for each in usage.spent)
            spares = max(0, spares - used)
        return Facts(offered=self._actuator.offers, spare_nodes=spares, capacity_left=self.policy.links_redundant)


def inputs_of(ctx: Context, verdict: Verdict) -> dict[str, Any]:
    """What a decision was made from, for the audit log. The verdict itself is kept by id and version."""
    return {
        "now": ctx.now,
        "policy": ctx.policy.digest(),
        "verdict": verdict.id,
        "version": verdict.version,
        "fault_class": verdict.fault_class,
        "culprit": verdict.culprit.component,
        "confidence": verdict.confidence,
        "facts": {
            "world_size": ctx.facts.world_size,
            "moving": ctx.facts.moving,
            "ranks_gone": sorted(ctx.facts.ranks_gone)[:64],
            "finished": ctx.facts.finished,
            "spare_nodes": ctx.facts.spare_nodes,
            "capacity_left": ctx.facts.capacity_left,
            "stall_step": ctx.stall_step,
            "stall_generation": ctx.stall_generation,
        },
        "budget_left": left(ctx.usage, ctx.policy.budget, ctx.now, verdict.job),
        "paused": ctx.paused,
    }
