"""What a fault leaves behind: its truth in the ledger, and the traces that the real one leaves."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from goodput_common.contracts.job import FlightRecorderDump, RankExited, RankProgress, StallSuspected
from goodput_common.contracts.telemetry import EventName
from goodput_common.contracts.verdict import FaultClass
from goodput_faultlab.simulate import SCENARIOS, FaultSpec, Simulation, scenario
from goodput_faultlab.testing import HOSTS, events, simulated, small_job, structs


@pytest.mark.parametrize("name", [name for name in SCENARIOS if SCENARIOS[name].faults])
def test_a_fault_stops_the_job_and_its_truth_is_in_the_ledger_before_it_happens(name: str) -> None:
    simulation = Simulation(scenario(name, **HOSTS), 2)
    (entry,) = simulation.ledger
    assert entry.injected_at == simulation.spec.start + timedelta(seconds=20)
    assert entry.component is None or entry.component in simulation.spec.fabric or entry.component.startswith("rank:")
    simulation.advance(entry.injected_at - timedelta(seconds=0.1))
    assert simulation.stalled_since is None and simulation.step > 20
    simulation.advance(entry.injected_at + timedelta(seconds=2))
    assert simulation.stalled_since is not None
    assert 0 < simulation.idle.seconds < 3 and simulation.idle.gpus == len(simulation.hosts) * simulation_gpus(simulation)


def simulation_gpus(simulation: Simulation) -> int:
    return len(simulation.spec.fabric.gpus_of_host(simulation.hosts[0]))


def test_a_killed_rank_falls_silent_leaves_no_dump_and_its_end_is_seen_by_the_collector() -> None:
    simulation, out = simulated("rank-killed")
    (victim,) = simulation.ledger[0].ranks
    dumps = {each.rank for each in structs(out, FlightRecorderDump)}
    assert dumps == set(range(32)) - {victim}
    last = max(each.at for each in out if isinstance(each.struct, RankProgress) and each.struct.rank == victim)
    assert last <= simulation.ledger[0].injected_at + timedelta(seconds=0.1)
    exits = [each for each in events(out) if each.name is EventName.PROCESS_EXITED]
    assert [each.component for each in exits] == [f"rank:train-1/{victim}"]
    assert not structs(out, RankExited)


def test_an_exception_is_told_by_the_rank_itself() -> None:
    simulation, out = simulated("rank-raised")
    (exited,) = structs(out, RankExited)
    assert (exited.rank,) == simulation.ledger[0].ranks and not exited.clean and "ValueError" in exited.reason


@pytest.mark.parametrize("name", ["rank-frozen", "gil-held"])
def test_a_process_that_cannot_run_says_nothing(name: str) -> None:
    simulation, out = simulated(name)
    (victim,) = simulation.ledger[0].ranks
    assert victim not in {each.rank for each in structs(out, StallSuspected)}
    assert victim not in {each.rank for each in structs(out, FlightRecorderDump)}
    stopped = [each for each in events(out) if each.name is EventName.PROCESS_STOPPED]
    assert len(stopped) == (1 if name == "rank-frozen" else 0)


def test_peers_of_a_dead_link_blame_two_healthy_ends_of_a_connection() -> None:
    simulation, out = simulated("dead-link")
    truth = simulation.ledger[0]
    errors = [each for each in events(out) if each.name is EventName.NCCL_NET_ERROR and each.attrs["status"] == "12"]
    assert len({each.component for each in errors}) == 2
    assert all(f"nic:{truth.host}/" not in each.component for each in errors)
    fabric = simulation.spec.fabric
    for each in errors:
        far = fabric.resolve(None, each.attrs["remote_gid"])
        assert far in truth.also_right, "the remote end is the victim's port"


def test_a_link_fault_leaves_every_rank_with_the_same_enqueued_counts() -> None:
    _, out = simulated("dead-link")
    dumps = structs(out, FlightRecorderDump)
    world = {next(g.last_enqueued for g in dump.groups if g.desc == "default_pg") for dump in dumps}
    assert len(world) == 1
    completed = Counter(next(g.last_completed for g in dump.groups if g.desc == "DATA_PARALLEL_GROUP") for dump in dumps)
    assert len(completed) == 2 and min(completed.values()) * 8 == sum(completed.values())


def test_a_blip_heals_by_itself_and_is_entered_as_cleared() -> None:
    simulation, _ = simulated("link-blip", 40.0)
    assert simulation.stalled_since is None and simulation.generation == 0
    assert 3 < simulation.idle.seconds < 8
    cleared = simulation.ledger[0].cleared_at
    assert cleared is not None and simulation.ledger[0].injected_at < cleared < simulation.now


def test_the_watchdog_kills_every_rank_and_every_gpu_logs_xid_45() -> None:
    _, out = simulated("dead-link-late", 60.0)
    assert len(structs(out, RankExited)) == 32
    torn = {each.component for each in events(out) if each.attrs.get("xid") == "45" and "cause" not in each.attrs}
    assert len(torn) >= 32
    barks = [each for each in events(out) if each.name is EventName.NCCL_WATCHDOG]
    assert len({each.attrs["seq"] for each in barks}) == 1 and len(barks) == 32


def test_a_pinned_victim_is_the_one() -> None:
    fault = FaultSpec(fault_class=FaultClass.LINK_FLAP, flavour="dead", host="h2", rail=6)
    (entry,) = Simulation(small_job(fault), 9).ledger
    assert entry.component == "link:nic:h2/mlx5_6/1--port:leaf-p0-r6/Ethernet16"
    assert entry.ranks == (22,)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (FaultSpec(fault_class=FaultClass.STORAGE_STALL, cascade="no"), "no cascade 'no'; choose among nvlink_crash"),
        (FaultSpec(fault_class=FaultClass.NVLINK, flavour="no"), "nvlink has no flavour 'no'; choose among xid_149, xid_74"),
        (FaultSpec(fault_class=FaultClass.NVLINK, rank=32), "no rank 32 in a job of 32"),
        (FaultSpec(fault_class=FaultClass.NVLINK, host="h4"), "host 'h4' carries no rank"),
        (FaultSpec(fault_class=FaultClass.LINK_FLAP, host="h0", rail=8), "no rank of h0 uses rail 8"),
    ],
)
def test_a_fault_that_cannot_be_is_refused_with_what_can(fault: FaultSpec, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Simulation(small_job(fault), 1)
