"""Processes that are ended because the job stands still: their end is an effect of the stall and never its cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from goodput_common.contracts.telemetry import EventName, State
from goodput_common.contracts.verdict import FaultClass, Verdict

Script = Callable[..., Any]
STALL_S = 25.0
KILLED_S = 29.4  # a second after the verdict on a silent rank
RUNNING = {"cpu": "used", "cpu_ms": "1000", "window_ms": "1000"}


def stalled(script: Script, to_s: float, **stand: Any) -> Any:
    """A job that stands still from 25 s to `to_s`, when somebody ends it. Its collectors tell of all processes."""
    log = script()
    log.register()
    for rank in range(8):
        for at_s in (10.2, 15.2, 20.2, 25.2):
            log.state(
                log.host(rank), f"rank:j/{rank}", "process", "running", at_s, "process", pid=str(1000 + rank), **RUNNING
            )
    step = log.run(1, STALL_S)
    log.step = step
    log.stand(STALL_S, to_s, step=step, **stand)
    log.log = [each for each in log.log if (each.received_at - log.log[0].received_at).total_seconds() < to_s]
    return log


def killed(log: Any, rank: int, at_s: float, late_s: float = 0.05, **attrs: str) -> None:
    host = log.host(rank)
    log.event(
        f"rank:j/{rank}", EventName.PROCESS_EXITED, at_s, host=host, source="process", late_s=late_s, pid=str(1000 + rank),
        clean="false", **attrs,
    )  # fmt: skip
    gone = State(
        component=f"rank:j/{rank}",
        name="process",
        observed_at=log.clock(host, at_s),
        value="gone",
        attrs={"pid": str(1000 + rank)},
    )
    log.sample(host, at_s, gone, "process", late_s)


def kill_all(log: Any, at_s: float, first: int, **attrs: str) -> None:
    for rank in range(8):
        killed(log, rank, at_s + (0.0 if rank == first else 0.3 + 0.15 * rank), **attrs)


def said(found: list[Verdict]) -> set[tuple[FaultClass, str | None]]:
    return {(v.fault_class, c.component) for v in found for c in v.culprits}


@pytest.mark.parametrize("silence_s", [4.4, 6.0, 9.0])
@pytest.mark.parametrize("signal", ["", "SIGKILL"])
def test_a_silent_rank_that_recovery_ends_after_its_verdict_stays_a_stall(
    script: Script, silence_s: float, signal: str
) -> None:
    log = stalled(script, STALL_S + silence_s, silent=(5,))
    kill_all(log, STALL_S + silence_s, first=5, **({"signal": signal} if signal else {}))
    found = log.verdicts(STALL_S + silence_s + 6)
    assert said(found) == {(FaultClass.PROCESS_STALL, "rank:j/5")}


def test_a_silent_rank_that_a_watchdog_ends_before_the_verdict_is_a_stall_and_its_end_is_explained(script: Script) -> None:
    """Nobody could say anything before: the broker's log was judged late, or the job has long pauses."""
    log = stalled(script, 31.0, silent=(5,), phases=dict.fromkeys(range(8), "eval"))
    killed(log, 5, 31.0, late_s=0.95)
    for second in (31, 32):
        for rank in (0, 1, 2, 3, 4, 6, 7):
            usual = log.step * 4 + 3
            log.progress(rank, second + 0.5, step=log.step, age_s=6.0, joined=usual, finished=usual - 1)
    found = log.verdicts(40)
    assert said(found) == {(FaultClass.PROCESS_STALL, "rank:j/5")}
    why = [each.because for each in found[0].explained if each.symptom.startswith("process_dead")]
    assert why and "stood still for 6 s: by a restart or a watchdog" in why[0]


def test_a_rank_that_has_not_joined_and_is_ended_later_keeps_its_class(script: Script) -> None:
    log = stalled(script, 31.5, joined={3: 240 * 4 + 2}, phases={3: "data"})
    kill_all(log, 31.5, first=3)
    assert said(log.verdicts(40)) == {(FaultClass.PROCESS_STALL, "rank:j/3")}


