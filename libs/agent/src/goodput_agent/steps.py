"""Step times by phase, taken in the training thread at the price of a few clock readings.

One thread writes (the training loop), one reads (the reporter). They share no lock: the writer appends finished steps to a
bounded deque, which is atomic in CPython, and the reader takes them off; where the writer is *now* is a few attributes of
which each is replaced whole. A reader may see a phase one instant old; it can never hold the writer up.
"""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

UNREAD_STEPS_MAX = 4096  # a reader that is away this long loses the oldest times, never the step number


class FinishedStep(NamedTuple):
    step: int
    finished_s: float  # monotonic
    duration_ms: float
    interval_s: float  # since the previous step finished, pauses left out
    phases_ms: dict[str, float]


class Now(NamedTuple):
    """Where the loop is. `since_s` is when that began (monotonic)."""

    step: int  # last finished; -1 before the first
    in_step: bool
    phase: str
    phase_since_s: float
    moved_s: float  # last time the loop showed a sign of a step: begin or end


class StepClock:
    """Written by the training thread only."""

    def __init__(self) -> None:
        now = time.monotonic()
        self.step = -1
        self.finished: deque[FinishedStep] = deque(maxlen=UNREAD_STEPS_MAX)
        self._began_s: float | None = None
        self._last_end_s = now
        self._moved_s = now
        self._phases: dict[str, float] = {}
        self._phase = ""
        self._phase_since_s = now

    def begin(self) -> None:
        now = time.monotonic()
        self._began_s = now
        self._moved_s = now
        self._phases = {}
        self._phase_since_s = now

    def end(self, step: int | None = None) -> FinishedStep:
        """Finish a step. Without a `begin` it lasted since the previous end."""
        now = time.monotonic()
        self.step = self.step + 1 if step is None else step
        began = self._last_end_s if self._began_s is None else self._began_s
        done = FinishedStep(self.step, now, (now - began) * 1e3, now - self._last_end_s, self._phases)
        self._phases = {}
        self._began_s = None
        self._last_end_s = now
        self._moved_s = now
        self._phase_since_s = now
        self.finished.append(done)
        return done

    def abandon(self) -> None:
        """The step was left by an exception: it counts as neither finished nor running."""
        self._began_s = None
        self._phases = {}

    def rest(self) -> None:
        """Time spent paused belongs to no step."""
        now = time.monotonic()
        self._last_end_s = now
        self._moved_s = now
        self._phase_since_s = now

    def enter_phase(self, name: str) -> str:
        """Returns the phase that was left, to be handed back to `leave_phase`. Time goes to the innermost phase."""
        now = time.monotonic()
        outer = self._phase
        if outer:
            self._phases[outer] = self._phases.get(outer, 0.0) + (now - self._phase_since_s) * 1e3
        self._phase = name
        self._phase_since_s = now
        return outer

    def leave_phase(self, outer: str) -> None:
        now = time.monotonic()
        name = self._phase
        self._phases[name] = self._phases.get(name, 0.0) + (now - self._phase_since_s) * 1e3
        self._phase = outer
        self._phase_since_s = now

    def now(self) -> Now:
        """Read by the reporter."""
        return Now(self.step, self._began_s is not None, self._phase, self._phase_since_s, self._moved_s)
