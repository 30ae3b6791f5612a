"""A storm of pause frames: the job is slow and nothing reports an error.

Pauses are traced from the adapters of the job to where they begin (`pauses`). The port that begins them is named: an adapter
that does not take what it is sent, a switch that is congested with none of its own ports paused, a ring of ports that wait
for each other. Ports in between only relay. Restarting the job would change nothing.

What confirms an origin is its own word: an adapter that sends pauses itself (`tx_prio3_pause`) while it waits for PCIe or
drops what it received; a switch whose watchdog has cut a queue off.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta

from goodput_common.contracts.ids import ComponentId, host_of
from goodput_common.contracts.telemetry import EventName, Gauge
from goodput_common.contracts.verdict import Action, ActionKind, Evidence, Explained, FaultClass
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import canonical, cite, events, ranks_on, symptoms_of
from goodput_correlator.domain.finding import Finding
from goodput_correlator.domain.pauses import End, Origin, Pause, Pauses, shares

ENGINE = "pfc_storm"
BEFORE_S = 15.0  # pauses are counted in intervals of some seconds, and begin before steps are seen to be slow
VICTIM_SHARE_MIN = 0.03  # of the time that a port of the job was paused: below, it does not slow a job down
EXPLAINS_MIN = 0.25  # of all pauses: an origin of less is a suspect beside another
PCIE_WAIT_PERCENT = 20.0
DROPS = ("rx_discards_phy", "rx_buffer_passed_thres_phy")
CITED_VICTIMS = 4
CITED_LAST = 2
VICTIMS_SHOWN = 8  # of either sort


def diagnose(case: Case) -> tuple[Finding, ...]:
    if case.placement is None or case.since is None:
        return ()
    since = case.since - timedelta(seconds=BEFORE_S)
    pauses = Pauses(case.measurements, case.topology, since)
    mine = [nic for host in case.placement.hosts for nic in case.topology.nics_of_host(host) if ranks_on(case, nic)]
    if not _paused(pauses, mine):
        mine = _uplinks(case, mine)
        if not _paused(pauses, mine):
            return ()
    origins = pauses.origins(mine)
    part = shares(origins)
    return tuple(
        _finding(case, pauses, origin, part[origin.component])
        for origin in origins
        if part[origin.component] >= EXPLAINS_MIN
    )


def _paused(pauses: Pauses, ports: Collection[ComponentId]) -> bool:
    """Whether any of these ports stood still for long enough to slow a job down."""
    wanted = set(ports)
    return any(port in wanted and pause.share >= VICTIM_SHARE_MIN for (port, _), pause in pauses.received.items())


def _uplinks(case: Case, nics: Iterable[ComponentId]) -> list[ComponentId]:
    """The ports by which the job's leaf switches send on to other switches. They may be stopped for long without a pause
    that reaches an adapter: buffers take it up, or a watchdog drops what waits."""
    leaves = dict.fromkeys(switch for nic in nics if (switch := case.topology.switch_of(nic)) is not None)
    ports = [port for leaf in leaves for port in case.topology.ports_of_switch(leaf)]
    return [port for port in ports if (case.topology.peer_of(port) or "").startswith("port:")]


def _finding(case: Case, pauses: Pauses, origin: Origin, part: float) -> Finding:
    component = origin.component
    own, confirmed = _own_words(case, pauses, origin)
    score = _score(origin.end, confirmed) * (0.6 + 0.4 * part)
    evidence = [*own]
    loudest = sorted(origin.victims, key=lambda pause: (-pause.us, pause.port))
    for pause in loudest[:CITED_VICTIMS]:
        evidence += [_cite(pause, f"{pause.port} was told to stop {pause.share:.0%} of the time: {_words(origin)}", 0.4)]
    evidence += _last_hops(pauses, origin, loudest[:CITED_VICTIMS])
    for port in sorted(origin.ring):
        if (blocked := pauses.received.get((port, origin.priority))) is not None:
            evidence.append(_cite(blocked, "a port of the ring, waiting for the next", 0.6))
    return Finding(
        fault_class=FaultClass.PFC_STORM,
        component=component,
        score=score,
        evidence=tuple(evidence),
        engine=ENGINE,
        ranks=ranks_on(case, component),
        host=host_of(component),
        explains=symptoms_of(case),
        because=f"pauses of {len(origin.victims)} ports of the job lead to {component}: {_words(origin)}",
        decisive=confirmed and part >= 0.5,
        hardware=True,
        action=_action(origin),
        victims=_victims(pauses, origin, loudest),
    )


def _last_hops(pauses: Pauses, origin: Origin, cited: Iterable[Pause]) -> list[Evidence]:
    """The ports that the origin itself tells to stop: without them the trace is a claim about something that is far away."""
    already = {pause.port for pause in cited}
    ports = [pause for port in origin.last - already if (pause := pauses.received.get((port, origin.priority))) is not None]
    loudest = sorted(ports, key=lambda pause: (-pause.us, pause.port))
    words = "{} is next to it and was told to stop {:.0%} of the time: the last hop of the trace"
    return [_cite(each, words.format(each.port, each.share), 0.5) for each in loudest[:CITED_LAST]]


def _score(end: End, confirmed: bool) -> float:
    match end:
        case End.RECEIVER:
            return 0.95 if confirmed else 0.75
        case End.RING:
            return 0.93
        case End.CONGESTED:
            return 0.88 if confirmed else 0.8
        case End.LOST:
            return 0.5


def _own_words(case: Case, pauses: Pauses, origin: Origin) -> tuple[list[Evidence], bool]:
    """What the origin says itself, and whether that confirms it."""
    component, found, confirmed = origin.component, list[Evidence](), False
    sent = pauses.sent.get((component, origin.priority))
    if origin.end is End.RECEIVER and sent is not None:
        found.append(
            _cite(sent, f"it tells its switch to stop, {sent.share:.0%} of the time, and is not paused itself", 0.9)
        )
        confirmed = True
    if origin.end is End.RECEIVER:
        for name, seen in _trouble(case, component):
            found.append(cite(seen, f"why it does not take what it is sent: {name}", 0.6, component))
    ports = {component, *origin.ring, *case.topology.ports_of_switch(component)}
    for seen, event in events(case, EventName.PAUSE_STORM):
        if canonical(case, event.component) in ports and event.attrs.get("state") != "restored":
            found.append(cite(seen, "a watchdog found it pausing for too long", 0.7, canonical(case, event.component)))
            confirmed = True
    return found[:8], confirmed


def _trouble(case: Case, nic: ComponentId) -> list[tuple[str, Observed]]:
    found: list[tuple[str, Observed]] = []
    for name, facts in sorted(case.measurements.names(nic).items()):
        last = facts[-1]
        if isinstance(last.fact, Gauge):
            if name.startswith("outbound_pci_stalled") and last.fact.value >= PCIE_WAIT_PERCENT:
                found.append((f"it waits for PCIe {last.fact.value:.0f}% of the time", last))
        elif name in DROPS:
            found.append((name, last))
    return found


def _cite(pause: Pause, why: str, weight: float) -> Evidence:
    return cite(pause.rise.facts[-1], why, weight, pause.port)


def _words(origin: Origin) -> str:
    match origin.end:
        case End.RECEIVER:
            return f"the trace ends at {origin.component}, which does not take what it is sent"
        case End.CONGESTED:
            return f"the trace ends at {origin.component}: none of its own ports is paused, the congestion begins there"
        case End.RING:
            return f"the trace comes back to itself: {' -> '.join((*origin.ring, origin.ring[0]))} wait for each other"
        case End.LOST:
            return f"the trace leads to {origin.component}, of which nothing more is known"


def _victims(pauses: Pauses, origin: Origin, loudest: list[Pause]) -> tuple[Explained, ...]:
    """Whoever else is paused: the ports in between, and the adapters of the job that are not cited."""
    between = [
        pause for port in sorted(origin.relays) if (pause := pauses.received.get((port, origin.priority))) is not None
    ]
    relays = f"it only relays pauses that begin at {origin.component}"
    mine = f"the trace of its pauses ends at {origin.component}"
    return (*_paused_ports(between, relays), *_paused_ports(loudest[CITED_VICTIMS:], mine))


def _paused_ports(paused: list[Pause], because: str) -> list[Explained]:
    words = "paused {:.0%} of the time on priority {}"
    found = [Explained(component=e.port, symptom=words.format(e.share, e.priority), because=because) for e in paused]
    more = len(found) - VICTIMS_SHOWN
    rest = Explained(component=None, symptom=f"{more} more ports are paused", because=because)
    return found if more <= 0 else [*found[:VICTIMS_SHOWN], rest]


def _action(origin: Origin) -> Action:
    if origin.end is End.RECEIVER:
        return Action(
            kind=ActionKind.ISOLATE_LINK,
            target=origin.component,
            reason="its pauses hold up others than its own host; a restart of the job would change nothing",
        )
    return Action(
        kind=ActionKind.HAND_TO_PERSON,
        target=origin.component,
        reason="congestion that begins in the network is mended there (ECN and DCQCN thresholds, the queue that is stuck);"
        " a restart of the job would change nothing",
    )
