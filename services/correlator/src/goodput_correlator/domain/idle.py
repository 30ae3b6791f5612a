"""Hardware that fails while no job depends on it: an Xid 79 on an idle host must not wait for the next job to hang.

Only evidence that is fatal by itself counts here, and only while it is fresh by the clock of its own host: a collector that
starts reads old lines of the kernel log, too. Where a running job uses the device, the job's own judgement comes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Event, EventName, Severity
from goodput_common.contracts.verdict import Verdict
from goodput_correlator.domain.case import Case, Observed, ordered
from goodput_correlator.domain.clues import ranks_on
from goodput_correlator.domain.finding import Diagnosis
from goodput_correlator.domain.ranking import decide
from goodput_correlator.domain.timeline import HostTimeline, JobTimeline
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

    def saw(self, seen: Observed, event: Event) -> None:
        if not _fatal(event) or (seen.received_at - event.observed_at).total_seconds() > FRESH_S:
            return
        if len(self._watched) < WATCHED_MAX:
            self._watched.setdefault((seen.host, event.component), seen)

    def due(
        self,
        at: datetime,
        name: str,
        topology: Fabric,
        hosts: Mapping[str, HostTimeline],
        jobs: Iterable[JobTimeline],
    ) -> Iterator[tuple[ComponentId, Diagnosis]]:
        """(component, diagnosis) for each error that is ripe and concerns no running job."""
        if not self._watched:
            return
        running = [job for job in jobs if not job.ended and job.heard_at and job.heard_at > at - timedelta(seconds=60)]
        for (host, component), first in list(self._watched.items()):
            age_s = (at - first.received_at).total_seconds()
            if age_s < WAIT_S:
                continue
            resolved = topology.canonical(component)
            if _in_use(host, resolved, running, topology, at):
                if age_s > GIVE_UP_S:
                    del self._watched[host, component]
                continue
            del self._watched[host, component]
            facts = hosts[host].facts(first.received_at - timedelta(seconds=30)) if host in hosts else [first]
            mine = [each for each in facts if _about(each, resolved, topology)]
            diagnosis = decide(Case(now=at, fabric=name, job=None, observed=ordered(mine), topology=topology))
            if diagnosis is not None and diagnosis.culprits and diagnosis.confidence >= CONFIDENCE_MIN:
                yield resolved, diagnosis

    def opened(self, verdict: Verdict) -> None:
        """Remember an incident, so that the same line read again does not open it anew."""
        self._known[verdict.incident] = None
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def known(self, incident: str) -> bool:
        return incident in self._known

    def over(self, verdict: Verdict, hosts: Mapping[str, HostTimeline], at: datetime) -> str:
        """Why an incident of idle hardware is over, or ""."""
        host = hosts.get(verdict.culprit.host or "")
        if host is not None:
            for each in host.events:
                booted = isinstance(each.fact, Event) and each.fact.name is EventName.BOOT
                if booted and each.received_at > verdict.detected_at:
                    return "the host was rebooted"
        if (at - verdict.published_at).total_seconds() > FORGET_S:
            return "not seen again for a day"
        return ""


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
