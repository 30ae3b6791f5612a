"""All incidents of one fabric: facts in, new versions of verdicts out, a function of the log alone.

Time is a grid of whole seconds. At grid time T everything received by the broker up to T is read in the order
`(received_at, id)`, doubles left out, and then every job is judged once. So the order and the number of deliveries cannot
matter, as long as T is only judged after all that was received by T has been seen (the caller's watermark).

Everything kept is bounded; what goes over a bound is counted in `overflow`.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from goodput_common.contracts.job import FlightRecorderDump, RankExited, RankProgress, RankRegistered, StallSuspected
from goodput_common.contracts.verdict import Verdict, VerdictState
from goodput_correlator.domain.case import Case, Observed, ordered
from goodput_correlator.domain.ranking import decide
from goodput_correlator.domain.timeline import HostTimeline, JobTimeline
from goodput_correlator.domain.verdict import incident_id, open_verdict, resolve, revise
from goodput_topology.graph import Fabric

GRID_S = 1
REMEMBER_IDS_S = 180.0  # a double that comes later than this is too old to matter: it is left out as late
IDS_MAX = 2_000_000
PENDING_MAX = 1_000_000
JOBS_MAX = 10_000
JOB_FORGET_S = 3600.0  # a job that nobody speaks of any more
LOOK_BACK_S = 300.0  # evidence this long before a stall may explain it
SETTLE_S = 6.0  # wait this long into a stall for dumps and late telemetry, unless the evidence is decisive
RESUMED_S = 2.0  # steps must move this long before an incident is over


def grid_floor(at: datetime) -> datetime:
    return datetime.fromtimestamp(int(at.timestamp()), UTC)


class Incidents:
    """State of one fabric. `observe` takes facts in any order; `tick` judges every grid time up to `now`."""

    def __init__(self, fabric: Fabric) -> None:
        self.topology = fabric
        self.overflow = 0
        self._pending: list[tuple[datetime, str, int, Observed]] = []
        self._pushed = 0
        self._seen: OrderedDict[str, datetime] = OrderedDict()
        self._judged: datetime | None = None
        self._jobs: dict[str, JobTimeline] = {}
        self._hosts: dict[str, HostTimeline] = {}
        self._open: dict[str, Verdict] = {}  # incident -> newest version
        self._of_job: dict[str, str] = {}  # job -> its open incident

    @property
    def name(self) -> str:
        return self.topology.name

    @property
    def judged(self) -> datetime | None:
        """The last grid time judged."""
        return self._judged

    @property
    def open(self) -> tuple[Verdict, ...]:
        return tuple(sorted(self._open.values(), key=lambda v: v.id))

    def set_topology(self, fabric: Fabric) -> None:
        """Takes effect from the next grid time."""
        self.topology = fabric

    def observe(self, seen: Observed) -> None:
        """Take in one fact; judged at the first grid time not before `seen.received_at`."""
        if len(self._pending) >= PENDING_MAX:
            self.overflow += 1
            return
        self._pushed += 1
        heapq.heappush(self._pending, (seen.received_at, seen.id, self._pushed, seen))

    def tick(self, now: datetime) -> list[Verdict]:
        """Judge every grid time up to `now` that has not been judged. Returns the new versions in order."""
        out: list[Verdict] = []
        until = grid_floor(now)
        at = self._judged + timedelta(seconds=GRID_S) if self._judged else self._first(until)
        while at <= until:
            if not self._jobs and not self._hosts and not self._open and (not self._pending or self._pending[0][0] > at):
                at = max(at, min(until, self._first(until)))  # nothing known: skip to where something is
            self._fold(at)
            out += self._judge(at)
            self._judged = at
            at += timedelta(seconds=GRID_S)
        return out

    def restore(self, verdicts: Iterable[Verdict], observed: Iterable[Observed], *, judged: datetime | None = None) -> None:
        """Take up where another process left off: the newest version of each open verdict, the evidence of the last
        `LOOK_BACK_S` (registrations of running jobs however old), and the last grid time that was judged and stored. What was
        received after `judged` is judged again, to the same effect."""
        for verdict in sorted(verdicts, key=lambda v: (v.id, v.version)):
            if verdict.state is VerdictState.RESOLVED:
                self._open.pop(verdict.incident, None)
                continue
            self._open[verdict.incident] = verdict
        for verdict in self._open.values():
            if verdict.job is not None:
                self._of_job[verdict.job] = verdict.incident
        for each in ordered(observed):
            self.observe(each)
        if judged is not None:
            self._judged = grid_floor(judged)
            self._fold(self._judged)

    # ------------------------------------------------------------------------------------------------- reading

    def _first(self, until: datetime) -> datetime:
        if not self._pending:
            return until
        first = grid_floor(self._pending[0][0])
        return first if first == self._pending[0][0] else first + timedelta(seconds=GRID_S)

    def _fold(self, at: datetime) -> None:
        while self._pending and self._pending[0][0] <= at:
            received_at, key, _, seen = heapq.heappop(self._pending)
            if key in self._seen or (received_at < at - timedelta(seconds=REMEMBER_IDS_S + GRID_S) and self._judged is None):
                continue
            self._seen[key] = received_at
            self._read(seen)
        limit = at - timedelta(seconds=REMEMBER_IDS_S)
        while self._seen and (len(self._seen) > IDS_MAX or next(iter(self._seen.values())) < limit):
            self._seen.popitem(last=False)

    def _read(self, seen: Observed) -> None:
        fact = seen.fact
        if isinstance(fact, RankRegistered | RankProgress | RankExited | StallSuspected | FlightRecorderDump):
            job = self._jobs.get(fact.job)
            if job is None:
                if not isinstance(fact, RankRegistered):
                    return
                if len(self._jobs) >= JOBS_MAX:
                    self.overflow += 1
                    return
                job = self._jobs[fact.job] = JobTimeline(fact.job, fact.fabric)
            job.fold(seen)
            return
        self._hosts.setdefault(seen.host, HostTimeline(seen.host)).fold(seen)

    # ------------------------------------------------------------------------------------------------- judging

    def _judge(self, at: datetime) -> list[Verdict]:
        out: list[Verdict] = []
        for name in sorted(self._jobs):
            job = self._jobs[name]
            verdict = self._judge_job(job, at)
            if verdict is not None:
                out.append(verdict)
            if job.heard_at is not None and job.heard_at < at - timedelta(seconds=JOB_FORGET_S):
                del self._jobs[name]
        return out

    def _judge_job(self, job: JobTimeline, at: datetime) -> Verdict | None:
        moved_at = job.moved_at
        previous = self._open.get(self._of_job.get(job.job, ""))
        if moved_at is None:
            return None
        stood_s = (at - moved_at).total_seconds()
        if previous is not None and stood_s < RESUMED_S and moved_at > previous.detected_at:
            return self._close(previous, at, f"steps resumed: step {job.step} finished")
        if job.ended or job.paused(at) or stood_s < job.decisive_after_s(at) or not job.reporting(at):
            return None
        case = self._case(job, at, moved_at)
        diagnosis = decide(case)
        if diagnosis is None:
            return None
        if previous is not None:
            verdict = revise(previous, diagnosis, at=at)
        elif (diagnosis.decisive and stood_s >= job.decisive_after_s(at)) or stood_s >= max(SETTLE_S, job.stall_after_s(at)):
            incident = incident_id(self.name, job.job, job.generation, job.step)
            verdict = open_verdict(
                diagnosis, incident=incident, fabric=self.name, job=job.job, generation=job.generation, at=at
            )
        else:
            return None
        if verdict is not None:
            self._open[verdict.incident] = verdict
            self._of_job[job.job] = verdict.incident
            job.learning = False
        return verdict

    def _close(self, verdict: Verdict, at: datetime, why: str) -> Verdict:
        del self._open[verdict.incident]
        if verdict.job is not None:
            self._of_job.pop(verdict.job, None)
            if verdict.job in self._jobs:
                self._jobs[verdict.job].learning = True
        return resolve(verdict, at=at, why=why)

    def _case(self, job: JobTimeline, at: datetime, stalled_since: datetime) -> Case:
        facts = job.facts()
        placement = job.placement
        since = stalled_since - timedelta(seconds=LOOK_BACK_S)
        for host in placement.hosts:
            if host in self._hosts:
                facts += self._hosts[host].facts(since)
        return Case(
            now=at,
            fabric=self.name,
            job=job.job,
            observed=ordered(facts),
            topology=self.topology,
            placement=placement,
            stalled_since=stalled_since,
            stalled_step=job.step,
            usual_step_s=job.usual_step_s,
        )
