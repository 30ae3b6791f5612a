"""What recovery does because of a verdict never changes what the verdict says.

The launcher ends every rank of the job soon after a culprit has been named, and the new generation registers only seconds
later. In between the fabric is full of dead processes, and none of them is why the job stood still.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest

from goodput_common.bus.ports import Message
from goodput_common.contracts import ids
from goodput_common.contracts.job import FlightRecorderDump, RankProgress, RankRegistered, StallSuspected
from goodput_common.contracts.telemetry import Event, EventName, Severity, TelemetryBatch
from goodput_common.contracts.verdict import Verdict, VerdictState
from goodput_correlator.domain.case import Observed, unpack
from goodput_correlator.domain.incidents import Incidents
from goodput_faultlab.simulate import RecoverySpec, Simulation, scenario
from goodput_faultlab.testing import an_update

SEEDS = range(1, 4)
RUN_S = 50.0
DECIDES_S = 0.4  # from a verdict to the kill
COMES_BACK_S = 5.0  # from the kill to the first registration of the new generation
ACTED_ON = 0.5
TOLD_S_MAX = 0.9  # until the broker hears of a death: the collector looks twice a second and waits a little for more
SPEECH = (RankProgress, StallSuspected, FlightRecorderDump)


@dataclass
class Restarts:
    """The broker's log of a run whose launcher restarts the job once a culprit is named."""

    simulation: Simulation
    rng: random.Random
    incidents: Incidents = field(init=False)
    verdicts: list[Verdict] = field(default_factory=list)
    killed_at: datetime | None = None
    _places: dict[int, RankRegistered] = field(default_factory=dict)
    _lag: dict[str, timedelta] = field(default_factory=dict)  # of a host: broker's time less its own

    def __post_init__(self) -> None:
        self.incidents = Incidents(self.simulation.spec.fabric)

    def run(self) -> list[Verdict]:
        start = self.simulation.spec.start
        grid = start + timedelta(seconds=1)
        for message in self.simulation.records(start + timedelta(seconds=RUN_S)):
            while message.received_at > grid + timedelta(seconds=0.5):
                self._judge(grid)
                grid += timedelta(seconds=1)
            for each in self._heard(message):
                self.incidents.observe(each)
        self._judge(start + timedelta(seconds=RUN_S))
        return self.verdicts

    def _heard(self, message: Message) -> Iterator[Observed]:
        data = message.data
        if isinstance(data, RankRegistered) and data.generation == 0:
            self._places[data.rank] = data
        if isinstance(data, RankProgress):
            lag = message.received_at - data.at
            self._lag[data.host] = min(self._lag.get(data.host, lag), lag)
        dead = self.killed_at is not None and message.received_at > self.killed_at
        if dead and isinstance(data, SPEECH) and data.generation == 0:
            return
        for each in unpack(message):
            told_of_rank = dead and isinstance(data, TelemetryBatch) and each.source == "process"
            if not (told_of_rank and getattr(each.fact, "attrs", {}).get("generation") == "0"):
                yield each

    def _judge(self, grid: datetime) -> None:
        new = self.incidents.tick(grid)
        self.verdicts += new
        named = next((v for v in new if v.culprits and v.job and v.confidence >= ACTED_ON), None)
        if named is not None and self.killed_at is None:
            self._restart(named)

    def _restart(self, verdict: Verdict) -> None:
        self.killed_at = max(self.simulation.now, verdict.published_at + timedelta(seconds=DECIDES_S))
        for place in self._places.values():
            died_at = self.killed_at + timedelta(seconds=self.rng.uniform(0.0, 0.6))
            fact = Event(
                component=ids.rank_id(place.job, place.rank),
                name=EventName.PROCESS_EXITED,
                observed_at=died_at - self._lag[place.host],
                severity=Severity.ERROR,
                excerpt=f"rank {place.rank} of {place.job}: pid {place.pid} is gone",
                attrs={"pid": str(place.pid), "host": place.host, "generation": "0", "clean": "false"},
            )
            told_at = died_at + timedelta(seconds=self.rng.uniform(0.05, TOLD_S_MAX))
            self.incidents.observe(Observed(f"killed/{place.rank}", place.host, "process", fact.observed_at, told_at, fact))
        self.simulation.react(an_update(self.simulation, verdict.action.kind, verdict.action.target))


@pytest.mark.parametrize("name", ["gil-held", "rank-frozen", "gpu-off-bus", "collective-skipped", "dead-link"])
def test_ranks_that_recovery_ends_change_no_verdict(name: str) -> None:
    takes = RecoverySpec(**dict.fromkeys(RecoverySpec.__dataclass_fields__, COMES_BACK_S))
    for seed in SEEDS:
        simulation = Simulation(replace(scenario(name, hosts=4, spares=1, others=1), recovery=takes), seed)
        restarts = Restarts(simulation, random.Random(seed))
        mine = [v for v in restarts.run() if v.job == simulation.spec.job]
        truth = simulation.ledger[0]
        assert restarts.killed_at is not None
        blamed = {(v.fault_class, c.component) for v in mine for c in v.culprits}
        assert {each[0] for each in blamed} == {truth.fault_class}, [(v.version, v.fault_class, v.confidence) for v in mine]
        assert {each[1] for each in blamed} <= {truth.component, *truth.also_right}
        assert mine[-1].state is VerdictState.RESOLVED, "steps move again in the new generation"
