"""What comes and goes is one incident: it is taken up again when it returns soon, and another begins when it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from goodput_common.contracts.telemetry import EventName
from goodput_common.contracts.verdict import FaultClass, Verdict, VerdictState
from goodput_correlator.domain.case import Case, ordered
from goodput_correlator.domain.held import LATELY_MAX, RETURNS_S, Held
from goodput_correlator.domain.incidents import Incidents
from goodput_correlator.domain.ranking import decide
from goodput_correlator.domain.verdict import (
    CAME_BACK,
    VERSIONS_MAX,
    IllegalTransition,
    come_back,
    open_verdict,
    resolve,
    revise,
)
from goodput_topology.generate import h100_pod

Script = Callable[..., Any]
POD = h100_pod(hosts=4, spines=2)
START = datetime(2026, 3, 2, 8, 0, 0, tzinfo=UTC)
NIC = "nic:h1/mlx5_0/1"
LINK = POD.link_of(NIC)
STOOD_S = 8


def flapping(script: Script, *downs_s: int, step_s: float = 0.5) -> Any:
    """A job that stands still for some seconds each time that a link is lost."""
    log = script(hosts=4, fabric=POD, step_s=step_s)
    log.register()
    log.beats(downs_s[-1] + 30)
    step = log.run(1, downs_s[0])
    for at_s, next_s in zip(downs_s, (*downs_s[1:], downs_s[-1] + 30), strict=True):
        log.event(NIC, EventName.LINK_DOWN, at_s + 0.1, host="h1", source="netlink")
        log.event(NIC, EventName.LINK_UP, at_s + STOOD_S - 0.5, host="h1", source="netlink")
        log.stand(at_s, at_s + STOOD_S, step=step)
        step = log.run(at_s + STOOD_S, next_s, first_step=step)
    return log


def told(log: Any, to_s: float) -> list[Verdict]:
    found: list[Verdict] = log.verdicts(to_s)
    assert {(v.fault_class, v.culprit.component) for v in found} == {(FaultClass.LINK_FLAP, LINK)}
    return found


def test_a_link_that_is_lost_again_takes_up_its_incident(script: Script) -> None:
    found = told(flapping(script, 40, 80, 130), 150)
    assert len({v.incident for v in found}) == len({v.id for v in found}) == 1
    assert [v.version for v in found] == list(range(1, len(found) + 1))
    states = [v.state for v in found]
    assert states.count(VerdictState.RESOLVED) == states.count(VerdictState.OPEN) == 3
    assert states[0] is VerdictState.OPEN and states[-1] is VerdictState.RESOLVED
    again = [v for v in found if v.state is VerdictState.OPEN][1:]
    for before, v in zip([v for v in found if v.state is VerdictState.RESOLVED], again, strict=False):
        (returned,) = (each for each in v.explained if each.symptom.startswith(CAME_BACK))
        after_s = (v.published_at - before.published_at).total_seconds()
        assert returned.component == LINK and f"{after_s:.0f} s after it was resolved (steps resumed" in returned.symptom
        assert v.resolution == "" and v.detected_at == v.published_at
        assert v.first_evidence_at == found[0].first_evidence_at


@pytest.mark.parametrize(("gap_s", "incidents"), [(RETURNS_S - 30, 1), (RETURNS_S + 30, 2)])
def test_only_what_returns_within_ten_minutes_is_the_same_incident(script: Script, gap_s: float, incidents: int) -> None:
    assert RETURNS_S == 600
    found = told(flapping(script, 40, 40 + STOOD_S + int(gap_s), step_s=1.0), 40 + STOOD_S + gap_s + 20)
    assert len({v.incident for v in found}) == incidents
    assert len({(v.id, v.version) for v in found}) == len(found)


def test_a_process_that_dies_again_is_another_process(script: Script) -> None:
    log = script()
    log.register()
    step = log.run(1, 25)
    for generation, at_s in ((0, 25), (1, 60)):
        log.exited(3, at_s + 0.1, clean=False, reason="ValueError", generation=generation)
        log.stand(at_s, at_s + 10, step=step, silent=(3,), generation=generation)
        log.register(at_s=at_s + 11, generation=generation + 1)
        step = log.run(at_s + 12, at_s + 35, first_step=step, generation=generation + 1)
    found = log.verdicts(95)
    assert {v.culprit.component for v in found} == {"rank:j/3"}
    assert len({v.incident for v in found}) == 2


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(crash_s=st.integers(30, 150))
def test_a_restart_at_any_second_remembers_what_may_come_back(script: Script, crash_s: int) -> None:
    log = flapping(script, 40, 80, 130)
    at = START + timedelta(seconds=crash_s)
    before, after = Incidents(log.fabric), Incidents(log.fabric)
    had = [each for each in log.log if each.received_at <= at]
    for each in had:
        before.observe(each)
    said = before.tick(at)
    after.restore(said, had, judged=at)
    for each in log.log:
        after.observe(each)
    assert msgspec.json.encode(said + after.tick(START + timedelta(seconds=155))) == msgspec.json.encode(log.verdicts(155))


# ------------------------------------------------------------------------------------------------ by themselves


@pytest.fixture
def opened(script: Script) -> tuple[Verdict, Any]:
    """An incident of an idle GPU, and its diagnosis."""
    log = script()
    log.xid("h1", "0000:1b:00", 79, 10)
    at = START + timedelta(seconds=20)
    diagnosis = decide(Case(now=at, fabric="f", job=None, observed=ordered(log.log), topology=log.fabric))
    assert diagnosis is not None and diagnosis.culprits
    return open_verdict(diagnosis, incident="i", fabric="f", job=None, generation=0, at=at), diagnosis


def test_only_what_was_resolved_can_come_back_and_what_came_back_stays_said(opened: tuple[Verdict, Any]) -> None:
    verdict, diagnosis = opened
    with pytest.raises(IllegalTransition):
        come_back(verdict, diagnosis, at=verdict.published_at, generation=0, trouble=verdict.trouble)
    later = verdict.published_at + timedelta(seconds=42)
    again = come_back(
        resolve(verdict, at=verdict.published_at, why="rebooted"), diagnosis, at=later, generation=2, trouble=verdict.trouble
    )
    assert (again.id, again.incident, again.version, again.state) == (verdict.id, "i", 3, VerdictState.OPEN)
    assert again.generation == 2
    less = msgspec.structs.replace(verdict.action, reason="x")
    revised = revise(again, replace(diagnosis, confidence=diagnosis.confidence - 0.3, action=less), at=later)
    assert revised is not None and revised.explained[0].symptom == f"{CAME_BACK} 42 s after it was resolved (rebooted)"


def test_memory_of_what_ended_is_bounded_and_forgets_the_oldest(opened: tuple[Verdict, Any]) -> None:
    verdict, diagnosis = opened
    held, at = Held(), verdict.published_at
    for number in range(LATELY_MAX + 10):
        each = msgspec.structs.replace(
            verdict, incident=f"i{number}", job=f"j{number}", state=VerdictState.RESOLVED,
            published_at=at + timedelta(milliseconds=number),
        )  # fmt: skip
        held.let_go(each)
    now = at + timedelta(seconds=60)
    assert [held.returning(f"j{number}", diagnosis, now) is None for number in (0, 9, 10, LATELY_MAX + 9)] == [
        True, True, False, False,
    ]  # fmt: skip
    assert held.returning("j10", diagnosis, at + timedelta(seconds=RETURNS_S + 1)) is None
    assert held.returning("another", diagnosis, now) is None


def test_an_incident_with_too_many_versions_does_not_go_on_for_ever(opened: tuple[Verdict, Any]) -> None:
    verdict, diagnosis = opened
    for version, returns in ((VERSIONS_MAX - 1, True), (VERSIONS_MAX, False)):
        held = Held()
        held.let_go(msgspec.structs.replace(verdict, version=version, state=VerdictState.RESOLVED))
        assert (held.returning(None, diagnosis, verdict.published_at) is not None) is returns
