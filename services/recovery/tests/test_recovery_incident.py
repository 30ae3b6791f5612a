"""What each thing that happens to an incident changes, one behaviour a test."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from goodput_common.contracts.recovery import PlanState
from goodput_common.contracts.verdict import ActionKind, FaultClass, Verdict, VerdictState
from goodput_recovery.domain import incident as chain
from goodput_recovery.domain.budget import Spent, Usage
from goodput_recovery.domain.gate import Context
from goodput_recovery.domain.incident import Incident, Moved, Noted
from goodput_recovery.domain.plan import IllegalTransition, Plan
from goodput_recovery.domain.policy import Budget, Policy
from goodput_recovery.domain.progress import Outcome, Seen
from goodput_recovery.testing import LINK, START, make_context, make_facts, make_verdict

A, F, P = ActionKind, FaultClass, PlanState
SECOND = timedelta(seconds=1)


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def at(seconds: float, **more: object) -> Context:
    return make_context(after(seconds), **more)  # type: ignore[arg-type]


def opened(verdict: Verdict | None = None, **more: object) -> Incident:
    return chain.heard(None, verdict or make_verdict(), at(0, **more)).incident


def ticked_until_executing(incident: Incident, start_s: float = 10.0) -> Incident:
    for n in range(3):
        incident = chain.ticked(incident, at(start_s + n)).incident
    assert newest(incident).state is P.EXECUTING, newest(incident)
    return incident


def newest(incident: Incident) -> Plan:
    return incident.plans[-1]


def states(incident: Incident) -> list[tuple[ActionKind, PlanState]]:
    return [(plan.action, plan.state) for plan in incident.plans]


def test_a_verdict_becomes_a_plan_that_is_held_and_then_carried_out() -> None:
    incident = opened()
    assert chain.ticked(incident, at(1)).events == ()
    incident = chain.ticked(incident, at(3)).incident
    assert newest(incident).state is P.APPROVED
    incident = chain.ticked(incident, at(3.1, token=5, stall_step=77)).incident
    plan = newest(incident)
    assert (plan.state, plan.fencing_token, plan.stall_step, plan.acted_at) == (P.EXECUTING, 5, 77, after(3.1))


@pytest.mark.parametrize("version", [1, 2])
def test_an_old_or_doubled_version_changes_nothing(version: int) -> None:
    incident = opened(make_verdict(version=2))
    decision = chain.heard(incident, make_verdict(F.NVLINK, "nvlink:h2/0/1", version=version), at(1))
    assert decision.incident == incident
    assert [type(event) for event in decision.events] == [Noted]


def test_a_quick_revision_supersedes_before_anything_is_done() -> None:
    incident = opened(make_verdict(F.LINK_FLAP, LINK, recommended=A.SWAP_NODE))
    revised = make_verdict(F.LINK_FLAP, LINK, version=2, recommended=A.REINIT_COMMUNICATORS)
    incident = chain.heard(incident, revised, at(1)).incident
    assert states(incident) == [(A.SWAP_NODE, P.SUPERSEDED), (A.REINIT_COMMUNICATORS, P.PROPOSED)]
    assert ticked_until_executing(incident).executed[0].action is A.REINIT_COMMUNICATORS


def test_a_revision_that_asks_for_the_same_is_noted() -> None:
    incident = opened()
    decision = chain.heard(incident, make_verdict(version=2, confidence=0.99), at(1))
    assert decision.incident.plans == incident.plans
    assert isinstance(decision.events[0], Noted) and decision.events[0].what == "verdict_same_step"


def test_a_revision_after_the_action_is_noted_and_used_only_if_verification_fails() -> None:
    incident = ticked_until_executing(opened())
    incident = chain.heard(incident, make_verdict(F.PROCESS_DEAD, "rank:job-1/5", version=2, ranks=(5,)), at(14)).incident
    assert states(incident) == [(A.SWAP_NODE, P.EXECUTING)]
    incident = chain.acted(incident, newest(incident).id, done=True, result="done", ctx=at(15)).incident
    recovered = chain.judged(incident, newest(incident).id, Seen(Outcome.RECOVERED, "moves"), at(20)).incident
    assert states(recovered) == [(A.SWAP_NODE, P.RECOVERED)]
    failed = chain.judged(incident, newest(incident).id, Seen(Outcome.FAILED, "stuck"), at(20)).incident
    assert states(failed) == [(A.SWAP_NODE, P.FAILED), (A.RESTART_RANK, P.PROPOSED)]
    assert newest(failed).escalates == failed.plans[0].id


def test_after_recovery_no_version_of_the_verdict_acts_again() -> None:
    incident = ticked_until_executing(opened())
    plan = newest(incident).id
    incident = chain.acted(incident, plan, done=True, result="done", ctx=at(15)).incident
    incident = chain.judged(incident, plan, Seen(Outcome.RECOVERED, "moves"), at(20)).incident
    for version, state in ((2, VerdictState.REVISED), (3, VerdictState.RESOLVED)):
        other = make_verdict(F.NVLINK, "nvlink:h2/0/1", version=version, state=state)
        incident = chain.heard(incident, other, at(21)).incident
    assert states(incident) == [(A.SWAP_NODE, P.RECOVERED)]


def test_an_incident_that_comes_back_after_it_was_resolved_gets_a_step_that_was_not_tried() -> None:
    incident = ticked_until_executing(opened())
    plan = newest(incident).id
    incident = chain.acted(incident, plan, done=True, result="done", ctx=at(15)).incident
    incident = chain.judged(incident, plan, Seen(Outcome.RECOVERED, "moves"), at(20)).incident
    incident = chain.heard(incident, make_verdict(version=2, state=VerdictState.RESOLVED), at(21)).incident
    incident = chain.heard(incident, make_verdict(version=3, state=VerdictState.OPEN), at(60)).incident
    assert states(incident)[0] == (A.SWAP_NODE, P.RECOVERED)
    assert len(incident.plans) == 2 and newest(incident).state is P.PROPOSED
    assert newest(incident).action is not A.SWAP_NODE
    again = chain.heard(incident, make_verdict(version=4, state=VerdictState.REVISED, confidence=0.97), at(61))
    assert [event.what for event in again.events if isinstance(event, Noted)] == ["verdict_same_step"]


def test_a_verdict_that_resolves_before_execution_cancels_the_plan() -> None:
    decision = chain.heard(opened(), make_verdict(version=2, state=VerdictState.RESOLVED), at(1))
    assert states(decision.incident) == [(A.SWAP_NODE, P.SUPERSEDED)]
    assert "steps resumed" in newest(decision.incident).reason


def test_a_resolved_verdict_alone_does_not_end_a_watch_as_recovered() -> None:
    incident = opened(make_verdict(F.UNDETERMINED, None))
    incident = chain.ticked(incident, at(3)).incident
    assert states(incident) == [(A.OBSERVE, P.VERIFYING)]
    decision = chain.heard(incident, make_verdict(version=2, state=VerdictState.RESOLVED), at(9))
    assert states(decision.incident) == [(A.OBSERVE, P.VERIFYING)]
    assert [event.what for event in decision.events if isinstance(event, Noted)] == ["verdict_resolved"]
    plan = newest(decision.incident).id
    moves = chain.judged(decision.incident, plan, Seen(Outcome.RECOVERED, "all ranks move"), at(12)).incident
    assert states(moves) == [(A.OBSERVE, P.RECOVERED)]
    ended = chain.judged(decision.incident, plan, Seen(Outcome.ENDED, "the job was withdrawn"), at(12)).incident
    assert states(ended) == [(A.OBSERVE, P.SUPERSEDED)]
    assert newest(ended).reason == "the job was withdrawn"


def test_an_action_whose_job_ended_unproven_has_failed_and_nothing_larger_follows() -> None:
    incident = ticked_until_executing(opened())
    incident = chain.acted(incident, newest(incident).id, done=True, result="done", ctx=at(15)).incident
    incident = chain.judged(incident, newest(incident).id, Seen(Outcome.ENDED, "all left"), at(20)).incident
    assert states(incident) == [(A.SWAP_NODE, P.FAILED)]
    assert newest(incident).result == "all left"
    over = make_facts(finished=True)
    other = make_verdict(F.NVLINK, "nvlink:h2/0/1", version=2)
    decision = chain.heard(incident, other, at(21, facts=over))
    assert decision.incident.plans == incident.plans
    assert [event.what for event in decision.events if isinstance(event, Noted)] == ["verdict_after_end"]


def test_nothing_is_done_for_a_job_that_has_run_to_its_end() -> None:
    incident = chain.ticked(opened(), at(3, facts=make_facts(finished=True))).incident
    assert states(incident) == [(A.SWAP_NODE, P.SUPERSEDED)]
    assert "left cleanly" in newest(incident).reason


def test_a_watch_gives_way_when_the_culprit_is_named() -> None:
    incident = opened(make_verdict(F.UNDETERMINED, None))
    incident = chain.ticked(incident, at(3)).incident
    incident = chain.heard(incident, make_verdict(version=2), at(4)).incident
    assert states(incident) == [(A.OBSERVE, P.SUPERSEDED), (A.SWAP_NODE, P.PROPOSED)]
    assert len(ticked_until_executing(incident).executed) == 1


def test_a_watch_without_success_goes_to_a_person_and_no_further() -> None:
    incident = chain.ticked(opened(make_verdict(F.UNDETERMINED, None)), at(3)).incident
    incident = chain.judged(incident, newest(incident).id, Seen(Outcome.FAILED, "stuck"), at(70)).incident
    incident = chain.ticked(incident, at(80)).incident
    assert states(incident) == [(A.OBSERVE, P.FAILED), (A.HAND_TO_PERSON, P.VERIFYING)]
    incident = chain.judged(incident, newest(incident).id, Seen(Outcome.FAILED, "stuck"), at(90_000)).incident
    assert states(incident) == [(A.OBSERVE, P.FAILED), (A.HAND_TO_PERSON, P.FAILED)]


def test_low_confidence_awaits_approval_and_a_person_may_give_it() -> None:
    incident = chain.ticked(opened(make_verdict(confidence=0.4)), at(3)).incident
    assert newest(incident).state is P.AWAITING_APPROVAL
    assert "0.40 is below 0.60" in newest(incident).reason
    incident = chain.approve(incident, newest(incident).id, "anna", "seen it", at(10)).incident
    assert (newest(incident).state, newest(incident).approved_by) == (P.APPROVED, "anna")
    assert chain.approve(incident, newest(incident).id, "anna", "seen it", at(11)).events == ()
    incident = chain.ticked(incident, at(12)).incident
    assert newest(incident).state is P.EXECUTING
    assert chain.approve(incident, newest(incident).id, "anna", "again", at(13)).events == ()
    with pytest.raises(IllegalTransition):
        chain.approve(incident, newest(incident).id, "otto", "me too", at(13))


def test_confidence_that_rises_needs_no_person_any_more() -> None:
    incident = chain.ticked(opened(make_verdict(confidence=0.4)), at(3)).incident
    incident = chain.heard(incident, make_verdict(version=2, confidence=0.9), at(4)).incident
    assert chain.ticked(incident, at(5)).incident.plans[0].state is P.APPROVED


def test_confidence_that_falls_takes_the_policys_approval_back() -> None:
    paused = at(3, paused="by anna")
    incident = chain.ticked(opened(), paused).incident
    assert newest(incident).state is P.APPROVED
    incident = chain.heard(incident, make_verdict(version=2, confidence=0.4), at(4)).incident
    incident = chain.ticked(incident, at(5)).incident
    assert states(incident) == [(A.SWAP_NODE, P.SUPERSEDED), (A.SWAP_NODE, P.PROPOSED)]
    assert chain.ticked(incident, at(10)).incident.plans[1].state is P.AWAITING_APPROVAL


def test_an_approval_that_nobody_gives_expires_and_a_person_is_told() -> None:
    incident = chain.ticked(opened(make_verdict(confidence=0.4)), at(3)).incident
    assert chain.ticked(incident, at(1000)).incident.plans[0].state is P.AWAITING_APPROVAL
    incident = chain.ticked(incident, at(3 + 1800)).incident
    assert states(incident) == [(A.SWAP_NODE, P.REFUSED), (A.HAND_TO_PERSON, P.PROPOSED)]
    assert "nobody approved" in newest(incident).reason


def test_a_veto_ends_it_and_the_same_step_is_not_proposed_again() -> None:
    incident = opened()
    incident = chain.veto(incident, newest(incident).id, "anna", "no", at(1)).incident
    assert chain.veto(incident, newest(incident).id, "anna", "no", at(2)).events == ()
    incident = chain.heard(incident, make_verdict(version=2, confidence=0.99), at(3)).incident
    assert states(incident) == [(A.SWAP_NODE, P.VETOED)]
    other = make_verdict(F.PROCESS_DEAD, "rank:job-1/5", version=3, ranks=(5,))
    assert states(chain.heard(incident, other, at(4)).incident)[-1] == (A.RESTART_RANK, P.PROPOSED)


def test_nothing_can_be_vetoed_once_it_is_carried_out() -> None:
    incident = ticked_until_executing(opened())
    with pytest.raises(IllegalTransition, match="is executing"):
        chain.veto(incident, newest(incident).id, "anna", "too late", at(20))


def test_a_used_up_budget_refuses_with_the_reason_and_hands_to_a_person() -> None:
    usage = Usage(spent=(Spent(plan="p", job="job-9", kind=A.RESTART_RANK, host="h9", at=START, running=False),))
    policy = Policy(budget=Budget(fabric_actions_max=1))
    incident = chain.ticked(opened(), at(3, usage=usage, policy=policy)).incident
    assert states(incident) == [(A.SWAP_NODE, P.REFUSED), (A.HAND_TO_PERSON, P.PROPOSED)]
    assert "budget of the fabric is used up" in incident.plans[0].reason
    assert "budget of the fabric is used up" in incident.plans[1].reason
    again = chain.heard(incident, make_verdict(version=2, confidence=0.99), at(4))
    assert again.incident.plans == incident.plans


def test_a_busy_fabric_makes_a_plan_wait_with_the_reason_and_then_refuses() -> None:
    usage = Usage(spent=(Spent(plan="p", job="job-1", kind=A.RESTART_RANK, host="h9", at=START, running=True),))
    incident = chain.ticked(opened(), at(3, usage=usage)).incident
    incident = chain.ticked(incident, at(4, usage=usage)).incident
    assert (newest(incident).state, newest(incident).waiting) == (P.APPROVED, "plan p is under way on this job")
    incident = chain.ticked(incident, at(4 + 300, usage=usage)).incident
    assert states(incident)[0] == (A.SWAP_NODE, P.REFUSED)


def test_a_pause_holds_a_plan_until_its_approval_runs_out() -> None:
    incident = chain.ticked(opened(), at(3, paused="by anna: maintenance")).incident
    for seconds in (4, 302):
        incident = chain.ticked(incident, at(seconds, paused="by anna: maintenance")).incident
        assert newest(incident).state is P.APPROVED
    assert newest(incident).waiting == "recovery is paused by anna: maintenance"
    assert chain.ticked(incident, at(302.5)).incident.plans[0].state is P.EXECUTING
    incident = chain.ticked(incident, at(303, paused="by anna: maintenance")).incident
    assert states(incident) == [(A.SWAP_NODE, P.REFUSED), (A.HAND_TO_PERSON, P.PROPOSED)]
    assert "in vain: recovery is paused by anna: maintenance" in incident.plans[0].reason


def test_an_approval_that_nobody_led_for_is_not_acted_upon_afterwards() -> None:
    """The pause ended, or the leader came back, long after: the plan says what was true then."""
    incident = chain.ticked(opened(), at(3, paused="by anna")).incident
    incident = chain.ticked(incident, at(10_000)).incident
    assert states(incident) == [(A.SWAP_NODE, P.REFUSED), (A.HAND_TO_PERSON, P.PROPOSED)]
    assert "approval has run out" in incident.plans[0].reason


def test_a_verdict_older_than_the_jobs_recovery_is_not_acted_upon() -> None:
    incident = opened()
    late = chain.ticked(incident, at(3, job_recovered_at=after(1)))
    assert states(late.incident) == [(A.SWAP_NODE, P.SUPERSEDED)]
    before = chain.ticked(incident, at(3, job_recovered_at=after(-60)))
    assert states(before.incident) == [(A.SWAP_NODE, P.APPROVED)]


def test_an_actuator_that_cannot_escalates_and_what_it_tried_is_not_repeated() -> None:
    incident = ticked_until_executing(opened())
    incident = chain.acted(incident, newest(incident).id, done=False, result="no answer", ctx=at(20)).incident
    assert states(incident) == [(A.SWAP_NODE, P.FAILED), (A.HAND_TO_PERSON, P.PROPOSED)]


def test_a_failed_step_is_followed_by_the_next_larger_one_and_in_the_end_by_a_person() -> None:
    incident = opened(make_verdict(F.LINK_FLAP, LINK, recommended=A.REINIT_COMMUNICATORS))
    seconds = 10.0
    while newest(incident).open and newest(incident).action is not A.HAND_TO_PERSON:
        incident = ticked_until_executing(incident, seconds)
        plan = newest(incident).id
        incident = chain.acted(incident, plan, done=True, result="done", ctx=at(seconds + 5)).incident
        incident = chain.judged(incident, plan, Seen(Outcome.FAILED, "stuck"), at(seconds + 300)).incident
        seconds += 1000
    assert [plan.action for plan in incident.plans] == [
        A.REINIT_COMMUNICATORS,
        A.SWAP_NODE,
        A.DRAIN_AND_RESUME,
        A.HAND_TO_PERSON,
    ]
    assert "3 actions did not help" in newest(incident).reason


def test_silence_after_the_action_leads_to_a_person_and_to_no_larger_action() -> None:
    incident = ticked_until_executing(opened(make_verdict(F.PROCESS_DEAD, "rank:job-1/3")))
    incident = chain.acted(incident, newest(incident).id, done=True, result="done", ctx=at(15)).incident
    incident = chain.judged(incident, newest(incident).id, Seen(Outcome.BLIND, "silent"), at(300)).incident
    assert states(incident) == [(A.RESTART_RANK, P.FAILED), (A.HAND_TO_PERSON, P.PROPOSED)]


def test_a_fault_without_a_job_is_recovered_when_its_verdict_resolves_after_the_action() -> None:
    facts = make_facts()
    storm = make_verdict(F.PFC_STORM, "port:leaf0/h1", job=None)
    incident = opened(storm, facts=facts)
    incident = ticked_until_executing(incident)
    incident = chain.acted(incident, newest(incident).id, done=True, result="done", ctx=at(15)).incident
    resolved = make_verdict(F.PFC_STORM, "port:leaf0/h1", job=None, version=2, state=VerdictState.RESOLVED)
    incident = chain.heard(incident, resolved, at(20)).incident
    incident = chain.ticked(incident, at(21)).incident
    assert states(incident) == [(A.ISOLATE_LINK, P.RECOVERED)]


def test_a_verdict_that_keeps_changing_its_mind_ends_with_a_person() -> None:
    policy = Policy(plans_per_incident_max=4)
    incident = opened(policy=policy)
    for version in range(2, 12):
        host = f"h{version}"
        verdict = make_verdict(F.NVLINK, f"nvlink:{host}/0/1", version=version)
        incident = chain.heard(incident, verdict, at(version, policy=policy)).incident
    assert len(incident.plans) == 4
    assert (newest(incident).action, newest(incident).open) == (A.HAND_TO_PERSON, True)


def test_every_event_of_a_chain_is_announced_once_per_state() -> None:
    first = chain.heard(None, make_verdict(), at(0))
    events = list(first.events)
    incident = first.incident
    for seconds in range(1, 20):
        decision = chain.ticked(incident, at(seconds))
        incident = decision.incident
        events += decision.events
    moved = [event for event in events if isinstance(event, Moved)]
    assert [event.plan.state for event in moved] == [P.PROPOSED, P.APPROVED, P.EXECUTING]
    assert [event.previous for event in moved] == [None, P.PROPOSED, P.APPROVED]
