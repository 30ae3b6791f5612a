"""PCIe between a GPU or an adapter and its host: trained down to fewer or slower lanes, errors that are repaired by sending
again, errors that are not.

A GPU at a narrow link is late with every batch that it is handed. An adapter at one cannot drain what the network brings it
and tells the switch to stop: pause frames that a naive reader blames on the fabric. Widths and generations are those that
a DGX H100 has (gen 5, 16 lanes); what a downgrade costs follows from the bandwidth that is left.
"""

from __future__ import annotations

import random

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Source
from goodput_common.contracts.verdict import ActionKind
from goodput_faultlab.simulate import fault_lines, lines, readings
from goodput_faultlab.simulate.faults import traces
from goodput_faultlab.simulate.faults.model import (
    MOVES_AWAY,
    Emission,
    Exit,
    Fault,
    Maker,
    Slowdown,
    between,
    halts,
    hits,
    nothing_blocks,
    on_host,
    victim_place,
)
from goodput_faultlab.simulate.layout import Layout, Place
from goodput_faultlab.simulate.spec import FaultSpec
from goodput_topology.graph import Fabric

CUDA_PCIE = "RuntimeError: CUDA error: an illegal memory access was encountered"
LOOK_S = 5.0


def _trained_down(spec: FaultSpec, what: str, rng: random.Random) -> tuple[int, int, float]:
    """(generation, width, how much later a rank is): half the lanes when marginal, a quarter or an eighth when blatant."""
    if what == "width":
        width = 8 if spec.severity < 0.35 else 4 if spec.severity < 0.7 else rng.choice((1, 2))
        return 5, width, between(0.12, 1.5, spec.severity)
    return (3 if spec.severity < 0.5 else 1), 16, between(0.12, 1.5, spec.severity)


