"""What counts as a right verdict on a lab run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

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
from goodput_faultlab.lab.judge import judge
from goodput_faultlab.ledger import LedgerEntry

START = datetime(2026, 1, 1, tzinfo=UTC)
RANK, OTHER = "rank:j/3", "rank:j/5"
ENTRY = LedgerEntry(
    id="1",
    scenario="rank-frozen",
    fault_class=FaultClass.PROCESS_STALL,
    component=RANK,
    injected_at=START,
    ranks=(3,),
    host="h1",
    job="j",
)


def verdict(component: str | None = RANK, confidence: float = 0.9, **more: Any) -> Verdict:
    rank = int(component.rpartition("/")[2]) if component else None
    given: dict[str, Any] = {
        "id": "v1",
        "version": 1,
        "fault_class": FaultClass.PROCESS_STALL,
        "ranks": () if rank is None else (rank,),
        "after_s": 4.0,
        **more,
    }
    at = START + timedelta(seconds=given["after_s"])
    return Verdict(
        id=given["id"],
        version=given["version"],
        incident="i",
        fabric="lab",
        job="j",
        state=VerdictState.OPEN,
        fault_class=given["fault_class"],
        culprit=Culprit(
            component=component, kind=ids.kind_of(component) if component else None, host="h1", ranks=given["ranks"]
        ),
        confidence=confidence,
        alternatives=(),
        evidence=(),
        explained=(),
        affected=Affected(),
        action=Action(kind=ActionKind.RESTART_RANK, target=component, reason=""),
        first_evidence_at=at,
        detected_at=at,
        published_at=at,
        diagnosed_by="test",
    )


def test_the_ledgers_component_class_and_ranks_are_right() -> None:
    found = judge(ENTRY, [verdict()])
    assert found.correct
    assert found.named_at == START + timedelta(seconds=4)


def test_no_verdict_is_wrong() -> None:
    assert not judge(ENTRY, []).correct


def test_another_culprit_another_class_and_other_ranks_are_wrong() -> None:
    assert "culprit is" in judge(ENTRY, [verdict(OTHER, 0.5)]).why
    assert "class is" in judge(ENTRY, [verdict(fault_class=FaultClass.PROCESS_DEAD, confidence=0.5)]).why
    assert "ranks are" in judge(ENTRY, [verdict(ranks=(3, 4), confidence=0.5)]).why


def test_one_confident_wrong_version_spoils_a_run_that_ends_right() -> None:
    versions = [verdict(OTHER, 0.8, after_s=3.0), verdict(version=2, after_s=5.0)]
    assert not judge(ENTRY, versions).correct


def test_a_doubtful_wrong_version_that_is_corrected_is_forgiven() -> None:
    versions = [verdict(OTHER, 0.5, after_s=3.0), verdict(version=2, after_s=5.0)]
    found = judge(ENTRY, versions)
    assert found.correct
    assert found.named_at == START + timedelta(seconds=5)


def test_a_right_version_that_is_taken_back_is_wrong() -> None:
    assert "changed its mind" in judge(ENTRY, [verdict(), verdict(OTHER, 0.5, version=2, after_s=6.0)]).why


def test_what_is_as_good_as_the_component_is_right() -> None:
    entry = msgspec.structs.replace(ENTRY, also_right=(OTHER,), ranks=())
    assert judge(entry, [verdict(OTHER)]).correct


def test_where_nothing_is_broken_any_culprit_is_wrong_and_silence_right() -> None:
    entry = msgspec.structs.replace(ENTRY, component=None, ranks=(), fault_class=FaultClass.NO_HARDWARE_FAULT)
    assert judge(entry, [], blames=False).correct
    assert judge(entry, [verdict(None, 0.9, fault_class=FaultClass.UNDETERMINED)], blames=False).correct
    assert not judge(entry, [verdict(RANK, 0.3)], blames=False).correct


def test_naming_nobody_is_right_only_where_a_scenario_allows_it() -> None:
    abstained = [verdict(None, 0.9, fault_class=FaultClass.UNDETERMINED)]
    assert judge(ENTRY, abstained, may_abstain=True).correct
    assert not judge(ENTRY, abstained).correct
    assert not judge(ENTRY, [verdict(OTHER, 0.5)], may_abstain=True).correct
