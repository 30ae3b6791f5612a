"""Jobs as they present themselves: which generation runs, how far its ranks have come, who has left.

The diagnosis keeps its own, stricter account; this one is for readers (`/v1/jobs`) and for knowing whose registrations
matter after a restart. It is written to the store with every tick, only where something changed, and goes on from the
store's rows and the evidence after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from goodput_common.contracts.job import RankExited, RankProgress, RankRegistered
from goodput_correlator.application.ports import JobProgress, Registration
from goodput_correlator.application.views import JobState
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.room import Leave, Room

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


def _leave(job: _Job) -> Leave | None:
    return Leave(len(job.exited) >= job.world_size > 0, job.last_seen_at) if not job.changed else None


class JobBoard:
    """The newest generation of each job. At the bound the longest ended, then the longest silent, goes from here (its row
    stays in the store); where none may go, a new job is left out: it is diagnosed, but shows no progress. A job that went
    comes back when a rank of it registers."""

    def __init__(self, held_max: int = JOBS_MAX) -> None:
        self._jobs: dict[str, _Job] = {}
        self._room: Room[_Job] = Room(held_max)
        self.left_out = 0

    def restore(self, jobs: Iterable[JobProgress]) -> None:
        """Begin with what the store says; evidence is observed next, then `restored` called."""
        for row in sorted(jobs, key=lambda each: each.last_seen_at, reverse=True)[: self._room.held_max]:
            self._jobs[row.job] = _Job(
                row.generation, row.world_size, row.first_seen_at, row.last_seen_at, step_max=row.step_max,
                step_at=row.step_at, changed=False,
            )  # fmt: skip

    def restored(self, jobs: Iterable[JobProgress]) -> None:
        """All evidence has been read again. Rows to which it added nothing stand: they may rest on evidence that is gone."""
        for row in jobs:
            job = self._jobs.get(row.job)
            if job is not None and (job.generation, job.last_seen_at) == (row.generation, row.last_seen_at):
                job.changed = False

    def reported(self, reports: Sequence[RankProgress], received_at: datetime) -> None:
        """Reports that came in one message."""
        for report in reports:
            self._said(report, received_at)

    def observe(self, seen: Observed) -> None:
        fact = seen.fact
        if isinstance(fact, RankRegistered):
            self._register(seen, fact)
        elif isinstance(fact, RankProgress | RankExited):
            self._said(fact, seen.received_at)

    def _said(self, fact: RankProgress | RankExited, at: datetime) -> None:
        job = self._jobs.get(fact.job)
        if job is None or fact.generation != job.generation:
            return
        job.changed = True
        job.last_seen_at = max(job.last_seen_at, at)
        if isinstance(fact, RankExited):
            job.exited[fact.rank] = fact.clean
            return
        job.steps[fact.rank] = max(fact.step, job.steps.get(fact.rank, -1))
        if fact.step > job.step_max:
            job.step_max, job.step_at = fact.step, at

    def _register(self, seen: Observed, fact: RankRegistered) -> None:
        job = self._jobs.get(fact.job)
        at = seen.received_at
        if job is None:
            for gone in self._room.leaving(self._jobs, _leave, at):
                del self._jobs[gone]
            if len(self._jobs) >= self._room.held_max:
                self.left_out += 1
                return
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
