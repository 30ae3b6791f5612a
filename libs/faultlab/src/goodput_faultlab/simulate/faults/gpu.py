"""A GPU that is lost to its host, and a GPU whose memory fails."""

from __future__ import annotations

import random

from goodput_common.contracts.telemetry import Source
from goodput_common.contracts.verdict import ActionKind
from goodput_faultlab.simulate import lines, readings
from goodput_faultlab.simulate.faults import traces
from goodput_faultlab.simulate.faults.model import (
    MOVES_AWAY,
    Emission,
    Exit,
    Fault,
    Maker,
    between,
    halts,
    hits,
    stops,
    victim_place,
)
from goodput_faultlab.simulate.layout import Layout, Place
from goodput_faultlab.simulate.spec import FaultSpec
from goodput_topology.graph import Fabric

CUDA_LOST = "RuntimeError: CUDA error: unspecified launch failure"
CUDA_ECC = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"


def _off_bus(flavour: str) -> Maker:
    def make(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
        place = victim_place(spec, layout, rng)
        host, gpu = place.host, place.gpu
        plain = spec.severity >= 0.5  # a marginal one is told by fewer, and later
        log = [lines.uncorrected(fabric, gpu)] if plain or flavour != "xid" else []
        if flavour == "xid":
            log += [lines.xid(fabric, gpu, 79), *([lines.recovery_action(fabric, gpu, 2)] if plain else [])]
        elif flavour == "no_xid":
            log += [lines.gpu_lost(fabric, gpu)]
        else:  # the kernel says nothing more than that; the process does
            log += [lines.xid(fabric, gpu, 79)]
        late_s = between(4.0, 0.0, spec.severity)
        emissions: list[traces.Trace] = [
            Emission(late_s + 0.02 * n, host, Source.KERNEL_LOG, each) for n, each in enumerate(log)
        ]
        emissions += _nvml_looks(fabric, place, plain, rng)
        others = [layout.places[rank] for rank in layout.on_host(host) if rank != place.rank]
        if flavour == "xid" and plain:
            # the driver tears down channels of the healthy GPUs that shared a context with it
            for n, other in enumerate(rng.sample(others, min(2, len(others)))):
                torn = lines.victim(fabric, other.gpu, other.pid, 79)
                emissions.append(Emission(0.3 + 0.05 * n, host, Source.KERNEL_LOG, torn))
        emissions += traces.peers_time_out(fabric, layout, (place.rank,), rng)
        raises, left = flavour == "raises", traces.left(emissions)
        return Fault(
            spec=spec,
            flavour=flavour,
            component=gpu,
            also_right=(),
            ranks=(place.rank,),
            host=host,
            note=f"GPU {place.local} of {host} ({fabric.attr(gpu, 'pci')}) falls off the bus",
            obstacle=stops(place.rank) if raises else halts(place.rank),
            emissions=left.emissions,
            rises=left.rises,
            exits=(Exit(rng.uniform(1.0, 4.0), place.rank, reason=CUDA_LOST),) if raises else (),
            cured_by=lambda kind, target: kind in MOVES_AWAY and hits(target, place),
        )

    return make


def _nvml_looks(fabric: Fabric, place: Place, told: bool, rng: random.Random) -> list[traces.Trace]:
    """NVML asks every second. Mostly it is told that the GPU is lost; else its calls hang in the driver, and all that the
    collector knows after a while is that there is no answer."""
    if told:
        asked_s = rng.uniform(1.0, 3.0)
        gone = (readings.nvml_lost(fabric, place.gpu), readings.gpu_presence(fabric, place.gpu, "lost", "NVML lost"))
        return [Emission(asked_s, place.host, Source.NVML, each) for each in gone]
    waits = readings.gpu_presence(fabric, place.gpu, "unreadable", "no answer from the driver for 10 s")
    return [Emission(rng.uniform(6.0, 12.0), place.host, Source.NVML, waits)]


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
        late_s = between(3.0, 0.0, spec.severity)
        emissions: list[traces.Trace] = [
            Emission(late_s + 0.03 * n, host, Source.KERNEL_LOG, each) for n, each in enumerate(log)
        ]
        emissions += _memory_readings(fabric, place, flavour, rng, counted=spec.severity >= 0.4)
        raises = flavour in ("48", "63", "94")
        left = traces.left([*emissions, *traces.peers_time_out(fabric, layout, (place.rank,), rng)])
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
            emissions=left.emissions,
            rises=left.rises,
            exits=(Exit(rng.uniform(0.3, 1.2), place.rank, reason=CUDA_ECC),) if raises else (),
            cured_by=cured,
        )

    return make


def _memory_readings(fabric: Fabric, place: Place, flavour: str, rng: random.Random, *, counted: bool) -> list[traces.Trace]:
    """What the board counts of it (it may die before anybody has asked), and what became of the row: the board remembers
    that, and it is asked every half minute."""
    gpu, host, at_s = readings.gpu_by_pci(fabric, place.gpu), place.host, rng.uniform(1.0, 6.0)
    found: list[traces.Trace] = []
    if counted and flavour != "63":  # a row that was only marked had errors that could be corrected
        names = ("ecc_uncorrected_volatile_total", "ecc_uncorrected_volatile_dram", "ecc_uncorrected_aggregate_dram")
        found += [Emission(at_s, host, Source.NVML, lines.counter(gpu, name, 1, 1, 5.0)) for name in names]
    row = {"48": "pending", "63": "pending", "64": "failed", "94": "pending"}.get(flavour, "ok")
    if row != "ok":
        found.append(
            Emission(at_s + rng.uniform(0.0, 25.0), host, Source.NVML, readings.row_remap(fabric, place.gpu, row, 1))
        )
    if counted and flavour in ("64", "95"):
        found.append(Emission(at_s, host, Source.NVML, readings.wants(fabric, place.gpu, "gpu_reset")))
    return found


MEMORY: dict[str, Maker] = {each: _memory(each) for each in ("48", "63", "64", "94", "95")}
