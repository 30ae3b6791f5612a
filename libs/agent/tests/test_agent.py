"""The three calls of a training loop: what they measure, and that they never hurt it."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable

import pytest

from goodput_agent.agent import Agent, watch_exit
from goodput_agent.gate import PauseGate
from goodput_agent.guard import complaints
from goodput_agent.identity import identify
from goodput_agent.steps import UNREAD_STEPS_MAX, StepClock


class Ending:
    def __init__(self) -> None:
        self.said: list[tuple[bool, str]] = []

    def stop(self, *, clean: bool, reason: str) -> None:
        self.said.append((clean, reason))


class Rig:
    def __init__(self) -> None:
        self.steps = StepClock()
        self.gate = PauseGate()
        self.ending = Ending()
        self.agent = Agent(identify({}, job="j"), self.steps, self.gate, self.ending)


def test_with_step_counts_from_zero_and_times_phases() -> None:
    rig = Rig()
    for _ in range(3):
        with rig.agent.step(), rig.agent.phase("forward"):
            pass
    assert rig.steps.step == 2
    assert [each.step for each in rig.steps.finished] == [0, 1, 2]
    assert set(rig.steps.finished[0].phases_ms) == {"forward"}


def test_step_end_alone_is_enough() -> None:
    rig = Rig()
    rig.agent.step_end()
    rig.agent.step_end(step=100)
    assert [each.step for each in rig.steps.finished] == [0, 100]


def test_time_goes_to_the_innermost_phase_and_the_outer_resumes() -> None:
    rig = Rig()
    with rig.agent.step(), rig.agent.phase("outer"):
        with rig.agent.phase("inner"):
            assert rig.steps.now().phase == "inner"
        assert rig.steps.now().phase == "outer"
    assert rig.steps.now().phase == ""
    phases = rig.steps.finished[0].phases_ms
    assert set(phases) == {"outer", "inner"}
    assert sum(phases.values()) <= rig.steps.finished[0].duration_ms + 1.0


def test_the_users_exception_comes_through_and_the_step_does_not_count() -> None:
    rig = Rig()
    with pytest.raises(ZeroDivisionError), rig.agent.step(), rig.agent.phase("forward"):
        1 / 0  # noqa: B018
    assert rig.steps.step == -1
    assert rig.steps.now().phase == ""
    rig.agent.close()
    assert rig.ending.said == [(False, "ZeroDivisionError: division by zero")]


def test_a_caught_failure_is_forgotten_when_a_step_finishes_after_it() -> None:
    rig = Rig()
    with pytest.raises(ValueError), rig.agent.step():
        raise ValueError("bad batch")
    with rig.agent.step():
        pass
    rig.agent.close()
    assert rig.ending.said == [(True, "")]


def test_close_says_goodbye_once() -> None:
    rig = Rig()
    rig.agent.close()
    rig.agent.close()
    assert rig.ending.said == [(True, "")]
    assert not rig.agent.active


def test_excepthook_gives_the_reason_in_one_line_and_calls_the_previous(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, traceback: seen.append(str(error)))
    rig = Rig()
    watch_exit(rig.agent, at_exit.append)
    error = RuntimeError("Connection closed by peer [10.0.0.3]:5\nmore")
    sys.excepthook(RuntimeError, error, None)
    at_exit[0]()
    assert seen == [str(error)]
    assert rig.ending.said == [(False, "RuntimeError: Connection closed by peer [10.0.0.3]:5")]


def test_a_broken_clock_does_not_reach_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()

    def broken(*_: object) -> None:
        raise OSError("no clock")

    monkeypatch.setattr(rig.steps, "end", broken)
    monkeypatch.setattr(rig.steps, "begin", broken)
    monkeypatch.setattr(rig.steps, "enter_phase", broken)
    monkeypatch.setattr(rig.steps, "leave_phase", broken)
    before, trained = complaints.count, False
    with rig.agent.step(), rig.agent.phase("forward"):
        trained = True
    rig.agent.step_end()
    assert trained
    assert complaints.count == before + 5, "each of the five calls is complained of"
    assert rig.steps.step == -1 and not rig.steps.finished
    monkeypatch.undo()
    rig.agent.step_end()
    assert rig.steps.step == 0, "it goes on once the clock does"


def test_an_ender_that_fails_does_not_reach_the_loop_and_is_not_asked_again() -> None:
    rig = Rig()
    asked: list[bool] = []

    def fails(_: Ending, *, clean: bool, reason: str) -> None:
        asked.append(clean)
        raise ZeroDivisionError

    rig.ending.stop = types.MethodType(fails, rig.ending)  # type: ignore[method-assign]
    before = complaints.count
    rig.agent.close()
    rig.agent.close()
    assert asked == [True]
    assert complaints.count == before + 1
    assert not rig.agent.active


def test_unread_steps_are_bounded_and_the_newest_kept() -> None:
    rig = Rig()
    for _ in range(UNREAD_STEPS_MAX + 10):
        rig.agent.step_end()
    assert len(rig.steps.finished) == UNREAD_STEPS_MAX
    assert rig.steps.finished[-1].step == rig.steps.step == UNREAD_STEPS_MAX + 9


def test_after_a_fork_the_child_is_quiet() -> None:
    rig = Rig()
    os.register_at_fork(after_in_child=rig.agent._after_fork)
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        rig.agent.step_end()
        rig.agent.close()
        os.write(write, f"{rig.agent.active} {rig.steps.step} {rig.ending.said}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 100) == b"False -1 []"
    assert rig.agent.active


class Index:
    """What a tensor or a numpy integer is to Python."""

    def __index__(self) -> int:
        return 41


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_step_number_of_any_integer_type_becomes_an_int() -> None:
    rig = Rig()
    rig.agent.resume_at(Index())
    rig.agent.step_end()
    rig.agent.step_end(step=Index())
    assert [(each.step, type(each.step)) for each in rig.steps.finished] == [(42, int), (41, int)]


def test_a_step_number_that_is_none_still_counts_the_step() -> None:
    rig = Rig()
    rig.agent.step_end(step="seven")  # type: ignore[arg-type]
    assert [each.step for each in rig.steps.finished] == [0]


def test_an_exception_without_a_text_does_not_reach_the_loop() -> None:
    rig = Rig()
    rig.agent.failed(Unspeakable())
    rig.agent.close()
    assert rig.ending.said == [(False, "Unspeakable")]


def test_a_phase_name_that_cannot_be_spoken_does_not_reach_the_loop() -> None:
    rig = Rig()
    with rig.agent.step(), rig.agent.phase(Unspeakable()):  # type: ignore[arg-type]
        pass
    assert rig.steps.step == 0
