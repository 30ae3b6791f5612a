"""A GPU that is lost to its host, and a GPU whose memory fails."""

from __future__ import annotations

import random

from goodput_common.contracts.telemetry import Source
from goodput_common.contracts.verdict import ActionKind
from goodput_faultlab.simulate import lines
from goodput_faultlab.simulate.faults.model import (
    MOVES_AWAY,
    Emission,
    Exit,
    Fault,
    Maker,
    halts,
    hits,
    ring_neighbours,
    stops,
    victim_place,
)
from goodput_faultlab.simulate.layout import Layout, Place
from goodput_faultlab.simulate.spec import FaultSpec
from goodput_topology.graph import Fabric

CUDA_LOST = "RuntimeError: CUDA error: unspecified launch failure"
CUDA_ECC = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"


def _peers_time_out(fabric: Fabric, layout: Layout, place: Place, rng: random.Random) -> list[Emission]:
    """Its ring neighbours' reads of the dead GPU's memory are retried and given up: error 12, naming two healthy NICs."""
    found = []
    for peer in ring_neighbours(layout, place.rank):
        near, far = (fabric.nics_of_gpu(layout.places[each].gpu) for each in (peer, place.rank))
        if near and far:
            made = lines.net_error(fabric, near[0], far[0], layout.places[peer])
            found.append(Emission(rng.uniform(7.0, 13.0), layout.places[peer].host, Source.JOB_LOG, made))
    return found


def _off_bus(flavour: str) -> Maker:
    def make(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
        place = victim_place(spec, layout, rng)
        host, gpu = place.host, place.gpu
        log = [lines.uncorrected(fabric, gpu)]
        if flavour == "xid":
            log += [lines.xid(fabric, gpu, 79), lines.recovery_action(fabric, gpu, 2)]
        elif flavour == "no_xid":
            log += [lines.gpu_lost(fabric, gpu)]
        else:  # the kernel says nothing more than that; the process does
            log += [lines.xid(fabric, gpu, 79)]
        emissions = [Emission(0.0 + 0.02 * n, host, Source.KERNEL_LOG, each) for n, each in enumerate(log)]
        others = [layout.places[rank] for rank in layout.on_host(host) if rank != place.rank]
        if flavour == "xid":
            # the driver tears down channels of the healthy GPUs that shared a context with it
            for n, other in enumerate(rng.sample(others, min(2, len(others)))):
                torn = lines.victim(fabric, other.gpu, other.pid, 79)
                emissions.append(Emission(0.3 + 0.05 * n, host, Source.KERNEL_LOG, torn))
        emissions += _peers_time_out(fabric, layout, place, rng)
        raises = flavour == "raises"
        return Fault(
            spec=spec,
            flavour=flavour,
            component=gpu,
            also_right=(),
            ranks=(place.rank,),
            host=host,
            note=f"GPU {place.local} of {host} ({fabric.attr(gpu, 'pci')}) falls off the bus",
            obstacle=stops(place.rank) if raises else halts(place.rank),
            emissions=tuple(emissions),
            exits=(Exit(rng.uniform(1.0, 4.0), place.rank, reason=CUDA_LOST),) if raises else (),
            cured_by=lambda kind, target: kind in MOVES_AWAY and hits(target, place),
        )

    return make


OFF_BUS: dict[str, Maker] = {each: _off_bus(each) for each in ("xid", "no_xid", "raises")}


def _memory(flavour: str) -> Maker:
    def make(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
        place = victim_place(spec, layout, rng)
        host, gpu, pid = place.host, place.gpu, place.pid
        row = f"0x{rng.getrandbits(27):016x}"
        remapped = lines.xid(fabric, gpu, 63, f"Row Remapper: New row ({row}) marked for remapping, reset gpu to activate.")
        where = f"framebuffer at partition {rng.randrange(12)}, subpartition 0"
        dbe = f"An uncorrectable double bit error (DBE) has been detected on GPU in the {where}."
        double = lines.xid(fabric, gpu, 48, dbe, pid=pid)
        contained = lines.xid(fabric, gpu, 94, "Contained: SM (0x1). RST: No, D-RST: No", pid=pid)
        uncontained = lines.xid(fabric, gpu, 95, "Uncontained: LTC TAG (0x7,0x0). RST: Yes, D-RST: No", pid=pid)
        failed = lines.xid(fabric, gpu, 64, f"Row Remapper: Error writing row ({row}) to the InfoROM, remapping failed")
        log = {
            "48": [double, lines.victim(fabric, gpu, pid, 48), remapped],
            "63": [remapped],
            "64": [double, failed],
            "94": [contained, remapped, lines.victim(fabric, gpu, pid, 94)],
            "95": [uncontained, lines.recovery_action(fabric, gpu, 1), lines.victim(fabric, gpu, pid, 95)],
        }[flavour]
        emissions = [Emission(0.03 * n, host, Source.KERNEL_LOG, each) for n, each in enumerate(log)]
        raises = flavour in ("48", "63", "94")
        contained_only = flavour in ("63", "94")

        def cured(kind: ActionKind, target: str | None) -> bool:
            if contained_only and kind in (ActionKind.RESTART_JOB, ActionKind.RESTART_RANK):
                return kind is ActionKind.RESTART_JOB or hits(target, place)
            return (kind in MOVES_AWAY or kind is ActionKind.RESET_GPU) and hits(target, place)

        return Fault(
            spec=spec,
            flavour=flavour,
            component=gpu,
            ranks=(place.rank,),
            host=host,
            note=f"uncorrectable memory error on GPU {place.local} of {host} (Xid {flavour})",
            obstacle=stops(place.rank) if raises else halts(place.rank),
            emissions=(*emissions, *_peers_time_out(fabric, layout, place, rng)),
            exits=(Exit(rng.uniform(0.3, 1.2), place.rank, reason=CUDA_ECC),) if raises else (),
            cured_by=cured,
        )

    return make


MEMORY: dict[str, Maker] = {each: _memory(each) for each in ("48", "63", "64", "94", "95")}
