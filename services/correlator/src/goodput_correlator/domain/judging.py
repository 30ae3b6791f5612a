"""Each job, once a second: is it in trouble, who is to blame, is there anything new to say, is it over?

A job is judged when its steps stand still longer than is usual for it, or take clearly longer than is usual. Hard evidence
(a GPU off the bus, a link down, a process gone) speeds the judgement up; without it, dumps are waited for. Hardware that
fails without a job on it is judged by itself (`idle`).

A job that was slow before it stood still has two things to tell. Where one has nothing to do with the other, each is an
incident of its own (`held`), is opened from what was seen of it, and ends for its own reason; else the slow incident goes on
as that of a job which stands still.

A job whose steps go on costs next to nothing: a thousand of them are looked at in a few milliseconds. The grid is finer than
a second (`GRID_S`): at its times between two seconds only that is judged for which something decisive has just come in
(`pressing`), so that a culprit is named soon after the evidence against it arrived.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from zlib import crc32

from goodput_common.contracts.telemetry import Event
from goodput_common.contracts.verdict import Trouble, Verdict, VerdictState
from goodput_correlator.domain.beside import beside
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.course import (
    apart,
    better,
    for_the_same_reason,
    held_back,
    named_at,
    names_same,
    of_another_cause,
    over,
    says,
)
from goodput_correlator.domain.finding import Diagnosis
from goodput_correlator.domain.held import Held
from goodput_correlator.domain.idle import IdleHardware
from goodput_correlator.domain.pressing import just_slow, looked_before, pressing
from goodput_correlator.domain.ranking import decide
from goodput_correlator.domain.remembered import Remembered
from goodput_correlator.domain.timeline import JobTimeline
from goodput_correlator.domain.verdict import come_back, incident_id, open_verdict, resolve, revise

JOB_FORGET_S = 3600.0  # a job that nobody speaks of any more
SETTLE_S = 5.0  # wait this long into a stall for dumps and late telemetry, unless the evidence is decisive
UNDETERMINED_S = 8.0  # and this long before saying that nothing names a culprit
ENDING_S = 20.0  # the last ranks may take this long to leave after the first has
REVISIT_S = 5  # without news, an open incident is judged anew at this pace
NEWS_S = 3  # with news, one that names somebody at this: its hosts tell something every second, and a case is dear
SLOW_S = 5  # a slow job is judged at this pace
SLOW_BEFORE_S = 30.0  # a job may stand still for this long before it is no longer asked whether it was slow before
SLOW_BEFORE_MIN = 0.8  # how likely somebody has to be the reason of that: there are fewer windows to tell it from
NOBODY_SPEAKS = "nobody speaks of the job any more"


class Judging:
    """The open incidents of a fabric, and whatever leads to the next version of each."""

    def __init__(self) -> None:
        self.named_min: float | None = None  # policy: whoever is less likely is not named; None: as `ranking` has it
        self._held = Held()
        self._news: dict[str, int] = {}  # job -> news when it was last judged
        self._idle = IdleHardware()

    @property
    def open(self) -> tuple[Verdict, ...]:
        return self._held.open

    def saw(self, seen: Observed, event: Event) -> None:
        """An event was read: it may be hardware that fails without a job."""
        self._idle.saw(seen, event)

    def concerns(self, job: str) -> bool:
        """Whether an incident of the job is open: it has to be seen to its end."""
        return bool(self._held.of(job))

    def reopen(self, verdict: Verdict) -> None:
        """An earlier process said this last of an incident."""
        if verdict.job is not None:
            self._idle.named(verdict, verdict.published_at)
        self._held.restore(verdict)
        if verdict.state is VerdictState.RESOLVED or verdict.job is None:
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
            said = [] if verdict is None else [verdict]
            if verdict is None and job.heard_at is not None and job.heard_at < at - timedelta(seconds=JOB_FORGET_S):
                said = [self._close(known, each, at, NOBODY_SPEAKS) for each in self._held.of(name)]
                del known.jobs[name]
                self._news.pop(name, None)
            for each in said:
                self._idle.named(each, at)
            out += said
        if len(self._news) > len(known.jobs):
            self._news = {job: news for job, news in self._news.items() if job in known.jobs}
        for verdict in self.open:  # of a job that was gone already when this process took over
            gone = verdict.job is not None and verdict.job not in known.jobs
            if gone and verdict.published_at < at - timedelta(seconds=JOB_FORGET_S):
                out.append(self._close(known, verdict, at, NOBODY_SPEAKS))
        return out + self._hardware(known, at)

    def _named(self, job: str) -> bool:
        """Whether an open incident of the job names a culprit: it is looked at again at a pace of its own."""
        return any(each.culprits for each in self._held.of(job))

    # ------------------------------------------------------------------------------------------------- jobs

    def _job(self, known: Remembered, job: JobTimeline, at: datetime) -> Verdict | None:
        """At most one new version: what else there is to say of the job has the next grid time."""
        for previous in self._held.of(job.job):
            if why := over(job, previous, at):
                return self._close(known, previous, at, why)
        since = job.waiting_since
        if since is None:
            return None
        is_slow = job.pace.slow is not None
        if not is_slow and (at - since).total_seconds() < job.decisive_after_s(at):
            return None  # steps go on: nothing below says otherwise, and this is cheap
        if job.ended or job.paused(at):
            return None
        if is_slow and job.stood_s(at) < job.decisive_after_s(at):
            return self._slow(known, job, self._held.slow(job.job), at) if not self._held.stalled(job.job) else None
        return self._stalled(known, job, since, at) or self._was_slow(known, job, since, at)

    def _stalled(self, known: Remembered, job: JobTimeline, since: datetime, at: datetime) -> Verdict | None:
        """Steps stand still."""
        dead = known.has_deaths(job)
        stood_s = (at - since).total_seconds() if dead else job.stood_s(at)
        if stood_s < job.decisive_after_s(at) or not (job.reporting(at) or dead):
            return None
        if job.ending and not dead and stood_s < ENDING_S:
            return None
        held = self._held.of(job.job)  # what was said of that first, else of why the job was slow before
        if held and not self._worth_another_look(known, job, held[0], at):
            return None
        case = known.case(job, at, since, named_at(held[0] if held else None, Trouble.STALLED))
        diagnosis = decide(case, self.named_min)
        if diagnosis is None or not (says(diagnosis) or job.reporting(at)):
            return None  # nobody is left to wait: the job was ended
        about = next((each for each in held if names_same(each, diagnosis)), held[0] if held else None)
        verdict = self._say(known, job, about, diagnosis, stood_s, at)
        if verdict is None and about is not None and about.trouble is Trouble.STALLED and names_same(about, diagnosis):
            return self._also(known, job, case, diagnosis, at)
        return verdict

    def _also(self, known: Remembered, job: JobTimeline, case: Case, diagnosis: Diagnosis, at: datetime) -> Verdict | None:
        """Why the job stands still is known: is something else broken, too?"""
        if not self._held.has_room(job.job):
            return None
        second = beside(case, diagnosis, self.named_min)
        if second is None or any(names_same(each, second) for each in self._held.of(job.job)):
            return None
        onset = (job.step, job.registered_at or "", *(culprit.component for culprit in second.culprits))
        return self._begin(known, job, second, Trouble.STALLED, at, *onset)

    def _slow(self, known: Remembered, job: JobTimeline, previous: Verdict | None, at: datetime) -> Verdict | None:
        """Steps go on, more slowly than usual. Nobody is named without evidence, and nothing is said without a name. Pace is
        measured in windows of several seconds, and storage may slow down all jobs at once: each has its second in turn, and
        a look as soon as it is known to be slow."""
        if at.microsecond or (previous is None and just_slow(job, looked_before(job, at))):
            pass  # it is pressing
        elif (int(at.timestamp()) + crc32(job.job.encode())) % SLOW_S:
            return None
        if previous is not None and not self._worth_another_look(known, job, previous, at):
            return None
        slow = job.pace.slow
        assert slow is not None
        diagnosis = decide(known.case(job, at, None, named_at(previous, Trouble.SLOW)), self.named_min)
        if diagnosis is None or not diagnosis.culprits:
            return None
        if previous is not None:
            verdict = revise(previous, diagnosis, at=at) if better(previous, diagnosis) else None
            if verdict is not None:
                self._held.hold(verdict)
            return verdict
        return self._begin(known, job, diagnosis, Trouble.SLOW, at, slow.since)

    def _was_slow(self, known: Remembered, job: JobTimeline, since: datetime, at: datetime) -> Verdict | None:
        """It is known why the job stands still: was it slow before, for a reason that has nothing to do with that? What came
        in after the last step is of no account, and the reason has to be plain."""
        stalled = self._held.stalled(job.job)
        if not stalled or not all(each.culprits for each in stalled) or self._held.slow(job.job) is not None:
            return None
        if at.microsecond or (int(at.timestamp()) + crc32(job.job.encode())) % SLOW_S:
            return None
        slow = job.pace.before_standstill
        if slow is None or (at - since).total_seconds() > SLOW_BEFORE_S:
            return None
        case = known.case(job, at, None, None)
        before = tuple(each for each in case.observed if each.received_at <= since)
        asked: Case = replace(case, observed=before, slow=slow, paces=job.paces(slow.since), memo={})
        diagnosis = decide(asked, self.named_min)
        if diagnosis is None or not diagnosis.decisive or diagnosis.confidence < SLOW_BEFORE_MIN:
            return None
        if not all(apart(each.culprits, diagnosis.culprits) for each in stalled) or not self._held.has_room(job.job):
            return None
        return self._begin(known, job, diagnosis, Trouble.SLOW, at, slow.since)

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
        if previous is not None and not of_another_cause(previous, diagnosis):
            if held_back(previous, diagnosis):
                diagnosis = for_the_same_reason(previous, diagnosis)
            if not better(previous, diagnosis):
                return None
            verdict = revise(previous, diagnosis, at=at, trouble=Trouble.STALLED)
            if verdict is not None:
                self._held.hold(verdict)
        else:
            settle_s = 0.0 if diagnosis.settled else SETTLE_S if says(diagnosis) else UNDETERMINED_S
            if not diagnosis.decisive and stood_s < max(settle_s, job.stall_after_s(at)):
                return None
            verdict = self._begin(known, job, diagnosis, Trouble.STALLED, at, job.step, job.registered_at or "")
        if verdict is not None:
            job.learning = False
        return verdict

    def _begin(
        self, known: Remembered, job: JobTimeline, diagnosis: Diagnosis, trouble: Trouble, at: datetime, *onset: object
    ) -> Verdict:
        """A new incident of a job, or one that comes back. `onset` is what names it."""
        fabric, resolved = known.topology.name, self._held.returning(job.job, diagnosis, at)
        if resolved is not None:
            verdict = come_back(resolved, diagnosis, at=at, generation=job.generation, trouble=trouble)
        else:
            begun = (Trouble.SLOW, *onset) if trouble is Trouble.SLOW else onset
            incident = incident_id(fabric, job.job, job.generation, *begun)
            verdict = open_verdict(
                diagnosis, incident=incident, fabric=fabric, job=job.job, generation=job.generation, at=at, trouble=trouble
            )
        self._held.hold(verdict)
        return verdict

    def _close(self, known: Remembered, verdict: Verdict, at: datetime, why: str) -> Verdict:
        resolved = resolve(verdict, at=at, why=why)
        self._held.let_go(resolved)
        if verdict.job in known.jobs and not self._held.stalled(verdict.job or ""):
            known.jobs[verdict.job].learning = True
        return resolved

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
            if incident in self._held or self._idle.known(incident):
                continue
            resolved = self._held.returning(None, diagnosis, at)
            if resolved is not None:
                verdict = come_back(resolved, diagnosis, at=at, generation=0, trouble=Trouble.IDLE)
            else:
                verdict = open_verdict(
                    diagnosis, incident=incident, fabric=fabric, job=None, generation=0, at=at, trouble=Trouble.IDLE
                )
            self._held.hold(verdict)
            self._idle.opened(verdict)
            self._idle.remember(incident)
            out.append(verdict)
        return out
