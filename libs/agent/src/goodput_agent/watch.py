"""From the step clock to reports: what has happened since the last look, and whether steps have stopped.

Plain computation on what it is handed; the reporter supplies the times and sends the results.
"""

from __future__ import annotations

import enum
from datetime import datetime, timedelta

from goodput_agent.identity import Identity
from goodput_agent.stall import StallRule
from goodput_agent.steps import FinishedStep, StepClock
from goodput_common.contracts.job import GroupProgress, RankProgress, StallSuspected

SECOND_DUMP_AFTER_S = 3.0
ABSENT_S = 2.0  # eight looks


class Due(enum.Enum):
    """What a stall asks for now."""

    NOTHING = "nothing"
    SUSPECT = "suspect"  # announce it and dump
    DUMP_AGAIN = "dump_again"  # completions that came in after the first dump show here


class Watch:
    def __init__(self, identity: Identity, clock: StepClock, rule: StallRule) -> None:
        self._identity = identity
        self._clock = clock
        self._rule = rule
        self._unreported: list[FinishedStep] = []
        self._last: FinishedStep | None = None
        self._seq = 0
        self._suspected_s: float | None = None
        self._dumped_again = False
        self._quiet_since_s = 0.0
        self._looked_s: float | None = None

    def look(self, now_s: float, *, paused: bool) -> Due:
        """Take in finished steps and judge. `paused` also while a pause is asked for: waiting for it is no stall.

        Looks that are far apart mean that this whole process stood still (frozen, or its interpreter lock held): it has seen
        nothing of that time and must not accuse itself; others have noticed its silence.
        """
        if self._looked_s is not None and now_s - self._looked_s > ABSENT_S:
            self._quiet_since_s = now_s
        self._looked_s = now_s
        while self._clock.finished:
            done = self._clock.finished.popleft()
            self._rule.finished(done.interval_s)
            self._unreported.append(done)
            self._last = done
            self._suspected_s = None
        if paused:
            self._quiet_since_s = now_s
            self._suspected_s = None
            return Due.NOTHING
        if self._suspected_s is not None:
            if not self._dumped_again and now_s - self._suspected_s >= SECOND_DUMP_AFTER_S:
                self._dumped_again = True
                return Due.DUMP_AGAIN
            return Due.NOTHING
        threshold = self._rule.threshold_s()
        if threshold is not None and self._stalled_for_s(now_s) > threshold:
            self._suspected_s = now_s
            self._dumped_again = False
            return Due.SUSPECT
        return Due.NOTHING

    def _stalled_for_s(self, now_s: float) -> float:
        finished_s = self._last.finished_s if self._last is not None else now_s
        return now_s - max(finished_s, self._quiet_since_s)

    def stall(self, now_s: float, at: datetime, *, collective: str = "", frames: tuple[str, ...] = ()) -> StallSuspected:
        where = self._clock.now()
        return StallSuspected(
            fabric=self._identity.fabric,
            job=self._identity.job,
            rank=self._identity.rank,
            host=self._identity.host,
            at=at,
            generation=self._identity.generation,
            step=where.step,
            stalled_for_ms=round(self._stalled_for_s(now_s) * 1e3, 1),
            usual_step_ms=round(self._rule.usual_s * 1e3, 3),
            phase=where.phase,
            in_collective=collective,
            frames=frames,
        )

    @property
    def has_finished(self) -> bool:
        """Whether a step has finished since the last report."""
        return bool(self._unreported)

    def progress(
        self,
        now_s: float,
        at: datetime,
        *,
        groups: tuple[GroupProgress, ...],
        collective: str,
        paused: bool,
        waiting_share: float | None = None,
    ) -> RankProgress:
        """A report on the steps since the last one. Means over those steps; the oldest may have been lost at the bound.
        `waiting_share` is what of them was waited for others, None where that cannot be told."""
        self._seq += 1
        done, self._unreported = self._unreported, []
        where = self._clock.now()
        phases: dict[str, float] = {}
        for each in done:
            for name, spent_ms in each.phases_ms.items():
                phases[name] = phases.get(name, 0.0) + spent_ms
        mean_ms = sum(each.duration_ms for each in done) / len(done) if done else 0.0
        return RankProgress(
            fabric=self._identity.fabric,
            job=self._identity.job,
            rank=self._identity.rank,
            host=self._identity.host,
            seq=self._seq,
            at=at,
            generation=self._identity.generation,
            step=where.step,
            step_at=at - timedelta(seconds=now_s - self._last.finished_s) if self._last is not None else None,
            steps=len(done),
            step_ms_mean=round(mean_ms, 3),
            step_ms_max=round(max((each.duration_ms for each in done), default=0.0), 3),
            phases_ms={name: round(total / len(done), 3) for name, total in phases.items()},
            waiting_ms=round(waiting_share * mean_ms, 3) if done and waiting_share is not None else -1.0,
            phase=where.phase,
            phase_for_ms=round((now_s - where.phase_since_s) * 1e3, 1),
            in_collective=collective,
            groups=groups,
            paused=paused,
        )
