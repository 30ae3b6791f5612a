"""The simulated launcher: carries out what recovery has decided, and knows what that helps against.

An action helps only where it removes the cause: moving the ranks off the host that has the broken part, giving a dead
rank a new process, making new connections once the link is back. Anything else costs its time and leaves the job as it
was, as in life.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.verdict import ActionKind, FaultClass
from goodput_faultlab.simulate.clockwork import Clockwork
from goodput_faultlab.simulate.faults.model import MOVES_AWAY, RESTARTS_PROCESSES, Fault
from goodput_faultlab.simulate.spec import SimulationSpec
from goodput_faultlab.simulate.training import Training

_NEW_CONNECTIONS = RESTARTS_PROCESSES | {ActionKind.REINIT_COMMUNICATORS, ActionKind.RESTART_RANK}
_STAYS_WITH_HOST = frozenset({FaultClass.GPU_OFF_BUS, FaultClass.GPU_MEMORY, FaultClass.NVLINK, FaultClass.LINK_FLAP})


@dataclass(frozen=True, slots=True)
class Reaction:
    """What the launcher does about an action: when it is done, and whether steps will move again after it."""

    at: datetime
    cures: bool
    what: str


class Launcher:
    """`cleared(n)` is called for each fault that an action has removed."""

    def __init__(
        self,
        spec: SimulationSpec,
        clockwork: Clockwork,
        training: Training,
        faults: Sequence[Fault],
        cleared: Callable[[int], None],
    ) -> None:
        self._spec = spec
        self._clockwork = clockwork
        self._training = training
        self._faults = faults
        self._cleared = cleared
        self._spares = list(spec.spares)

    @property
    def _active(self) -> list[Fault]:
        return [fault for fault in self._faults if fault.active]

    def react(self, kind: ActionKind, target: ComponentId | None) -> Reaction | None:
        takes = self._spec.recovery
        after_s = {
            ActionKind.REINIT_COMMUNICATORS: takes.reinit_s,
            ActionKind.EXCLUDE_NIC: takes.reinit_s,
            ActionKind.ISOLATE_LINK: takes.reinit_s,
            ActionKind.RESTART_RANK: takes.restart_rank_s,
            ActionKind.RESTART_JOB: takes.restart_job_s,
            ActionKind.RESET_GPU: takes.restart_job_s,
            ActionKind.SWAP_NODE: takes.swap_node_s,
            ActionKind.DRAIN_AND_RESUME: takes.drain_s,
            ActionKind.CORDON_AT_CHECKPOINT: takes.drain_s,
        }.get(kind)
        if after_s is None:  # observe, hand to a person
            return None
        at = self._clockwork.now + timedelta(seconds=after_s)
        uncured = [fault for fault in self._active if not self._cures(kind, target, fault, at)]
        self._clockwork.at(at, lambda: self.carry_out(kind, target))
        named = f"{kind.value} {target or ''}".strip()
        if uncured:
            why = "; there is no spare host left" if kind in MOVES_AWAY and not self._spares else ""
            return Reaction(at, False, f"{named}: {', '.join(fault.note for fault in uncured)} remains{why}")
        return Reaction(at, True, f"{named}: steps resume")

    def _cures(self, kind: ActionKind, target: ComponentId | None, fault: Fault, at: datetime) -> bool:
        """Whether `fault` no longer stands in the way once the action is done."""
        if kind in MOVES_AWAY and not self._spares and fault.host is not None and fault.fault_class in _STAYS_WITH_HOST:
            return False
        if fault.outages and kind in _NEW_CONNECTIONS:
            since = (at - self._spec.start).total_seconds() - fault.spec.at_s
            if all(up <= since for _, up in fault.outages):
                return True  # the link is back for good: new connections are all it takes
        return fault.cured_by(kind, target)

    def carry_out(self, kind: ActionKind, target: ComponentId | None) -> None:
        """Do it now: what it cures is gone, and the job starts anew where that takes it."""
        training = self._training
        for number, fault in enumerate(self._faults):
            if fault.active and self._cures(kind, target, fault, self._clockwork.now):
                fault.active = False
                self._cleared(number)
        new_processes = kind in RESTARTS_PROCESSES or kind in (ActionKind.RESET_GPU, ActionKind.CORDON_AT_CHECKPOINT)
        if kind is ActionKind.RESTART_RANK and not self._active:
            new_processes = True
        if not new_processes and (any(fault.stands_in_the_way for fault in self._active) or training.gone):
            return  # communicators cannot be made while somebody is missing: the job stands as before
        hosts = training.layout.hosts
        if kind in MOVES_AWAY and self._spares:
            hosts = self._with_spare(hosts, target)
        checkpoint = kind in (ActionKind.RESTART_JOB, ActionKind.DRAIN_AND_RESUME, ActionKind.RESET_GPU)
        training.restart(hosts, new_processes=new_processes, from_memory=not checkpoint)
        for fault in self._active:
            training.silent |= fault.silent

    def _with_spare(self, hosts: tuple[str, ...], target: ComponentId | None) -> tuple[str, ...]:
        """The hosts with the target's one replaced by a spare; as they are when the target is on none of them."""
        if target is None:
            return hosts
        out = self._spec.fabric.hosts_behind(target)
        if target.startswith("rank:"):
            out = (self._training.layout.places[ids.rank_of(target)[1]].host,)
        leaving = next((host for host in out if host in hosts), None) if len(out) == 1 else None
        if leaving is None:
            return hosts
        return tuple(self._spares.pop(0) if host == leaving else host for host in hosts)
