"""A cascade shows much and has one root; the ledger knows which, and what follows from it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from goodput_common.contracts import ids
from goodput_common.contracts.job import RankExited, RankRegistered
from goodput_common.contracts.telemetry import Counter, EventName, TelemetryBatch
from goodput_common.contracts.verdict import FaultClass
from goodput_faultlab.simulate import CATALOGUE, FaultSpec, Outgoing, Simulation, scenario
from goodput_faultlab.simulate.cascades import CASCADES, cascade_faults
from goodput_faultlab.testing import HOSTS, events, small_job, structs

ENDS_ALL = [name for name, each in CASCADES.items() if each.watchdog_s is not None or "kill" in name or "crash" in name]


def run(kind: str, seconds: float = 75.0, seed: int = 3) -> tuple[Simulation, list[Outgoing]]:
    spec = replace(scenario(f"cascade-{kind.replace('_', '-')}", **HOSTS), noise=small_job().noise)
    simulation = Simulation(spec, seed)
    return simulation, simulation.advance(spec.start + timedelta(seconds=seconds))


def test_there_are_a_dozen_kinds_and_more_each_with_a_scenario() -> None:
    assert len(CASCADES) >= 12
    assert all(f"cascade-{name.replace('_', '-')}" in CATALOGUE for name in CASCADES)


@pytest.mark.parametrize("kind", CASCADES)
def test_the_entry_is_that_of_the_root_and_lists_what_it_explains(kind: str) -> None:
    simulation = Simulation(scenario(f"cascade-{kind.replace('_', '-')}", **HOSTS), 3)
    root, *others = simulation.ledger
    cascade = CASCADES[kind]
    assert (root.fault_class, root.cascade) == (cascade.root, kind)
    assert len(others) == (cascade.with_ is not None)
    named = {root.component, *root.also_right}
    explained = {each.component for each in root.explains}
    assert not explained & named
    if cascade.with_ is None:
        assert explained
    fabric = simulation.spec.fabric
    assert all(each in fabric or each.startswith(("rank:", "nvlink:")) for each in explained)


@pytest.mark.parametrize("kind", CASCADES)
def test_every_alarm_elsewhere_is_explained(kind: str) -> None:
    """With no noise about, whatever is told as an error is the root's own or one of its symptoms."""
    simulation, out = run(kind)
    fabric = simulation.spec.fabric
    known = {(each.component, each.what) for entry in simulation.ledger for each in entry.explains}
    roots = {name for entry in simulation.ledger for name in (entry.component, *entry.also_right)}
    places = {ids.host_of(name) for name in roots if name is not None}
    ranks = {rank for entry in simulation.ledger for rank in entry.ranks}
    for each in events(out):
        component = fabric.canonical(each.component)
        alarming = each.severity in ("error", "fatal") and each.name is not EventName.PROCESS_EXITED
        if alarming and component not in roots and (component, each.name.value) not in known:
            own_rank = component.startswith("rank:") and ids.rank_of(component)[1] in ranks
            assert own_rank or ids.host_of(component) in places, f"{component} {each.name} {each.excerpt}"


@pytest.mark.parametrize("kind", ENDS_ALL)
def test_in_the_end_every_rank_is_gone(kind: str) -> None:
    simulation, out = run(kind)
    gone = {ids.rank_of(each.component)[1] for each in events(out) if each.name is EventName.PROCESS_EXITED}
    down = [entry for entry in simulation.ledger if entry.fault_class is FaultClass.HOST_DOWN]
    silent = {rank for entry in down for rank in entry.ranks}
    assert gone | silent == set(range(32))
    assert simulation.stalled_since is not None


def test_xid_45_comes_from_gpus_all_over_the_job_and_the_root_from_one() -> None:
    simulation, out = run("nvlink_crash")
    xids = [each for each in events(out) if each.name is EventName.XID]
    torn = {simulation.spec.fabric.canonical(each.component) for each in xids if each.attrs["xid"] == "45"}
    root = {simulation.spec.fabric.canonical(each.component) for each in xids if each.attrs["xid"] == "74"}
    assert len({ids.host_of(gpu) for gpu in torn}) == 4 and len(torn) > 16
    assert root == {simulation.ledger[0].component}


def test_a_hung_adapter_loses_its_link_only_afterwards() -> None:
    simulation, out = run("nic_hang_drops_link")
    host = simulation.ledger[0].host
    mine = [each for each in events(out) if f":{host}/" in each.component]
    hangs = min(each.observed_at for each in mine if each.name is EventName.NIC_HANG)
    drops = min(each.observed_at for each in mine if each.name is EventName.LINK_DOWN)
    assert drops > hangs + timedelta(seconds=3)


def test_after_a_contained_error_the_job_starts_again_without_that_host() -> None:
    simulation, out = run("ecc_restart_elsewhere")
    assert simulation.generation == 1 and simulation.stalled_since is None
    assert simulation.ledger[0].host not in simulation.hosts
    again = {each.host for each in structs(out, RankRegistered) if each.generation == 1}
    assert again == set(simulation.hosts)


def test_a_slow_gpu_slows_first_and_times_out_later() -> None:
    simulation, out = run("thermal_timeout")
    began = simulation.ledger[0].injected_at
    assert simulation.idle.slowed_s > 5
    exits = [each.at for each in out if isinstance(each.struct, RankExited)]
    assert min(exits) > began + timedelta(seconds=30)


def test_innocent_hosts_are_paused_by_a_starved_adapter() -> None:
    simulation, out = run("pcie_pauses_fabric", 40.0)
    host = simulation.ledger[0].host
    paused = {
        batch.host
        for batch in structs(out, TelemetryBatch)
        for each in batch.samples
        if isinstance(each, Counter) and each.name == "rx_prio3_pause_duration" and batch.host != host
    }
    assert paused


def test_two_faults_at_once_are_two_entries_on_two_hosts() -> None:
    first, second = Simulation(scenario("cascade-two-at-once", **HOSTS), 3).ledger
    assert first.host != second.host and first.fault_class is not second.fault_class


def test_a_link_that_returned_is_gone_again() -> None:
    simulation, _ = run("link_returns", 45.0)
    assert simulation.stalled_since is None and simulation.idle.seconds > 2
    simulation.advance(simulation.spec.start + timedelta(seconds=75))
    assert simulation.stalled_since is not None


@pytest.mark.parametrize("kind", ["link_kills_all", "oom_kills_all", "pause_storm_timeout"])
def test_a_cascade_is_the_same_for_the_same_seed(kind: str) -> None:
    said = [[msgspec.json.encode((each.id, each.at, each.struct)) for each in run(kind, 40.0)[1]] for _ in range(2)]
    assert said[0] == said[1]


def test_a_cascade_from_another_root_is_refused() -> None:
    fault = replace(cascade_faults("link_kills_all", ("h0", "h1"), at_s=5.0)[0], flavour="blip")
    with pytest.raises(ValueError, match="the root of link_kills_all is link_flap dead, not blip"):
        Simulation(small_job(fault), 1)
    with pytest.raises(ValueError, match="no cascade 'x'; choose among nvlink_crash"):
        Simulation(small_job(FaultSpec(fault_class=FaultClass.LINK_FLAP, cascade="x")), 1)
