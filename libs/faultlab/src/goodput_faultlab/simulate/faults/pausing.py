"""How pauses spread through a fabric, and what they leave in counters.

A port that cannot take more tells its neighbour to stop (PFC). The neighbour's buffers fill, and it tells those that feed
it to stop in turn: pauses travel against the traffic, from the origin up to the senders. Each hop is stopped for a smaller
share of the time than the one before, because some of what feeds a port goes elsewhere. Frames say the opposite: near the
origin one long pause follows another, further up many short ones come and go, so that victims are louder in frames.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import NamedTuple

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import EventName, Severity, Source
from goodput_faultlab.simulate import lines, readings
from goodput_faultlab.simulate.collectors import MakeSample
from goodput_faultlab.simulate.faults import traces
from goodput_faultlab.simulate.faults.model import Emission
from goodput_faultlab.simulate.flows import Flows, Hop
from goodput_topology.graph import Fabric

PRIORITY = 3  # the class that RoCE uses by custom
QUANTA_US = 84.0  # 65,535 quanta of 512 bits at 400 Gb/s: the longest that one frame stops a port
REFRESHED_SHARE = 0.5  # a port that goes on pausing says so again half-way
LOUDER_A_HOP = 1.5  # frames for the same time, each hop further up
HOP_S = 0.05  # until the buffers of the next switch are full
SHARE_MIN = 0.01
HOPS_MAX = 128
COMMUNICATION_SHARE = 0.22  # of a step, spent in exposed communication (see `steps.PHASES`: the part that is no own work)


class Paused(NamedTuple):
    """One cable whose sending end is told to stop for `share` of the time. `depth` 0 is next to the origin."""

    hop: Hop
    share: float
    depth: int


def spread(
    flows: Flows, origins: Iterable[Hop], share: float, rng: random.Random, *, origins_pause: bool = True
) -> list[Paused]:
    """All cables that are paused, nearest to the origin first. `origins_pause` False: the origin is the switch at the
    sending end of `origins`, which itself is told nothing (incast), and only what feeds it is paused."""
    found = [Paused(hop, share, 0) for hop in origins]
    seen = {each.hop for each in found}
    at = 0
    while at < len(found) and len(found) < HOPS_MAX:
        paused = found[at]
        at += 1
        feeds = flows.before.get(paused.hop.out, {})
        most = max(feeds.values(), default=1.0)
        for hop, weight in sorted(feeds.items()):
            further = paused.share * (0.55 + 0.25 * weight / most) * rng.uniform(0.92, 1.0)
            if hop not in seen and further >= SHARE_MIN:
                seen.add(hop)
                found.append(Paused(hop, further, paused.depth + 1))
    return found if origins_pause else [each._replace(depth=each.depth - 1) for each in found if each.depth > 0]


def counted(fabric: Fabric, paused: Iterable[Paused]) -> list[traces.Trace]:
    """Pause frames, their durations and transitions at both ends of every cable."""
    found: list[traces.Trace] = []
    for each in paused:
        frames_s = each.share * 1e6 / (QUANTA_US * REFRESHED_SHARE) * (1 + LOUDER_A_HOP * each.depth)
        stopped = {"": frames_s, "_duration": each.share * 1e6, "_transition": frames_s * min(0.9, 0.1 + 0.3 * each.depth)}
        stops = {"": frames_s, "_duration": each.share * 1e6} if _is_nic(each.hop.into) else {"": frames_s}
        for end, way, rates in ((each.hop.out, "rx", stopped), (each.hop.into, "tx", stops)):
            named = {f"{way}_prio{PRIORITY}_pause{suffix}": rate for suffix, rate in rates.items()}
            found += traces.rises(source_of(end), teller_of(end), told_as(fabric, end), named, each.depth * HOP_S)
    return found


def slows_by(share: float) -> float:
    """How much longer a step lasts when its slowest cable stands still for this share of the time: what it carries takes
    1 / (1 - share) as long."""
    return 1.0 + COMMUNICATION_SHARE * (1.0 / (1.0 - min(share, 0.98)) - 1.0)


def stormed(port: ComponentId, after_s: float, restored_s: float | None = None) -> list[traces.Trace]:
    """A switch's watchdog drops what waits at a port that has been paused for too long."""
    found: list[traces.Trace] = []
    for at_s, state in ((after_s, "stormed"), (restored_s, "restored")):
        if at_s is not None:
            found += [Emission(at_s, readings.switch_name(port), Source.SWITCH, each) for each in _watchdog(port, state)]
    rates = {f"pfc_watchdog_prio{PRIORITY}_stormed": 0.2, f"pfc_watchdog_prio{PRIORITY}_tx_dropped_packets": 400.0}
    return found + traces.rises(Source.SWITCH, readings.switch_name(port), port, rates, after_s)


def _watchdog(port: ComponentId, state: str) -> tuple[MakeSample, MakeSample]:
    interface = port.rpartition("/")[2]
    line = f"{interface}: PFC watchdog, priority {PRIORITY}: {state}"
    attrs = {"priority": str(PRIORITY), "state": state, "by": "on change"}
    severity = Severity.ERROR if state == "stormed" else Severity.INFO
    now = "stormed" if state == "stormed" else "operational"
    return (
        lines.event(port, EventName.PAUSE_STORM, severity, line, attrs),
        lines.state(port, f"pfc_watchdog_prio{PRIORITY}", now),
    )


def nic_warns(fabric: Fabric, nic: ComponentId, after_s: float) -> list[traces.Trace]:
    """The adapter's own watchdog: it has been sending pause frames for long."""
    name, host, component = "tx_pause_storm_warning_events", ids.host_of(nic) or "", lines.rdma_port(fabric, nic)
    line = f"{name} +1: the adapter has been sending pause frames for long"
    attrs = {"netdev": fabric.attr(nic, "netdev"), "by": "ethtool", "state": "stormed", "priority": "unknown", "what": name}
    told = lines.event(component, EventName.PAUSE_STORM, Severity.WARNING, line, attrs)
    rises = traces.rises(Source.ETHTOOL, host, component, {name: 0.2}, after_s)
    return [Emission(after_s, host, Source.ETHTOOL, told), *rises]


def _is_nic(end: ComponentId) -> bool:
    return end.startswith("nic:")


def source_of(end: ComponentId) -> Source:
    return Source.ETHTOOL if _is_nic(end) else Source.SWITCH


def teller_of(end: ComponentId) -> str:
    return (ids.host_of(end) or "") if _is_nic(end) else readings.switch_name(end)


def told_as(fabric: Fabric, end: ComponentId) -> ComponentId:
    return lines.rdma_port(fabric, end) if _is_nic(end) else end
