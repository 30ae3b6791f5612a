"""Jobs live several lives: what was said of an earlier process is not held against the one in its place."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from goodput_common.contracts.job import GroupProgress
from goodput_common.contracts.telemetry import EventName
from goodput_common.contracts.verdict import VerdictState
from goodput_correlator.domain.host_timeline import EVENT_KEEP_S, EVENTS_PER_KEY_MAX, HostTimeline
from goodput_correlator.domain.incidents import JOB_FORGET_S, Incidents
from goodput_correlator.domain.timeline import START_UP_S, JobTimeline, Noted

Script = Callable[..., Any]


@pytest.mark.parametrize("told_as", ["event", "state"])
def test_a_process_stopped_in_an_earlier_life_is_not_blamed_for_a_later_stall(script: Script, told_as: str) -> None:
    log = script()
    log.register()
    step = log.run(1, 25)
    if told_as == "event":
        log.event("rank:j/3", EventName.PROCESS_STOPPED, 25.1, host="h1", source="process", pid="1003", generation="0")
    else:
        log.state("h1", "rank:j/3", "process", "T", 25.1, "process", pid="1003", generation="0")
    log.stand(25, 35, step=step, silent=(3,))
    log.register(at_s=37, generation=1)
    step = log.run(38, 100, first_step=step - 5, generation=1)
    log.stand(100, 125, step=step, silent=(6,), generation=1)
    later = [v for v in log.verdicts(125) if v.generation == 1]
    assert later
    assert all([c.component for c in v.culprits] == ["rank:j/6"] for v in later)


def test_a_second_hang_at_the_same_step_is_an_incident_of_its_own(script: Script) -> None:
    """The job is started again in the same generation, from its checkpoint, and hangs where it hung before."""
    first, again = script(), script()
    first.register()
    step = first.run(1, 25)
    first.stand(25, 45, step=step, silent=(4,))
    again.register(at_s=47)
    again.log = [
        replace(each, id=f"again/{each.id}", fact=msgspec.structs.replace(each.fact, pid=each.fact.pid + 500))
        for each in again.log
    ]
    again.run(48, 72)
    again.stand(72, 92, step=step, silent=(4,))
    first.log += again.log
    found = first.verdicts(92)
    assert [v.version for v in found if v.state is VerdictState.OPEN] == [1, 1]
    assert len({v.incident for v in found}) == 2


def a_start(script: Script, to_s: float, **stand: Any) -> Any:
    """All ranks register and report, and no step is ever finished."""
    log = script()
    log.register()
    for second in range(1, int(to_s)):
        for rank in range(8):
            late = rank in stand.get("late", ())
            log.progress(rank, second + 0.05 * rank, step=-1, age_s=0, joined=0 if late else 1, finished=0, **stand["says"])
    return log


def test_a_hang_before_the_first_step_is_judged_once_a_start_takes_too_long(script: Script) -> None:
    log = a_start(script, 150, late=(5,), says={"phase": "gradients"})
    found = log.verdicts(150)
    assert found
    assert found[0].published_at >= log.log[0].received_at + timedelta(seconds=START_UP_S)
    assert all([c.component for c in v.culprits] == ["rank:j/5"] for v in found)


def test_a_start_that_says_it_compiles_is_waited_for(script: Script) -> None:
    assert a_start(script, 150, late=(5,), says={"phase": "compile"}).verdicts(150) == []


def test_nothing_is_named_early_in_a_start(script: Script) -> None:
    log = a_start(script, 60, says={"phase": "forward"})
    log.event("nic:h1/rail0/1", EventName.LINK_DOWN, 20.0, host="h1", source="netlink", by="netlink")
    assert log.verdicts(60) == []


def test_a_job_of_which_not_all_ranks_have_come_is_not_judged(script: Script) -> None:
    log = a_start(script, 200, late=(5,), says={"phase": "forward"})
    log.log = [each for each in log.log if each.fact.rank != 7]
    assert log.verdicts(200) == []


def an_open_incident(script: Script) -> tuple[Any, Any, Any]:
    """(log, its only verdict, the moment up to which it was judged)"""
    log = script()
    log.register()
    step = log.run(1, 25)
    log.stand(25, 40, step=step, silent=(4,))
    found = log.verdicts(40)
    assert [v.state for v in found] == [VerdictState.OPEN]
    return log, found[0], log.log[0].received_at + timedelta(seconds=40)


def test_an_open_verdict_whose_job_does_not_come_back_after_a_restart_is_closed_in_the_end(script: Script) -> None:
    log, verdict, at = an_open_incident(script)
    after = Incidents(log.fabric)
    after.restore([verdict], [], judged=at)
    assert after.tick(at + timedelta(seconds=60)) == []
    (closed,) = after.tick(at + timedelta(seconds=JOB_FORGET_S + 60))
    assert (closed.state, closed.version) == (VerdictState.RESOLVED, 2)
    assert after.open == ()


def test_a_restart_that_finds_only_old_registrations_leaves_the_incident_open(script: Script) -> None:
    log, verdict, at = an_open_incident(script)
    old = [
        replace(each, received_at=each.received_at - timedelta(seconds=2 * JOB_FORGET_S))
        for each in log.log
        if each.id.startswith("reg/")
    ]
    after = Incidents(log.fabric)
    after.restore([verdict], old, judged=at)
    assert after.tick(at + timedelta(seconds=60)) == []
    assert after.open == (verdict,)


def test_members_of_a_group_are_remembered_while_reports_leave_them_out(script: Script) -> None:
    """Every report of the stall only counts; who shares a group was said with the first ones."""
    log = script()
    pair = GroupProgress(group="pair", ranks=(2, 5), last_enqueued=7, last_completed=7)
    log.register()
    log.progress(2, 0.5, step=0, age_s=0.0, joined=0, finished=0, extra=(pair,))
    log.progress(5, 0.6, step=0, age_s=0.0, joined=0, finished=0, extra=(pair,))
    step = log.run(1, 25)
    waits = msgspec.structs.replace(pair, last_enqueued=8)
    log.stand(25, 45, step=step, joined=dict.fromkeys(range(8), step * 4 + 2), extra={2: (waits,), 5: (pair,)})
    log.log = [
        replace(each, fact=msgspec.structs.replace(each.fact, groups=bare(each.fact.groups)))
        if each.id.startswith("prog/") and each.received_at > log.log[0].received_at + timedelta(seconds=5)
        else each
        for each in log.log
    ]
    found = log.verdicts(45)
    assert [c.component for c in found[-1].culprits] == ["rank:j/5"]


def bare(groups: tuple[GroupProgress, ...]) -> tuple[GroupProgress, ...]:
    return tuple(msgspec.structs.replace(each, ranks=()) for each in groups)


def test_the_usual_step_is_the_mean_over_what_is_remembered(script: Script) -> None:
    log = script(step_s=0.1)
    log.register()
    step = log.run(1, 61)
    log.step_s = 0.2
    log.run(61, 121, first_step=step)
    job = JobTimeline("j", "f")
    for each in sorted(log.log, key=lambda each: each.order):
        job.fold(each)
        total_s, steps = sum(gap[2] for gap in job._gaps), sum(gap[3] for gap in job._gaps)
        assert job.usual_step_s == pytest.approx(total_s / steps if steps else 0.0)
    assert 0.1 < job.usual_step_s < 0.2


def test_repeats_of_an_event_are_counted_anew_once_the_old_ones_are_forgotten(script: Script) -> None:
    log = script()
    for n in range(EVENTS_PER_KEY_MAX + 5):
        log.xid("h1", "0000:1b:00", 13, float(n))
    log.xid("h1", "0000:1c:00", 13, 50.0)
    log.xid("h1", "0000:1b:00", 13, EVENT_KEEP_S + 51.0)
    host = HostTimeline("h1")
    for each in log.log:
        host.fold(each)
    assert host.dropped == 5
    assert [each.fact.component for each in host.events] == ["gpu:h1/0000:1b:00"]
    assert sum(host._same.values()) == 1


def test_a_job_that_went_away_is_not_judged_by_the_deaths_and_errors_of_its_hosts_next_job(script: Script) -> None:
    log = script()
    log.register()
    log.run(1.0, 20.0)  # and then nobody says anything any more: the job was taken away without a goodbye
    log.xid("h1", "0000:18:00", 79, 60.0)
    log.event("rank:next/3", EventName.PROCESS_EXITED, 60.5, host="h1", source="process", pid="2003", job="next")
    assert [verdict for verdict in log.verdicts(120.0) if verdict.job == "j"] == []


def test_a_slow_agent_beside_a_stopped_process_is_not_blamed(script: Script) -> None:
    log = script()
    log.register()
    step = log.run(1, 25)
    log.event("rank:j/4", EventName.PROCESS_STOPPED, 25.1, host="h2", source="process", pid="1004", generation="0")
    log.stand(25, 40, step=step, silent=(4, 5))
    verdicts = [v for v in log.verdicts(40) if v.job == "j"]
    assert verdicts
    assert all([c.component for c in v.culprits] == ["rank:j/4"] for v in verdicts)


def a_run_that_went_without_a_goodbye(script: Script) -> Any:
    """Everybody falls silent at 25 s; much later a collector tells that one of the processes was killed."""
    log = script()
    log.register()
    log.run(1, 25)
    log.event(
        "rank:j/3", EventName.PROCESS_EXITED, 500.0, host="h1", source="process", pid="1003", job="j", signal="SIGKILL"
    )
    return log


@pytest.mark.parametrize("reports_kept", [True, False])
def test_a_job_that_went_without_a_goodbye_is_judged_after_a_restart_as_without_one(
    script: Script, reports_kept: bool
) -> None:
    """The window holds nothing of it any more. What is restored are its registrations, its last words where they are kept,
    and what was noted of it."""
    log = a_run_that_went_without_a_goodbye(script)
    start = log.log[0].received_at
    at = start + timedelta(seconds=450)
    early = [each for each in log.log if each.received_at <= at]
    reports = sorted((each for each in early if each.id.startswith("prog/")), key=lambda each: each.order)
    registrations = [each for each in early if each.id.startswith("reg/")]
    noted = Noted(
        job="j",
        generation=0,
        heard_at=reports[-1].received_at,
        step=max(each.fact.step for each in reports),
        step_at=reports[-1].received_at,
    )
    after = Incidents(log.fabric)
    last = reports[-log.world :] if reports_kept else []
    after.restore([], registrations + last, judged=at, jobs=[noted])
    for each in log.log:
        if each.received_at > at:
            after.observe(each)
    undisturbed = [v.id for v in log.verdicts(600)]
    assert undisturbed
    assert [v.id for v in after.tick(start + timedelta(seconds=600))] == undisturbed


def test_after_a_restart_a_job_is_forgotten_an_hour_after_it_was_last_heard_not_after_it_registered(script: Script) -> None:
    log, verdict, at = an_open_incident(script)
    old = [
        replace(each, received_at=each.received_at - timedelta(seconds=2 * JOB_FORGET_S))
        for each in log.log
        if each.id.startswith("reg/")
    ]
    noted = Noted(job="j", generation=0, heard_at=at - timedelta(seconds=JOB_FORGET_S / 2))
    after = Incidents(log.fabric)
    after.restore([verdict], old, judged=at, jobs=[noted])
    assert after.tick(at + timedelta(seconds=JOB_FORGET_S / 2 - 10)) == []
    (closed,) = after.tick(at + timedelta(seconds=JOB_FORGET_S / 2 + 10))
    assert closed.state is VerdictState.RESOLVED
