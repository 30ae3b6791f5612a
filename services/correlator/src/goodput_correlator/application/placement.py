"""Jobs as they present themselves: which generation runs, how far its ranks have come, who has left.

The diagnosis keeps its own, stricter account; this one is for readers (`/v1/jobs`) and for knowing whose registrations
matter after a restart. It is rebuilt from evidence and written to the store with every tick, only where something
changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from goodput_common.contracts.job import RankExited, RankProgress, RankRegistered
from goodput_correlator.application.ports import JobProgress, Registration
from goodput_correlator.application.views import JobState
from goodput_correlator.domain.case import Observed

JOBS_MAX = 10_000
SILENT_S = 15.0  # without a report for this long, nothing is known of the job
STANDING_S = 30.0  # steps that stand still for this long show as a stall even where no verdict has been reached


def registration_of(seen: Observed) -> Registration | None:
    """The placement that a fact carries."""
    fact = seen.fact
    return Registration(id=seen.id, received_at=seen.received_at, body=fact) if isinstance(fact, RankRegistered) else None


@dataclass(slots=True)
class _Job:
    generation: int
    world_size: int
    first_seen_at: datetime
    last_seen_at: datetime
    steps: dict[int, int] = field(default_factory=dict)
    step_max: int = -1
    step_at: datetime | None = None
    exited: dict[int, bool] = field(default_factory=dict)  # rank -> clean
    changed: bool = True


class JobBoard:
    """The newest generation of each job. At the bound new jobs are left out: they are diagnosed, but show no progress."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}

    def observe(self, seen: Observed) -> None:
        fact = seen.fact
        if isinstance(fact, RankRegistered):
            self._register(seen, fact)
        elif isinstance(fact, RankProgress | RankExited):
            job = self._jobs.get(fact.job)
            if job is None or fact.generation != job.generation:
                return
            job.changed = True
            job.last_seen_at = max(job.last_seen_at, seen.received_at)
            if isinstance(fact, RankExited):
                job.exited[fact.rank] = fact.clean
                return
            job.steps[fact.rank] = max(fact.step, job.steps.get(fact.rank, -1))
            if fact.step > job.step_max:
                job.step_max, job.step_at = fact.step, seen.received_at

    def _register(self, seen: Observed, fact: RankRegistered) -> None:
        job = self._jobs.get(fact.job)
        at = seen.received_at
        if job is None:
            if len(self._jobs) < JOBS_MAX:
                self._jobs[fact.job] = _Job(fact.generation, fact.world_size, at, at)
            return
        if fact.generation < job.generation:
            return
        if fact.generation > job.generation:
            job.generation, job.steps, job.exited = fact.generation, {}, {}
            job.step_max, job.step_at = -1, None
        job.world_size, job.changed = fact.world_size, True
        job.last_seen_at = max(job.last_seen_at, at)
        job.exited.pop(fact.rank, None)

    def take_changed(self) -> tuple[JobProgress, ...]:
        """The jobs that changed since the last call."""
        changed = []
        for name, job in self._jobs.items():
            if not job.changed:
                continue
            job.changed = False
            left = list(job.exited.values())
            changed.append(
                JobProgress(
                    job=name,
                    generation=job.generation,
                    world_size=job.world_size,
                    first_seen_at=job.first_seen_at,
                    last_seen_at=job.last_seen_at,
                    step_min=min(job.steps.values(), default=-1),
                    step_max=job.step_max,
                    step_at=job.step_at,
                    exited_clean=left.count(True),
                    exited_failed=left.count(False),
                )
            )
        return tuple(changed)


def job_state(job: JobProgress, *, open_verdict: bool, now: datetime) -> JobState:
    """How the job does, as far as its reports tell."""
    if job.world_size and job.exited_clean >= job.world_size:
        return JobState.FINISHED
    if job.exited_failed and job.exited_failed + job.exited_clean >= job.world_size:
        return JobState.FAILED
    if open_verdict:
        return JobState.STALLED
    if (now - job.last_seen_at).total_seconds() > SILENT_S:
        return JobState.UNKNOWN
    if job.step_at is None or job.step_max < 0:
        return JobState.STARTING
    return JobState.STALLED if (now - job.step_at).total_seconds() > STANDING_S else JobState.RUNNING
