"""The main promise, on simulated truth: each fault gets its culprit, and healthy runs get nobody blamed.

Every scenario runs over several seeds through the very code that the live service runs (`Incidents`), and the ledger judges.
What is asked for, over all runs of one scenario: the right culprit and class in at least nine of ten, and never anybody else
blamed with a confidence above 0.7, in any version of any verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from goodput_common.bus.ports import Message
from goodput_common.contracts.verdict import FaultClass, Verdict
from goodput_correlator.domain.case import unpack
from goodput_correlator.domain.incidents import Incidents
from goodput_correlator.domain.replay import replay
from goodput_faultlab.score import SURE, Outcome, Score, score
from goodput_faultlab.simulate import SCENARIOS, FaultSpec, NoiseSpec, Simulation, TransportSpec, scenario

SEEDS = range(1, 5)
RUN_S = 40.0
WATERMARK_S = 0.5
LOUD = NoiseSpec(corrected_aer=300, management_flaps=200, application_xids=120, kernel_chatter=600)


def judged(messages: Iterable[Message], incidents: Incidents, until_s: float, simulation: Simulation) -> Iterator[Verdict]:
    """As the live service does: a grid time is judged once everything received by then has been seen."""
    start = simulation.spec.start
    grid = start + timedelta(seconds=1)
    for message in messages:
        while message.received_at > grid + timedelta(seconds=WATERMARK_S):
            yield from incidents.tick(grid)
            grid += timedelta(seconds=1)
        for each in unpack(message):
            incidents.observe(each)
    yield from incidents.tick(start + timedelta(seconds=until_s))


def attribute(simulation: Simulation, seconds: float = RUN_S) -> Score:
    records = simulation.records(simulation.spec.start + timedelta(seconds=seconds))
    verdicts = list(judged(records, Incidents(simulation.spec.fabric), seconds, simulation))
    return score((*simulation.ledger, *simulation.background), verdicts)


FAULTY = [name for name in SCENARIOS if SCENARIOS[name].faults]
HEALTHY = [name for name in SCENARIOS if not SCENARIOS[name].faults]


def assert_promise(total: Score) -> None:
    wrong = [each for each in total.entries if each.outcome is not Outcome.RIGHT]
    assert len(wrong) * 10 <= len(total.entries), total.text()
    assert total.wrong_confidence_max <= SURE, total.text()


@pytest.mark.parametrize("name", FAULTY)
def test_the_culprit_is_named(name: str) -> None:
    total = Score()
    for seed in SEEDS:
        total = total.plus(attribute(Simulation(scenario(name, hosts=4, spares=1, others=2), seed)))
    assert_promise(total)


@pytest.mark.parametrize("name", ["dead-link", "gpu-off-bus", "rank-killed", "gil-held", "collective-skipped", "no-trace"])
def test_the_culprit_is_named_through_loud_noise(name: str) -> None:
    total = Score()
    for seed in SEEDS:
        spec = replace(scenario(name, hosts=4, spares=1, others=2), noise=LOUD)
        total = total.plus(attribute(Simulation(spec, seed)))
    assert_promise(total)


@pytest.mark.parametrize(
    "name",
    [
        "dead-link",
        "gpu-off-bus",
        "nvlink",
        "rank-killed",
        "data-stall",
        "collective-skipped",
    ],
)
def test_the_culprit_is_named_without_the_dumps_of_some_ranks(name: str) -> None:
    total = Score()
    for seed in SEEDS:
        spec = replace(scenario(name, hosts=4, spares=1, others=2), transport=TransportSpec(lost_dumps=6))
        total = total.plus(attribute(Simulation(spec, seed)))
    assert_promise(total)


@pytest.mark.parametrize("name", HEALTHY)
def test_nobody_is_blamed_when_nothing_is_broken(name: str) -> None:
    for seed in SEEDS:
        spec = scenario(name, hosts=4, spares=1, others=2)
        loud = replace(spec, noise=replace(LOUD, checkpoint_every=spec.noise.checkpoint_every))
        assert attribute(Simulation(loud, seed), 90.0).entries == ()


def test_detection_takes_less_than_ten_seconds_in_the_median() -> None:
    total = Score()
    for name in FAULTY:
        total = total.plus(attribute(Simulation(scenario(name, hosts=4, spares=1, others=1), 7)))
    assert total.detect_s_median is not None and total.detect_s_median < 10.0


def test_other_faults_of_the_fabric_before_the_jobs_own_are_not_blamed() -> None:
    """A short outage that healed, then a GPU of another host: each gets its own answer."""
    faults = (
        FaultSpec(fault_class=FaultClass.LINK_FLAP, flavour="blip", at_s=15, host="h1"),
        FaultSpec(fault_class=FaultClass.GPU_OFF_BUS, flavour="xid", at_s=45, host="h3"),
    )
    spec = replace(scenario("healthy", hosts=4, spares=1, others=1), faults=faults)
    result = attribute(Simulation(spec, 3), 70.0)
    gpu = next(each for each in result.entries if each.truth_class is FaultClass.GPU_OFF_BUS)
    assert gpu.outcome is Outcome.RIGHT, result.text()
    assert result.wrong_confidence_max <= SURE


def test_512_ranks_get_their_dead_link_named() -> None:
    result = attribute(Simulation(scenario("dead-link"), 11), 28.0)
    assert result.correct, result.text()


def test_a_replayed_recording_gives_what_the_live_service_gave() -> None:
    simulation = Simulation(scenario("gpu-off-bus", hosts=4, spares=1, others=1), 5)
    records = list(simulation.records(simulation.spec.start + timedelta(seconds=RUN_S)))
    live = list(judged(records, Incidents(simulation.spec.fabric), RUN_S, simulation))
    assert live
    assert replay(records, simulation.spec.fabric) == live


@pytest.mark.parametrize("fresh_hosts", [True, False])
def test_a_fault_of_an_earlier_run_is_not_blamed_for_a_later_one(fresh_hosts: bool) -> None:
    """Twelve runs in seven minutes on four hosts, started anew or with all that broke before. One link breaks twice."""
    names = ("gpu-off-bus", "rank-frozen", "dead-link")
    total = Score()
    runs: list[Simulation] = []
    for seed in range(8, 20):
        spec = scenario(names[seed // 4 - 2], hosts=4, spares=4)
        start = spec.start + timedelta(seconds=35 * len(runs))
        runs.append(Simulation(replace(spec, job=f"run-{seed}", start=start, fresh_hosts=fresh_hosts), seed))
    records = [out for each in runs for out in each.records(each.spec.start + timedelta(seconds=35))]
    verdicts = list(judged(records, Incidents(runs[0].spec.fabric), 35.0 * len(runs), runs[0]))
    for each in runs:
        total = total.plus(score(each.ledger, [verdict for verdict in verdicts if verdict.job == each.spec.job]))
    assert_promise(total)
    assert {entry.outcome for entry in total.entries} == {Outcome.RIGHT}, total.text()
