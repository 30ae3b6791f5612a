"""A broken NVLink: collectives inside the NVLink domain stall, the network is innocent."""

from __future__ import annotations

import random

from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Source
from goodput_faultlab.simulate import lines
from goodput_faultlab.simulate.faults import traces
from goodput_faultlab.simulate.faults.model import (
    MOVES_AWAY,
    Emission,
    Fault,
    Maker,
    between,
    count_between,
    halts,
    hits,
    victim_place,
)
from goodput_faultlab.simulate.layout import Layout
from goodput_faultlab.simulate.spec import FaultSpec
from goodput_topology.graph import Fabric

WORDS = "0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0"


def _xid_74(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
    """Xid 74 on the GPU, again and again, and the NVSwitch's SXid for its side of the same link."""
    place = victim_place(spec, layout, rng)
    host, gpu, link = place.host, place.gpu, rng.randrange(18)
    text = f"NVLink: fatal error detected on link {link}({WORDS})"
    made = lines.xid(fabric, gpu, 74, text, link=str(link), words=WORDS.replace(",", ""))
    emissions: list[traces.Trace] = [
        Emission(n * 0.8, host, Source.KERNEL_LOG, made) for n in range(count_between(1, 4, spec.severity))
    ]
    end = ids.nvlink_id(host, lines.pci_of(fabric, gpu), link)
    emissions += traces.rises(Source.NVML, host, end, {"nvlink_crc_flit_errors": between(0.5, 400.0, spec.severity)})
    domain = fabric.nvdomain_of(gpu)
    switches = [each for each in fabric.parts(domain or "") if each.startswith(f"nvswitch:{host}/")]
    if switches and spec.severity >= 0.3:
        switch = rng.choice(switches)
        said = lines.sxid(host, int(switch.rpartition("/")[2]), fabric.attr(switch, "pci"), rng.randrange(64))
        emissions.append(Emission(0.05, host, Source.KERNEL_LOG, said))
    return _fault(spec, "xid_74", fabric, layout, place.rank, link, emissions)


def _xid_149(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
    """NVLink5 (GB200): a fatal link event on one GPU, and non-fatal ones on its partners, which must not be blamed."""
    place = victim_place(spec, layout, rng)
    emissions: list[traces.Trace] = [Emission(0.0, place.host, Source.KERNEL_LOG, lines.xid(fabric, place.gpu, 149))]
    emissions.append(Emission(0.2, place.host, Source.KERNEL_LOG, lines.victim(fabric, place.gpu, place.pid, 149)))
    for n, rank in enumerate(r for r in layout.on_host(place.host) if r != place.rank):
        other = layout.places[rank]
        emissions.append(Emission(0.1 + 0.1 * n, place.host, Source.KERNEL_LOG, lines.xid(fabric, other.gpu, 145)))
        torn = lines.victim(fabric, other.gpu, other.pid, 149)
        emissions.append(Emission(0.4 + 0.1 * n, place.host, Source.KERNEL_LOG, torn))
    return _fault(spec, "xid_149", fabric, layout, place.rank, 8, emissions)


def _fault(
    spec: FaultSpec, flavour: str, fabric: Fabric, layout: Layout, rank: int, link: int, emissions: list[traces.Trace]
) -> Fault:
    place, left = layout.places[rank], traces.left(emissions)
    domain = fabric.nvdomain_of(place.gpu)
    return Fault(
        spec=spec,
        flavour=flavour,
        component=place.gpu,
        also_right=(ids.nvlink_id(place.host, place.local, link), *([domain] if domain is not None else ())),
        ranks=(rank,),
        host=place.host,
        note=f"NVLink {link} of GPU {place.local} of {place.host} fails",
        obstacle=halts(rank),
        emissions=left.emissions,
        rises=left.rises,
        cured_by=lambda kind, target: kind in MOVES_AWAY and (hits(target, place) or target == domain),
    )


FLAVOURS: dict[str, Maker] = {"xid_74": _xid_74, "xid_149": _xid_149}
