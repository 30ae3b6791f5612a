"""Scores say who was right, who was wrong and how sure, and do not take silence for either."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from goodput_common.contracts import ids
from goodput_common.contracts.verdict import (
    Action,
    ActionKind,
    Affected,
    Culprit,
    FaultClass,
    Verdict,
    VerdictState,
)
from goodput_faultlab.ledger import LedgerEntry
from goodput_faultlab.score import Outcome, Score, score

AT = datetime(2026, 1, 1, tzinfo=UTC)
LINK = "link:nic:h1/mlx5_0/1--port:s/1"


def s(seconds: float) -> datetime:
    return AT + timedelta(seconds=seconds)


def entry(component: str | None = LINK, fault: FaultClass = FaultClass.LINK_FLAP, **more: object) -> LedgerEntry:
    given = {"id": "e", "scenario": "x", "ranks": (8,), "job": "j", "injected_at": s(0)} | more
    return LedgerEntry(fault_class=fault, component=component, **given)  # type: ignore[arg-type]


def verdict(
    component: str | None = LINK,
    fault: FaultClass = FaultClass.LINK_FLAP,
    *,
    at: float = 4.0,
    confidence: float = 0.9,
    id: str = "v",
    version: int = 1,
    state: VerdictState = VerdictState.OPEN,
    job: str | None = "j",
    ranks: tuple[int, ...] = (8,),
) -> Verdict:
    return Verdict(
        id=id, version=version, incident=f"i{id}", fabric="f", job=job, state=state, fault_class=fault,
        culprit=Culprit(component=component, kind=ids.kind_of(component) if component else None, host=None, ranks=ranks),
        confidence=confidence, alternatives=(), evidence=(), explained=(), affected=Affected(),
        action=Action(kind=ActionKind.OBSERVE, target=None, reason=""), first_evidence_at=s(at), detected_at=s(at),
        published_at=s(at), diagnosed_by="t",
    )  # fmt: skip


def one(ledger: list[LedgerEntry], verdicts: list[Verdict]) -> Outcome:
    (scored,) = score(ledger, verdicts).entries
    return scored.outcome


def test_the_right_component_and_class_are_right_and_timed() -> None:
    result = score([entry()], [verdict()])
    (scored,) = result.entries
    assert (scored.outcome, scored.detect_s, scored.ranks_right, scored.wrong_confidence) == (Outcome.RIGHT, 4.0, True, 0.0)
    assert result.correct


def test_an_equivalent_component_is_right() -> None:
    assert one([entry(also_right=("nic:h1/mlx5_0/1",))], [verdict("nic:h1/mlx5_0/1")]) is Outcome.RIGHT


def test_the_right_component_under_another_class_is_only_half_right() -> None:
    result = score([entry()], [verdict(fault=FaultClass.NIC_HANG)])
    assert result.entries[0].outcome is Outcome.WRONG_CLASS
    assert result.entries[0].component_right and not result.correct


def test_another_component_is_wrong_and_its_confidence_is_kept() -> None:
    result = score([entry()], [verdict("gpu:h2/0", FaultClass.GPU_OFF_BUS, confidence=0.8)])
    assert result.entries[0].outcome is Outcome.WRONG
    assert result.entries[0].sure_and_wrong and result.wrong_confidence_max == 0.8


def test_a_wrong_first_version_counts_even_when_a_later_one_is_right() -> None:
    versions = [
        verdict("gpu:h2/0", FaultClass.GPU_OFF_BUS, confidence=0.75),
        verdict(version=2, at=8.0, state=VerdictState.REVISED),
    ]
    (scored,) = score([entry()], versions).entries
    assert (scored.outcome, scored.wrong_confidence) == (Outcome.RIGHT, 0.75)
    assert (scored.detect_s, scored.right_s) == (4.0, 8.0)


def test_undetermined_is_abstention_when_somebody_was_to_blame_and_right_when_nobody_was() -> None:
    nobody = verdict(None, FaultClass.UNDETERMINED, ranks=())
    assert one([entry()], [nobody]) is Outcome.ABSTAINED
    truth = entry(None, FaultClass.UNDETERMINED, ranks=())
    assert one([truth], [nobody]) is Outcome.RIGHT
    assert one([truth], []) is Outcome.RIGHT
    assert one([truth], [verdict()]) is Outcome.WRONG


def test_no_verdict_is_a_miss() -> None:
    assert one([entry()], []) is Outcome.MISSED


def test_a_verdict_before_the_fault_or_about_another_job_is_a_false_alarm() -> None:
    for stray in (verdict(at=-5.0), verdict(job="other")):
        outcomes = [each.outcome for each in score([entry()], [stray]).entries]
        assert outcomes == [Outcome.MISSED, Outcome.FALSE_ALARM]


def test_clocks_apart_by_two_seconds_are_no_false_alarm() -> None:
    assert one([entry()], [verdict(at=-2.0)]) is Outcome.RIGHT


def test_a_verdict_long_after_the_fault_was_cleared_is_not_about_it() -> None:
    outcomes = {each.outcome for each in score([entry(cleared_at=s(10))], [verdict(at=500.0)]).entries}
    assert outcomes == {Outcome.MISSED, Outcome.FALSE_ALARM}


def test_a_stray_verdict_that_blames_nobody_harms_nobody() -> None:
    assert score([], [verdict(None, FaultClass.UNDETERMINED)]).entries == ()


def test_the_resolution_does_not_count_as_a_new_opinion() -> None:
    resolved = msgspec.structs.replace(verdict(), version=2, state=VerdictState.RESOLVED)
    assert one([entry()], [resolved, verdict()]) is Outcome.RIGHT


def test_two_faults_of_one_job_are_matched_by_time() -> None:
    second = entry("gpu:h3/1", FaultClass.GPU_OFF_BUS, id="e2", injected_at=s(100), ranks=(25,))
    verdicts = [verdict(id="b", at=104.0, component="gpu:h3/1", fault=FaultClass.GPU_OFF_BUS, ranks=(25,)), verdict(id="a")]
    result = score([second, entry()], verdicts)
    assert [(each.entry, each.outcome) for each in result.entries] == [("e", Outcome.RIGHT), ("e2", Outcome.RIGHT)]


def test_a_rank_culprit_must_be_exactly_that_rank() -> None:
    truth = entry("rank:j/8", FaultClass.PROCESS_DEAD)
    right = score([truth], [verdict("rank:j/8", FaultClass.PROCESS_DEAD, ranks=(8,))]).entries[0]
    more = score([truth], [verdict("rank:j/8", FaultClass.PROCESS_DEAD, ranks=(8, 9))]).entries[0]
    assert right.ranks_right and not more.ranks_right


def test_scores_add_up_and_tell_themselves_in_words_and_as_data() -> None:
    total = score([entry()], [verdict()]).plus(score([entry()], [])).plus(score([], [verdict()]))
    assert total.as_dict()["counts"] == {
        "right": 1, "wrong_class": 0, "wrong": 0, "abstained": 0, "missed": 1, "false_alarm": 1,
    }  # fmt: skip
    text = total.text()
    assert "3 scored: 1 right, 1 missed, 1 false_alarm; detected in 4.0 s (median)" in text
    assert "nothing was broken" in text
    msgspec.json.encode(total.as_dict())
    assert Score().text() == "0 scored: nothing"


def test_faults_of_other_jobs_are_neither_missed_nor_alarms() -> None:
    elsewhere = entry("gpu:h9/1", FaultClass.GPU_OFF_BUS, id="bg", background=True, job=None, ranks=())
    about_it = verdict("gpu:h9/1", FaultClass.GPU_OFF_BUS, id="x", job=None, ranks=())
    result = score([entry(), elsewhere], [verdict(), about_it])
    assert [each.outcome for each in result.entries] == [Outcome.RIGHT]
    assert score([entry(), elsewhere], [verdict()]).correct


def test_blaming_a_fault_of_another_job_for_ones_own_is_wrong() -> None:
    elsewhere = entry("gpu:h9/1", FaultClass.GPU_OFF_BUS, id="bg", background=True, job=None, ranks=())
    assert one([entry(), elsewhere], [verdict("gpu:h9/1", FaultClass.GPU_OFF_BUS)]) is Outcome.WRONG


def test_hardware_without_a_job_that_nobody_broke_is_a_false_alarm() -> None:
    outcomes = {each.outcome for each in score([entry()], [verdict(), verdict("gpu:h9/1", id="x", job=None)]).entries}
    assert outcomes == {Outcome.RIGHT, Outcome.FALSE_ALARM}


def test_an_innocent_named_beside_the_culprit_is_wrong() -> None:
    both = verdict(confidence=0.9)
    innocent = msgspec.structs.replace(both.culprit, component="rank:j/3", ranks=(3,))
    (scored,) = score([entry()], [msgspec.structs.replace(both, culprits=(both.culprit, innocent))]).entries
    assert scored.outcome is Outcome.WRONG
    assert scored.sure_and_wrong


# ------------------------------------------------------------------------------------------------ two faults at once

SLOW = ("gpu:h3/1", FaultClass.STRAGGLER)
DEAD = ("rank:j/40", FaultClass.PROCESS_DEAD)


def two_at_once() -> list[LedgerEntry]:
    return [
        entry(SLOW[0], SLOW[1], id="slow", ranks=(25,), also_right=("rank:j/25",)),
        entry(DEAD[0], DEAD[1], id="dead", ranks=(40,), injected_at=s(20)),
    ]


def outcomes(verdicts: list[Verdict]) -> dict[str | None, Outcome]:
    return {each.entry: each.outcome for each in score(two_at_once(), verdicts).entries}


def test_a_fault_that_is_told_after_the_next_one_had_begun_is_still_its_own() -> None:
    late, dead = verdict(*SLOW, id="a", at=31.0, ranks=(25,)), verdict(*DEAD, id="b", at=23.0, ranks=(40,))
    assert outcomes([late, dead]) == {"slow": Outcome.RIGHT, "dead": Outcome.RIGHT}
    equivalent = verdict("rank:j/25", SLOW[1], id="a", at=31.0, ranks=(25,))
    assert outcomes([equivalent, dead]) == {"slow": Outcome.RIGHT, "dead": Outcome.RIGHT}


def test_one_chain_never_satisfies_two_entries() -> None:
    assert outcomes([verdict(*DEAD, at=23.0, ranks=(40,))]) == {"slow": Outcome.MISSED, "dead": Outcome.RIGHT}
    turned = [
        verdict(*SLOW, at=12.0, ranks=(25,)),
        verdict(*DEAD, at=23.0, ranks=(40,), version=2, state=VerdictState.REVISED),
    ]
    # it says in the end that the slow one was never to blame
    assert sorted(outcomes(turned).values()) == [Outcome.MISSED, Outcome.WRONG]


def test_a_verdict_that_names_both_is_right_about_neither() -> None:
    both = tuple(
        Culprit(component=component, kind=ids.kind_of(component), host=None, ranks=()) for component, _ in (DEAD, SLOW)
    )
    joint = msgspec.structs.replace(verdict(*DEAD, at=23.0, ranks=(40,)), culprits=both)
    assert outcomes([joint]) == {"slow": Outcome.MISSED, "dead": Outcome.WRONG}


def test_a_chain_that_names_neither_goes_by_time_and_is_wrong_there() -> None:
    innocent, fault = "gpu:h7/0", FaultClass.GPU_OFF_BUS
    assert outcomes([verdict(innocent, fault, at=12.0)]) == {"slow": Outcome.WRONG, "dead": Outcome.MISSED}
    assert outcomes([verdict(innocent, fault, at=23.0)]) == {"slow": Outcome.MISSED, "dead": Outcome.WRONG}


def test_a_right_chain_does_not_excuse_another_that_blames_an_innocent() -> None:
    right = [verdict(*SLOW, id="a", at=12.0, ranks=(25,)), verdict(*DEAD, id="b", at=23.0, ranks=(40,))]
    for at in (21.0, 27.0):
        stray = verdict("gpu:h7/0", FaultClass.GPU_OFF_BUS, id="c", at=at)
        assert outcomes([*right, stray]) == {"slow": Outcome.RIGHT, "dead": Outcome.WRONG}


def test_nobody_is_blamed_twice_for_a_chain_that_blames_nobody() -> None:
    unsure = verdict(None, FaultClass.UNDETERMINED, id="u", at=22.0, ranks=())
    named = verdict(*DEAD, id="b", at=25.0, ranks=(40,))
    assert outcomes([unsure, named]) == {"slow": Outcome.MISSED, "dead": Outcome.RIGHT}
    assert outcomes([unsure]) == {"slow": Outcome.MISSED, "dead": Outcome.ABSTAINED}


def test_a_chain_that_names_a_component_before_its_fault_was_injected_is_not_about_that_fault() -> None:
    early = verdict(*DEAD, at=12.0, ranks=(40,))
    assert outcomes([early]) == {"slow": Outcome.WRONG, "dead": Outcome.MISSED}


def test_of_two_faults_of_one_component_a_chain_satisfies_the_last_that_had_begun() -> None:
    again = [entry(), entry(id="e2", injected_at=s(50))]
    first, second = verdict(id="a", at=4.0), verdict(id="b", at=53.0)
    for said, expected in (
        ([first, second], [Outcome.RIGHT, Outcome.RIGHT]),
        ([first], [Outcome.RIGHT, Outcome.MISSED]),
        ([second], [Outcome.MISSED, Outcome.RIGHT]),
    ):
        assert [each.outcome for each in score(again, said).entries] == expected


def test_an_incident_that_came_back_answers_for_the_fault_then() -> None:
    again = [entry(), entry(id="e2", injected_at=s(50))]
    chain = [
        verdict(at=4.0),
        verdict(at=4.0, version=2, state=VerdictState.RESOLVED),
        verdict(at=53.0, version=3),
    ]
    assert [each.outcome for each in score(again, chain).entries] == [Outcome.RIGHT, Outcome.RIGHT]
    assert [each.outcome for each in score(again, chain[:2]).entries] == [Outcome.RIGHT, Outcome.MISSED]