def _gpu_down(what: str) -> Maker:
    def make(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
        place = victim_place(spec, layout, rng)
        gen, width, late = _trained_down(spec, what, rng)
        gpu = readings.gpu_by_pci(fabric, place.gpu)
        made = readings.pcie_link(gpu, gen, width)
        found = traces.again(place.host, Source.NVML, made, rng.uniform(0.5, LOOK_S), 15.0)
        if spec.severity >= 0.5:  # the slot is bad: it also repairs a lot
            replays = {"pcie_replays": between(0.5, 8.0, spec.severity)}
            found += traces.rises(Source.NVML, place.host, gpu, replays)
        return _slow(
            fabric, spec, f"gpu_{what}", layout, place, place.gpu, {place.rank: late}, found,
            f"PCIe of GPU {place.local} of {place.host} trained down to gen {gen} x{width}",
        )  # fmt: skip

    return make


def _nic_down(what: str) -> Maker:
    def make(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
        place = victim_place(spec, layout, rng)
        nic = traces.nic_of(fabric, layout, place.rank)
        gen, width, late = _trained_down(spec, what, rng)
        made = readings.pcie_link(nic, gen, width)
        found = traces.again(place.host, Source.DISCOVERY, made, rng.uniform(0.5, 5.0), 30.0)
        found += starved(fabric, nic, spec.severity)
        return _slow(
            fabric, spec, f"nic_{what}", layout, place, nic, {}, found,
            f"PCIe of {fabric.attr(nic, 'netdev')} of {place.host} trained down to gen {gen} x{width}",
            factor=1.0 + late * 0.8, ranks=traces.ranks_of_nic(fabric, layout, nic),
        )  # fmt: skip

    return make


def starved(fabric: Fabric, nic: ComponentId, severity: float) -> list[traces.Trace]:
    """An adapter that cannot hand on what arrives: it waits for PCIe and tells its switch to stop."""
    host, port, frames = ids.host_of(nic) or "", lines.rdma_port(fabric, nic), between(40, 20_000, severity)
    percent = {"outbound_pci_stalled_wr_percent": between(12.0, 85.0, severity)}
    found = traces.stands(Source.ETHTOOL, host, port, percent, wavers=0.07, attrs={"netdev": fabric.attr(nic, "netdev")})
    found += traces.rises(
        Source.ETHTOOL, host, port,
        {
            "tx_prio3_pause": frames,
            "tx_prio3_pause_duration": between(8_000, 600_000, severity),
            "tx_prio3_pause_transition": frames,
            "outbound_pci_stalled_wr_events": between(100, 40_000, severity),
            "rx_discards_phy": between(0.0, 30.0, severity),
        },
    )  # fmt: skip
    peer = fabric.peer_of(nic)
    if peer is not None and peer.startswith("port:"):
        found += traces.rises(Source.SWITCH, readings.switch_name(peer), peer, {"rx_prio3_pause": frames})
    return found


def _replay_storm(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
    """Everything arrives, at the second or third attempt: corrected errors by the thousand."""
    place = victim_place(spec, layout, rng)
    gpu, severity = readings.gpu_by_pci(fabric, place.gpu), spec.severity
    late = between(0.12, 0.8, severity)
    a_second = between(3.0, 400.0, severity)
    found = traces.rises(Source.NVML, place.host, gpu, {"pcie_replays": a_second})
    corrected = {
        "aer_correctable": a_second,
        "aer_correctable:BadTLP": a_second * 0.7,
        "aer_correctable:Rollover": a_second * 0.3,
    }
    found += traces.rises(Source.HOST, place.host, gpu, corrected)
    told = fault_lines.bus_error(fabric, place.gpu, "corrected")
    found += traces.again(place.host, Source.KERNEL_LOG, told, 0.2, between(20.0, 1.5, severity))
    return _slow(
        fabric, spec, "replay_storm", layout, place, place.gpu, {place.rank: late}, found,
        f"PCIe of GPU {place.local} of {place.host} sends everything several times",
    )  # fmt: skip


def _uncorrected(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
    """Transactions are lost, the link is not: the GPU is there, its process is not for long."""
    place = victim_place(spec, layout, rng)
    gpu, host = readings.gpu_by_pci(fabric, place.gpu), place.host
    error = fault_lines.bus_error(fabric, place.gpu, "uncorrected")
    found = [
        Emission(n * rng.uniform(0.1, 0.6), host, Source.KERNEL_LOG, error) for n in range(1 + round(spec.severity * 4))
    ]
    delta = 1 + round(spec.severity * 9)
    found += [
        Emission(rng.uniform(1.0, 5.0), host, Source.HOST, lines.counter(gpu, name, delta, delta, LOOK_S))
        for name in ("aer_nonfatal", "aer_nonfatal:CmpltTO")
    ]
    found.append(Emission(rng.uniform(2.0, 5.0), host, Source.NVML, readings.gpu_presence(fabric, place.gpu, "present")))
    raises = spec.severity >= 0.5
    left = traces.left([*found, *traces.peers_time_out(fabric, layout, (place.rank,), rng)])
    return Fault(
        spec=spec,
        flavour="uncorrected",
        component=place.gpu,
        ranks=(place.rank,),
        host=host,
        note=f"PCIe transactions of GPU {place.local} of {host} are lost",
        obstacle=halts(place.rank),
        emissions=left.emissions,
        rises=left.rises,
        exits=(Exit(rng.uniform(1.5, 5.0), place.rank, reason=CUDA_PCIE),) if raises else (),
        cured_by=lambda kind, target: (kind in MOVES_AWAY or kind is ActionKind.RESET_GPU) and hits(target, place),
    )


def _slow(
    fabric: Fabric, spec: FaultSpec, flavour: str, layout: Layout, place: Place, component: ComponentId,
    late: dict[int, float], found: list[traces.Trace], note: str, *, factor: float = 0.0, ranks: tuple[int, ...] = (),
) -> Fault:  # fmt: skip
    left = traces.left(found)
    return Fault(
        spec=spec,
        flavour=flavour,
        component=component,
        also_right=(ids.rank_id(layout.job, place.rank),) if late else (),
        ranks=ranks or (place.rank,),
        host=place.host,
        note=note,
        obstacle=nothing_blocks,
        emissions=left.emissions,
        rises=left.rises,
        levels=left.levels,
        slowdown=Slowdown(factor=factor or 1.0 + max(late.values()), late=late, phase="forward"),
        cured_by=lambda kind, target: kind in MOVES_AWAY and (hits(target, place) or on_host(target, place.host)),
        symptoms=traces.symptoms_of(found, (component,), fabric),
    )


FLAVOURS: dict[str, Maker] = {
    "gpu_width": _gpu_down("width"),
    "gpu_generation": _gpu_down("generation"),
    "nic_width": _nic_down("width"),
    "nic_generation": _nic_down("generation"),
    "replay_storm": _replay_storm,
    "uncorrected": _uncorrected,
}
