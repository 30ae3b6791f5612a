"""All incidents of one fabric: facts in, new versions of verdicts out, a function of the log alone.

Time is a grid of whole seconds. At grid time T everything received by the broker up to T is read in the order
`(received_at, id)`, doubles left out, and then every job is judged once. So the order and the number of deliveries cannot
matter, as long as T is only judged after all that was received by T has been seen (the caller's watermark).

A job is judged when its steps stand still longer than is usual for it, or take clearly longer than is usual. Hard evidence
(a GPU off the bus, a link down, a process gone) speeds the judgement up; without it, dumps are waited for. Hardware that
fails without a job on it is judged by itself (`idle`). Everything kept is bounded: a new job or host puts out one that has
ended or fallen silent (`room`), and what does not fit even so is counted in `overflow`.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from goodput_common.contracts.ids import ComponentKind
from goodput_common.contracts.job import FlightRecorderDump, RankExited, RankProgress, RankRegistered, StallSuspected
from goodput_common.contracts.telemetry import Counter, Event, EventName, Gauge
from goodput_common.contracts.verdict import FaultClass, Trouble, Verdict, VerdictState
from goodput_correlator.domain.case import Case, Observed, ordered
from goodput_correlator.domain.finding import Diagnosis
from goodput_correlator.domain.host_timeline import HostTimeline
from goodput_correlator.domain.idle import IdleHardware
from goodput_correlator.domain.measurements import Measurements
from goodput_correlator.domain.pace import SLOW_WINDOWS
from goodput_correlator.domain.ranking import decide
from goodput_correlator.domain.room import Leave, Room
from goodput_correlator.domain.timeline import READ, JobTimeline, Noted
from goodput_correlator.domain.verdict import incident_id, open_verdict, resolve, revise
from goodput_topology.graph import Fabric

GRID_S = 1
REMEMBER_IDS_S = 180.0  # a double that comes later than this is too old to matter: it is left out as late
IDS_MAX = 2_000_000
PENDING_MAX = 1_000_000
TOPOLOGIES_MAX = 16  # graphs that wait for their grid time; beyond it the oldest is in force at once
JOBS_MAX = 10_000
HOSTS_MAX = 100_000
JOB_FORGET_S = 3600.0  # a job that nobody speaks of any more
LOOK_BACK_S = 300.0  # evidence this long before a stall may explain it
SETTLE_S = 5.0  # wait this long into a stall for dumps and late telemetry, unless the evidence is decisive
UNDETERMINED_S = 8.0  # and this long before saying that nothing names a culprit
ENDING_S = 20.0  # the last ranks may take this long to leave after the first has
RESUMED_S = 2.0  # steps must move this long before an incident is over
CHANGE_OF_MIND = 0.1  # another culprit is named only if not less certain than this below the one named
NETWORK_EVENTS = frozenset({EventName.LINK_DOWN, EventName.LINK_UP, EventName.PAUSE_STORM})
NETWORK_EVENTS_MAX = 5000  # of hosts without the job, and of switches: what happens at the other ends of its links
MEASURED_KEEP_S = 300.0  # what was not told again in this time is forgotten
REVISIT_S = 5  # without news, an open incident is judged anew at this pace


def grid_floor(at: datetime) -> datetime:
    return datetime.fromtimestamp(int(at.timestamp()), UTC)


class Incidents:
    """State of one fabric. `observe` takes facts in any order; `tick` judges every grid time up to `now`."""

    def __init__(self, fabric: Fabric, *, jobs_max: int = JOBS_MAX, hosts_max: int = HOSTS_MAX) -> None:
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
        self._news: dict[str, int] = {}  # job -> news when it was last judged
        self._idle = IdleHardware()
        self._measured = Measurements(fabric)
        self._network: deque[Observed] = deque(maxlen=NETWORK_EVENTS_MAX)  # what the whole fabric's network lately said
        self._topologies: list[tuple[datetime, Fabric]] = []  # to come, by time
        self._job_room: Room[JobTimeline] = Room(jobs_max)
        self._host_room: Room[HostTimeline] = Room(hosts_max)

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

    @property
    def pending(self) -> int:
        """Facts taken in whose grid time has not come."""
        return len(self._pending)

    def set_topology(self, fabric: Fabric, received_at: datetime) -> None:
        """A graph that became whole with a message of that time: in force from the first grid time not before it."""
        self._topologies.append((received_at, fabric))
        self._topologies.sort(key=lambda each: each[0])
        if len(self._topologies) > TOPOLOGIES_MAX:
            self.topology = self._topologies.pop(0)[1]
            self._measured.use(self.topology)

    def observe(self, seen: Observed) -> None:
        """Take in one fact; judged at the first grid time not before `seen.received_at`."""
        if not isinstance(seen.fact, (*READ, Counter, Gauge)):
            return
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
            if not self._jobs and not self._hosts and not self._open:
                at = max(at, min(until, self._first(until)))  # nothing known: skip to where something is
            self._fold(at)
            out += self._judge(at)
            self._judged = at
            at += timedelta(seconds=GRID_S)
        return out

    def restore(
        self,
        verdicts: Iterable[Verdict],
        observed: Iterable[Observed],
        *,
        judged: datetime | None = None,
        jobs: Iterable[Noted] = (),
    ) -> None:
        """Take up where another process left off: the newest version of each open verdict, the evidence of the last
        `LOOK_BACK_S` (registrations of running jobs however old), the last grid time that was judged and stored, and what
        was noted of the jobs. What was received after `judged` is judged again, to the same effect."""
        self.reopen(verdicts)
        self.recall(ordered(observed), judged=judged)
        self.resume(judged=judged, jobs=jobs)

    def reopen(self, verdicts: Iterable[Verdict]) -> None:
        """Restoring begins: the newest version of each open verdict, and of those that were resolved lately."""
        newest: dict[str, Verdict] = {}
        for verdict in sorted(verdicts, key=lambda v: (v.incident, v.version)):
            newest[verdict.incident] = verdict
        for verdict in newest.values():
            if verdict.job is not None:
                self._idle.named(verdict, verdict.published_at)
            if verdict.state is VerdictState.RESOLVED:
                self._idle.opened(verdict)
                continue
            self._open[verdict.incident] = verdict
            if verdict.job is not None:
                self._of_job[verdict.job] = verdict.incident
            else:
                self._idle.opened(verdict)

    def recall(self, observed: Sequence[Observed], *, judged: datetime | None) -> None:
        """Restoring goes on: a page of the evidence, in the order of `Observed.order` from page to page. What had been
        judged is read at once, so that no more than a page and the rest that had not been judged is held."""
        for each in observed:
            self.observe(each)
        if judged is not None and observed:
            self._fold(min(grid_floor(judged), observed[-1].received_at), old_too=True)

    def resume(self, *, judged: datetime | None, jobs: Iterable[Noted]) -> None:
        """Restoring is done: the next tick goes on behind `judged`."""
        if judged is None:
            return
        self._judged = grid_floor(judged)
        self._fold(self._judged, old_too=True)
        noted = {each.job: each for each in jobs}
        for name, job in self._jobs.items():
            if name in noted:
                job.resume(noted[name])
            if name in self._of_job:
                job.learning = False
                if name not in noted:  # its reports may not have been restored: that is no silence of the job
                    job.heard_at = max(job.heard_at or self._judged, self._judged)

    # ------------------------------------------------------------------------------------------------- reading

    def _first(self, until: datetime) -> datetime:
        if not self._pending:
            return until
        first = grid_floor(self._pending[0][0])
        return first if first == self._pending[0][0] else first + timedelta(seconds=GRID_S)

    def _fold(self, at: datetime, *, old_too: bool = False) -> None:
        while self._topologies and self._topologies[0][0] <= at:
            self.topology = self._topologies.pop(0)[1]
            self._measured.use(self.topology)
        forgotten = at - timedelta(seconds=REMEMBER_IDS_S)
        while self._pending and self._pending[0][0] <= at:
            received_at, key, _, seen = heapq.heappop(self._pending)
            if key in self._seen:
                continue
            if received_at < forgotten and not old_too:
                self.overflow += 1  # long judged, or its double was: too late to matter
                continue
            self._seen[key] = received_at
            self._read(seen)
        while self._seen and (len(self._seen) > IDS_MAX or next(iter(self._seen.values())) < forgotten):
            self._seen.popitem(last=False)

    def _read(self, seen: Observed) -> None:
        fact = seen.fact
        if isinstance(fact, RankRegistered | RankProgress | RankExited | StallSuspected | FlightRecorderDump):
            job = self._jobs.get(fact.job)
            if job is None:
                for gone in self._job_room.leaving(self._jobs, self._leave_of_job, seen.received_at):
                    self._forget(gone)
                if len(self._jobs) >= self._job_room.held_max:
                    self.overflow += 1
                    return
                job = self._jobs[fact.job] = JobTimeline(fact.job, fact.fabric)
            job.fold(seen)
            return
        if isinstance(fact, Counter | Gauge):
            self._measured.fold(seen)
            return
        host = self._hosts.get(seen.host)
        if host is None:
            self._make_room_for_host(seen.received_at)
            if len(self._hosts) >= self._host_room.held_max:
                self.overflow += 1
                return
            host = self._hosts[seen.host] = HostTimeline(seen.host)
        dropped = host.dropped
        host.fold(seen)
        self.overflow += host.dropped - dropped
        if isinstance(fact, Event):
            self._idle.saw(seen, fact)
            if fact.name in NETWORK_EVENTS:
                self._network.append(seen)

    def _leave_of_job(self, job: JobTimeline) -> Leave | None:
        if job.job in self._of_job or job.heard_at is None:
            return None  # its incident has to be seen to its end
        return Leave(job.ended, job.heard_at)

    def _make_room_for_host(self, at: datetime) -> None:
        """A host under a job stays: its silence is evidence."""
        if len(self._hosts) < self._host_room.held_max:
            return
        used = {host for job in self._jobs.values() if not job.ended for host in job.hosts}

        def leave(host: HostTimeline) -> Leave | None:
            return Leave(False, host.heard_at) if host.heard_at is not None and host.host not in used else None

        for gone in self._host_room.leaving(self._hosts, leave, at):
            del self._hosts[gone]

    def _forget(self, job: str) -> None:
        del self._jobs[job]
        self._news.pop(job, None)

    # ------------------------------------------------------------------------------------------------- judging

    def _judge(self, at: datetime) -> list[Verdict]:
        out: list[Verdict] = []
        if int(at.timestamp()) % int(MEASURED_KEEP_S) == 0:
            self._measured.forget(at - timedelta(seconds=MEASURED_KEEP_S))
        for name in sorted(self._jobs):
            job = self._jobs[name]
            verdict = self._judge_job(job, at)
            if verdict is None and job.heard_at is not None and job.heard_at < at - timedelta(seconds=JOB_FORGET_S):
                previous = self._open.get(self._of_job.get(name, ""))
                if previous is not None:
                    verdict = self._close(previous, at, "nobody speaks of the job any more")
                self._forget(name)
            if verdict is not None:
                out.append(verdict)
                self._idle.named(verdict, at)
        for verdict in self.open:  # of a job that was gone already when this process took over
            gone = verdict.job is not None and verdict.job not in self._jobs
            if gone and verdict.published_at < at - timedelta(seconds=JOB_FORGET_S):
                out.append(self._close(verdict, at, "nobody speaks of the job any more"))
        return out + self._judge_idle(at)

    def _judge_job(self, job: JobTimeline, at: datetime) -> Verdict | None:
        previous = self._open.get(self._of_job.get(job.job, ""))
        if previous is not None and (why := self._over(job, previous, at)):
            return self._close(previous, at, why)
        since = job.waiting_since
        if since is None or job.ended or job.paused(at):
            return None
        if job.pace.slow is not None and job.stood_s(at) < job.decisive_after_s(at):
            return self._judge_slow(job, previous, at)
        dead = self._has_deaths(job)
        stood_s = (at - since).total_seconds() if dead else job.stood_s(at)
        if stood_s < job.decisive_after_s(at) or not (job.reporting(at) or dead):
            return None
        if job.ending and not dead and stood_s < ENDING_S:
            return None
        if previous is not None and not self._worth_another_look(job, at):
            return None
        diagnosis = decide(self._case(job, at, since, previous))
        if diagnosis is None or not (_says(diagnosis) or job.reporting(at)):
            return None  # nobody is left to wait: the job was ended
        return self._say(job, previous, diagnosis, stood_s, at)

    def _judge_slow(self, job: JobTimeline, previous: Verdict | None, at: datetime) -> Verdict | None:
        """Steps go on, more slowly than usual. Nobody is named without evidence, and nothing is said without a name."""
        if previous is not None and (previous.trouble is not Trouble.SLOW or not self._worth_another_look(job, at)):
            return None
        slow = job.pace.slow
        assert slow is not None
        diagnosis = decide(self._case(job, at, None, previous))
        if diagnosis is None or not diagnosis.culprits:
            return None
        if previous is not None:
            verdict = revise(previous, diagnosis, at=at) if _better(previous, diagnosis) else None
        else:
            incident = incident_id(self.name, job.job, job.generation, Trouble.SLOW, slow.since)
            verdict = open_verdict(
                diagnosis, incident=incident, fabric=self.name, job=job.job, generation=job.generation, at=at,
                trouble=Trouble.SLOW,
            )  # fmt: skip
        if verdict is not None:
            self._open[verdict.incident] = verdict
            self._of_job[job.job] = verdict.incident
        return verdict

    def _over(self, job: JobTimeline, previous: Verdict, at: datetime) -> str:
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

    def _worth_another_look(self, job: JobTimeline, at: datetime) -> bool:
        """Whether something has come in, or time enough has passed, since the job was last judged."""
        news = job.news + sum(host.news for host in self._hosts_of(job)) + len(self._silent(job, at))
        changed = self._news.get(job.job) != news
        self._news[job.job] = news
        return changed or int(at.timestamp()) % REVISIT_S == 0

    def _say(
        self, job: JobTimeline, previous: Verdict | None, diagnosis: Diagnosis, stood_s: float, at: datetime
    ) -> Verdict | None:
        verdict: Verdict | None
        if previous is not None:
            if not _better(previous, diagnosis):
                return None
            verdict = revise(previous, diagnosis, at=at, trouble=Trouble.STALLED)
        else:
            settle_s = 0.0 if diagnosis.settled else SETTLE_S if _says(diagnosis) else UNDETERMINED_S
            if not diagnosis.decisive and stood_s < max(settle_s, job.stall_after_s(at)):
                return None
            incident = incident_id(self.name, job.job, job.generation, job.step, job.registered_at or "")
            verdict = open_verdict(
                diagnosis, incident=incident, fabric=self.name, job=job.job, generation=job.generation, at=at
            )
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

    def _hosts_of(self, job: JobTimeline) -> list[HostTimeline]:
        return [self._hosts[host] for host in job.hosts if host in self._hosts]

    def _silent(self, job: JobTimeline, at: datetime) -> tuple[str, ...]:
        return tuple(host.host for host in self._hosts_of(job) if host.silent(at))

    def _has_deaths(self, job: JobTimeline) -> bool:
        """Cheap first look: has any process of the job ended uncleanly? Other jobs' ranks may share its hosts."""
        if any(t.exited is not None and getattr(t.exited.fact, "clean", True) is False for t in job.ranks.values()):
            return True
        mine = f"{ComponentKind.RANK}:{job.job}/"
        return any(
            isinstance(each.fact, Event)
            and each.fact.name is EventName.PROCESS_EXITED
            and (each.fact.component.startswith(mine) or each.fact.attrs.get("job") == job.job)
            for host in self._hosts_of(job)
            for each in host.events
        )

    def _case(self, job: JobTimeline, at: datetime, stalled_since: datetime | None, previous: Verdict | None) -> Case:
        """`stalled_since` None: the job is slow."""
        facts = job.facts()
        slow = job.pace.slow if stalled_since is None else None
        since = (stalled_since or (slow.since if slow is not None else at)) - timedelta(seconds=LOOK_BACK_S)
        cpu: dict[str, tuple[Observed, ...]] = {}
        outer_pids: dict[str, tuple[int, datetime]] = {}
        facts += [each for each in self._network if each.received_at >= since and each.host not in job.hosts]
        for host in self._hosts_of(job):
            facts += host.facts(since)
            outer_pids |= host.outer_pids
            cpu |= {component: tuple(windows) for component, windows in host.cpu.items()}
        return Case(
            now=at,
            fabric=self.name,
            job=job.job,
            observed=ordered(facts),
            topology=self.topology,
            placement=job.placement,
            stalled_since=stalled_since,
            silent_hosts=self._silent(job, at),
            named_at=previous.detected_at if previous is not None and previous.culprits else None,
            stalled_step=job.step,
            usual_step_s=job.usual_step_s,
            patience_s=job.patience_s(at),
            reporting_since=job.reporting_since,
            counted_since=job.counted_since,
            members=dict(job.members),
            cpu=cpu,
            outer_pids=outer_pids,
            slow=slow,
            paces=job.paces(slow.since) if slow is not None else {},
            measured=self._measured,
        )

    def _judge_idle(self, at: datetime) -> list[Verdict]:
        """Hardware that failed where no job waits for it."""
        idle = [verdict for verdict in self.open if verdict.job is None]
        over = [(verdict, self._idle.over(verdict, self._hosts, at)) for verdict in idle]
        out = [self._close(verdict, at, why) for verdict, why in over if why]
        for component, first_id, diagnosis in self._idle.due(at, self.name, self.topology, self._hosts, self._jobs.values()):
            incident = incident_id(self.name, None, component, diagnosis.fault_class, first_id)
            if incident in self._open or self._idle.known(incident):
                continue
            verdict = open_verdict(
                diagnosis, incident=incident, fabric=self.name, job=None, generation=0, at=at, trouble=Trouble.IDLE
            )
            self._open[incident] = verdict
            self._idle.opened(verdict)
            out.append(verdict)
        return out


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
