"""Reports and suspicions from a step clock."""

from __future__ import annotations

from datetime import UTC, datetime

from goodput_agent.identity import identify
from goodput_agent.stall import StallRule
from goodput_agent.steps import FinishedStep, StepClock
from goodput_agent.watch import SECOND_DUMP_AFTER_S, Due, Watch

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ME = identify({"RANK": "3", "WORLD_SIZE": "4"}, job="j")


class Loop:
    """A training loop whose time stands where it is put."""

    def __init__(self, steps: int = 10) -> None:
        self.clock = StepClock()
        self.watch = Watch(ME, self.clock, StallRule())
        self.now_s = 100.0
        for _ in range(steps):
            self.finish()

    def finish(self, took_s: float = 0.1) -> None:
        self.now_s += took_s
        self.clock.step += 1
        self.clock.finished.append(FinishedStep(self.clock.step, self.now_s, took_s * 1e3, took_s, {"forward": 30.0}))

    def look(self, after_s: float = 0.0, *, paused: bool = False) -> Due:
        """Looks every quarter of a second until `after_s` from now; the first outcome that is not nothing."""
        found = self.watch.look(self.now_s, paused=paused)
        until_s = self.now_s + after_s
        while found is Due.NOTHING and self.now_s < until_s:
            self.now_s = min(self.now_s + 0.25, until_s)
            found = self.watch.look(self.now_s, paused=paused)
        return found


def test_a_stall_is_suspected_once_and_dumped_twice() -> None:
    loop = Loop()
    assert loop.look(1.9) is Due.NOTHING
    assert loop.look(0.5) is Due.SUSPECT
    assert loop.look(0.2) is Due.NOTHING
    assert loop.look(SECOND_DUMP_AFTER_S) is Due.DUMP_AGAIN
    assert loop.look(60.0) is Due.NOTHING


def test_steps_that_go_on_end_the_suspicion_and_a_new_stall_is_a_new_one() -> None:
    loop = Loop()
    assert loop.look(3.0) is Due.SUSPECT
    loop.finish(0.1)
    assert loop.look() is Due.NOTHING
    assert loop.look(2.1) is Due.SUSPECT


def test_no_suspicion_before_the_first_few_steps() -> None:
    assert Loop(steps=4).look(3600.0) is Due.NOTHING


def test_no_suspicion_while_paused_nor_right_after() -> None:
    loop = Loop()
    assert loop.look(3.0, paused=True) is Due.NOTHING
    assert loop.look(1.5) is Due.NOTHING
    assert loop.look(1.0) is Due.SUSPECT


def test_progress_means_the_steps_since_the_last_report() -> None:
    loop = Loop(steps=0)
    loop.finish(0.1)
    loop.finish(0.3)
    loop.look()
    report = loop.watch.progress(loop.now_s, NOW, groups=(), collective="", paused=False)
    assert (report.seq, report.step, report.steps) == (1, 1, 2)
    assert (report.step_ms_mean, report.step_ms_max) == (200.0, 300.0)
    assert report.phases_ms == {"forward": 30.0}
    assert report.step_at == NOW
    later = loop.watch.progress(loop.now_s + 1, NOW, groups=(), collective="", paused=False)
    assert (later.seq, later.steps, later.step_ms_mean) == (2, 0, 0.0)


def test_before_the_first_step_the_report_says_so() -> None:
    report = Loop(steps=0).watch.progress(100.0, NOW, groups=(), collective="", paused=False)
    assert (report.step, report.step_at) == (-1, None)


def test_a_process_that_stood_still_as_a_whole_does_not_accuse_itself() -> None:
    loop = Loop()
    loop.look(0.5)
    loop.now_s += 60.0
    assert loop.look() is Due.NOTHING
    assert loop.look(1.9) is Due.NOTHING
    assert loop.look(0.5) is Due.SUSPECT


def test_waiting_is_told_as_part_of_the_mean_step_and_left_open_where_nobody_can_tell() -> None:
    loop = Loop()
    loop.look()
    told = loop.watch.progress(loop.now_s, NOW, groups=(), collective="", paused=False, waiting_share=0.25)
    assert (told.step_ms_mean, told.waiting_ms) == (100.0, 25.0)
    loop.finish()
    loop.look()
    assert loop.watch.has_finished
    assert loop.watch.progress(loop.now_s, NOW, groups=(), collective="", paused=False).waiting_ms == -1.0
    nothing_new = loop.watch.progress(loop.now_s, NOW, groups=(), collective="", paused=False, waiting_share=0.25)
    assert nothing_new.waiting_ms == -1.0
