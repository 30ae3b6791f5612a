"""All that is remembered of a fabric: its jobs, its hosts, what it measured and probed, what its network lately said.

`read` takes messages in the one order in which evidence is read; a case for one job is made of what is remembered then.
Samples that are only measured (most of all that is told) become no object of their own here. Everything is bounded: a new
job or host puts out one that has ended or fallen silent (`room`); what does not fit even so is counted in `overflow`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache

import msgspec

from goodput_common.contracts.ids import ComponentKind
from goodput_common.contracts.job import HostProgress, RankProgress
from goodput_common.contracts.telemetry import Counter, Event, EventName, Gauge, Probe, Sample, TelemetryBatch
from goodput_correlator.domain.case import Case, MessageLike, Observed, ordered
from goodput_correlator.domain.host_timeline import HostTimeline
from goodput_correlator.domain.localise.memory import ProbeMemory
from goodput_correlator.domain.measurements import Measurements
from goodput_correlator.domain.packed import Reading
from goodput_correlator.domain.room import Leave, Room
from goodput_correlator.domain.timeline import JOB_FACTS, READ, JobTimeline
from goodput_topology.graph import Fabric

LOOK_BACK_S = 300.0  # evidence this long before a stall may explain it
NETWORK_EVENTS = frozenset({EventName.LINK_DOWN, EventName.LINK_UP, EventName.PAUSE_STORM})
NETWORK_EVENTS_MAX = 5000  # of hosts without the job, and of switches: what happens at the other ends of its links
MEASURED_KEEP_S = 300.0  # what was not told again in this time is forgotten
TIDY_S = 60
MEASURED = (Counter, Gauge)
KEPT = frozenset((*READ, Counter, Gauge, Probe))


@cache
def _numbers(count: int) -> tuple[int, ...]:
    """The parts of a batch in the order of their ids, which are texts: #10 comes before #2."""
    return tuple(sorted(range(count), key=str))


class Batch(msgspec.Struct, frozen=True, gc=False):
    """One message of many facts, samples of a source or reports of ranks: what is kept of it, and what the diagnosis takes
    in whole."""

    id: str
    received_at: datetime
    data: TelemetryBatch | HostProgress

    @classmethod
    def of(cls, message: MessageLike) -> Batch:
        return cls(message.id, message.received_at, message.data)

    @property
    def parts(self) -> tuple[Sample, ...] | tuple[RankProgress, ...]:
        return self.data.reports if isinstance(self.data, HostProgress) else self.data.samples

    @property
    def source(self) -> str:
        return "agent" if isinstance(self.data, HostProgress) else self.data.source.value

    def observed(self, n: int) -> Observed:
        """Its part n. Raises IndexError."""
        part = self.parts[n]
        at = part.at if isinstance(part, RankProgress) else part.observed_at
        return Observed(f"{self.id}#{n}", self.data.host, self.source, at, self.received_at, part)

    def all(self) -> list[Observed]:
        return [self.observed(n) for n in range(len(self.parts))]


