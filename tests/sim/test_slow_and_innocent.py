"""Simulated jobs that are slow, starve for storage, or fail by their own doing: the component that carries the reason is
named, or nobody.

Each flavour runs as marginal as it gets and blatant, through the code that the live service runs. Nobody else may be blamed
with a confidence above 0.7, in any version of any verdict.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from goodput_common.bus.ports import Message
from goodput_common.contracts.verdict import FaultClass, Trouble, Verdict
from goodput_correlator.domain.case import unpack
from goodput_correlator.domain.incidents import Incidents
from goodput_faultlab.score import SURE, Outcome, score
from goodput_faultlab.simulate import FaultSpec, Simulation, TransportSpec, scenario
from goodput_faultlab.simulate.faults import MAKERS

FAULT_AT_S = 65.0  # what is usual for the job and for each of its ranks has to be known by then
WATERMARK_S = 0.5
SLOW = FaultClass.STRAGGLER
CLASSES = (SLOW, FaultClass.PCIE, FaultClass.STORAGE_STALL, FaultClass.NO_HARDWARE_FAULT)
FLAVOURS = [(each, flavour) for each in CLASSES for flavour in sorted(MAKERS[each])]


def verdicts(simulation: Simulation, until_s: float) -> list[Verdict]:
    return list(_judged(simulation, until_s))


def _judged(simulation: Simulation, until_s: float) -> Iterator[Verdict]:
    incidents, start = Incidents(simulation.spec.fabric), simulation.spec.start
    grid = start + timedelta(seconds=1)
    message: Message
    for message in simulation.records(start + timedelta(seconds=until_s)):
        while message.received_at > grid + timedelta(seconds=WATERMARK_S):
            yield from incidents.tick(grid)
            grid += timedelta(seconds=1)
        for each in unpack(message):
            incidents.observe(each)
    yield from incidents.tick(start + timedelta(seconds=until_s))


def simulated(
    fault_class: FaultClass, flavour: str, severity: float, seed: int, transport: TransportSpec | None = None
) -> Simulation:
    fault = FaultSpec(fault_class=fault_class, flavour=flavour, severity=severity, at_s=FAULT_AT_S)
    spec = replace(scenario("healthy", hosts=4, spares=1, others=2), faults=(fault,))
    return Simulation(replace(spec, transport=transport) if transport is not None else spec, seed)


@pytest.mark.parametrize(("fault_class", "flavour"), FLAVOURS, ids=[f"{c.value}-{f}" for c, f in FLAVOURS])
@pytest.mark.parametrize(("severity", "seed"), [(0.0, 1), (1.0, 2)])
def test_the_component_that_carries_the_reason_is_named(
    fault_class: FaultClass, flavour: str, severity: float, seed: int
) -> None:
    simulation = simulated(fault_class, flavour, severity, seed)
    said = verdicts(simulation, FAULT_AT_S + 45.0)
    result = score((*simulation.ledger, *simulation.background), said)
    assert [each.outcome for each in result.entries] == [Outcome.RIGHT], result.text()
    assert result.wrong_confidence_max <= SURE, result.text()
    if said and fault_class is SLOW:
        assert {verdict.trouble for verdict in said if verdict.job is not None} == {Trouble.SLOW}


@pytest.mark.parametrize("flavour", ["nan_loss", "xid_13", "store_timeout"])
def test_it_is_said_when_it_is_the_application(flavour: str) -> None:
    said = verdicts(simulated(FaultClass.NO_HARDWARE_FAULT, flavour, 1.0, 1), FAULT_AT_S + 20.0)
    mine = [verdict for verdict in said if verdict.job is not None]
    assert mine and mine[-1].fault_class is FaultClass.NO_HARDWARE_FAULT
    assert not any(verdict.culprits for verdict in mine)


@pytest.mark.parametrize("flavour", ["thermal", "slow_host_cpu", "slow_data", "slow_nic_rate"])
def test_stragglers_are_found_through_lost_and_late_messages(flavour: str) -> None:
    rough = TransportSpec(lost=0.1, doubled=0.05, late=0.1)
    simulation = simulated(SLOW, flavour, 0.7, 3, rough)
    result = score((*simulation.ledger, *simulation.background), verdicts(simulation, FAULT_AT_S + 60.0))
    assert [each.outcome for each in result.entries] == [Outcome.RIGHT], result.text()


def test_the_same_run_gives_the_same_verdicts() -> None:
    runs = [verdicts(simulated(SLOW, "thermal", 0.5, 4), FAULT_AT_S + 45.0) for _ in range(2)]
    assert runs[0] and runs[0] == runs[1]
