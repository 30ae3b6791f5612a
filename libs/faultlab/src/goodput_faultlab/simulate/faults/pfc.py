"""A storm of PFC pauses: the job is slow on all ranks, nothing is in error, and restarting changes nothing.

What is paused is a victim; what pauses without being paused itself is the origin. Four of them:

* `slow_receiver`: a host that does not take what its NIC receives, because the NIC waits for PCIe or has no buffers;
* `incast`: more flows meet at one port of a switch than it can pass on, and thresholds that should have slowed the senders
  by congestion marks do not;
* `stuck_port`: a switch's port that goes on pausing its neighbour for no reason;
* `deadlock`: switches that wait for each other in a circle, which none of them can leave; watchdogs break it up by dropping,
  and it closes again.

How long a cable stands still, by severity: from a third of the time, which costs a step an eighth, to more than nine tenths,
which makes it three times as long.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Source
from goodput_common.contracts.verdict import ActionKind
from goodput_faultlab.simulate import lines
from goodput_faultlab.simulate.faults import traces
from goodput_faultlab.simulate.faults.model import (
    MOVES_AWAY,
    Fault,
    Maker,
    Slowdown,
    between,
    nothing_blocks,
    on_host,
    victim_place,
)
from goodput_faultlab.simulate.faults.pausing import (
    PRIORITY,
    Paused,
    counted,
    nic_warns,
    slows_by,
    spread,
    stormed,
    teller_of,
)
from goodput_faultlab.simulate.flows import Flows, Hop
from goodput_faultlab.simulate.layout import Layout
from goodput_faultlab.simulate.spec import FaultSpec
from goodput_topology.graph import Fabric

SHARE_MARGINAL, SHARE_BLATANT = 0.35, 0.93
WATCHDOG_SHARE = 0.75  # a watchdog bites when a queue has not moved for some tenths of a second; below that it hardly does
WATCHDOG_S = 0.6
PROBE_WAITS_US = 100.0  # at a cable that is paused half of the time: some queues of a switch (guess: no capture has probes)
WARNS_S = 8.0  # the adapter's own watchdog looks over seconds


def _slow_receiver(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
    place = victim_place(spec, layout, rng)
    nic = _nic_on_rail(spec, fabric, layout, place.host, traces.nic_of(fabric, layout, place.rank))
    ranks = traces.ranks_of_nic(fabric, layout, nic)
    port, link = fabric.peer_of(nic), fabric.link_of(nic)
    if port is None or link is None:
        raise ValueError(f"{nic} has no cable; nobody hears its pauses")
    share = between(SHARE_MARGINAL, SHARE_BLATANT, spec.severity)
    paused = spread(Flows(fabric, layout, ranks), [Hop(port, nic)], share, rng)
    component, host = lines.rdma_port(fabric, nic), place.host
    found = counted(fabric, paused)
    if rng.random() < 0.5:  # the NIC waits for PCIe, and says so
        netdev = {"netdev": fabric.attr(nic, "netdev")}
        waits = {"outbound_pci_stalled_wr_percent": between(30.0, 96.0, spec.severity)}
        found += traces.stands(Source.ETHTOOL, host, component, waits, attrs=netdev)
        why = "waits for PCIe"
    else:
        full = {"rx_discards_phy": between(3.0, 900.0, spec.severity), "rx_buffer_passed_thres_phy": 4000.0 * share}
        found += traces.rises(Source.ETHTOOL, host, component, full)
        why = "runs out of buffers"
    if share > WATCHDOG_SHARE:
        found += nic_warns(fabric, nic, WARNS_S) + stormed(port, WATCHDOG_S)
    note = f"{component} {why} and pauses {port} for {share:.0%} of the time"
    own = (nic, link)
    return _fault(
        spec, "slow_receiver", fabric, layout, nic, own, found, paused, note, slows_by(share), host=host, ranks=ranks
    )


def _incast(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
    place = victim_place(spec, layout, rng)
    nic = _nic_on_rail(spec, fabric, layout, place.host, traces.nic_of(fabric, layout, place.rank))
    port, link, switch = fabric.peer_of(nic), fabric.link_of(nic), fabric.switch_of(nic)
    if port is None or link is None or switch is None:
        raise ValueError(f"{nic} has no switch; an incast needs one")
    ranks = traces.ranks_of_nic(fabric, layout, nic)
    flows = Flows(fabric, layout, ranks)
    if len(flows.before.get(port, {})) < 2:
        raise ValueError(f"fewer than two ways lead to {port}; an incast needs a job of three hosts or more")
    share = between(SHARE_MARGINAL, SHARE_BLATANT, spec.severity)
    paused = spread(flows, [Hop(port, nic)], min(0.97, share / 0.75), rng, origins_pause=False)
    marked = {f"out_queue{PRIORITY}_ecn_marked_packets": between(2e4, 9e5, spec.severity)}
    found = counted(fabric, paused) + traces.rises(Source.SWITCH, teller_of(port), port, marked)
    marks = {"np_ecn_marked_roce_packets": 1e3, "np_cnp_sent": 5e2}  # thresholds so high that only a tail is marked
    found += traces.rises(Source.RDMA, place.host, lines.rdma_port(fabric, nic), marks)
    note = f"incast at {port}: {switch} pauses what feeds it for {share:.0%} of the time"
    own = (switch, port, link)
    return _fault(spec, "incast", fabric, layout, switch, own, found, paused, note, slows_by(share))


def _stuck_port(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
    """Between switches where the job's traffic goes there, else at a host's port."""
    flows = Flows(fabric, layout, _pinned(spec, layout))
    hops = sorted({hop for flow in flows.all for way in flow.ways for hop in way if hop.into.startswith("port:")})
    if not hops:
        raise ValueError("the job's traffic crosses no switch; a stuck port needs one")
    inner = [hop for hop in hops if hop.out.startswith("port:")]
    if spec.host is not None or spec.rank is not None:
        host = victim_place(spec, layout, rng).host
        mine = [hop for hop in hops if ids.host_of(hop.out) == host] if hops else []
        inner, hops = [], mine or hops
    hop = rng.choice(inner or hops)
    share = between(SHARE_MARGINAL + 0.1, 0.96, spec.severity)
    paused = spread(flows, [hop], share, rng)
    found = counted(fabric, paused)
    if share > WATCHDOG_SHARE and hop.out.startswith("port:"):
        found += stormed(hop.out, WATCHDOG_S)
    link, switch = fabric.link_of(hop.into) or "", fabric.switch_of(hop.into) or ""
    note = f"{hop.into} is stuck: it pauses {hop.out} for {share:.0%} of the time"
    own = (hop.into, link, switch)
    return _fault(spec, "stuck_port", fabric, layout, hop.into, own, found, paused, note, slows_by(share))


def _deadlock(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
    """After a reroute, traffic goes up and down twice: leaf, spine, leaf, spine and back to the first."""
    flows = Flows(fabric, layout)
    circle = _circle(fabric, flows, rng)
    share = between(0.6, 0.95, spec.severity)
    paused = spread(flows, circle, share, rng)
    found = counted(fabric, paused)
    for n, hop in enumerate(circle):
        found += stormed(hop.out, WATCHDOG_S + 0.1 * n, WATCHDOG_S + 2.0 + 0.1 * n)
    ends = [end for hop in circle for end in hop]
    links = [link for hop in circle if (link := fabric.link_of(hop.out)) is not None]
    switches = [switch for hop in circle if (switch := fabric.switch_of(hop.into)) is not None]
    note = f"PFC deadlock: {' -> '.join(hop.out for hop in circle)} wait for each other"
    own = tuple(dict.fromkeys((*ends, *links, *switches)))
    return _fault(spec, "deadlock", fabric, layout, circle[0].into, own, found, paused, note, slows_by(share))


def _circle(fabric: Fabric, flows: Flows, rng: random.Random) -> list[Hop]:
    """Two switches of the lower tier and two above them, each cabled to each; near the job where that is possible."""
    cables: dict[tuple[ComponentId, ComponentId], Hop] = {}
    for link in fabric.of_kind(ids.ComponentKind.LINK):
        a, b = fabric.ends_of(link) or ("", "")
        near, far = fabric.switch_of(a) if a.startswith("port:") else None, fabric.switch_of(b) if b[:5] == "port:" else None
        if near is not None and far is not None:
            cables.setdefault((near, far), Hop(a, b))
            cables.setdefault((far, near), Hop(b, a))
    above: dict[ComponentId, list[ComponentId]] = {}
    for near, far in cables:
        if fabric.attr(near, "tier") == "leaf":
            above.setdefault(near, []).append(far)
    lower = [each for each in sorted(above) if flows.through(each)] or sorted(above)
    rng.shuffle(lower)
    for one, other in itertools.combinations(lower, 2):
        shared = sorted(set(above[one]) & set(above[other]))
        if len(shared) >= 2:
            first, second = rng.sample(shared, 2)
            return [cables[pair] for pair in ((one, first), (first, other), (other, second), (second, one))]
    raise ValueError("no two leaves share two spines; a deadlock needs a circle of switches")


def _pinned(spec: FaultSpec, layout: Layout) -> tuple[int, ...]:
    if spec.rank is not None:
        return (spec.rank,)
    return layout.on_host(spec.host) if spec.host is not None else ()


def _nic_on_rail(spec: FaultSpec, fabric: Fabric, layout: Layout, host: str, drawn: ComponentId) -> ComponentId:
    if spec.rail is None or spec.rank is not None:
        return drawn
    for rank in layout.on_host(host):
        nic = traces.nic_of(fabric, layout, rank)
        if fabric.attr(nic, "rail") == str(spec.rail):
            return nic
    raise ValueError(f"no rank of {host} uses rail {spec.rail}")


def _fault(
    spec: FaultSpec,
    flavour: str,
    fabric: Fabric,
    layout: Layout,
    component: ComponentId,
    own: tuple[ComponentId, ...],
    found: Sequence[traces.Trace],
    paused: Sequence[Paused],
    note: str,
    factor: float,
    *,
    host: str | None = None,
    ranks: tuple[int, ...] = (),
) -> Fault:
    left = traces.left(found)

    def cured(kind: ActionKind, target: ComponentId | None) -> bool:
        """Taking the port out of use helps, and where a host does not take what it is sent, leaving the host."""
        if kind in (ActionKind.ISOLATE_LINK, ActionKind.EXCLUDE_NIC):
            return target == component or target in own
        return host is not None and kind in MOVES_AWAY and (on_host(target, host) or target in own)

    return Fault(
        spec=spec,
        flavour=flavour,
        component=component,
        also_right=tuple(each for each in own if each and each != component),
        ranks=ranks,
        host=host,
        note=f"{note}; {len(paused)} cables paused",
        obstacle=nothing_blocks,
        emissions=left.emissions,
        rises=left.rises,
        levels=left.levels,
        waits_us={each.hop.out: PROBE_WAITS_US * each.share / (1.0 - min(each.share, 0.98)) for each in paused},
        slowdown=Slowdown(factor=factor, phase="optimizer", ramp_s=1.0),
        symptoms=traces.symptoms_of(found, own, fabric),
        cured_by=cured,
    )


FLAVOURS: dict[str, Maker] = {
    "slow_receiver": _slow_receiver,
    "incast": _incast,
    "stuck_port": _stuck_port,
    "deadlock": _deadlock,
}
