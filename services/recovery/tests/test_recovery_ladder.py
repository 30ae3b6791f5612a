"""The table of the mission, as the planner sees it."""

from __future__ import annotations

import pytest

from goodput_common.contracts.verdict import ActionKind, FaultClass
from goodput_recovery.domain.ladder import LADDER, ORDER, REMEDIES
from goodput_recovery.domain.planner import propose
from goodput_recovery.domain.policy import Policy
from goodput_recovery.testing import LINK, START, make_facts, make_verdict

A, F = ActionKind, FaultClass

MISSION = [
    (F.GPU_OFF_BUS, "gpu:h1/3", A.OBSERVE, A.SWAP_NODE, "host:h1"),
    (F.GPU_MEMORY, "gpu:h1/3", A.OBSERVE, A.DRAIN_AND_RESUME, "host:h1"),
    (F.NVLINK, "nvlink:h1/3/2", A.OBSERVE, A.SWAP_NODE, "host:h1"),
    (F.LINK_FLAP, LINK, A.REINIT_COMMUNICATORS, A.REINIT_COMMUNICATORS, LINK),
    (F.LINK_FLAP, LINK, A.SWAP_NODE, A.SWAP_NODE, "host:h1"),
    (F.PFC_STORM, "port:leaf0/h1", A.OBSERVE, A.ISOLATE_LINK, "port:leaf0/h1"),
    (F.STRAGGLER, "gpu:h1/3", A.OBSERVE, A.CORDON_AT_CHECKPOINT, "host:h1"),
    (F.PROCESS_DEAD, "rank:job-1/3", A.OBSERVE, A.RESTART_RANK, "rank:job-1/3"),
    (F.PROCESS_STALL, "rank:job-1/3", A.OBSERVE, A.RESTART_RANK, "rank:job-1/3"),
    (F.COLLECTIVE_DESYNC, "rank:job-1/3", A.OBSERVE, A.RESTART_JOB, "job:job-1"),
    (F.UNDETERMINED, None, A.OBSERVE, A.OBSERVE, "job:job-1"),
    (F.NO_HARDWARE_FAULT, None, A.OBSERVE, A.OBSERVE, "job:job-1"),
]


@pytest.mark.parametrize(("fault_class", "component", "recommended", "action", "target"), MISSION)
def test_the_step_of_the_mission_is_planned(
    fault_class: FaultClass, component: str | None, recommended: ActionKind, action: ActionKind, target: str
) -> None:
    verdict = make_verdict(fault_class, component, recommended=recommended, host="h1" if component == LINK else None)
    proposal = propose(verdict, make_facts(), Policy(), START)
    assert (proposal.action, proposal.target) == (action, target)


@pytest.mark.parametrize(("fault_class", "component", "recommended", "action", "target"), MISSION)
def test_every_cheaper_step_is_accounted_for(
    fault_class: FaultClass, component: str | None, recommended: ActionKind, action: ActionKind, target: str
) -> None:
    verdict = make_verdict(fault_class, component, recommended=recommended, host="h1" if component == LINK else None)
    proposal = propose(verdict, make_facts(), Policy(), START)
    assert [each.kind for each in proposal.not_chosen] == list(LADDER)[: ORDER[action]]
    assert all(each.why for each in proposal.not_chosen)
    if proposal.not_chosen:
        assert proposal.not_chosen[-1].why in proposal.reason


def test_every_fault_class_has_a_remedy_that_climbs_the_ladder_and_ends_with_a_person() -> None:
    assert set(REMEDIES) == set(FaultClass)
    assert set(LADDER) == set(ActionKind)
    for fault_class, remedy in REMEDIES.items():
        places = [ORDER[step] for step in remedy.steps]
        assert places == sorted(set(places)), fault_class
        assert remedy.steps[-1] is ActionKind.HAND_TO_PERSON


def test_the_ladder_is_in_the_order_of_the_contract() -> None:
    assert list(LADDER) == list(ActionKind)


def test_a_pause_is_always_followed_by_a_resume() -> None:
    from goodput_common.contracts.recovery import AgentCommandKind

    for rung in LADDER.values():
        assert (AgentCommandKind.PAUSE in rung.prepare) == (AgentCommandKind.RESUME in rung.release), rung.kind
