"""A simulated run is a function of specification and seed, tells the truth in its ledger, and recovers only by what
cures it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
import pytest

from goodput_common.contracts import subjects
from goodput_common.contracts.job import FlightRecorderDump, RankExited, RankProgress, RankRegistered, StallSuspected
from goodput_common.contracts.recovery import (
    AgentCommand,
    AgentCommandKind,
    AgentReplyStatus,
    PlanState,
    RecoveryUpdate,
)
from goodput_common.contracts.registry import BY_STRUCT
from goodput_common.contracts.telemetry import Event, EventName, TelemetryBatch
from goodput_common.contracts.topology import TopologySnapshot
from goodput_common.contracts.verdict import ActionKind, FaultClass
from goodput_faultlab.simulate import SCENARIOS, FaultSpec, NoiseSpec, Simulation, SimulationSpec, TransportSpec, scenario
from goodput_faultlab.simulate.scenarios import UnknownScenario
from goodput_topology.generate import h100_pod
from goodput_topology.graph import Fabric

HOSTS = {"hosts": 4, "spares": 1, "others": 1}


def run(name: str, seconds: float = 35.0, seed: int = 1) -> tuple[Simulation, list]:  # type: ignore[type-arg]
    simulation = Simulation(scenario(name, **HOSTS), seed)
    return simulation, simulation.advance(simulation.spec.start + timedelta(seconds=seconds))


def of(out: list, kind: type) -> list:  # type: ignore[type-arg]
    return [each.struct for each in out if isinstance(each.struct, kind)]


def events(out: list) -> list[Event]:  # type: ignore[type-arg]
    return [sample for batch in of(out, TelemetryBatch) for sample in batch.samples if isinstance(sample, Event)]


def update(simulation: Simulation, kind: ActionKind, target: str | None, plan: str = "p", **more: object) -> RecoveryUpdate:
    given = {
        "plan": plan, "fabric": simulation.spec.fabric.name, "job": simulation.spec.job, "verdict": "v",
        "verdict_version": 1,
        "fault_class": FaultClass.UNDETERMINED, "action": kind, "target": target, "actuator": "test",
        "state": PlanState.EXECUTING, "previous": PlanState.APPROVED, "reason": "", "fencing_token": 1, "at": simulation.now,
    } | more  # fmt: skip
    return RecoveryUpdate(**given)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("name", ["healthy", "healthy-checkpoints", "healthy-rough"])
def test_a_healthy_run_never_stalls_and_has_an_empty_ledger(name: str) -> None:
    simulation, _ = run(name, 60.0)
    assert simulation.ledger == () and simulation.idle.seconds == 0 and simulation.step > 50


def test_every_message_is_one_that_the_bus_knows_and_has_an_id_of_its_own() -> None:
    simulation, out = run("gpu-off-bus")
    for each in out:
        assert type(each.struct) in BY_STRUCT
        subjects.stream_of(each.subject)
    assert max(Counter(each.id for each in out).values()) == 1
    assert [each.at for each in out] == sorted(each.at for each in out)
    assert all(simulation.spec.start <= each.at <= simulation.now for each in out)


def test_the_topology_comes_first_and_is_the_fabric() -> None:
    simulation, out = run("healthy", 2.0)
    fabric = Fabric.from_snapshots(simulation.spec.fabric.name, of(out, TopologySnapshot))
    assert dict(fabric.components) == dict(simulation.spec.fabric.components)


def test_every_rank_registers_where_it_runs() -> None:
    simulation, out = run("healthy", 3.0)
    registered = {each.rank: each for each in of(out, RankRegistered)}
    assert sorted(registered) == list(range(32))
    assert registered[13].host == "h1" and registered[13].gpu == 5 and registered[13].world_size == 32
    assert registered[13].gpu_uuid == simulation.spec.fabric.attr("gpu:h1/5", "uuid")


def test_batches_of_a_source_are_numbered_without_gaps() -> None:
    _, out = run("flapping-link", 60.0)
    seqs: dict[tuple[str, str], list[int]] = {}
    for batch in of(out, TelemetryBatch):
        seqs.setdefault((batch.host, batch.source.value), []).append(batch.seq)
    assert seqs
    for numbers in seqs.values():
        assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_reports_come_once_a_second_and_tell_steps_that_add_up() -> None:
    _, out = run("healthy", 30.0)
    mine = [each for each in of(out, RankProgress) if each.rank == 5]
    assert 25 <= len(mine) <= 30
    assert [each.seq for each in mine] == list(range(1, len(mine) + 1))
    assert sum(each.steps for each in mine) == mine[-1].step + 1
    assert all(each.groups == () for each in mine), "group progress is for stalls"


def test_a_killed_rank_falls_silent_leaves_no_dump_and_its_end_is_seen_by_the_collector() -> None:
    simulation, out = run("rank-killed")
    (victim,) = simulation.ledger[0].ranks
    dumps = {each.rank for each in of(out, FlightRecorderDump)}
    assert dumps == set(range(32)) - {victim}
    last = max(each.at for each in out if isinstance(each.struct, RankProgress) and each.struct.rank == victim)
    assert last <= simulation.ledger[0].injected_at + timedelta(seconds=0.1)
    exits = [each for each in events(out) if each.name is EventName.PROCESS_EXITED]
    assert [each.component for each in exits] == [f"rank:train-1/{victim}"]
    assert not of(out, RankExited)


def test_an_exception_is_told_by_the_rank_itself() -> None:
    simulation, out = run("rank-raised")
    (exited,) = of(out, RankExited)
    assert (exited.rank,) == simulation.ledger[0].ranks and not exited.clean and "ValueError" in exited.reason


@pytest.mark.parametrize("name", ["rank-frozen", "gil-held"])
def test_a_process_that_cannot_run_says_nothing(name: str) -> None:
    simulation, out = run(name)
    (victim,) = simulation.ledger[0].ranks
    assert victim not in {each.rank for each in of(out, StallSuspected)}
    assert victim not in {each.rank for each in of(out, FlightRecorderDump)}
    stopped = [each for each in events(out) if each.name is EventName.PROCESS_STOPPED]
    assert len(stopped) == (1 if name == "rank-frozen" else 0)


def test_peers_of_a_dead_link_blame_two_healthy_ends_of_a_connection() -> None:
    simulation, out = run("dead-link")
    truth = simulation.ledger[0]
    errors = [each for each in events(out) if each.name is EventName.NCCL_NET_ERROR and each.attrs["status"] == "12"]
    assert len({each.component for each in errors}) == 2
    assert all(f"nic:{truth.host}/" not in each.component for each in errors)
    fabric = simulation.spec.fabric
    for each in errors:
        far = fabric.resolve(None, each.attrs["remote_gid"])
        assert far in truth.also_right, "the remote end is the victim's port"


def test_a_link_fault_leaves_every_rank_with_the_same_enqueued_counts() -> None:
    _, out = run("dead-link")
    dumps = of(out, FlightRecorderDump)
    world = {next(g.last_enqueued for g in dump.groups if g.desc == "default_pg") for dump in dumps}
    assert len(world) == 1
    completed = Counter(next(g.last_completed for g in dump.groups if g.desc == "DATA_PARALLEL_GROUP") for dump in dumps)
    assert len(completed) == 2 and min(completed.values()) * 8 == sum(completed.values())


def test_a_blip_heals_by_itself_and_is_entered_as_cleared() -> None:
    simulation, _ = run("link-blip", 40.0)
    assert simulation.stalled_since is None and simulation.generation == 0
    assert 3 < simulation.idle.seconds < 8
    cleared = simulation.ledger[0].cleared_at
    assert cleared is not None and simulation.ledger[0].injected_at < cleared < simulation.now


def test_the_watchdog_kills_every_rank_and_every_gpu_logs_xid_45() -> None:
    _, out = run("dead-link-late", 60.0)
    assert len(of(out, RankExited)) == 32
    torn = {each.component for each in events(out) if each.attrs.get("xid") == "45" and "cause" not in each.attrs}
    assert len(torn) >= 32
    barks = [each for each in events(out) if each.name is EventName.NCCL_WATCHDOG]
    assert len({each.attrs["seq"] for each in barks}) == 1 and len(barks) == 32


def test_clocks_of_hosts_differ_by_up_to_two_seconds() -> None:
    _, out = run("healthy", 20.0)
    offsets = {
        each.struct.host: (each.time - each.at).total_seconds() for each in out if isinstance(each.struct, RankProgress)
    }
    assert all(-2.1 < offset < 2.1 for offset in offsets.values())
    assert max(offsets.values()) - min(offsets.values()) > 0.5


def spec(*faults: FaultSpec, transport: TransportSpec | None = None) -> SimulationSpec:
    fabric = h100_pod(hosts=5)
    return SimulationSpec(
        fabric=fabric, hosts=("h0", "h1", "h2", "h3"), spares=("h4",), step_s=0.4, faults=faults, noise=NoiseSpec.none(),
        transport=transport or TransportSpec(),
    )  # fmt: skip


def test_transport_loses_doubles_and_delays_what_it_was_told_to() -> None:
    end = timedelta(seconds=60)
    clean = Simulation(spec(), 1).advance(spec().start + end)
    rough = Simulation(spec(transport=TransportSpec(lost=0.2, doubled=0.3, late=0.5, late_s_max=3.0)), 1).advance(
        spec().start + end
    )
    ids = Counter(each.id for each in rough)
    assert 0.7 < len(ids) / len(clean) < 0.9
    assert 0.2 < sum(1 for count in ids.values() if count == 2) / len(ids) < 0.4
    registered = {each.struct.rank for each in rough if isinstance(each.struct, RankRegistered)}
    assert registered == set(range(32)), "registrations are sent until they arrive"


def test_chosen_dumps_never_arrive() -> None:
    fault = FaultSpec(fault_class=FaultClass.UNDETERMINED, at_s=15)
    out = Simulation(spec(fault, transport=TransportSpec(lost_dumps=5)), 1).advance(spec().start + timedelta(seconds=30))
    assert len({each.rank for each in of(out, FlightRecorderDump)}) == 27


def test_a_pinned_victim_is_the_one() -> None:
    fault = FaultSpec(fault_class=FaultClass.LINK_FLAP, flavour="dead", host="h2", rail=6)
    (entry,) = Simulation(spec(fault), 9).ledger
    assert entry.component == "link:nic:h2/mlx5_6/1--port:leaf-p0-r6/Ethernet16"
    assert entry.ranks == (22,)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (FaultSpec(fault_class=FaultClass.PFC_STORM), "cannot simulate pfc_storm; choose among"),
        (FaultSpec(fault_class=FaultClass.NVLINK, flavour="no"), "nvlink has no flavour 'no'; choose among xid_149, xid_74"),
        (FaultSpec(fault_class=FaultClass.NVLINK, rank=32), "no rank 32 in a job of 32"),
        (FaultSpec(fault_class=FaultClass.NVLINK, host="h4"), "host 'h4' carries no rank"),
        (FaultSpec(fault_class=FaultClass.LINK_FLAP, host="h0", rail=8), "no rank of h0 uses rail 8"),
    ],
)
def test_a_fault_that_cannot_be_is_refused_with_what_can(fault: FaultSpec, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Simulation(spec(fault), 1)


def test_an_unknown_scenario_names_those_that_there_are() -> None:
    with pytest.raises(UnknownScenario, match=r"no scenario 'x'.*dead-link"):
        scenario("x")


def test_hosts_that_the_fabric_lacks_are_named() -> None:
    with pytest.raises(ValueError, match="has no host h9"):
        SimulationSpec(fabric=h100_pod(hosts=2), hosts=("h0", "h9"))


CURES = [
    ("dead-link", ActionKind.SWAP_NODE, lambda e: e.component, 1),
    ("dead-link", ActionKind.SWAP_NODE, lambda e: f"host:{e.host}", 1),
    ("dead-link", ActionKind.ISOLATE_LINK, lambda e: e.component, 1),
    ("gpu-off-bus", ActionKind.SWAP_NODE, lambda e: e.component, 1),
    ("gpu-memory-95", ActionKind.DRAIN_AND_RESUME, lambda e: f"host:{e.host}", 1),
    ("gpu-memory-95", ActionKind.RESET_GPU, lambda e: e.component, 1),
    ("nvlink", ActionKind.SWAP_NODE, lambda e: e.component, 1),
    ("rank-killed", ActionKind.RESTART_RANK, lambda e: e.component, 1),
    ("gil-held", ActionKind.RESTART_JOB, lambda e: None, 1),
    ("collective-skipped", ActionKind.RESTART_JOB, lambda e: None, 1),
    ("no-trace", ActionKind.REINIT_COMMUNICATORS, lambda e: None, 1),
]
HARMLESS = [
    ("dead-link", ActionKind.REINIT_COMMUNICATORS, lambda e: None),
    ("dead-link", ActionKind.RESTART_JOB, lambda e: None),
    ("gpu-off-bus-raises", ActionKind.RESTART_JOB, lambda e: None),
    ("gpu-off-bus", ActionKind.SWAP_NODE, lambda e: "host:h0" if e.host != "h0" else "host:h1"),
    ("nvlink", ActionKind.REINIT_COMMUNICATORS, lambda e: None),
    ("rank-killed", ActionKind.REINIT_COMMUNICATORS, lambda e: None),
    ("rank-frozen", ActionKind.RESTART_RANK, lambda e: f"rank:train-1/{(e.ranks[0] + 1) % 32}"),
]


@pytest.mark.parametrize(("name", "kind", "target", "generation"), CURES)
def test_an_action_that_removes_the_cause_brings_the_job_back(name, kind, target, generation) -> None:  # type: ignore[no-untyped-def]
    simulation, _ = run(name)
    reaction = simulation.react(update(simulation, kind, target(simulation.ledger[0])))
    assert reaction is not None and reaction.cures
    out = simulation.advance(simulation.now + timedelta(seconds=40))
    assert simulation.stalled_since is None and simulation.generation == generation
    assert simulation.ledger[0].cleared_at == reaction.at
    mine = [each for each in of(out, RankProgress) if each.generation == generation]
    assert {each.rank for each in mine} == set(range(32))
    assert mine[-1].step > mine[0].step
    idle_s = simulation.idle.seconds
    simulation.advance(simulation.now + timedelta(seconds=5))
    assert simulation.idle.seconds == idle_s


@pytest.mark.parametrize(("name", "kind", "target"), HARMLESS)
def test_an_action_that_leaves_the_cause_does_not_help(name, kind, target) -> None:  # type: ignore[no-untyped-def]
    simulation, _ = run(name)
    reaction = simulation.react(update(simulation, kind, target(simulation.ledger[0])))
    assert reaction is not None and not reaction.cures and "remains" in reaction.what
    simulation.advance(simulation.now + timedelta(seconds=60))
    assert simulation.stalled_since is not None
    assert simulation.ledger[0].cleared_at is None


def test_a_swap_moves_the_ranks_of_that_host_to_the_spare() -> None:
    simulation, _ = run("dead-link")
    host = simulation.ledger[0].host
    before = simulation.hosts
    simulation.react(update(simulation, ActionKind.SWAP_NODE, f"host:{host}"))
    simulation.advance(simulation.now + timedelta(seconds=20))
    assert simulation.hosts == tuple("h4" if each == host else each for each in before)


def test_without_a_spare_a_swap_cannot_cure() -> None:
    fault = FaultSpec(fault_class=FaultClass.GPU_OFF_BUS, flavour="xid", rank=9, at_s=15)
    simulation = Simulation(replace(spec(fault), spares=()), 1)
    simulation.advance(simulation.spec.start + timedelta(seconds=20))
    reaction = simulation.react(update(simulation, ActionKind.SWAP_NODE, "host:h1"))
    assert reaction is not None and not reaction.cures


def test_new_communicators_help_once_a_flapping_link_is_stable() -> None:
    simulation, _ = run("flapping-link", 75.0)
    assert simulation.stalled_since is not None, "its connections are past retrying"
    reaction = simulation.react(update(simulation, ActionKind.REINIT_COMMUNICATORS, None))
    assert reaction is not None and reaction.cures
    out = simulation.advance(simulation.now + timedelta(seconds=20))
    assert simulation.stalled_since is None
    registered = of(out, RankRegistered)
    assert {each.generation for each in registered} == {1}


def test_a_plan_is_carried_out_once_and_only_while_executing() -> None:
    simulation, _ = run("rank-killed")
    target = simulation.ledger[0].component
    for state in PlanState:
        if state is not PlanState.EXECUTING:
            assert simulation.react(update(simulation, ActionKind.RESTART_RANK, target, state=state)) is None
    assert simulation.react(update(simulation, ActionKind.RESTART_RANK, target, job="other")) is None
    assert simulation.react(update(simulation, ActionKind.OBSERVE, target, plan="o")) is None
    first = simulation.react(update(simulation, ActionKind.RESTART_RANK, target))
    simulation.advance(simulation.now + timedelta(seconds=20))
    assert simulation.react(update(simulation, ActionKind.RESTART_RANK, target)) == first
    simulation.advance(simulation.now + timedelta(seconds=20))
    assert simulation.generation == 1


def command(kind: AgentCommandKind, rank: int, token: int = 1, id: str = "c") -> AgentCommand:
    return AgentCommand(id=id, kind=kind, fabric="default", job="train-1", rank=rank, fencing_token=token)


def test_a_dump_that_is_asked_for_comes_and_a_dead_rank_does_not_answer() -> None:
    simulation, _ = run("rank-killed", 25.0)
    (victim,) = simulation.ledger[0].ranks
    assert simulation.answer(command(AgentCommandKind.DUMP, victim)) is None
    reply = simulation.answer(command(AgentCommandKind.DUMP, (victim + 1) % 32))
    assert reply is not None and reply.status is AgentReplyStatus.DONE
    asked = [
        each
        for each in of(simulation.advance(simulation.now + timedelta(seconds=1)), FlightRecorderDump)
        if each.reason == "asked"
    ]
    assert [each.rank for each in asked] == [(victim + 1) % 32]


def test_a_pause_takes_effect_at_a_step_boundary_and_ends_with_resume() -> None:
    simulation, _ = run("healthy", 15.0)
    reply = simulation.answer(command(AgentCommandKind.PAUSE, 3))
    assert reply is not None and reply.status is AgentReplyStatus.ACCEPTED
    simulation.advance(simulation.now + timedelta(seconds=3))
    step = simulation.step
    out = simulation.advance(simulation.now + timedelta(seconds=5))
    assert simulation.step == step and simulation.stalled_since is None
    assert any(each.paused for each in of(out, RankProgress) if each.rank == 3)
    simulation.answer(command(AgentCommandKind.RESUME, 3, id="d"))
    simulation.advance(simulation.now + timedelta(seconds=5))
    assert simulation.step > step


def test_an_overtaken_command_is_refused() -> None:
    simulation, _ = run("healthy", 5.0)
    simulation.answer(command(AgentCommandKind.DUMP, 3, token=7))
    reply = simulation.answer(command(AgentCommandKind.PAUSE, 3, token=6, id="old"))
    assert reply is not None and reply.status is AgentReplyStatus.REFUSED


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


def test_lost_gpu_time_is_told_in_gpu_hours() -> None:
    simulation, _ = run("dead-link", 35.0)
    assert str(simulation.idle).startswith("32 GPUs idle for 15.")
    assert simulation.idle.gpu_hours == pytest.approx(32 * simulation.idle.seconds / 3600)


def test_time_does_not_go_back() -> None:
    simulation, _ = run("healthy", 5.0)
    at: datetime = simulation.now
    assert simulation.advance(at - timedelta(seconds=3)) == []
    assert simulation.now == at


def test_another_run_on_the_same_fabric_says_nothing_under_an_id_that_was_used_before() -> None:
    first = scenario("dead-link", hosts=2)
    second = replace(first, start=first.start + timedelta(minutes=1))
    ids = [
        {out.id for out in Simulation(spec, 3).advance(spec.start + timedelta(seconds=15)) if ".telemetry." in out.subject}
        for spec in (first, second)
    ]
    assert ids[0]
    assert not ids[0] & ids[1]
