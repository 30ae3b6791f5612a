"""When a job counts as recovered, as failed, or as not to be told."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from goodput_common.contracts.job import RankExited, RankProgress, RankRegistered
from goodput_recovery.domain.incident import heard
from goodput_recovery.domain.plan import Plan
from goodput_recovery.domain.policy import Policy
from goodput_recovery.domain.progress import JobProgress, Outcome, Watch, look
from goodput_recovery.testing import START, make_context, make_verdict

POLICY = Policy(verify_hold_s=3.0, verify_within_s=100.0, verify_watch_s_min=20.0)


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def a_plan(*, stall_step: int | None = 100, generation: int = 0, **more: object) -> Plan:
    plan = heard(None, make_verdict(), make_context()).incident.plans[0]
    return msgspec.structs.replace(
        plan,
        stall_step=stall_step,
        stall_generation=generation,
        acted_at=START,
        verify_by=after(100),
        **more,
    )


class Job:
    """Ranks that report."""

    def __init__(self, world_size: int = 4) -> None:
        self.progress = JobProgress()
        self.size = world_size
        self.seq = 0

    def register(self, generation: int = 0) -> None:
        for rank in range(self.size):
            self.progress.registered(
                RankRegistered(
                    fabric="f",
                    job="j",
                    rank=rank,
                    world_size=self.size,
                    host=f"h{rank}",
                    pid=1,
                    at=START,
                    generation=generation,
                )
            )

    def report(self, seconds: float, step: int, *, ranks: object = None, generation: int = 0, steps: int = 0) -> None:
        self.seq += 1
        for rank in range(self.size) if ranks is None else ranks:  # type: ignore[attr-defined]
            self.progress.reported(
                RankProgress(
                    fabric="f",
                    job="j",
                    rank=rank,
                    host="h",
                    seq=self.seq,
                    at=after(seconds),
                    generation=generation,
                    step=step,
                    steps=steps,
                ),
                after(seconds),
            )

    def leave(self, seconds: float) -> None:
        for rank in range(self.size):
            self.progress.exited(RankExited(fabric="f", job="j", rank=rank, host=f"h{rank}", at=after(seconds)))

    def look(self, plan: Plan, watch: Watch, seconds: float) -> Outcome:
        return look(self.progress, plan, watch, POLICY, after(seconds)).outcome


def test_ranks_that_move_beyond_the_stall_and_go_on_are_recovered() -> None:
    job, plan, watch = Job(), a_plan(), Watch(since=START)
    job.register()
    job.report(1, 100)
    assert job.look(plan, watch, 1) is Outcome.WAIT
    job.report(2, 101)
    assert job.look(plan, watch, 2) is Outcome.WAIT
    job.report(6, 105)
    assert job.look(plan, watch, 6) is Outcome.RECOVERED


def test_one_rank_that_does_not_move_keeps_the_job_unrecovered() -> None:
    job, plan, watch = Job(), a_plan(), Watch(since=START)
    job.register()
    job.report(1, 100)
    for seconds in range(2, 30):
        job.report(seconds, 100 + seconds, ranks=(0, 1, 3))
        job.report(seconds, 100, ranks=(2,))
        assert job.look(plan, watch, seconds) is Outcome.WAIT


def test_a_silent_rank_keeps_the_job_unrecovered_and_is_named() -> None:
    job, plan, watch = Job(), a_plan(), Watch(since=START)
    job.register()
    for seconds in range(1, 10):
        job.report(seconds, 100 + seconds, ranks=(0, 1, 2))
    seen = look(job.progress, plan, watch, POLICY, after(10))
    assert seen.outcome is Outcome.WAIT
    assert "rank 3 silent" in seen.text


def test_steps_finished_before_the_action_but_heard_of_late_do_not_count() -> None:
    job, plan, watch = Job(), a_plan(stall_step=98), Watch(since=START)
    job.register()
    job.report(1, 100)
    for seconds in range(1, 60):
        job.report(seconds, 100)
        assert job.look(plan, watch, seconds) is Outcome.WAIT


def test_a_newer_generation_is_measured_from_its_own_beginning() -> None:
    job, plan, watch = Job(), a_plan(), Watch(since=START)
    job.register()
    job.report(1, 100)
    job.register(generation=1)
    job.report(5, 60, generation=1)
    assert job.look(plan, watch, 5) is Outcome.WAIT
    job.report(6, 61, generation=1)
    assert job.look(plan, watch, 6) is Outcome.WAIT
    job.report(10, 65, generation=1)
    assert job.look(plan, watch, 10) is Outcome.RECOVERED


def test_a_first_report_of_a_generation_with_finished_steps_counts_them() -> None:
    job, plan, watch = Job(), a_plan(), Watch(since=START)
    job.register(generation=1)
    job.report(5, 64, generation=1, steps=4)
    assert job.look(plan, watch, 5) is Outcome.WAIT
    job.report(9, 70, generation=1, steps=6)
    assert job.look(plan, watch, 9) is Outcome.RECOVERED


def test_reports_of_the_old_generation_and_doubled_ones_are_ignored() -> None:
    job = Job(1)
    job.register(generation=1)
    job.report(1, 500, generation=0)
    assert job.progress.step is None
    job.report(2, 7, generation=1)
    stale = RankProgress(fabric="f", job="j", rank=0, host="h", seq=1, at=START, generation=1, step=99)
    assert job.progress.reported(stale, after(3)) is False
    assert job.progress.step == 7


def test_a_stop_within_the_holding_time_starts_it_again() -> None:
    job, plan, watch = Job(), a_plan(), Watch(since=START)
    job.register()
    job.report(1, 101)
    assert job.look(plan, watch, 1) is Outcome.WAIT
    job.register(generation=1)
    assert job.look(plan, watch, 2) is Outcome.WAIT
    assert watch.first_moved_at == after(1) or watch.first_moved_at is None
    job.report(5, 90, generation=1)
    assert job.look(plan, watch, 5) is Outcome.WAIT


def test_the_deadline_says_what_was_seen() -> None:
    job, plan, watch = Job(), a_plan(), Watch(since=START)
    job.register()
    job.report(50, 100)
    seen = look(job.progress, plan, watch, POLICY, after(101))
    assert seen.outcome is Outcome.FAILED
    assert seen.text == "101 s after the action: ranks 0, 1, 2, 3 not beyond step 100"


def test_silence_of_all_is_blind_and_not_failed() -> None:
    plan, watch = a_plan(), Watch(since=START)
    seen = look(None, plan, watch, POLICY, after(101))
    assert seen.outcome is Outcome.BLIND
    assert "cannot tell" in seen.text


def test_time_without_a_bus_does_not_count() -> None:
    job, plan, watch = Job(), a_plan(), Watch(since=START, blind_s=60.0)
    job.report(1, 100)
    assert job.look(plan, watch, 101) is Outcome.WAIT
    assert job.look(plan, watch, 159) is Outcome.WAIT
    assert job.look(plan, watch, 161) is Outcome.FAILED


def test_after_a_restart_nothing_fails_before_it_was_watched_for_a_while() -> None:
    job, plan = Job(), a_plan()
    job.report(500, 100)
    watch = Watch(since=after(500))
    assert job.look(plan, watch, 501) is Outcome.WAIT
    assert job.look(plan, watch, 521) is Outcome.FAILED


def test_a_job_that_moves_again_and_runs_to_its_end_is_recovered() -> None:
    job, plan, watch = Job(2), a_plan(), Watch(since=START)
    job.register()
    job.report(1, 100)
    assert job.look(plan, watch, 1) is Outcome.WAIT
    job.report(2, 101)
    job.leave(2)
    assert job.look(plan, watch, 2) is Outcome.RECOVERED


def test_ranks_that_left_cleanly_without_a_step_under_watch_prove_nothing() -> None:
    for last_step in (100, 101):  # at the stall; and beyond it, but finished before the watch began
        job, plan, watch = Job(2), a_plan(), Watch(since=START)
        job.register()
        job.report(1, last_step)
        job.look(plan, watch, 1)
        job.leave(2)
        seen = look(job.progress, plan, watch, POLICY, after(2))
        assert seen.outcome is Outcome.ENDED
        assert seen.text == "all 2 ranks left cleanly: their steps were not seen to move again"


def test_stored_exits_without_any_report_prove_nothing() -> None:
    job, plan, watch = Job(2), a_plan(), Watch(since=START)
    job.register()
    job.leave(1)
    assert job.look(plan, watch, 2) is Outcome.ENDED


def test_one_rank_that_left_without_moving_keeps_the_end_from_being_proof() -> None:
    job, plan, watch = Job(3), a_plan(), Watch(since=START)
    job.register()
    job.report(1, 100)
    job.look(plan, watch, 1)
    job.report(2, 105, ranks=(0, 2))
    job.leave(3)
    assert job.look(plan, watch, 3) is Outcome.ENDED


def test_an_exit_of_the_process_before_is_ignored() -> None:
    job = Job(2)
    job.register()
    job.leave(-1)  # before the registration
    assert job.progress.left == {}
    elsewhere = RankExited(fabric="f", job="j", rank=0, host="h9", at=after(5), clean=True)
    job.progress.exited(elsewhere)
    assert job.progress.left == {}
    job.leave(1)
    assert job.progress.finished()


def test_a_resolved_verdict_of_a_silent_job_ends_a_watch_unproven() -> None:
    plan, watch = a_plan(passive=True), Watch(since=START)
    early = look(None, plan, watch, POLICY, after(5), "the job ended")
    assert early.outcome is Outcome.WAIT
    seen = look(None, plan, watch, POLICY, after(26), "the job ended")
    assert seen.outcome is Outcome.ENDED
    assert "verdict resolved: the job ended" in seen.text


def test_a_resolved_verdict_lets_ranks_stay_away_until_the_actions_deadline() -> None:
    job, plan, watch = Job(), a_plan(), Watch(since=START)
    job.register()
    job.report(-1, 100)
    for seconds in range(1, 100):
        assert look(job.progress, plan, watch, POLICY, after(seconds), "the job ended").outcome is Outcome.WAIT
    assert look(job.progress, plan, watch, POLICY, after(101), "the job ended").outcome is Outcome.ENDED


def test_ranks_that_stand_still_are_failed_whatever_the_verdict_says() -> None:
    job, plan, watch = Job(), a_plan(), Watch(since=START)
    job.register()
    for seconds in range(1, 102):
        job.report(seconds, 100)
        seen = look(job.progress, plan, watch, POLICY, after(seconds), "steps resumed")
        assert seen.outcome is (Outcome.WAIT if seconds < 100 else Outcome.FAILED)


def test_moving_ranks_of_which_there_may_be_more_are_no_proof_and_no_failure() -> None:
    job, plan, watch = Job(), a_plan(), Watch(since=START)
    for seconds in range(1, 100):
        job.report(seconds, 100 + seconds)
        assert job.look(plan, watch, seconds) is Outcome.WAIT
    job.report(101, 300)
    assert job.look(plan, watch, 101) is Outcome.BLIND


def test_a_job_that_moved_all_along_is_not_proved_by_its_steps() -> None:
    job, plan, watch = Job(), a_plan(steps_prove=False, passive=True), Watch(since=START)
    job.register()
    for seconds in range(1, 50):
        job.report(seconds, 100 + seconds)
        assert job.look(plan, watch, seconds) is Outcome.WAIT
    outcomes = []
    for seconds in range(50, 60):
        job.report(seconds, 100 + seconds)
        outcomes.append(look(job.progress, plan, watch, POLICY, after(seconds), "throttling is over").outcome)
    assert (outcomes[0], outcomes[-1]) == (Outcome.WAIT, Outcome.RECOVERED), "moving counts from the resolution on"


def test_moving_is_unknown_when_nobody_was_heard_lately() -> None:
    job = Job()
    assert job.progress.moving(START) is None
    job.report(0, 5)
    assert job.progress.moving(after(1)) is False
    job.report(1, 6)
    assert job.progress.moving(after(2)) is True
    job.report(12, 6)
    assert job.progress.moving(after(13)) is False
    assert job.progress.moving(after(60)) is None


def test_a_rank_restarted_in_the_same_generation_is_heard_again() -> None:
    job = Job()
    job.register()
    job.report(1, 100)
    job.report(2, 101)
    started_again = RankRegistered(
        fabric="f", job="j", rank=2, world_size=4, host="h2", pid=77, process_start=9, at=after(5), generation=0
    )
    job.progress.registered(started_again)
    first = RankProgress(fabric="f", job="j", rank=2, host="h2", seq=1, at=after(6), step=40, steps=1)
    assert job.progress.reported(first, after(6))
    assert job.progress.ranks[2].step == 40
    job.progress.registered(started_again)  # told twice: nothing is forgotten
    assert job.progress.ranks[2].seq == 1
