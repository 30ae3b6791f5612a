"""One network link that is down, or comes and goes: one group's collective stops, every rank has enqueued the same.

Seen on the victim's host: link down in the kernel log, from netlink, in the RDMA port state and counters, and NCCL's
asynchronous event. Seen elsewhere, as consequences: retransmissions at the ring neighbours and, when the retries are
used up, their error 12, which names both ends.

A short outage heals by itself because the NIC keeps retrying for several seconds; after that the connection is dead even if
the link is up again, and only new communicators help.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Source
from goodput_common.contracts.verdict import ActionKind
from goodput_faultlab.simulate import lines
from goodput_faultlab.simulate.faults import traces
from goodput_faultlab.simulate.faults.model import (
    MOVES_AWAY,
    Emission,
    Fault,
    Maker,
    Slowdown,
    between,
    first_of,
    nothing_blocks,
    on_host,
    ring_neighbours,
    victim_place,
)
from goodput_faultlab.simulate.layout import Layout, Place
from goodput_faultlab.simulate.spec import FaultSpec
from goodput_faultlab.simulate.stall import Obstacle
from goodput_topology.graph import Fabric

RETRIES_LAST_S = 6.0  # 7 retries with the usual time-out; a longer outage breaks the connection
RDMA_LOOK_S = 5.0
NEVER = math.inf
Outages = Callable[[FaultSpec, random.Random], tuple[tuple[float, float], ...]]


def _dead(spec: FaultSpec, rng: random.Random) -> tuple[tuple[float, float], ...]:
    return ((0.0, spec.clears_after_s if spec.clears_after_s is not None else NEVER),)


def _flapping(spec: FaultSpec, rng: random.Random) -> tuple[tuple[float, float], ...]:
    """Several outages in half a minute, the first one longer than the retries last."""
    found, at = [], 0.0
    for n in range(rng.randrange(4, 7)):
        down_s = rng.uniform(RETRIES_LAST_S + 1.0, RETRIES_LAST_S + 3.0) if n == 0 else rng.uniform(1.0, 4.0)
        found.append((at, at + down_s))
        at += down_s + rng.uniform(1.0, 3.0)
    return tuple(found)


def _blip(spec: FaultSpec, rng: random.Random) -> tuple[tuple[float, float], ...]:
    """One outage that the retries outlast: the job goes on by itself."""
    return ((0.0, rng.uniform(3.0, RETRIES_LAST_S - 1.0)),)


def _returns(spec: FaultSpec, rng: random.Random) -> tuple[tuple[float, float], ...]:
    """It heals, the job goes on, and a minute later the same link is gone for good: one incident, not two."""
    healed_s = rng.uniform(3.0, RETRIES_LAST_S - 1.0)
    return ((0.0, healed_s), (healed_s + rng.uniform(25.0, 40.0), NEVER))


def _link(flavour: str, outages: Outages) -> Maker:
    def make(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
        place = victim_place(spec, layout, rng)
        if spec.rail is not None and spec.rank is None:
            rail = [r for r in layout.on_host(place.host) if fabric.attr(_nic(fabric, layout, r), "rail") == str(spec.rail)]
            if not rail:
                raise ValueError(f"no rank of {place.host} uses rail {spec.rail}")
            place = layout.places[rail[0]]
        nic = _nic(fabric, layout, place.rank)
        link = fabric.link_of(nic)
        if link is None:
            raise ValueError(f"{nic} has no cable; a link fault needs one")
        ranks = tuple(r for r in layout.on_host(place.host) if nic in fabric.nics_of_gpu(layout.places[r].gpu))
        groups = frozenset(layout.group(rank, "data").name for rank in ranks)
        times = outages(spec, rng)
        emissions: list[traces.Trace] = [
            each for down, up in times for each in transitions(fabric, nic, place, rng, down, up, spec.severity)
        ]
        broken = any(up - down > RETRIES_LAST_S for down, up in times)
        breaks_s = next((down for down, up in times if up - down > RETRIES_LAST_S), 0.0)
        emissions += _peers(fabric, layout, ranks, rng, broken, breaks_s)
        if spec.severity >= 0.5 or flavour == "dead":  # of a short flap the switch's own look may see nothing
            for at, is_up in ((at, at != down) for down, up in times for at in (down, up) if not math.isinf(at)):
                emissions += traces.far_port(fabric, nic, at + rng.uniform(0.05, 0.3), is_up)
        ends = fabric.ends_of(link) or ()
        spare_rails = (
            len({n for rank in layout.on_host(place.host) for n in fabric.nics_of_gpu(layout.places[rank].gpu)}) > 1
        )

        def cured(kind: ActionKind, target: ComponentId | None) -> bool:
            if kind in (ActionKind.ISOLATE_LINK, ActionKind.EXCLUDE_NIC):
                return spare_rails and target in (link, *ends)
            return kind in MOVES_AWAY and (on_host(target, place.host) or target in (link, *ends))

        return Fault(
            spec=spec,
            flavour=flavour,
            component=link,
            also_right=tuple(ends),
            ranks=ranks,
            host=place.host,
            note=f"{fabric.attr(nic, 'netdev')} of {place.host}: link {flavour}",
            obstacle=lambda op: Obstacle(broken=groups, broken_from=max(op, first_of("data"))),
            emissions=traces.left(emissions).emissions,
            outages=times,
            cured_by=cured,
        )

    return make


def _nic(fabric: Fabric, layout: Layout, rank: int) -> ComponentId:
    nics = fabric.nics_of_gpu(layout.places[rank].gpu)
    if not nics:
        raise ValueError(f"{layout.places[rank].gpu} has no NIC on its rail; a link fault needs one")
    return nics[0]


def transitions(
    fabric: Fabric, nic: ComponentId, place: Place, rng: random.Random, down: float, up: float, severity: float
) -> list[Emission]:
    host, rdma = ids.host_of(nic) or "", fabric.attr(nic, "rdma")
    found = []
    changes: Sequence[tuple[float, bool]] = ((down, False),) if math.isinf(up) else ((down, False), (up, True))
    for at, is_up in changes:
        found.append(Emission(at, host, Source.KERNEL_LOG, lines.kernel_link(fabric, nic, is_up)))
        found += [Emission(at + 0.01, host, Source.NETLINK, each) for each in lines.netlink_link(fabric, nic, is_up)]
        if rdma:
            look_s = rng.uniform(0.2, RDMA_LOOK_S)  # the counters are read every few seconds
            found.append(Emission(at + look_s, host, Source.RDMA, lines.port_state(fabric, nic, is_up)))
            if not is_up:
                for name, delta in (("link_downed", 1), ("symbol_error", rng.randrange(1, 5 + round(55 * severity)))):
                    made = lines.counter(ids.nic_id(host, rdma), name, delta, delta, RDMA_LOOK_S)
                    found.append(Emission(at + look_s, host, Source.RDMA, made))
            event = "port active" if is_up else "port error"
            if severity < 0.25:  # NCCL tells only where it waits for the adapter's events: not with every version
                continue
            found.append(Emission(at + 0.05, host, Source.JOB_LOG, lines.async_event(fabric, nic, place, event)))
    return found


def _peers(
    fabric: Fabric, layout: Layout, ranks: tuple[int, ...], rng: random.Random, broken: bool, breaks_s: float
) -> list[Emission]:
    """What the ring neighbours report: retransmissions at once, error 12 once the retries are used up."""
    found, errors_s = [], breaks_s + RETRIES_LAST_S
    for rank in ranks:
        for peer in dict.fromkeys(ring_neighbours(layout, rank)):
            host, near, far = layout.places[peer].host, _nic(fabric, layout, peer), _nic(fabric, layout, rank)
            device = fabric.attr(near, "rdma")
            if device:
                retried = rng.randrange(20, 200)
                for name, delta in (("local_ack_timeout_err", retried), ("roce_adp_retrans", retried * 2)):
                    made = lines.counter(ids.nic_id(host, device), name, delta, delta + rng.randrange(1000), RDMA_LOOK_S)
                    found.append(Emission(rng.uniform(1.0, RDMA_LOOK_S), host, Source.RDMA, made))
            if broken:
                error = lines.net_error(fabric, near, far, layout.places[peer])
                found.append(Emission(rng.uniform(errors_s, errors_s + 4.0), host, Source.JOB_LOG, error))
        if broken:
            own = layout.places[rank].host
            near, other = _nic(fabric, layout, rank), _nic(fabric, layout, ring_neighbours(layout, rank)[0])
            flushed = lines.net_error(fabric, near, other, layout.places[rank], flushed=True)
            found.append(Emission(rng.uniform(errors_s, errors_s + 4.0), own, Source.JOB_LOG, flushed))
    return found


def _bad_optic(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
    """A module that ages: the link stays up, error correction no longer does it all, and what is lost is sent again."""
    place = victim_place(spec, layout, rng)
    nic = _nic(fabric, layout, place.rank)
    link, port, severity = fabric.link_of(nic), lines.rdma_port(fabric, nic), spec.severity
    if link is None:
        raise ValueError(f"{nic} has no cable; a link fault needs one")
    lost = between(0.5, 40.0, severity)  # blocks a second that could not be corrected
    found = traces.rises(
        Source.ETHTOOL, place.host, port,
        {
            "rx_corrected_bits_phy": between(2e6, 4e8, severity),
            "rx_pcs_symbol_err_phy": lost * 3,
            "rx_fec_uncorrectable_blocks": lost,
        },
    )  # fmt: skip
    found += traces.rises(Source.RDMA, place.host, port, {"symbol_error": lost / 8, "out_of_sequence": lost})
    for peer in dict.fromkeys(ring_neighbours(layout, place.rank)):
        near = _nic(fabric, layout, peer)
        again = {"packet_seq_err": lost * 0.8, "roce_adp_retrans": lost * 0.8, "roce_slow_restart": lost / 20}
        found += traces.rises(Source.RDMA, layout.places[peer].host, lines.rdma_port(fabric, near), again)
    if severity >= 0.5:
        hot = lines.cable(fabric, nic, "Cable error, High Temperature", error=True)
        found.append(Emission(rng.uniform(1.0, 6.0), place.host, Source.KERNEL_LOG, hot))
        dim = {"module_rx_power_dbm": between(-5.0, -9.5, severity)}
        found += traces.stands(Source.ETHTOOL, place.host, port, dim, wavers=0.02, attrs={"lane": "1"})
    ends, left = fabric.ends_of(link) or (), traces.left(found)
    return Fault(
        spec=spec,
        flavour="bad_optic",
        component=link,
        also_right=tuple(ends),
        ranks=traces.ranks_of_nic(fabric, layout, nic),
        host=place.host,
        note=f"{fabric.attr(nic, 'netdev')} of {place.host}: the module loses blocks",
        obstacle=nothing_blocks,
        emissions=left.emissions,
        rises=left.rises,
        levels=left.levels,
        slowdown=Slowdown(factor=1.0 + between(0.1, 1.0, severity), phase="backward"),
        symptoms=traces.symptoms_of(found, (link, *ends), fabric),
        cured_by=lambda kind, target: (
            (kind in MOVES_AWAY and on_host(target, place.host))
            or (kind in (ActionKind.ISOLATE_LINK, ActionKind.EXCLUDE_NIC) and target in (link, *ends))
        ),
    )


FLAVOURS: dict[str, Maker] = {
    "bad_optic": _bad_optic,
    "returns": _link("returns", _returns),
    "dead": _link("dead", _dead),
    "flapping": _link("flapping", _flapping),
    "blip": _link("blip", _blip),
}