def test_the_end_of_another_rank_after_a_verdict_changes_nothing(script: Script) -> None:
    log = stalled(script, 31.5, silent=(5,))
    kill_all(log, 31.5, first=2)
    assert said(log.verdicts(40)) == {(FaultClass.PROCESS_STALL, "rank:j/5")}


def test_ranks_that_leave_with_words_of_any_kind_as_a_stalled_job_is_torn_down_are_not_named(script: Script) -> None:
    log = stalled(script, KILLED_S, silent=(5,))
    for rank, words in enumerate(("SystemExit: 143", "AssertionError: ring is broken", "FrameworkError: giving up")):
        log.exited(rank, KILLED_S + 0.2 * rank, clean=False, reason=words)
    assert said(log.verdicts(40)) == {(FaultClass.PROCESS_STALL, "rank:j/5")}


def test_a_link_stays_named_when_the_launcher_ends_a_silent_rank_behind_another_host(script: Script) -> None:
    log = stalled(script, KILLED_S)
    log.event("nic:h1/rail0/1", EventName.LINK_DOWN, STALL_S, host="h1", source="netlink", by="netlink")
    kill_all(log, KILLED_S, first=6)
    assert {where for _, where in said(log.verdicts(40))} == {"link:nic:h1/rail0/1--port:leaf0/h1"}


def test_a_rank_that_dies_late_for_want_of_memory_is_named_for_its_death(script: Script) -> None:
    log = stalled(script, 33.0, silent=(4,))
    log.event("host:h2", EventName.HOST_STALL, 33.0, host="h2", what="oom_kill", pid="1004")
    killed(log, 4, 33.1)
    found = log.verdicts(40)
    assert (found[-1].fault_class, found[-1].culprit.component) == (FaultClass.PROCESS_DEAD, "rank:j/4")
    assert any("want of memory" in each.why for each in found[-1].evidence)


def test_a_rank_that_crashes_late_is_named_for_its_death(script: Script) -> None:
    log = stalled(script, 33.0, silent=(4,))
    killed(log, 4, 33.0, signal="SIGSEGV")
    found = log.verdicts(40)
    assert (found[-1].fault_class, found[-1].culprit.component) == (FaultClass.PROCESS_DEAD, "rank:j/4")


def test_a_rank_that_fails_late_with_an_error_of_its_own_is_named_for_it(script: Script) -> None:
    log = stalled(script, 33.0, silent=(4,))
    log.exited(4, 33.0, clean=False, reason="ValueError: expected a batch of 4 samples, got 3")
    found = log.verdicts(40)
    assert (found[-1].fault_class, found[-1].culprit.component) == (FaultClass.PROCESS_DEAD, "rank:j/4")


@pytest.mark.parametrize("rank", [0, 2, 5])  # clocks that are 1.9 s ahead, 1.7 s behind, 0.4 s ahead
def test_a_death_that_stopped_the_job_is_named_however_late_its_collector_tells_of_it(script: Script, rank: int) -> None:
    log = stalled(script, 36.0, silent=(rank,))
    killed(log, rank, STALL_S + 0.1, late_s=7.0)
    found = log.verdicts(38)
    assert (found[-1].fault_class, found[-1].culprit.component) == (FaultClass.PROCESS_DEAD, f"rank:j/{rank}")
    assert {where for _, where in said(found)} == {f"rank:j/{rank}"}


def test_a_rank_that_dies_in_a_long_checkpoint_is_the_cause_of_what_follows(script: Script) -> None:
    log = script()
    log.register()
    step = log.run(1, STALL_S)
    log.stand(STALL_S, 45, step=step, phases=dict.fromkeys(range(8), "checkpoint"))
    killed(log, 4, 45.0)
    for second in range(45, 60):
        for rank in (0, 1, 2, 3, 5, 6, 7):
            log.progress(
                rank, second + 0.5, step=step, age_s=second - 24.5, joined=step * 4 + 3, finished=step * 4 + 2,
                inside="all_reduce",
            )  # fmt: skip
    found = log.verdicts(60)
    assert (found[-1].fault_class, found[-1].culprit.component) == (FaultClass.PROCESS_DEAD, "rank:j/4")
    assert found[-1].confidence > 0.85


