"""Reports that travel host by host lead to the same culprits as reports that travel one by one.

The moments of reports differ between the two ways (ranks of a host report together), so verdicts are compared by what they
say; that the very same reports give the same verdict is a unit test of the correlator.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from goodput_common.contracts.job import HostProgress
from goodput_correlator.domain.replay import replay
from goodput_faultlab.score import SURE, Outcome, Score, score
from goodput_faultlab.simulate import Simulation, TransportSpec, scenario
from goodput_faultlab.testing import HOSTS

RUN_S = 45.0
NAMES = (
    "rank-killed",
    "rank-frozen",
    "rank-raised",
    "gil-held",
    "dead-link",
    "gpu-off-bus",
    "collective-skipped",
    "host-down-power",
    "straggler-thermal",
    "data-stall",
    "healthy-rough",
)
ROUGH = TransportSpec(lost=0.01, doubled=0.05, late=0.05)
FORWARDER_DIES = TransportSpec(dead_collectors=1, dead_after_s=3.0)


def attributed(name: str, transport: TransportSpec, *, together: bool) -> Score:
    spec = replace(scenario(name, **HOSTS), reports_together=together, transport=transport)
    simulation = Simulation(spec, 1)
    records = list(simulation.records(spec.start + timedelta(seconds=RUN_S)))
    assert any(isinstance(each.data, HostProgress) for each in records) is together
    return score((*simulation.ledger, *simulation.background), replay(records, spec.fabric))


@pytest.mark.parametrize("transport", [TransportSpec(), ROUGH, FORWARDER_DIES], ids=["smooth", "rough", "forwarder-dies"])
@pytest.mark.parametrize("name", NAMES)
def test_the_same_culprit_is_named(name: str, transport: TransportSpec) -> None:
    apart, together = (attributed(name, transport, together=each) for each in (False, True))
    assert all(each.outcome is Outcome.RIGHT for each in together.entries), together.text()
    assert together.wrong_confidence_max <= max(SURE, apart.wrong_confidence_max), together.text()
