"""What the planner does when a need of the smallest step does not hold."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_common.contracts.verdict import ActionKind, Culprit, FaultClass, Trouble
from goodput_recovery.domain.facts import Facts
from goodput_recovery.domain.ladder import LADDER, ORDER, REMEDIES
from goodput_recovery.domain.planner import price, propose
from goodput_recovery.domain.policy import Policy
from goodput_recovery.testing import LINK, START, make_facts, make_verdict

A, F = ActionKind, FaultClass
POLICY = Policy()


def test_without_a_spare_the_node_is_drained_and_the_reason_says_so() -> None:
    proposal = propose(make_verdict(), make_facts(spare_nodes=0), POLICY, START)
    assert proposal.action is A.DRAIN_AND_RESUME
    assert "Not cordon_at_checkpoint" in proposal.reason
    assert next(each.why for each in proposal.not_chosen if each.kind is A.SWAP_NODE) == "no spare node is free"


def test_an_unknown_spare_counts_as_none_and_is_called_unknown() -> None:
    proposal = propose(make_verdict(), make_facts(spare_nodes=None), POLICY, START)
    assert proposal.action is A.DRAIN_AND_RESUME
    assert "not known" in next(each.why for each in proposal.not_chosen if each.kind is A.SWAP_NODE)


def test_a_port_is_isolated_only_if_enough_paths_are_known_to_stay() -> None:
    storm = make_verdict(F.PFC_STORM, "port:leaf0/h1")
    assert propose(storm, make_facts(capacity_left=True), POLICY, START).action is A.ISOLATE_LINK
    assert propose(storm, make_facts(capacity_left=None), POLICY, START).action is A.HAND_TO_PERSON
    assert propose(storm, make_facts(capacity_left=False), POLICY, START).action is A.HAND_TO_PERSON


def test_a_straggler_that_brought_the_job_to_a_standstill_waits_for_no_checkpoint() -> None:
    stopped = make_verdict(F.STRAGGLER, trouble=Trouble.STALLED)
    proposal = propose(stopped, make_facts(), POLICY, START)
    assert (proposal.action, proposal.target) == (A.SWAP_NODE, "host:h1")
    assert propose(stopped, make_facts(spare_nodes=0), POLICY, START).action is A.DRAIN_AND_RESUME
    assert propose(make_verdict(F.STRAGGLER), make_facts(), POLICY, START).action is A.CORDON_AT_CHECKPOINT


def test_an_action_nobody_can_carry_out_is_not_planned() -> None:
    proposal = propose(make_verdict(), make_facts(offered=frozenset({A.DRAIN_AND_RESUME})), POLICY, START)
    assert proposal.action is A.DRAIN_AND_RESUME
    assert propose(make_verdict(), make_facts(offered=frozenset()), POLICY, START).action is A.HAND_TO_PERSON


def test_communicators_are_not_rebuilt_in_processes_of_which_one_is_gone() -> None:
    flap = make_verdict(F.LINK_FLAP, LINK, recommended=A.REINIT_COMMUNICATORS)
    assert propose(flap, make_facts(), POLICY, START).action is A.REINIT_COMMUNICATORS
    assert propose(flap, make_facts(ranks_gone=frozenset({5})), POLICY, START).action is A.SWAP_NODE


def test_two_ranks_to_blame_are_not_cured_by_restarting_one() -> None:
    one, two = (
        make_verdict(F.PROCESS_STALL, "rank:job-1/3").culprit,
        Culprit(component="rank:job-1/6", kind=None, host="h1", ranks=(6,)),
    )
    stall = make_verdict(F.PROCESS_STALL, "rank:job-1/3", culprits=(one, two))
    assert propose(stall, make_facts(), POLICY, START).action is A.RESTART_JOB


def test_culprits_on_two_hosts_are_not_cured_by_one_node() -> None:
    one, two = make_verdict().culprit, Culprit(component="gpu:h2/0", kind=None, host="h2", ranks=(6,))
    proposal = propose(make_verdict(culprits=(one, two)), make_facts(), POLICY, START)
    assert proposal.action is A.HAND_TO_PERSON
    assert "h1, h2" in proposal.not_chosen[-1].why or any("h1, h2" in each.why for each in proposal.not_chosen)


def test_the_host_of_a_link_is_the_one_host_at_its_ends() -> None:
    dead = make_verdict(F.LINK_FLAP, LINK, recommended=A.SWAP_NODE)
    assert dead.culprit.host is None
    proposal = propose(dead, make_facts(), POLICY, START)
    assert (proposal.action, proposal.target, proposal.host) == (A.SWAP_NODE, "host:h1", "h1")


def test_a_link_that_is_down_is_given_a_moment_to_come_back_before_a_node_goes() -> None:
    dead = make_verdict(F.LINK_FLAP, LINK, recommended=A.SWAP_NODE)
    back = make_verdict(F.LINK_FLAP, LINK, recommended=A.REINIT_COMMUNICATORS)
    long_ago = make_verdict(F.LINK_FLAP, LINK, recommended=A.SWAP_NODE, first_evidence_at=START - timedelta(seconds=60))
    policy = Policy(settle_s=1.0, link_wait_s=5.0)
    fresh = make_verdict(F.LINK_FLAP, LINK, recommended=A.SWAP_NODE, first_evidence_at=START)
    assert propose(fresh, make_facts(), policy, START).settled_at == START + timedelta(seconds=5)
    assert propose(dead, make_facts(), policy, START).settled_at == START + timedelta(seconds=2)
    assert propose(back, make_facts(), policy, START).settled_at == START + timedelta(seconds=1)
    assert propose(long_ago, make_facts(), policy, START).settled_at == START + timedelta(seconds=1)


@pytest.mark.parametrize("confidence", [0.0, 0.29])
def test_below_the_floor_nothing_but_watching_is_proposed(confidence: float) -> None:
    proposal = propose(make_verdict(confidence=confidence), make_facts(), POLICY, START)
    assert proposal.action is A.OBSERVE


def test_what_was_tried_in_vain_is_not_tried_again_and_nothing_smaller_is() -> None:
    flap = make_verdict(F.LINK_FLAP, LINK, recommended=A.REINIT_COMMUNICATORS)
    first = propose(flap, make_facts(), POLICY, START)
    second = propose(flap, make_facts(), POLICY, START, tried=frozenset({first.step}))
    third = propose(flap, make_facts(), POLICY, START, tried=frozenset({first.step, second.step}))
    assert (first.action, second.action, third.action) == (A.REINIT_COMMUNICATORS, A.SWAP_NODE, A.DRAIN_AND_RESUME)
    skipped = propose(flap, make_facts(), POLICY, START, tried=frozenset({second.step}))
    assert skipped.action is A.DRAIN_AND_RESUME


def test_a_step_tried_on_another_component_does_not_count() -> None:
    other = frozenset({(A.SWAP_NODE, "host:h9")})
    assert propose(make_verdict(), make_facts(), POLICY, START, tried=other).action is A.SWAP_NODE


def test_a_reason_for_a_person_leaves_only_a_person() -> None:
    proposal = propose(make_verdict(), make_facts(), POLICY, START, only_person="refused: budget used up")
    assert proposal.action is A.HAND_TO_PERSON
    assert "refused: budget used up" in proposal.reason


def test_a_larger_job_and_a_rarer_checkpoint_make_a_restart_dearer() -> None:
    verdict, rung = make_verdict(), LADDER[A.RESTART_JOB]
    small = price(rung, verdict, make_facts(world_size=8), POLICY)
    assert price(rung, verdict, make_facts(world_size=512), POLICY) == small * 64
    assert price(LADDER[A.SWAP_NODE], verdict, make_facts(world_size=512), POLICY) == 512 * (90 + 5)
    assert price(LADDER[A.OBSERVE], verdict, make_facts(moving=True), POLICY) == 0.0


FACTS = st.builds(
    Facts,
    offered=st.frozensets(st.sampled_from(list(ActionKind))),
    world_size=st.none() | st.integers(1, 4096),
    moving=st.none() | st.booleans(),
    ranks_gone=st.frozensets(st.integers(0, 7), max_size=3),
    spare_nodes=st.none() | st.integers(0, 3),
    capacity_left=st.none() | st.booleans(),
)


@given(
    fault_class=st.sampled_from(list(FaultClass)),
    component=st.sampled_from([None, "gpu:h1/3", "rank:job-1/3", "switch:leaf0", LINK, "nic:h1/rail0/1"]),
    confidence=st.floats(0.0, 1.0),
    recommended=st.sampled_from(list(ActionKind)),
    job=st.sampled_from([None, "job-1"]),
    facts=FACTS,
    tried=st.frozensets(
        st.tuples(st.sampled_from(list(ActionKind)), st.sampled_from([None, "host:h1", "job:job-1", LINK])), max_size=4
    ),
)
def test_a_proposal_is_a_remedy_whose_actuator_exists_and_that_was_not_tried(
    fault_class: FaultClass,
    component: str | None,
    confidence: float,
    recommended: ActionKind,
    job: str | None,
    facts: Facts,
    tried: frozenset[tuple[ActionKind, str | None]],
) -> None:
    verdict = make_verdict(fault_class, component, confidence=confidence, recommended=recommended, job=job)
    proposal = propose(verdict, facts, POLICY, START, tried=tried)
    assert proposal == propose(verdict, facts, POLICY, START, tried=tried)
    rung = LADDER[proposal.action]
    assert len(proposal.not_chosen) == ORDER[proposal.action]
    assert proposal.reason and proposal.cost_gpu_s >= 0.0
    if not rung.passive:
        assert proposal.action in REMEDIES[fault_class].steps
        assert proposal.action in facts.offered
        assert proposal.step not in tried
        assert confidence >= POLICY.act_floor
        assert proposal.target is not None
