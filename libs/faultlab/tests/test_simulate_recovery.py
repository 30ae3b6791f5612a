"""A simulated job comes back only by what removes the cause, and its agents answer as real ones do."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from goodput_common.contracts.job import FlightRecorderDump, RankProgress, RankRegistered
from goodput_common.contracts.recovery import (
    AgentCommand,
    AgentCommandKind,
    AgentReplyStatus,
    PlanState,
)
from goodput_common.contracts.verdict import ActionKind, FaultClass
from goodput_faultlab.simulate import FaultSpec, Simulation
from goodput_faultlab.testing import an_update, simulated, small_job, structs

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
    simulation, _ = simulated(name)
    reaction = simulation.react(an_update(simulation, kind, target(simulation.ledger[0])))
    assert reaction is not None and reaction.cures
    out = simulation.advance(simulation.now + timedelta(seconds=40))
    assert simulation.stalled_since is None and simulation.generation == generation
    assert simulation.ledger[0].cleared_at == reaction.at
    mine = [each for each in structs(out, RankProgress) if each.generation == generation]
    assert {each.rank for each in mine} == set(range(32))
    assert mine[-1].step > mine[0].step
    idle_s = simulation.idle.seconds
    simulation.advance(simulation.now + timedelta(seconds=5))
    assert simulation.idle.seconds == idle_s


@pytest.mark.parametrize(("name", "kind", "target"), HARMLESS)
def test_an_action_that_leaves_the_cause_does_not_help(name, kind, target) -> None:  # type: ignore[no-untyped-def]
    simulation, _ = simulated(name)
    reaction = simulation.react(an_update(simulation, kind, target(simulation.ledger[0])))
    assert reaction is not None and not reaction.cures and "remains" in reaction.what
    simulation.advance(simulation.now + timedelta(seconds=60))
    assert simulation.stalled_since is not None
    assert simulation.ledger[0].cleared_at is None


def test_a_swap_moves_the_ranks_of_that_host_to_the_spare() -> None:
    simulation, _ = simulated("dead-link")
    host = simulation.ledger[0].host
    before = simulation.hosts
    simulation.react(an_update(simulation, ActionKind.SWAP_NODE, f"host:{host}"))
    simulation.advance(simulation.now + timedelta(seconds=20))
    assert simulation.hosts == tuple("h4" if each == host else each for each in before)


def test_without_a_spare_a_swap_cannot_cure() -> None:
    fault = FaultSpec(fault_class=FaultClass.GPU_OFF_BUS, flavour="xid", rank=9, at_s=15)
    simulation = Simulation(replace(small_job(fault), spares=()), 1)
    simulation.advance(simulation.spec.start + timedelta(seconds=20))
    reaction = simulation.react(an_update(simulation, ActionKind.SWAP_NODE, "host:h1"))
    assert reaction is not None and not reaction.cures


def test_new_communicators_help_once_a_flapping_link_is_stable() -> None:
    simulation, _ = simulated("flapping-link", 75.0)
    assert simulation.stalled_since is not None, "its connections are past retrying"
    reaction = simulation.react(an_update(simulation, ActionKind.REINIT_COMMUNICATORS, None))
    assert reaction is not None and reaction.cures
    out = simulation.advance(simulation.now + timedelta(seconds=20))
    assert simulation.stalled_since is None
    registered = structs(out, RankRegistered)
    assert {each.generation for each in registered} == {1}


def test_a_plan_is_carried_out_once_and_only_while_executing() -> None:
    simulation, _ = simulated("rank-killed")
    target = simulation.ledger[0].component
    for state in PlanState:
        if state is not PlanState.EXECUTING:
            assert simulation.react(an_update(simulation, ActionKind.RESTART_RANK, target, state=state)) is None
    assert simulation.react(an_update(simulation, ActionKind.RESTART_RANK, target, job="other")) is None
    assert simulation.react(an_update(simulation, ActionKind.OBSERVE, target, plan="o")) is None
    first = simulation.react(an_update(simulation, ActionKind.RESTART_RANK, target))
    simulation.advance(simulation.now + timedelta(seconds=20))
    assert simulation.react(an_update(simulation, ActionKind.RESTART_RANK, target)) == first
    simulation.advance(simulation.now + timedelta(seconds=20))
    assert simulation.generation == 1


def command(kind: AgentCommandKind, rank: int, token: int = 1, id: str = "c") -> AgentCommand:
    return AgentCommand(id=id, kind=kind, fabric="default", job="train-1", rank=rank, fencing_token=token)


def test_a_dump_that_is_asked_for_comes_and_a_dead_rank_does_not_answer() -> None:
    simulation, _ = simulated("rank-killed", 25.0)
    (victim,) = simulation.ledger[0].ranks
    assert simulation.answer(command(AgentCommandKind.DUMP, victim)) is None
    reply = simulation.answer(command(AgentCommandKind.DUMP, (victim + 1) % 32))
    assert reply is not None and reply.status is AgentReplyStatus.DONE
    asked = [
        each
        for each in structs(simulation.advance(simulation.now + timedelta(seconds=1)), FlightRecorderDump)
        if each.reason == "asked"
    ]
    assert [each.rank for each in asked] == [(victim + 1) % 32]


def test_a_pause_takes_effect_at_a_step_boundary_and_ends_with_resume() -> None:
    simulation, _ = simulated("healthy", 15.0)
    reply = simulation.answer(command(AgentCommandKind.PAUSE, 3))
    assert reply is not None and reply.status is AgentReplyStatus.ACCEPTED
    simulation.advance(simulation.now + timedelta(seconds=3))
    step = simulation.step
    out = simulation.advance(simulation.now + timedelta(seconds=5))
    assert simulation.step == step and simulation.stalled_since is None
    assert any(each.paused for each in structs(out, RankProgress) if each.rank == 3)
    simulation.answer(command(AgentCommandKind.RESUME, 3, id="d"))
    simulation.advance(simulation.now + timedelta(seconds=5))
    assert simulation.step > step


def test_an_overtaken_command_is_refused() -> None:
    simulation, _ = simulated("healthy", 5.0)
    simulation.answer(command(AgentCommandKind.DUMP, 3, token=7))
    reply = simulation.answer(command(AgentCommandKind.PAUSE, 3, token=6, id="old"))
    assert reply is not None and reply.status is AgentReplyStatus.REFUSED
