"""What NVML tells of simulated GPUs that have failed: nothing of one that does not answer, and what a board remembers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from goodput_common.contracts.telemetry import Sample, Source, State, TelemetryBatch
from goodput_common.contracts.verdict import FaultClass
from goodput_faultlab.simulate import FaultSpec, NoiseSpec, Simulation, SimulationSpec, TransportSpec
from goodput_faultlab.testing import structs
from goodput_topology.generate import h100_pod

FABRIC = h100_pod(hosts=2, pods=2, spines=3)
FAULT_S, ANSWERED_S = 20.0, 14.0  # when it begins, and until when a driver may have seemed to answer


def told(fault: FaultSpec) -> tuple[Simulation, list[tuple[float, Sample]]]:
    """What NVML tells in a minute, and when."""
    spec = SimulationSpec(
        fabric=FABRIC,
        hosts=FABRIC.hosts(),
        step_s=0.4,
        faults=(fault,),
        noise=replace(NoiseSpec.none(), counters=True),
        transport=TransportSpec(delay_s_max=0.01, clock_offset_s_max=0.0),
    )
    simulation = Simulation(spec, 3)
    batches = structs(simulation.advance(spec.start + timedelta(seconds=65)), TelemetryBatch)
    return simulation, [
        ((each.observed_at - spec.start).total_seconds(), each)
        for batch in batches
        if batch.source is Source.NVML
        for each in batch.samples
    ]


def of(simulation: Simulation, component: str) -> bool:
    return simulation.spec.fabric.canonical(component) == simulation.ledger[0].component


@pytest.mark.parametrize(("severity", "presence"), [(0.9, "lost"), (0.2, "unreadable")])
@pytest.mark.parametrize("flavour", ["xid", "no_xid", "raises"])
def test_of_a_gpu_that_is_off_the_bus_nothing_is_measured(flavour: str, severity: float, presence: str) -> None:
    fault = FaultSpec(fault_class=FaultClass.GPU_OFF_BUS, flavour=flavour, at_s=FAULT_S, severity=severity)
    simulation, samples = told(fault)
    mine = [(at_s, each) for at_s, each in samples if of(simulation, each.component)]
    assert any(at_s < FAULT_S for at_s, _ in mine)
    after = [each for at_s, each in mine if at_s > FAULT_S + ANSWERED_S]
    assert all(isinstance(each, State) and (each.name, each.value) == ("gpu", presence) for each in after)
    said = [each for _, each in mine if isinstance(each, State) and each.name == "gpu"]
    assert said[-1].value == presence
    others = {each.component for at_s, each in samples if at_s > FAULT_S + ANSWERED_S}
    assert len(others) > 8  # everybody else's go on


@pytest.mark.parametrize("severity", [0.0, 0.9])
def test_a_board_remembers_a_row_that_it_could_not_put_out_of_use(severity: float) -> None:
    fault = FaultSpec(fault_class=FaultClass.GPU_MEMORY, flavour="64", at_s=FAULT_S, severity=severity)
    simulation, samples = told(fault)
    rows = [each for _, each in samples if isinstance(each, State) and each.name == "row_remap"]
    assert [each.value for each in rows if of(simulation, each.component)][-1] == "failed"
