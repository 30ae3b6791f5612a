"""When have steps stopped? A rule that learns how long a step takes, so that nobody has to configure a timeout.

A stall is suspected once the running step has lasted `max(floor, factor x usual)`, where usual is the median of the recent
steps. Three cases must not raise it: the first steps (compilation, warm-up: there is no usual yet), a pause that was asked
for, and a long step that this loop is known for (a checkpoint or an evaluation every thousand steps). For the last one:
**twice makes a habit**. A suspected step that finishes by itself is remembered; once two such steps lie within the habit
window, the threshold is raised to 1.5 times the shorter of the two. One recovered stall therefore costs no sensitivity.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StallPolicy:
    floor_s: float = 2.0
    factor: float = 5.0
    steps_min: int = 5  # no suspicion before so many steps
    window_steps: int = 64
    habit_window_steps: int = 2000
    habit_margin: float = 1.5


DEFAULT_POLICY = StallPolicy()
REFRESH_STEPS = 16


class StallRule:
    """Feed `finished`, ask `threshold_s`. A median costs ten microseconds, so it is taken once for several steps."""

    def __init__(self, policy: StallPolicy = DEFAULT_POLICY) -> None:
        self.policy = policy
        self.usual_s = 0.0
        self._seen = 0
        self._stale = False
        self._normal: deque[float] = deque(maxlen=policy.window_steps)
        self._long: deque[tuple[int, float]] = deque(maxlen=8)

    def finished(self, duration_s: float) -> None:
        self._seen += 1
        if len(self._normal) >= self.policy.steps_min and duration_s > self._base_s():
            self._long.append((self._seen, duration_s))
            return
        self._normal.append(duration_s)
        self._stale = True
        if self._seen <= REFRESH_STEPS or self._seen % REFRESH_STEPS == 0:
            self._refresh()

    def threshold_s(self) -> float | None:
        """How long a step may last; None while too little is known to tell."""
        self._refresh()
        if len(self._normal) < self.policy.steps_min:
            return None
        return max(self._base_s(), self._habit_s())

    def _refresh(self) -> None:
        if self._stale:
            self.usual_s = statistics.median(self._normal)
            self._stale = False

    def _base_s(self) -> float:
        return max(self.policy.floor_s, self.policy.factor * self.usual_s)

    def _habit_s(self) -> float:
        recent = sorted(
            (length for at, length in self._long if self._seen - at < self.policy.habit_window_steps), reverse=True
        )
        return self.policy.habit_margin * recent[1] if len(recent) > 1 else 0.0
