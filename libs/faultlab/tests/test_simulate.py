"""A simulated run is a function of specification and seed, and healthy where nothing was broken."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
import pytest

from goodput_faultlab.simulate import SCENARIOS, Simulation, SimulationSpec, scenario
from goodput_faultlab.simulate.scenarios import UnknownScenario
from goodput_faultlab.testing import HOSTS, simulated
from goodput_topology.generate import h100_pod


def digest(name: str, seed: int) -> str:
    simulation = Simulation(scenario(name, hosts=2, spares=1, others=1), seed)
    found = hashlib.sha256()
    for each in simulation.advance(simulation.spec.start + timedelta(seconds=26)):
        found.update(msgspec.json.encode((each.id, each.at, each.time, each.subject, each.struct)))
    return found.hexdigest()


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_gives_the_same_bytes_for_the_same_seed(name: str) -> None:
    assert digest(name, 3) == digest(name, 3)


def test_another_seed_gives_another_run() -> None:
    assert digest("dead-link", 3) != digest("dead-link", 4)


def test_the_order_of_hashes_does_not_matter() -> None:
    code = (
        "import importlib.util as u\n"
        f"s = u.spec_from_file_location('t', {__file__!r}); m = u.module_from_spec(s); s.loader.exec_module(m)\n"
        "print(m.digest('flapping-link', 3))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": str(n)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for n in (1, 2)
    }
    assert len(digests) == 1


@pytest.mark.parametrize("name", ["healthy", "healthy-checkpoints", "healthy-rough"])
def test_a_healthy_run_never_stalls_and_has_an_empty_ledger(name: str) -> None:
    simulation, _ = simulated(name, 60.0)
    assert simulation.ledger == () and simulation.idle.seconds == 0 and simulation.step > 50


def test_records_are_ordered_numbered_and_complete() -> None:
    name = "dead-link"
    until = scenario(name, **HOSTS).start + timedelta(seconds=25)
    records = list(Simulation(scenario(name, **HOSTS), 5).records(until))
    assert [each.received_at for each in records] == sorted(each.received_at for each in records)
    for stream in {each.stream for each in records}:
        numbers = [each.sequence for each in records if each.stream == stream]
        assert numbers == list(range(1, len(numbers) + 1))
    published = Simulation(scenario(name, **HOSTS), 5).advance(until)
    assert sorted(each.id for each in records) == sorted(each.id for each in published)


def test_another_run_on_the_same_fabric_says_nothing_under_an_id_that_was_used_before() -> None:
    first = scenario("dead-link", hosts=2)
    second = replace(first, start=first.start + timedelta(minutes=1))
    ids = [
        {out.id for out in Simulation(spec, 3).advance(spec.start + timedelta(seconds=15)) if ".telemetry." in out.subject}
        for spec in (first, second)
    ]
    assert ids[0]
    assert not ids[0] & ids[1]


def test_lost_gpu_time_is_told_in_gpu_hours() -> None:
    simulation, _ = simulated("dead-link", 35.0)
    assert str(simulation.idle).startswith("32 GPUs idle for 15.")
    assert simulation.idle.gpu_hours == pytest.approx(32 * simulation.idle.seconds / 3600)


def test_time_does_not_go_back() -> None:
    simulation, _ = simulated("healthy", 5.0)
    at: datetime = simulation.now
    assert simulation.advance(at - timedelta(seconds=3)) == []
    assert simulation.now == at


def test_an_unknown_scenario_names_those_that_there_are() -> None:
    with pytest.raises(UnknownScenario, match=r"no scenario 'x'.*dead-link"):
        scenario("x")


def test_hosts_that_the_fabric_lacks_are_named() -> None:
    with pytest.raises(ValueError, match="has no host h9"):
        SimulationSpec(fabric=h100_pod(hosts=2), hosts=("h0", "h9"))
