"""The dry-run actuator: touches nothing itself.

The deed is recorded and announced before any actuator is called (`RecoveryUpdate` in state `executing`), and the record
holds one row a plan. That announcement is all that this actuator relies on: a job's launcher listens to it and carries out
what concerns its job, and an operator can see what *would* have been done on a cluster that is only being watched.
"""

from __future__ import annotations

from goodput_common.contracts.verdict import ActionKind
from goodput_recovery.application.ports import Observation, Outcome, Store
from goodput_recovery.domain.plan import Plan

NAME = "dry_run"
# What a launcher can do for its own job. Links, NICs and single GPUs need an actuator that reaches them.
JOB_LEVEL = frozenset(
    {
        ActionKind.REINIT_COMMUNICATORS,
        ActionKind.RESTART_RANK,
        ActionKind.SWAP_NODE,
        ActionKind.CORDON_AT_CHECKPOINT,
        ActionKind.DRAIN_AND_RESUME,
        ActionKind.RESTART_JOB,
    }
)


class DryRun:
    def __init__(self, store: Store, offers: frozenset[ActionKind] = JOB_LEVEL) -> None:
        self._store, self._offers = store, offers

    @property
    def name(self) -> str:
        return NAME

    @property
    def offers(self) -> frozenset[ActionKind]:
        return self._offers

    async def observe(self, plan: Plan) -> Observation:
        deed = await self._store.deed(plan.id)
        if deed is not None and deed.done is not None:
            return Observation(deed.done, deed.result)
        return Observation(None, "a dry run cannot see whether the launcher has acted")

    async def act(self, plan: Plan) -> Outcome:
        deed = await self._store.deed(plan.id)
        if deed is None:
            return Outcome(False, "the action was not recorded, so it was not announced")
        return Outcome(
            True, f"recorded and announced at {deed.at.isoformat(timespec='milliseconds')}; the launcher carries it out"
        )

    async def verify(self, plan: Plan) -> Observation:
        deed = await self._store.deed(plan.id)
        if deed is None or deed.fencing_token != plan.fencing_token:
            return Observation(False, "the record of the action is missing")
        return Observation(None, "announced")
