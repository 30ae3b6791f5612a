"""A switch that fails: whole, in half, at one port, or without a word.

* `dead`: all its ports go down at once. Every host beneath loses the same rail in the same moment; the switch's own
  collector, if there is one, falls silent.
* `line_card`: the same for half of its ports, side by side.
* `bad_port`: one port receives what it cannot decode. The switch counts CRC errors and frames that FEC could not save; hosts
  count packets sent again. The cable's other end is clean.
* `silent`: the switch drops a share of what it passes on and counts nothing. All there is are packets sent again, at ends
  whose only common part is the switch, and probes lost on ways through it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Source
from goodput_common.contracts.verdict import ActionKind
from goodput_faultlab.simulate import lines, readings
from goodput_faultlab.simulate.faults import traces
from goodput_faultlab.simulate.faults.link import transitions
from goodput_faultlab.simulate.faults.model import (
    Act,
    Deed,
    Emission,
    Fault,
    Maker,
    Slowdown,
    between,
    first_of,
    nothing_blocks,
    victim_place,
)
from goodput_faultlab.simulate.flows import Flow, Flows
from goodput_faultlab.simulate.layout import Layout
from goodput_faultlab.simulate.spec import FaultSpec
from goodput_faultlab.simulate.stall import Obstacle
from goodput_topology.graph import Fabric

DOWN_WITHIN_S = 0.3  # from the first of its ports to the last, as the hosts see them
SENT_AGAIN_S = (4.0, 900.0)  # packets a second and flow by severity, where a share of them is lost
SLOWER_BY = (0.12, 1.6)  # what losses cost a step: each makes a queue pair wait or go back
DROPPED = (0.004, 0.12)  # share of the packets, by severity
RETRIES_S = (7.0, 13.0)


def _down(flavour: str) -> Maker:
    def make(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
        place = victim_place(spec, layout, rng)
        nic = traces.nic_of(fabric, layout, place.rank)
        switch = fabric.switch_of(nic)
        if switch is None:
            raise ValueError(f"{nic} hangs on no switch; a switch fault needs one")
        name = switch.partition(":")[2]
        ports = [each for each in fabric.ports_of_switch(switch) if fabric.carries_traffic(each) is not False]
        if flavour == "line_card":
            ports = _half_with(ports, fabric.peer_of(nic))
        found: list[traces.Trace] = []
        lost: list[ComponentId] = []
        for port in ports:
            far = fabric.peer_of(port)
            if far is None:
                continue
            at_s = rng.uniform(0.0, DOWN_WITHIN_S)
            if far.startswith("nic:"):
                lost.append(far)
                found += _nic_down(fabric, layout, far, at_s, spec.severity, rng)
            else:
                found += _port_down(far, at_s)
            if flavour == "line_card":
                found += _port_down(port, at_s)
        ranks = tuple(rank for each in lost for rank in traces.ranks_of_nic(fabric, layout, each))
        groups = frozenset(layout.group(rank, "data").name for rank in ranks)
        found += traces.peers_time_out(fabric, layout, _edge(layout, ranks), rng, RETRIES_S)
        own = (switch, *ports, *(link for port in ports if (link := fabric.link_of(port)) is not None))
        rails = {each for rank in layout.on_host(place.host) for each in fabric.nics_of_gpu(layout.places[rank].gpu)}
        left = traces.left(found)
        return Fault(
            spec=spec,
            flavour=flavour,
            component=switch,
            ranks=ranks,
            note=f"{name} {'is dead' if flavour == 'dead' else 'loses half of its ports'}: {len(lost)} adapters are cut off",
            obstacle=lambda op: Obstacle(broken=groups, broken_from=max(op, first_of("data"))),
            emissions=left.emissions,
            rises=left.rises,
            levels=left.levels,
            drops=dict.fromkeys((switch,) if flavour == "dead" else ports, 1.0),
            acts=(Act(0.0, Deed.COLLECTOR_STOPS, name),) if flavour == "dead" else (),
            symptoms=traces.symptoms_of(found, own, fabric),
            cured_by=lambda kind, target: (
                len(rails) > 1 and kind in (ActionKind.ISOLATE_LINK, ActionKind.EXCLUDE_NIC) and target == switch
            ),
        )

    return make


def _half_with(ports: Sequence[ComponentId], wanted: ComponentId | None) -> list[ComponentId]:
    """The half of the ports, by their numbers, in which the wanted one is."""
    in_order = sorted(ports, key=lambda port: (int("".join(filter(str.isdigit, port.rpartition("/")[2])) or 0), port))
    middle = -(-len(in_order) // 2)
    first, second = in_order[:middle], in_order[middle:]
    return first if wanted in first or not second else second


def _nic_down(
    fabric: Fabric, layout: Layout, nic: ComponentId, at_s: float, severity: float, rng: random.Random
) -> list[traces.Trace]:
    """A host's end of a cable to the switch. NCCL speaks only where the job is."""
    ranks = traces.ranks_of_nic(fabric, layout, nic)
    if ranks:
        return list(transitions(fabric, nic, layout.places[ranks[0]], rng, at_s, math.inf, severity))
    host = ids.host_of(nic) or ""
    found: list[traces.Trace] = [Emission(at_s, host, Source.KERNEL_LOG, lines.kernel_link(fabric, nic, False))]
    return found + [Emission(at_s + 0.01, host, Source.NETLINK, each) for each in lines.netlink_link(fabric, nic, False)]


