"""Each job, once a second: is it in trouble, who is to blame, is there anything new to say, is it over?

A job is judged when its steps stand still longer than is usual for it, or take clearly longer than is usual. Hard evidence
(a GPU off the bus, a link down, a process gone) speeds the judgement up; without it, dumps are waited for. Hardware that
fails without a job on it is judged by itself (`idle`).

A job whose steps go on costs next to nothing: a thousand of them are looked at in a few milliseconds. The grid is finer than
a second (`GRID_S`): at its times between two seconds only that is judged for which something decisive has just come in
(`pressing`), so that a culprit is named soon after the evidence against it arrived.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from zlib import crc32

from goodput_common.contracts.telemetry import Event
from goodput_common.contracts.verdict import FaultClass, Trouble, Verdict, VerdictState
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.finding import Diagnosis
from goodput_correlator.domain.idle import IdleHardware
from goodput_correlator.domain.pace import SLOW_WINDOWS
from goodput_correlator.domain.pressing import just_slow, looked_before, pressing
from goodput_correlator.domain.ranking import decide
from goodput_correlator.domain.remembered import Remembered
from goodput_correlator.domain.timeline import JobTimeline
from goodput_correlator.domain.verdict import incident_id, open_verdict, resolve, revise

JOB_FORGET_S = 3600.0  # a job that nobody speaks of any more
SETTLE_S = 5.0  # wait this long into a stall for dumps and late telemetry, unless the evidence is decisive
UNDETERMINED_S = 8.0  # and this long before saying that nothing names a culprit
ENDING_S = 20.0  # the last ranks may take this long to leave after the first has
RESUMED_S = 2.0  # steps must move this long before an incident is over
CHANGE_OF_MIND = 0.1  # another culprit is named only if not less certain than this below the one named
REVISIT_S = 5  # without news, an open incident is judged anew at this pace
NEWS_S = 3  # with news, one that names somebody at this: its hosts tell something every second, and a case is dear
SLOW_S = 5  # a slow job is judged at this pace
NOBODY_SPEAKS = "nobody speaks of the job any more"


class Judging:
    """The open incidents of a fabric, and whatever leads to the next version of each."""

    def __init__(self) -> None:
        self.named_min: float | None = None  # policy: whoever is less likely is not named; None: as `ranking` has it
        self._open: dict[str, Verdict] = {}  # incident -> newest version
        self._of_job: dict[str, str] = {}  # job -> its open incident
        self._news: dict[str, int] = {}  # job -> news when it was last judged
        self._idle = IdleHardware()

    @property
    def open(self) -> tuple[Verdict, ...]:
        return tuple(sorted(self._open.values(), key=lambda v: v.id))

    def saw(self, seen: Observed, event: Event) -> None:
        """An event was read: it may be hardware that fails without a job."""
        self._idle.saw(seen, event)

    def concerns(self, job: str) -> bool:
        """Whether an incident of the job is open: it has to be seen to its end."""
        return job in self._of_job

    def reopen(self, verdict: Verdict) -> None:
        """An earlier process said this last of an incident."""
        if verdict.job is not None:
            self._idle.named(verdict, verdict.published_at)
        if verdict.state is VerdictState.RESOLVED:
            self._idle.opened(verdict)
            return
        self._open[verdict.incident] = verdict
        if verdict.job is not None:
            self._of_job[verdict.job] = verdict.incident
        else:
            self._idle.opened(verdict)

    def judge(self, known: Remembered, at: datetime) -> list[Verdict]:
        """The new versions of one grid time, in order. Jobs that nobody speaks of any more are forgotten."""
        out: list[Verdict] = []
        if at.microsecond:
            for job in pressing(known, at, self._named):
                verdict = self._job(known, job, at)
                if verdict is not None:
                    out.append(verdict)
                    self._idle.named(verdict, at)
            return out + self._hardware(known, at) if self._idle.ripens(at) else out
        for name in sorted(known.jobs):
            job = known.jobs[name]
            verdict = self._job(known, job, at)
            if verdict is None and job.heard_at is not None and job.heard_at < at - timedelta(seconds=JOB_FORGET_S):
                previous = self._open.get(self._of_job.get(name, ""))
                if previous is not None:
                    verdict = self._close(known, previous, at, NOBODY_SPEAKS)
                del known.jobs[name]
                self._news.pop(name, None)
            if verdict is not None:
                out.append(verdict)
                self._idle.named(verdict, at)
        if len(self._news) > len(known.jobs):
            self._news = {job: news for job, news in self._news.items() if job in known.jobs}
        for verdict in self.open:  # of a job that was gone already when this process took over
            gone = verdict.job is not None and verdict.job not in known.jobs
            if gone and verdict.published_at < at - timedelta(seconds=JOB_FORGET_S):
                out.append(self._close(known, verdict, at, NOBODY_SPEAKS))
        return out + self._hardware(known, at)

    def _named(self, job: str) -> bool:
        """Whether an open incident of the job names a culprit: it is looked at again at a pace of its own."""
        return job in self._of_job and bool(self._open[self._of_job[job]].culprits)

    # ------------------------------------------------------------------------------------------------- jobs

    def _job(self, known: Remembered, job: JobTimeline, at: datetime) -> Verdict | None:
        previous = self._open.get(self._of_job.get(job.job, ""))
        if previous is not None and (why := _over(job, previous, at)):
            return self._close(known, previous, at, why)
        since = job.waiting_since
        if since is None:
            return None
        slow = job.pace.slow is not None
        if not slow and (at - since).total_seconds() < job.decisive_after_s(at):
            return None  # steps go on: nothing below says otherwise, and this is cheap
        if job.ended or job.paused(at):
            return None
        if slow and job.stood_s(at) < job.decisive_after_s(at):
            return self._slow(known, job, previous, at)
        dead = known.has_deaths(job)
        stood_s = (at - since).total_seconds() if dead else job.stood_s(at)
        if stood_s < job.decisive_after_s(at) or not (job.reporting(at) or dead):
            return None
        if job.ending and not dead and stood_s < ENDING_S:
            return None
        if previous is not None and not self._worth_another_look(known, job, previous, at):
            return None
        diagnosis = decide(known.case(job, at, since, _named_at(previous, Trouble.STALLED)), self.named_min)
        if diagnosis is None or not (_says(diagnosis) or job.reporting(at)):
            return None  # nobody is left to wait: the job was ended
        return self._say(known, job, previous, diagnosis, stood_s, at)

    def _slow(self, known: Remembered, job: JobTimeline, previous: Verdict | None, at: datetime) -> Verdict | None:
        """Steps go on, more slowly than usual. Nobody is named without evidence, and nothing is said without a name. Pace is
        measured in windows of several seconds, and storage may slow down all jobs at once: each has its second in turn, and
        a look as soon as it is known to be slow."""
        if at.microsecond or (previous is None and just_slow(job, looked_before(job, at))):
            pass  # it is pressing
        elif (int(at.timestamp()) + crc32(job.job.encode())) % SLOW_S:
            return None
        if previous is not None and (
            previous.trouble is not Trouble.SLOW or not self._worth_another_look(known, job, previous, at)
        ):
            return None
        slow = job.pace.slow
        assert slow is not None
        diagnosis = decide(known.case(job, at, None, _named_at(previous, Trouble.SLOW)), self.named_min)
        if diagnosis is None or not diagnosis.culprits:
            return None
        if previous is not None:
            verdict = revise(previous, diagnosis, at=at) if _better(previous, diagnosis) else None
        else:
            incident = incident_id(known.topology.name, job.job, job.generation, Trouble.SLOW, slow.since)
            verdict = open_verdict(
                diagnosis, incident=incident, fabric=known.topology.name, job=job.job, generation=job.generation, at=at,
                trouble=Trouble.SLOW,
            )  # fmt: skip
        if verdict is not None:
            self._open[verdict.incident] = verdict
            self._of_job[job.job] = verdict.incident
        return verdict

    def _worth_another_look(self, known: Remembered, job: JobTimeline, previous: Verdict, at: datetime) -> bool:
        """Whether something has come in, or time enough has passed, since the job was last judged. Which seconds are looked
        at depends on nothing but the grid and the job: a restart looks at the same."""
        if (
            previous.culprits
            and previous.trouble is not Trouble.SLOW
            and (int(at.timestamp()) + crc32(job.job.encode())) % NEWS_S
        ):
            return False
        news = job.news + sum(host.news for host in known.hosts_of(job)) + len(known.silent(job, at))
        changed = self._news.get(job.job) != news
        self._news[job.job] = news
        return changed or int(at.timestamp()) % REVISIT_S < (NEWS_S if previous.culprits else 1)

    def _say(
        self,
        known: Remembered,
        job: JobTimeline,
        previous: Verdict | None,
        diagnosis: Diagnosis,
        stood_s: float,
        at: datetime,
    ) -> Verdict | None:
        verdict: Verdict | None
        if previous is not None:
            if _of_another_cause(previous, diagnosis):
                return self._close(known, previous, at, "the job stands still now, for another reason")
            if not _better(previous, diagnosis):
                return None
            verdict = revise(previous, diagnosis, at=at, trouble=Trouble.STALLED)
        else:
            settle_s = 0.0 if diagnosis.settled else SETTLE_S if _says(diagnosis) else UNDETERMINED_S
            if not diagnosis.decisive and stood_s < max(settle_s, job.stall_after_s(at)):
                return None
            fabric = known.topology.name
            incident = incident_id(fabric, job.job, job.generation, job.step, job.registered_at or "")
            verdict = open_verdict(
                diagnosis, incident=incident, fabric=fabric, job=job.job, generation=job.generation, at=at
            )
        if verdict is not None:
            self._open[verdict.incident] = verdict
            self._of_job[job.job] = verdict.incident
            job.learning = False
        return verdict

    def _close(self, known: Remembered, verdict: Verdict, at: datetime, why: str) -> Verdict:
        del self._open[verdict.incident]
        if verdict.job is not None:
            self._of_job.pop(verdict.job, None)
            if verdict.job in known.jobs:
                known.jobs[verdict.job].learning = True
        return resolve(verdict, at=at, why=why)

    # ------------------------------------------------------------------------------------------------- idle hardware

    def _hardware(self, known: Remembered, at: datetime) -> list[Verdict]:
        """Hardware that failed where no job waits for it."""
        fabric = known.topology.name
        idle = [verdict for verdict in self.open if verdict.job is None]
        over = [(verdict, self._idle.over(verdict, known.hosts, at)) for verdict in idle]
        out = [self._close(known, verdict, at, why) for verdict, why in over if why]
        due = self._idle.due(at, fabric, known.topology, known.hosts, known.jobs.values())
        for component, first_id, diagnosis in due:
            incident = incident_id(fabric, None, component, diagnosis.fault_class, first_id)
            if incident in self._open or self._idle.known(incident):
                continue
            verdict = open_verdict(
                diagnosis, incident=incident, fabric=fabric, job=None, generation=0, at=at, trouble=Trouble.IDLE
            )
            self._open[incident] = verdict
            self._idle.opened(verdict)
            out.append(verdict)
        return out


def _over(job: JobTimeline, previous: Verdict, at: datetime) -> str:
    """Why an incident is over, or ""."""
    if job.ended:
        return "the job ended"
    if previous.trouble is Trouble.SLOW:
        fast = job.pace.slow is None and job.pace.fine_windows >= SLOW_WINDOWS
        return "steps take no longer than usual again" if fast else ""
    if job.moved_at is None or job.resumed_at is None:
        return ""
    since = job.resumed_at if job.generation > previous.generation else max(job.resumed_at, previous.detected_at)
    moving = (at - job.moved_at).total_seconds() < max(RESUMED_S, 2.5 * job.usual_step_s)
    if moving and job.moved_at > previous.detected_at and (at - since).total_seconds() >= RESUMED_S:
        again = f" in generation {job.generation}" if job.generation > previous.generation else ""
        return f"steps resumed{again}: step {job.step} finished"
    return ""


def _of_another_cause(previous: Verdict, diagnosis: Diagnosis) -> bool:
    """Whether a slow job stands still for something that its slowness has nothing to do with: what is surely broken now
    carries none of the ranks that were late. That is an incident of its own, and must not replace what was said of the
    first. It is opened at the next grid time."""
    if previous.trouble is not Trouble.SLOW or not previous.culprits or not diagnosis.decisive or not diagnosis.culprits:
        return False
    late = {rank for culprit in previous.culprits for rank in culprit.ranks}
    broken = {rank for culprit in diagnosis.culprits for rank in culprit.ranks}
    return bool(late) and bool(broken) and not late & broken


def _named_at(previous: Verdict | None, trouble: Trouble) -> datetime | None:
    """When a culprit of this very trouble was named. That of a slow job says nothing of why it stands still now."""
    return previous.detected_at if previous is not None and previous.culprits and previous.trouble is trouble else None


def _says(diagnosis: Diagnosis) -> bool:
    """Whether it is an answer: somebody is named, or it is said that no hardware is at fault."""
    return diagnosis.fault_class is not FaultClass.UNDETERMINED


def _better(previous: Verdict, diagnosis: Diagnosis) -> bool:
    """Whether a later diagnosis may replace what was said: it names the same, or is about as certain. "Nobody" never
    replaces somebody: evidence fades as the job is torn down. Another of the same class, while the first is still suspected,
    has to be clearly more certain."""
    if previous.fault_class is FaultClass.UNDETERMINED:
        return True
    if not _says(diagnosis):
        return False
    before, now = {c.component for c in previous.culprits}, {c.component for c in diagnosis.culprits}
    if before == now:
        return diagnosis.confidence >= previous.confidence or diagnosis.action.kind != previous.action.kind
    suspected = before & {each.component for each in diagnosis.alternatives}
    if suspected and not before & now and diagnosis.fault_class is previous.fault_class:
        return diagnosis.confidence >= previous.confidence + CHANGE_OF_MIND  # two that are as likely must not take turns
    return diagnosis.confidence >= previous.confidence - CHANGE_OF_MIND
