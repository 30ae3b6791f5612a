"""What single lines follow from a culprit: the causal model of alerts, as `causal` is that of findings.

Each rule looks at one line that reports an error and at one root, and says in words how the one follows from the other, or
None. A line that names its own cause, or that every rank writes whose collective does not end, needs no root to be told for
a consequence; it is better explained with one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from goodput_common.contracts.ids import ComponentId, ComponentKind, InvalidComponentId, host_id, host_of, rank_of
from goodput_common.contracts.telemetry import Event, EventName
from goodput_common.contracts.verdict import FaultClass
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.causal import GPU_ORDER, NETWORK
from goodput_correlator.domain.clues import canonical
from goodput_correlator.domain.deaths import deaths, rank_of_event
from goodput_correlator.domain.finding import Finding
from goodput_correlator.domain.lost_peers import host_at

NVLINK_XIDS = frozenset({"74", *(str(number) for number in range(144, 151))})
FLUSHED = frozenset({"5", "IBV_WC_WR_FLUSH_ERR"})
STARVES = frozenset({FaultClass.PCIE, FaultClass.STRAGGLER, FaultClass.NIC_HANG})


@dataclass(frozen=True)
class Root:
    """A culprit with what belongs to it."""

    case: Case
    finding: Finding

    @property
    def name(self) -> str:
        return self.finding.component or "the application"

    @property
    def fault(self) -> FaultClass:
        return self.finding.fault_class

    @cached_property
    def host(self) -> str | None:
        return self.finding.host or (_host(self.finding.component) if self.finding.component else None)

    @cached_property
    def own(self) -> frozenset[ComponentId]:
        """The culprit, its parts, and what is at its other end: whatever these report is its own word."""
        component, fabric = self.finding.component, self.case.topology
        if component is None:
            return frozenset()
        found = {component, *fabric.parts(component)}
        kind = self.finding.kind
        if kind is ComponentKind.LINK:
            found |= set(fabric.ends_of(component) or ())
        elif kind is ComponentKind.SWITCH:
            for link in fabric.links_of_switch(component):
                found |= {link, *(fabric.ends_of(link) or ())}
        elif kind in (ComponentKind.NIC, ComponentKind.PORT, ComponentKind.HOST):
            nics = [each for each in found if each.startswith(("nic:", "port:"))]
            found |= {end for each in nics for end in (fabric.link_of(each), fabric.peer_of(each)) if end is not None}
        elif kind is ComponentKind.NVLINK:
            found.add(component.replace("nvlink:", "gpu:").rpartition("/")[0])
        return frozenset(found)


def by_itself(event: Event) -> str:
    """Why a line is a consequence, whatever the root is; "" where that cannot be told."""
    if event.name is EventName.XID and event.attrs.get("impact") == "victim":
        cause = event.attrs.get("cause")
        return f"the line itself names its cause: Xid {cause}" if cause else "channels are removed when a job is torn down"
    if event.name is EventName.NCCL_WATCHDOG:
        return "every rank of the job reports the time-out of the collective that it waits in"
    if event.name is EventName.NCCL_NET_ERROR:
        if event.attrs.get("status") in FLUSHED:
            return "what is under way over a connection is flushed when the connection ends"
        return "its transfer partner did not answer; the error names two ends, and neither need be guilty"
    return ""


def follows_from(case: Case, root: Root, seen: Observed, event: Event) -> str:
    """How a line follows from a root, in words; "" where it does not."""
    component, host = canonical(case, event.component), _host(event.component)
    rank = _rank(case, seen, event)
    if component in root.own:
        return f"{root.name} shows it itself"
    if root.fault is FaultClass.HOST_DOWN and host is not None and host == root.host:
        return f"{host} is down with all that it carries"
    match event.name:
        case EventName.XID | EventName.SXID | EventName.GPU_LOST:
            return _of_gpu(case, root, event, component)
        case EventName.NCCL_WATCHDOG:
            return f"it waited in a collective that {root.name} held up" if case.stalled else ""
        case EventName.NCCL_NET_ERROR:
            return _of_connection(case, root, event)
        case EventName.PROCESS_EXITED if rank is not None:
            return _of_death(case, root, rank)
        case EventName.AER:
            on_bus = root.fault in (FaultClass.GPU_OFF_BUS, FaultClass.PCIE) and component == host_id(root.host or "")
            return f"it is told of the bus that {root.name} is on" if on_bus else ""
        case EventName.HOST_STALL:
            waits = host == root.host and event.attrs.get("what") == "hung_task" and root.finding.hardware
            return f"a task hangs that waits for {root.name}" if waits else ""
        case EventName.STORAGE_STALL:
            everywhere = root.fault is FaultClass.STORAGE_STALL and root.finding.kind is ComponentKind.JOB
            return "the storage of the whole job does not answer" if everywhere else ""
        case EventName.PAUSE_STORM:
            return _of_pause(root)
        case _:
            return ""


def _of_gpu(case: Case, root: Root, event: Event, gpu: ComponentId) -> str:
    if event.attrs.get("impact") == "victim":
        cause = event.attrs.get("cause")
        if not cause:
            return f"the driver removes what a process had open when it ends, as those of the job did over {root.name}"
        named = any(f": {cause}," in each.excerpt for each in root.finding.evidence)
        return f"the line itself names its cause: Xid {cause}, which is that of {root.name}" if named else ""
    near = _host(gpu) == root.host or _domain(case, gpu) in {_domain(case, each) for each in root.own} - {None}
    if root.fault is FaultClass.GPU_DRIVER and root.finding.kind is ComponentKind.HOST and _host(gpu) == root.host:
        return f"the driver of {root.host} is gone for all its GPUs"
    of_nvlink = event.name is EventName.SXID or event.attrs.get("xid") in NVLINK_XIDS
    if of_nvlink and near and root.fault in GPU_ORDER:
        return f"its NVLink partner {root.name} failed"
    return ""


def _of_connection(case: Case, root: Root, event: Event) -> str:
    if event.attrs.get("status") in FLUSHED:
        return ""
    peer = host_at(case, event.attrs.get("peer", ""))
    if peer is not None and peer == root.host:
        return f"it lost its connection to {peer}, where {root.name} is"
    if root.fault in NETWORK:
        return f"its transfer did not get through, as nothing does over {root.name}; the error names two ends"
    if peer is not None and any(case.host_of_rank(rank) == peer for rank in deaths(case)):
        return f"its peer on {peer} ended as well, after {root.name}"
    return ""


def _of_death(case: Case, root: Root, rank: int) -> str:
    if rank in root.finding.ranks:
        return f"it runs on {root.name}"
    death = deaths(case).get(rank)
    if death is not None and death.aftermath:
        return "it ended when steps had stood still already: by a restart or a watchdog"
    if death is not None and death.consequence:
        return f"it lost its peers, or gave up waiting for them, after {root.name}"
    return ""


def _of_pause(root: Root) -> str:
    if root.fault is FaultClass.PFC_STORM:
        return f"it only relays pauses that begin at {root.name}"
    if root.fault in STARVES and root.finding.kind is ComponentKind.NIC:
        return f"it was told to stop because {root.name} does not take what it is sent"
    return ""


def _rank(case: Case, seen: Observed, event: Event) -> int | None:
    if event.component.startswith("rank:"):
        job, rank = rank_of(event.component)
        return rank if job == case.job else None
    return rank_of_event(case, seen, event) if case.placement is not None else None


def _domain(case: Case, component: ComponentId) -> ComponentId | None:
    return case.topology.nvdomain_of(component) if component.startswith("gpu:") else None


def _host(component: ComponentId) -> str | None:
    try:
        return host_of(component)
    except InvalidComponentId:
        return None
