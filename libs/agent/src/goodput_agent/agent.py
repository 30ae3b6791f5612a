"""What the training loop holds: `step`, `step_end`, `phase`. Costs microseconds, waits for nothing, raises nothing."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, SupportsIndex

from goodput_agent.gate import PauseGate
from goodput_agent.guard import complaints, harmless, said
from goodput_agent.identity import Identity
from goodput_agent.steps import StepClock

REASON_CHARS_MAX = 400


class Ender(Protocol):
    def stop(self, *, clean: bool, reason: str) -> None: ...


class _Step:
    """One object for all steps: entering marks the begin, leaving the end. Exceptions pass through."""

    __slots__ = ("_agent",)

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def __enter__(self) -> None:
        self._agent.step_begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._agent.step_end()
        else:
            self._agent._step_failed(error)


class _Phase:
    __slots__ = ("_clock", "_name", "_outer")

    def __init__(self, clock: StepClock | None, name: str) -> None:
        self._clock = clock
        self._name = name
        self._outer = ""

    def __enter__(self) -> None:
        if self._clock is not None:
            try:
                self._outer = self._clock.enter_phase(str(self._name))
            except Exception as own:  # noqa: BLE001 - see guard
                complaints.failed("phase", own)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._clock is not None:
            try:
                self._clock.leave_phase(self._outer)
            except Exception as own:  # noqa: BLE001 - see guard
                complaints.failed("phase", own)


class Agent:
    """Made by `goodput_agent.attach`. In a forked child (a data loader's worker) it goes quiet by itself."""

    def __init__(self, identity: Identity, steps: StepClock, gate: PauseGate, ender: Ender | None) -> None:
        self.identity = identity
        self._steps = steps
        self._gate = gate
        self._ender = ender
        self._step = _Step(self)
        self._active = ender is not None
        self._failure = ""

    @property
    def active(self) -> bool:
        """False when attaching failed, after `close`, and in a forked child."""
        return self._active

    def step(self) -> _Step:
        """`with agent.step(): ...` around one training step."""
        return self._step

    def phase(self, name: str) -> _Phase:
        """`with agent.phase("forward"): ...` inside a step; phases may nest, time goes to the innermost."""
        return _Phase(self._steps if self._active else None, name)

    @harmless("step_begin")
    def step_begin(self) -> None:
        if self._active:
            if self._gate.requested:
                self._pass_gate()
            self._steps.begin()

    @harmless("step_end")
    def step_end(self, step: SupportsIndex | None = None) -> None:
        """For loops without `with`: call after each step. `step` is the loop's own number where it does not count from 0."""
        if self._active:
            self._steps.end(None if step is None else _number(step))
            self._failure = ""
            if self._gate.requested:
                self._pass_gate()

    @harmless("resume_at")
    def resume_at(self, step: SupportsIndex) -> None:
        """After loading a checkpoint: the last step that is done already."""
        self._steps.step = operator.index(step)

    @harmless("close")
    def close(self, reason: str = "") -> None:
        """Say goodbye now: clean without a reason. Called at the end of the process when the loop does not."""
        if not self._active:
            return
        self._active = False
        why = reason or self._failure
        if self._ender is not None:
            self._ender.stop(clean=not why, reason=why)

    def failed(self, error: BaseException) -> None:
        """Remember why the process is about to end; the last failure counts unless a step finishes after it."""
        self._failure = said(error).strip().partition("\n")[0][:REASON_CHARS_MAX]

    def _step_failed(self, error: BaseException) -> None:
        try:
            self.failed(error)
            self._steps.abandon()
        except Exception as own:  # noqa: BLE001 - the user's exception must come through, not ours
            complaints.failed("step", own)

    def _pass_gate(self) -> None:
        if self._gate.passage():
            self._steps.rest()

    def _after_fork(self) -> None:
        self._active = False
        self._ender = None


def _number(step: SupportsIndex) -> int | None:
    """A plain int of whatever a loop counts with (a numpy integer, a tensor); None, so that we count, where it is none."""
    try:
        return operator.index(step)
    except Exception as error:  # noqa: BLE001 - see guard
        complaints.failed("the number of a step", error)
        return None


def watch_exit(agent: Agent, add_exit: Callable[[Callable[[], None]], object]) -> None:
    """Have the end of the process reported: exceptions through `sys.excepthook`, everything else at exit."""
    import sys

    previous = sys.excepthook
    pid = os.getpid()

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if os.getpid() == pid:
            agent.failed(error)
        previous(kind, error, traceback)

    sys.excepthook = hook
    add_exit(lambda: agent.close() if os.getpid() == pid else None)
