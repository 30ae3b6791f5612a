"""Hardware that fails while no job depends on it: an Xid 79 on an idle host must not wait for the next job to hang.

Only evidence that is fatal by itself counts here, and only while it is fresh by the clock of its own host: a collector that
starts reads old lines of the kernel log, too. Where a running job uses the device, the job's own judgement comes first.
A device that a verdict has named, of a job or of its own, is not named again until its host was rebooted or nothing was
heard of it for a day: a broken GPU repeats itself once a minute.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from goodput_common.contracts.ids import ComponentId, InvalidComponentId, host_of
from goodput_common.contracts.telemetry import Event, EventName, Severity
from goodput_common.contracts.verdict import Verdict, VerdictState
from goodput_correlator.domain.case import Case, Observed, ordered
from goodput_correlator.domain.clues import CLOCK_DOUBT_S, ranks_on
from goodput_correlator.domain.finding import Diagnosis
from goodput_correlator.domain.grid import GRID
from goodput_correlator.domain.host_timeline import HostTimeline
from goodput_correlator.domain.ranking import decide
from goodput_correlator.domain.timeline import JobTimeline
from goodput_topology.graph import Fabric

FATAL_XIDS = frozenset({"79", "119", "120", "48", "64", "95", "140", "171", "172"})
FRESH_S = 120.0  # between the host's seeing it and the broker's getting it
WAIT_S = 3.0  # for the lines that follow
GIVE_UP_S = 120.0  # while a job runs on it regardless
WATCHED_MAX = 10_000
KNOWN_MAX = 10_000
CONFIDENCE_MIN = 0.8
FORGET_S = 24 * 3600.0


class IdleHardware:
    """Fatal device errors that nobody has been blamed for yet."""

    def __init__(self) -> None:
        self._watched: OrderedDict[tuple[str, ComponentId], Observed] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._named: OrderedDict[ComponentId, tuple[str, datetime]] = OrderedDict()  # component -> incident, last seen

    def saw(self, seen: Observed, event: Event) -> None:
        if event.name is EventName.BOOT:
            self._booted(seen, event)
        if not _fatal(event) or (seen.received_at - event.observed_at).total_seconds() > FRESH_S:
            return
        if len(self._watched) < WATCHED_MAX:
            self._watched.setdefault((seen.host, event.component), seen)

    def _booted(self, seen: Observed, event: Event) -> None:
        """What was wrong with the devices of a host before it was started anew is history."""
        if (seen.received_at - event.observed_at).total_seconds() > FRESH_S:
            return
        for key in [key for key in self._watched if key[0] == seen.host]:
            del self._watched[key]
        before = [c for c, (_, last_at) in self._named.items() if _host(c) == seen.host and last_at < seen.received_at]
        for component in before:
            del self._named[component]

    def named(self, verdict: Verdict, at: datetime) -> None:
        """A verdict names these components now, and no others."""
        for component in [c for c, (incident, _) in self._named.items() if incident == verdict.incident]:
            del self._named[component]
        for culprit in verdict.culprits:
            if culprit.component is not None:
                self._named[culprit.component] = (verdict.incident, at)
        while len(self._named) > KNOWN_MAX:
            self._named.popitem(last=False)

    def ripens(self, at: datetime) -> bool:
        """Whether an error became ripe since the grid time before `at`."""
        newest, oldest = at - timedelta(seconds=WAIT_S), at - timedelta(seconds=WAIT_S) - GRID
        return any(oldest < first.received_at <= newest for first in self._watched.values())

    def due(
        self,
        at: datetime,
        name: str,
        topology: Fabric,
        hosts: Mapping[str, HostTimeline],
        jobs: Iterable[JobTimeline],
    ) -> Iterator[tuple[ComponentId, str, Diagnosis]]:
        """(component, id of its first line, diagnosis) for each error that is ripe and concerns no running job."""
        if not self._watched:
            return
        running = [job for job in jobs if not job.ended and job.heard_at and job.heard_at > at - timedelta(seconds=60)]
        for (host, component), first in list(self._watched.items()):
            age_s = (at - first.received_at).total_seconds()
            if age_s < WAIT_S:
                continue
            resolved = topology.canonical(component)
            incident, last_at = self._named.get(resolved, ("", at))
            if incident and (at - last_at).total_seconds() <= FORGET_S:
                del self._watched[host, component]
                self._named[resolved] = (incident, at)
                continue
            if _in_use(host, resolved, running, topology, at):
                if age_s > GIVE_UP_S:
                    del self._watched[host, component]
                continue
            del self._watched[host, component]
            facts = hosts[host].facts(first.received_at - timedelta(seconds=30)) if host in hosts else [first]
            mine = [each for each in facts if _about(each, resolved, topology)]
            diagnosis = decide(Case(now=at, fabric=name, job=None, observed=ordered(mine), topology=topology))
            if diagnosis is not None and diagnosis.culprits and diagnosis.confidence >= CONFIDENCE_MIN:
                yield resolved, first.id, diagnosis

    def opened(self, verdict: Verdict) -> None:
        """Remember an incident, so that the same line read again does not open it anew."""
        self.remember(verdict.incident)
        if verdict.state is not VerdictState.RESOLVED:
            self.named(verdict, verdict.published_at)

    def remember(self, incident: str) -> None:
        """One that this line would have opened, and that came back as another."""
        self._known[incident] = None
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def known(self, incident: str) -> bool:
        return incident in self._known

    def over(self, verdict: Verdict, hosts: Mapping[str, HostTimeline], at: datetime) -> str:
        """Why an incident of idle hardware is over, or ""."""
        host = hosts.get(verdict.culprit.host or "")
        if host is not None:
            for each in host.events:
                if not isinstance(each.fact, Event) or each.fact.name is not EventName.BOOT:
                    continue
                began_at = min(each.received_at, each.fact.observed_at + timedelta(seconds=CLOCK_DOUBT_S))
                if began_at > verdict.detected_at:  # not one that a collector read again from an old log
                    return "the host was rebooted"
        last_at = max(
            (seen_at for name, seen_at in self._named.values() if name == verdict.incident), default=verdict.published_at
        )
        if (at - last_at).total_seconds() > FORGET_S:
            return "not seen again for a day"
        return ""


def _host(component: ComponentId) -> str | None:
    try:
        return host_of(component)
    except InvalidComponentId:
        return None


def _fatal(event: Event) -> bool:
    if event.name is EventName.GPU_LOST:
        return True
    if event.name is EventName.NIC_HANG:
        return event.severity is Severity.FATAL
    return event.name is EventName.XID and event.attrs.get("xid") in FATAL_XIDS


def _in_use(host: str, component: ComponentId, running: Iterable[JobTimeline], topology: Fabric, at: datetime) -> bool:
    """Whether a running job has ranks on the component (or on its host, where the component's ranks cannot be told)."""
    for job in running:
        if host not in job.hosts:
            continue
        placement = job.placement
        case = Case(now=at, fabric=topology.name, job=job.job, observed=(), topology=topology, placement=placement)
        if component not in topology or ranks_on(case, component):
            return True
    return False


def _about(each: Observed, component: ComponentId, topology: Fabric) -> bool:
    return isinstance(each.fact, Event) and topology.canonical(each.fact.component) == component