class Remembered:
    """`saw` is told of each event as it is read."""

    def __init__(self, fabric: Fabric, *, jobs_max: int, hosts_max: int, saw: Callable[[Observed, Event], None]) -> None:
        self.topology = fabric
        self.jobs: dict[str, JobTimeline] = {}
        self.hosts: dict[str, HostTimeline] = {}
        self.measured = Measurements(fabric)
        self.probes = ProbeMemory(fabric)
        self._left_out = 0
        self._saw = saw
        self._network: deque[Observed] = deque(maxlen=NETWORK_EVENTS_MAX)
        self._job_room: Room[JobTimeline] = Room(jobs_max)
        self._host_room: Room[HostTimeline] = Room(hosts_max)

    @property
    def overflow(self) -> int:
        return self._left_out + self.measured.dropped + self.probes.dropped

    def use(self, topology: Fabric) -> None:
        self.topology = topology
        self.measured.use(topology)
        self.probes.use(topology)

    # ------------------------------------------------------------------------------------------------- reading

    def read(self, what: Observed | Batch, may_leave: Callable[[str], bool]) -> None:
        """`may_leave`: whether a job may be forgotten for a newcomer."""
        if isinstance(what, Batch):
            if isinstance(what.data, HostProgress):
                self._read_reports(what, what.data, may_leave)
            else:
                self._read_batch(what, what.data)
            return
        fact = what.fact
        if isinstance(fact, JOB_FACTS):
            self._read_job(what, may_leave)
        elif isinstance(fact, MEASURED):
            self.measured.fold(what)
        elif isinstance(fact, Probe):
            self.probes.fold(what)
        else:
            self._read_host(what)

    def _read_reports(self, batch: Batch, data: HostProgress, may_leave: Callable[[str], bool]) -> None:
        for n in _numbers(len(data.reports)):
            self._read_job(batch.observed(n), may_leave, said_at=data.at)

    def _read_batch(self, batch: Batch, data: TelemetryBatch) -> None:
        samples, source = data.samples, data.source.value
        reading = Reading(batch.id, data.host, source, batch.received_at)
        for n in self.measured.take(reading, samples, _numbers(len(samples))):
            sample = samples[n]
            seen = Observed(f"{batch.id}#{n}", data.host, source, sample.observed_at, batch.received_at, sample)
            if isinstance(sample, Probe):
                self.probes.fold(seen)
            else:
                self._read_host(seen)

    def _read_job(self, seen: Observed, may_leave: Callable[[str], bool], *, said_at: datetime | None = None) -> None:
        name = seen.job
        assert name is not None
        job = self.jobs.get(name)
        if job is None:

            def leave(held: JobTimeline) -> Leave | None:
                if held.heard_at is None or not may_leave(held.job):
                    return None
                return Leave(held.ended, held.heard_at)

            for gone in self._job_room.leaving(self.jobs, leave, seen.received_at):
                del self.jobs[gone]
            if len(self.jobs) >= self._job_room.held_max:
                self._left_out += 1
                return
            job = self.jobs[name] = JobTimeline(name, seen.fabric)
        job.fold(seen, said_at=said_at)

    def _read_host(self, seen: Observed) -> None:
        host = self.hosts.get(seen.host)
        if host is None:
            self._make_room_for_host(seen.received_at)
            if len(self.hosts) >= self._host_room.held_max:
                self._left_out += 1
                return
            host = self.hosts[seen.host] = HostTimeline(seen.host)
        dropped = host.dropped
        host.fold(seen)
        self._left_out += host.dropped - dropped
        if isinstance(seen.fact, Event):
            self._saw(seen, seen.fact)
            if seen.fact.name in NETWORK_EVENTS:
                self._network.append(seen)

    def _make_room_for_host(self, at: datetime) -> None:
        """A host under a job stays: its silence is evidence."""
        if len(self.hosts) < self._host_room.held_max:
            return
        used = {host for job in self.jobs.values() if not job.ended for host in job.hosts}

        def leave(host: HostTimeline) -> Leave | None:
            return Leave(False, host.heard_at) if host.heard_at is not None and host.host not in used else None

        for gone in self._host_room.leaving(self.hosts, leave, at):
            del self.hosts[gone]

    def tidy(self, at: datetime) -> None:
        """Forget what has not been told again for long. Called at every whole second; acts at some."""
        if int(at.timestamp()) % TIDY_S == 0:
            before = at - timedelta(seconds=MEASURED_KEEP_S)
            self.measured.forget(before)
            self.probes.forget(at)

    # ------------------------------------------------------------------------------------------------- looking

    def hosts_of(self, job: JobTimeline) -> list[HostTimeline]:
        return [self.hosts[host] for host in job.hosts if host in self.hosts]

    def silent(self, job: JobTimeline, at: datetime) -> tuple[str, ...]:
        return tuple(host.host for host in self.hosts_of(job) if host.silent(at))

    def told_since(self, job: JobTimeline, at: datetime) -> bool:
        """Whether anything was received after `at` that may change what is thought of the job: of itself, of its hosts, or
        of the network between them."""
        if job.news_at is not None and job.news_at > at:
            return True
        if self._network and self._network[-1].received_at > at:
            return True
        return any(host.news_at is not None and host.news_at > at for host in self.hosts_of(job))

    def has_deaths(self, job: JobTimeline) -> bool:
        """Cheap first look: has any process of the job ended uncleanly? Other jobs' ranks may share its hosts."""
        if any(t.exited is not None and getattr(t.exited.fact, "clean", True) is False for t in job.ranks.values()):
            return True
        mine = f"{ComponentKind.RANK}:{job.job}/"
        return any(
            isinstance(each.fact, Event)
            and each.fact.name is EventName.PROCESS_EXITED
            and (each.fact.component.startswith(mine) or each.fact.attrs.get("job") == job.job)
            for host in self.hosts_of(job)
            for each in host.events
        )

    def case(self, job: JobTimeline, at: datetime, stalled_since: datetime | None, named_at: datetime | None) -> Case:
        """`stalled_since` None: the job is slow."""
        facts = job.facts()
        slow = job.pace.slow if stalled_since is None else None
        since = (stalled_since or (slow.since if slow is not None else at)) - timedelta(seconds=LOOK_BACK_S)
        cpu: dict[str, tuple[Observed, ...]] = {}
        outer_pids: dict[str, tuple[int, datetime]] = {}
        mine = set(job.hosts)
        facts += [each for each in self._network if each.received_at >= since and each.host not in mine]
        for host in self.hosts_of(job):
            facts += host.facts(since)
            outer_pids |= host.outer_pids
            cpu |= {component: tuple(windows) for component, windows in host.cpu.items()}
        return Case(
            now=at,
            fabric=self.topology.name,
            job=job.job,
            observed=ordered(facts),
            topology=self.topology,
            placement=job.placement,
            stalled_since=stalled_since,
            silent_hosts=self.silent(job, at),
            named_at=named_at,
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
            measured=self.measured,
            probes=self.probes,
        )
