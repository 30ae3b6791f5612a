"""The GPU's driver and its own processor (GSP): the hardware may be fine, nothing runs on it.

One GSP time-out logs the same line every few seconds, until the driver limits its own printing: counts are lower bounds. A
driver that is exchanged under a running job takes every GPU of the host with it.
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
    count_between,
    halts,
    hits,
    on_host,
    victim_place,
)
from goodput_faultlab.simulate.layout import Layout
from goodput_faultlab.simulate.spec import FaultSpec
from goodput_faultlab.simulate.stall import Obstacle
from goodput_topology.graph import Fabric

DRIVER_GONE = "RuntimeError: CUDA error: driver shutting down"
GSP_TIMEOUTS_S = (6, 45)
RATE_LIMIT = 10


def _gsp(flavour: str) -> Maker:
    def make(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
        place = victim_place(spec, layout, rng)
        host, gpu, seconds = place.host, place.gpu, GSP_TIMEOUTS_S[0] if spec.severity >= 0.3 else GSP_TIMEOUTS_S[1]
        repeats = count_between(1, 9, spec.severity)
        log = []
        if flavour == "gsp_error":
            log.append(fault_lines.gsp_error(fabric, gpu))
        log += [
            fault_lines.gsp(fabric, gpu, place.pid, seconds, sequence=n if flavour == "gsp_sequence" else 0)
            for n in range(repeats)
        ]
        if repeats > 6:
            log.append(fault_lines.gsp_rate_limited(fabric, gpu, RATE_LIMIT))
        if spec.severity >= 0.6:
            log.append(lines.recovery_action(fabric, gpu, 1))
        found = [Emission(n * rng.uniform(0.8, 2.2), host, Source.KERNEL_LOG, each) for n, each in enumerate(log)]
        if spec.severity >= 0.4:  # else NVML itself hangs in the driver, and says nothing
            found.append(Emission(rng.uniform(3.0, 8.0), host, Source.NVML, readings.wants(fabric, gpu, "gpu_reset")))
        waits = readings.gpu_presence(fabric, gpu, "unreadable", "no answer from the driver for 10 s")
        found.append(Emission(rng.uniform(6.0, 12.0), host, Source.NVML, waits))
        return _one_gpu(spec, flavour, fabric, layout, place.rank, found, rng, f"GSP of GPU {place.local} of {host} hangs")

    return make


def _rm_init(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
    """The driver could not bring the GPU up again after it had hung: no bus error, and the GPU stays on the bus."""
    place = victim_place(spec, layout, rng)
    host, gpu = place.host, place.gpu
    found = [Emission(0.0, host, Source.KERNEL_LOG, fault_lines.gsp(fabric, gpu, place.pid, 6))]
    tries, failed = count_between(1, 5, spec.severity), lines.gpu_lost(fabric, gpu)
    found += [Emission(4.0 + 1.5 * n, host, Source.KERNEL_LOG, failed) for n in range(tries)]
    found.append(Emission(rng.uniform(5.0, 9.0), host, Source.NVML, readings.gpu_presence(fabric, gpu, "reset_required")))
    return _one_gpu(
        spec, "rm_init", fabric, layout, place.rank, found, rng, f"the driver cannot initialise GPU {place.local} of {host}"
    )


def _one_gpu(
    spec: FaultSpec, flavour: str, fabric: Fabric, layout: Layout, rank: int, found: list[Emission], rng: random.Random,
    note: str,
) -> Fault:  # fmt: skip
    place = layout.places[rank]
    left = traces.left([*found, *traces.peers_time_out(fabric, layout, (rank,), rng)])
    return Fault(
        spec=spec,
        flavour=flavour,
        component=place.gpu,
        ranks=(rank,),
        host=place.host,
        note=note,
        obstacle=halts(rank),
        emissions=left.emissions,
        rises=left.rises,
        cured_by=lambda kind, target: (kind in MOVES_AWAY or kind is ActionKind.RESET_GPU) and hits(target, place),
    )


def _reload(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
    """Somebody (an upgrade, a toolkit) unloaded the driver under the job: all GPUs of the host at once."""
    place = victim_place(spec, layout, rng)
    host, ranks = place.host, layout.on_host(place.host)
    gpus: list[ComponentId] = [layout.places[rank].gpu for rank in ranks]
    found = []
    for number, gpu in enumerate(gpus):
        torn = lines.victim(fabric, gpu, layout.places[ranks[number]].pid)
        found.append(Emission(0.1 + 0.05 * number, host, Source.KERNEL_LOG, torn))
        gone = readings.gpu_presence(fabric, gpu, "unreadable", "every call failed: driver not loaded")
        found.append(Emission(rng.uniform(1.0, 3.0), host, Source.NVML, gone))
    failing = gpus if spec.severity >= 0.5 else gpus[:1]
    found += [Emission(rng.uniform(2.0, 5.0), host, Source.KERNEL_LOG, lines.gpu_lost(fabric, gpu)) for gpu in failing]
    left = traces.left([*found, *traces.peers_time_out(fabric, layout, ranks, rng)])
    return Fault(
        spec=spec,
        flavour="reload",
        component=ids.host_id(host),
        ranks=ranks,
        host=host,
        note=f"the GPU driver of {host} was unloaded under the job",
        obstacle=lambda op: Obstacle(stops_at=dict.fromkeys(ranks, op)),
        emissions=left.emissions,
        rises=left.rises,
        exits=tuple(Exit(rng.uniform(0.5, 3.0), rank, reason=DRIVER_GONE) for rank in ranks),
        cured_by=lambda kind, target: kind is ActionKind.RESTART_JOB or (kind in MOVES_AWAY and on_host(target, host)),
    )


FLAVOURS: dict[str, Maker] = {
    "gsp_timeout": _gsp("gsp_timeout"),
    "gsp_sequence": _gsp("gsp_sequence"),
    "gsp_error": _gsp("gsp_error"),
    "rm_init": _rm_init,
    "reload": _reload,
}