def test_a_late_death_that_nothing_else_explains_is_named_in_doubt(script: Script) -> None:
    """All reports were lost on their way, so nobody is known to be silent."""
    log = stalled(script, STALL_S + 0.9)
    killed(log, 4, 33.0)
    for second in (33, 34, 35, 36):
        for rank in (0, 1, 2, 3, 5, 6, 7):
            usual = log.step * 4 + 3
            log.progress(rank, second + 0.5, step=log.step, age_s=second - 24.5, joined=usual, finished=usual - 1)
    found = log.verdicts(37)
    assert said(found) == {(FaultClass.PROCESS_DEAD, "rank:j/4")}
    assert max(each.confidence for each in found) <= 0.5


@pytest.mark.parametrize("signal", ["", "SIGKILL"])
def test_a_rank_that_is_killed_in_a_pause_as_the_job_has_had_before_is_why_no_step_follows(
    script: Script, signal: str
) -> None:
    log = script()
    log.register()
    step = log.run(1, 20)
    for second in (20, 40, 60):
        log.stand(second, second + 7, step=step)
        step = log.run(second + 7, second + 20, first_step=step)
    log.stand(80, 87, step=step)
    killed(log, 4, 87.4, **({"signal": signal} if signal else {}))
    for second in range(87, 105):
        for rank in (0, 1, 2, 3, 5, 6, 7):
            usual = step * 4 + 3
            log.progress(rank, second + 0.5, step=step, age_s=second - 79.5, joined=usual, finished=usual - 1)
    found = log.verdicts(105)
    assert said(found) == {(FaultClass.PROCESS_DEAD, "rank:j/4")}
    assert found[-1].confidence > 0.85


@pytest.mark.parametrize("generation", [0, 1])
def test_a_rank_that_is_killed_while_the_job_starts_is_why_it_makes_no_step(script: Script, generation: int) -> None:
    log = script()
    log.register()
    began_s = 0
    if generation:
        log.run(1, 25)
        log.register(26, generation=1)
        began_s = 26
    for second in range(began_s + 1, began_s + 150):
        for rank in range(8):
            if rank != 4 or second < began_s + 40:
                log.progress(
                    rank, second + 0.05 * rank, step=-1, age_s=0, joined=1, finished=0, phase="data", generation=generation
                )
    log.event(
        "rank:j/4", EventName.PROCESS_EXITED, began_s + 40.0, host="h2", source="process",
        pid=str(1004 + 100 * generation), clean="false", signal="SIGKILL",
    )  # fmt: skip
    found = log.verdicts(began_s + 150)
    assert said(found) == {(FaultClass.PROCESS_DEAD, "rank:j/4")}
    assert found[-1].confidence > 0.85


@pytest.mark.parametrize("told_by", ["gpu", "process"])
@pytest.mark.parametrize(("killed_pid", "for_memory"), [("88104", True), ("88105", False)])
def test_a_rank_in_a_container_that_the_kernel_kills_under_its_own_number_is_named_for_its_death(
    script: Script, told_by: str, killed_pid: str, for_memory: bool
) -> None:
    log = stalled(script, 33.0, silent=(4,))
    if told_by == "gpu":
        log.state("h2", "gpu:h2/0", "ranks", "rank:j/4", 12.0, "nvml", **{"pid:rank:j/4": "88104"})
        log.state("h2", "gpu:h2/0", "ranks", "none", 33.2, "nvml")
    else:
        log.state("h2", "rank:j/4", "process", "running", 12.0, "process", pid="1004", outer_pid="88104")
    log.event("host:h2", EventName.HOST_STALL, 33.0, host="h2", what="oom_kill", pid=killed_pid)
    killed(log, 4, 33.1)
    last = log.verdicts(40)[-1]
    assert last.culprit.component == "rank:j/4"
    assert (last.fault_class is FaultClass.PROCESS_DEAD) is for_memory
    assert any("want of memory" in each.why for each in last.evidence) is for_memory
