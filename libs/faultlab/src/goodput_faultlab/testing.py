"""Small simulated runs, and what to pick out of them, for tests."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, TypeVar

from goodput_common.contracts.recovery import PlanState, RecoveryUpdate
from goodput_common.contracts.telemetry import Event, TelemetryBatch
from goodput_common.contracts.verdict import ActionKind, FaultClass
from goodput_faultlab.simulate import FaultSpec, NoiseSpec, Outgoing, Simulation, SimulationSpec, TransportSpec, scenario
from goodput_topology.generate import h100_pod

HOSTS: dict[str, Any] = {"hosts": 4, "spares": 1, "others": 1}
T = TypeVar("T")


def simulated(name: str, seconds: float = 35.0, seed: int = 1) -> tuple[Simulation, list[Outgoing]]:
    """A scenario on four hosts after so long, and all that was said."""
    simulation = Simulation(scenario(name, **HOSTS), seed)
    return simulation, simulation.advance(simulation.spec.start + timedelta(seconds=seconds))


def structs(out: Iterable[Outgoing], kind: type[T]) -> list[T]:
    return [each.struct for each in out if isinstance(each.struct, kind)]


def events(out: Iterable[Outgoing]) -> list[Event]:
    return [sample for batch in structs(out, TelemetryBatch) for sample in batch.samples if isinstance(sample, Event)]


def an_update(
    simulation: Simulation, kind: ActionKind, target: str | None, plan: str = "p", **more: object
) -> RecoveryUpdate:
    """As recovery announces that it carries out a plan."""
    given: dict[str, Any] = {
        "plan": plan,
        "fabric": simulation.spec.fabric.name,
        "job": simulation.spec.job,
        "verdict": "v",
        "verdict_version": 1,
        "fault_class": FaultClass.UNDETERMINED,
        "action": kind,
        "target": target,
        "actuator": "test",
        "state": PlanState.EXECUTING,
        "previous": PlanState.APPROVED,
        "reason": "",
        "fencing_token": 1,
        "at": simulation.now,
    }
    return RecoveryUpdate(**(given | more))


def small_job(*faults: FaultSpec, transport: TransportSpec | None = None) -> SimulationSpec:
    """32 ranks on four hosts, with a spare, and no noise."""
    return SimulationSpec(
        fabric=h100_pod(hosts=5),
        hosts=("h0", "h1", "h2", "h3"),
        spares=("h4",),
        step_s=0.4,
        faults=faults,
        noise=NoiseSpec.none(),
        transport=transport or TransportSpec(),
    )
