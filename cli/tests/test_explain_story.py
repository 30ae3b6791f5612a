"""Every section of a verdict's story, from verdicts made by hand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_cli.explain.model import Heard, MomentKind, RecoveryStep
from goodput_cli.explain.reasons import CONTRADICTS
from goodput_cli.explain.story import DOES, tell
from goodput_cli.explain.words import clean
from goodput_common.contracts.recovery import NotChosen, PlanState
from goodput_common.contracts.verdict import (
    ActionKind,
    Alternative,
    Culprit,
    Evidence,
    Explained,
    FaultClass,
    Trouble,
    Verdict,
    VerdictState,
)

T0 = datetime(2026, 3, 2, 8, tzinfo=UTC)
Make = Callable[..., Verdict]
MakeEvidence = Callable[..., Evidence]
LINK = Alternative(
    component="nic:h3/mlx5_0/1", fault_class=FaultClass.LINK_FLAP, confidence=0.4, because="it leaves 3 of 4 unexplained"
)


def test_one_sentence_says_who_and_how_sure(make_verdict: Make) -> None:
    said = tell([make_verdict()]).summary
    assert said.startswith("gpu:h3/4 (rank 28) is very likely to blame: a GPU has fallen off the bus (gpu_off_bus)")
    assert said.endswith("and job train stands still; confidence 0.93.")


@pytest.mark.parametrize(("confidence", "words"), [(0.99, "almost certainly"), (0.75, "is likely"), (0.3, "perhaps")])
def test_the_words_follow_the_confidence(make_verdict: Make, confidence: float, words: str) -> None:
    assert words in tell([make_verdict(confidence=confidence)]).summary


def test_nobody_is_blamed_where_it_cannot_be_told(make_verdict: Make) -> None:
    said = tell([make_verdict(component=None)])
    assert said.summary.startswith("Nobody can be named")
    assert "no suspect is likely enough by itself to be named" in said.why_this
    assert CONTRADICTS[FaultClass.UNDETERMINED] in said.would_change


def test_no_hardware_fault_is_said_to_be_the_applications_own(make_verdict: Make) -> None:
    said = tell([make_verdict(component=None, fault_class=FaultClass.NO_HARDWARE_FAULT)]).summary
    assert said.startswith("No hardware is at fault, very likely")


def test_a_culprit_that_a_tenant_may_not_see_is_not_nobody(make_verdict: Make) -> None:
    hidden = Culprit(component=None, kind=make_verdict().culprit.kind, host=None)
    assert tell([make_verdict(culprit=hidden, culprits=())]).summary.startswith("a gpu that you may not see is")


def test_the_time_line_runs_across_components_relative_to_the_first_evidence(make_verdict: Make) -> None:
    step = RecoveryStep(
        at=T0 + timedelta(seconds=4),
        action=ActionKind.SWAP_NODE,
        target="gpu:h3/4",
        state=PlanState.APPROVED,
        reason="policy",
    )
    told = tell([make_verdict()], recovery=[step]).timeline
    assert [(each.after_s, each.kind, each.component) for each in told] == [
        (0.0, MomentKind.STEP, "job:train"),
        (1.0, MomentKind.EVIDENCE, "gpu:h3/4"),
        (1.5, MomentKind.EVIDENCE, "gpu:h3/4"),
        (3.0, MomentKind.VERDICT, "gpu:h3/4"),
        (4.0, MomentKind.RECOVERY, "gpu:h3/4"),
    ]
    assert told[-1].what == "approved: swap_node gpu:h3/4 (policy)"


def test_evidence_at_the_very_beginning_leaves_no_room_for_a_guess_about_steps(
    make_verdict: Make, make_evidence: MakeEvidence
) -> None:
    first = make_evidence("e", "gpu:h3/4", 0.0, "Xid 79")
    assert MomentKind.STEP not in {each.kind for each in tell([make_verdict(evidence=(first,))]).timeline}


def test_versions_say_what_they_bring(make_verdict: Make, make_evidence: MakeEvidence) -> None:
    early = make_verdict(component="rank:train/3", evidence=(make_evidence("e-rank", "rank:train/3", 0.5, "stands still"),))
    second = make_verdict(2, 5.0, confidence=0.8)
    third = make_verdict(3, 6.0, confidence=0.9)
    over = make_verdict(4, 9.0, confidence=0.9, state=VerdictState.RESOLVED, resolution="steps resumed: step 49 finished")
    said = tell([early, second, third, over])
    assert [each.what for each in said.timeline if each.kind is MomentKind.VERDICT] == [
        "v1 open: rank:train/3 (rank 28), gpu_off_bus, confidence 0.93",
        "v2 revised: gpu:h3/4 (rank 28), gpu_off_bus, confidence 0.80, no longer rank:train/3 (rank 28), gpu_off_bus",
        "v3 revised: confidence 0.80 -> 0.90",
        "v4 resolved: steps resumed: step 49 finished",
    ]
    assert [each.component for each in said.timeline if each.kind is MomentKind.SYMPTOM] == ["rank:train/3"]
    assert said.summary.endswith("it is over: steps resumed: step 49 finished.")


def test_evidence_comes_with_its_meaning_and_who_told_it_weightiest_first(make_verdict: Make) -> None:
    heard = {"e-xid": Heard(source="kernel_log", host="h3", received_at=T0 + timedelta(seconds=1.4))}
    first, second = tell([make_verdict()], heard=heard).evidence
    assert (first.excerpt, first.why, first.after_s) == ("Xid 79, GPU has fallen off the bus", "the driver lost it", 1.0)
    assert first.heard == "kernel_log of h3, arrived 0.4 s later"
    assert (second.event_id, second.heard) == ("e-pci", "")


def test_the_runner_up_is_told_with_what_speaks_against_it(make_verdict: Make) -> None:
    said = tell([make_verdict(alternatives=(LINK,))])
    assert [(each.component, each.because) for each in said.rivals] == [("nic:h3/mlx5_0/1", "it leaves 3 of 4 unexplained")]
    assert any("nic:h3/mlx5_0/1 (link_flap), which comes next" in each for each in said.would_change)
    assert not any("no runner-up" in each for each in said.why_this)


def test_an_alternative_without_reasons_is_told_by_what_accounts_for_it_else_by_numbers(make_verdict: Make) -> None:
    bare = Alternative(component="rank:train/3", fault_class=FaultClass.PROCESS_STALL, confidence=0.3)
    other = Alternative(component="rank:train/9", fault_class=FaultClass.PROCESS_STALL, confidence=0.2)
    waits = Explained(component="rank:train/3", symptom="stands still", because="it waits for rank 28")
    first, second = tell([make_verdict(alternatives=(bare, other), explained=(waits,))]).rivals
    assert first.because == "it waits for rank 28"
    assert "0.20 sure beside 0.93" in second.because


def test_without_a_runner_up_the_suspects_that_were_set_aside_are_told(make_verdict: Make) -> None:
    aside = Explained(component="rank:train/28", symptom="process_stall: no progress", because="it runs on gpu:h3/4")
    assert any(
        "rank:train/28 (process_stall): it runs on gpu:h3/4" in each
        for each in tell([make_verdict(explained=(aside,))]).why_this
    )
    assert any("nothing that was seen speaks for anybody else" in each for each in tell([make_verdict()]).why_this)


def test_who_an_earlier_version_named_is_a_runner_up(make_verdict: Make) -> None:
    (rival,) = tell([make_verdict(component="rank:train/3", confidence=0.5), make_verdict(2)]).rivals
    assert (rival.component, rival.confidence) == ("rank:train/3", 0.5)
    assert rival.because.startswith("named by v1; ")


def test_equal_symptoms_are_told_once_for_all_their_ranks(make_verdict: Make) -> None:
    waiting = [
        Explained(component=f"rank:train/{rank}", symptom="stands still", because="it waits for rank 28")
        for rank in range(24)
    ]
    rest = Explained(component=None, symptom="7 more ranks stand still", because="they wait in the same way")
    first, last = tell([make_verdict(explained=(*waiting, rest))]).explained
    assert (first.who, first.count) == ("rank:train/0-23", 24)
    assert (last.who, last.symptom) == ("", "7 more ranks stand still")


def test_silent_sources_are_told_and_may_change_the_verdict(make_verdict: Make) -> None:
    said = tell([make_verdict(unknown=("collector of h3: silent",))])
    assert said.not_seen == ("collector of h3: silent",)
    assert any("(collector of h3: silent)" in each for each in said.would_change)


def test_an_alert_that_is_left_unexplained_may_change_the_verdict(make_verdict: Make) -> None:
    said = tell([make_verdict(unexplained=("xid 31 of gpu:h2/1: NVRM: Xid", "2 further alerts"))])
    assert any("(xid 31 of gpu:h2/1: NVRM: Xid): it may be a second fault" in each for each in said.would_change)


def test_a_single_line_or_a_single_source_is_a_doubt(make_verdict: Make, make_evidence: MakeEvidence) -> None:
    alone = tell([make_verdict(evidence=(make_evidence("e", "gpu:h3/4", 1.0, "Xid 79"),))])
    assert any("its only line of evidence" in each for each in alone.would_change)
    heard = {key: Heard(source="kernel_log", host="h3", received_at=T0) for key in ("e-xid", "e-pci")}
    assert any("kernel_log, the only source" in each for each in tell([make_verdict()], heard=heard).would_change)
    assert not any("only" in each for each in tell([make_verdict()]).would_change)


def test_what_is_resolved_does_not_change_any_more(make_verdict: Make) -> None:
    (said,) = tell([make_verdict(), make_verdict(2, 9.0, state=VerdictState.RESOLVED, resolution="over")]).would_change
    assert said.startswith("nothing any more")


def test_a_slow_job_is_over_it_when_it_is_fast_again(make_verdict: Make) -> None:
    said = tell([make_verdict(trouble=Trouble.SLOW)])
    assert "job train is slow" in said.summary
    assert any(each.startswith("steps as fast as before") for each in said.would_change)


def test_the_action_is_told_with_its_reason_and_what_was_passed_over(make_verdict: Make) -> None:
    passed = NotChosen(kind=ActionKind.RESET_GPU, why="the GPU does not answer")
    step = RecoveryStep(
        at=T0, action=ActionKind.SWAP_NODE, target=None, state=PlanState.RECOVERED, reason="steps move", not_chosen=(passed,)
    )
    said = tell([make_verdict()], recovery=[step])
    assert (said.advice.kind, said.advice.reason) == (ActionKind.SWAP_NODE, "it is gone until its machine is reset")
    assert said.advice.not_chosen == (passed,)
    assert said.recovery == "recovered: swap_node (steps move)"


def test_recovery_that_nobody_told_of_is_unknown_and_not_nothing(make_verdict: Make) -> None:
    assert tell([make_verdict()], recovery_unknown="no answer").recovery == "unknown: no answer"
    assert tell([make_verdict()]).recovery == "nothing has been planned"


def test_every_class_and_action_has_its_words() -> None:
    assert set(CONTRADICTS) == set(FaultClass)
    assert set(DOES) == set(ActionKind)


@given(st.text())
def test_cleaned_text_is_one_printable_line(text: str) -> None:
    assert clean(text).isprintable()