def _port_down(port: ComponentId, at_s: float) -> list[traces.Trace]:
    told = readings.switch_port(port, False)
    return [Emission(at_s, readings.switch_name(port), Source.SWITCH, each) for each in told]


def _edge(layout: Layout, ranks: Iterable[int]) -> tuple[int, ...]:
    """A few of the ranks that are cut off: their neighbours tell of it; that of hundreds would say the same."""
    return tuple(sorted(ranks))[:4]


def _bad_port(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
    place = victim_place(spec, layout, rng)
    nic = traces.nic_of(fabric, layout, place.rank)
    flows = Flows(fabric, layout, layout.on_host(place.host))
    entered = sorted(
        {hop.into for flow in flows.through(nic) for way in flow.ways for hop in way if hop.into[:5] == "port:"}
    )
    near = fabric.peer_of(nic)
    if near is None or not entered:
        raise ValueError(f"{nic} sends nothing through a switch; a bad port needs traffic")
    port = rng.choice(entered) if spec.host is None and spec.rank is None else near
    link, switch = fabric.link_of(port) or "", fabric.switch_of(port) or ""
    bad_s = between(2.0, 600.0, spec.severity)
    counts = {
        "in_errors": bad_s, "in_crc_errors": bad_s * 0.8, "in_fec_uncorrected_frames": bad_s * 0.5,
        "in_fec_symbol_errors": bad_s * 40, "in_fec_corrected_frames": bad_s * 900, "in_discards": bad_s * 0.1,
    }  # fmt: skip
    found = traces.rises(Source.SWITCH, readings.switch_name(port), port, counts)
    crossing = [flow for flow in flows.through(port) if any(hop.into == port for way in flow.ways for hop in way)]
    found += _sent_again(fabric, flows, crossing, spec.severity)
    note = f"{port} receives frames that it cannot decode, {bad_s:.0f} a second"
    own = (port, link, switch)
    return _slow(spec, "bad_port", fabric, port, own, found, note, between(*DROPPED, spec.severity))


def _silent(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
    """Of a higher tier where the job's traffic goes there and nothing pins it: harder to find, as flows are spread."""
    flows = Flows(fabric, layout)
    crossed = sorted(
        {switch for flow in flows.all for way in flow.ways for hop in way if (switch := _switch_at(fabric, hop.into))}
    )
    if not crossed:
        raise ValueError("the job's traffic crosses no switch; one that drops it is needed")
    switch = rng.choice([each for each in crossed if fabric.attr(each, "tier") != "leaf"] or crossed)
    if spec.host is not None or spec.rank is not None:
        switch = fabric.switch_of(traces.nic_of(fabric, layout, victim_place(spec, layout, rng).rank)) or switch
    found = _sent_again(fabric, flows, flows.through(switch), spec.severity)
    note = f"{switch} drops packets and counts none of them"
    return _slow(spec, "silent", fabric, switch, (switch,), found, note, between(*DROPPED, spec.severity))


def _switch_at(fabric: Fabric, end: ComponentId) -> ComponentId | None:
    return fabric.switch_of(end) if end.startswith("port:") else None


def _sent_again(fabric: Fabric, flows: Flows, lossy: Iterable[Flow], severity: float) -> list[traces.Trace]:
    """What both ends of each flow count when some of its packets are lost on the way."""
    low, high = SENT_AGAIN_S
    rate = low * (high / low) ** severity
    sent: dict[ComponentId, float] = {}
    received: dict[ComponentId, float] = {}
    for flow in lossy:
        for rank, by in ((flow.rank, sent), (flow.to, received)):
            if (nic := flows.nic(rank)) is not None:
                by[nic] = by.get(nic, 0.0) + flow.share * rate
    found: list[traces.Trace] = []
    for by, names in (
        (sent, {"packet_seq_err": 0.8, "roce_adp_retrans": 1.0, "local_ack_timeout_err": 0.05}),
        (received, {"out_of_sequence": 1.0, "duplicate_request": 0.1}),
    ):
        for nic, lost_s in by.items():
            counted = {name: share * lost_s for name, share in names.items()}
            found += traces.rises(Source.RDMA, ids.host_of(nic) or "", lines.rdma_port(fabric, nic), counted)
    return found


def _slow(
    spec: FaultSpec,
    flavour: str,
    fabric: Fabric,
    component: ComponentId,
    own: tuple[ComponentId, ...],
    found: Sequence[traces.Trace],
    note: str,
    drops: float,
) -> Fault:
    left = traces.left(found)
    return Fault(
        spec=spec,
        flavour=flavour,
        component=component,
        also_right=tuple(each for each in own if each and each != component),
        note=note,
        obstacle=nothing_blocks,
        emissions=left.emissions,
        rises=left.rises,
        levels=left.levels,
        drops={component: drops},
        slowdown=Slowdown(factor=1.0 + between(*SLOWER_BY, spec.severity), phase="optimizer"),
        symptoms=traces.symptoms_of(found, own, fabric),
        cured_by=lambda kind, target: kind in (ActionKind.ISOLATE_LINK, ActionKind.EXCLUDE_NIC) and target in own,
    )


FLAVOURS: dict[str, Maker] = {
    "dead": _down("dead"),
    "line_card": _down("line_card"),
    "bad_port": _bad_port,
    "silent": _silent,
}
