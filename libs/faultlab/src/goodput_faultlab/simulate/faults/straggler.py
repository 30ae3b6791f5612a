"""A rank that is late in every step, so that all wait for it: no timeout, no error, and steps that take longer.

What makes it late shows elsewhere: heat or missing power at its GPU, a link that trained at half its rate, a host whose
CPUs or memory are wanted by others, input that comes slowly. A GPU at its power cap is no fault; one whose cap was
lowered is. How late: from an eighth of a step (some twenty times the spread of a healthy job's steps, so there for all to
see and easy to overlook) to more than a whole one, both set by hand.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Source
from goodput_common.contracts.verdict import ActionKind
from goodput_faultlab.simulate import lines, readings
from goodput_faultlab.simulate.faults import traces
from goodput_faultlab.simulate.faults.model import (
    MOVES_AWAY,
    Emission,
    Fault,
    Maker,
    Slowdown,
    between,
    hits,
    nothing_blocks,
    on_host,
    victim_place,
)
from goodput_faultlab.simulate.layout import Layout, Place
from goodput_faultlab.simulate.spec import FaultSpec
from goodput_topology.graph import Fabric

LATE_MARGINAL, LATE_BLATANT = 0.12, 1.2  # of a usual step
FULL_CLOCK_MHZ, LOWEST_CLOCK_MHZ = 1980.0, 345.0  # an H100's boost clock; where the power brake takes it
COOL_C, HOT_C = 62.0, 89.0
ANSWERS_AFTER_US = (300.0, 6_000.0)  # a process that waits for a CPU: up to a few turns of the scheduler (guess)


def late_by(severity: float) -> float:
    return between(LATE_MARGINAL, LATE_BLATANT, severity)


def _clock(late: float) -> float:
    """The clock at which the same work takes `late` of a step longer; what is bound by memory is not slowed."""
    return max(LOWEST_CLOCK_MHZ, FULL_CLOCK_MHZ / (1.0 + late))


def _held_down(
    fabric: Fabric, place: Place, late: float, watts: float, degrees: float, counter: str, share: float
) -> list[traces.Trace]:
    """Clock, power and temperature of a GPU that is held down, and the microseconds for which it was."""
    gpu, host = readings.gpu_by_pci(fabric, place.gpu), place.host
    found = traces.stands(Source.NVML, host, gpu, {"clock_sm_mhz": _clock(late)}, wavers=0.01, ramp_s=2.0)
    found += traces.stands(Source.NVML, host, gpu, {"power_w": watts}, wavers=0.02, ramp_s=4.0)
    found += traces.stands(Source.NVML, host, gpu, {"temperature_c": degrees}, wavers=0.01, ramp_s=20.0)
    return found + traces.rises(Source.NVML, host, gpu, {counter: share * 1e6})


def _thermal(spec: FaultSpec, fabric: Fabric, place: Place, rng: random.Random) -> list[traces.Trace]:
    reason = "hw_thermal_slowdown" if spec.severity >= 0.4 else "sw_thermal_slowdown"
    counter = "throttled_hw_thermal_us" if reason.startswith("hw") else "throttled_sw_thermal_us"
    begins_s, share = rng.uniform(0.3, 2.0), between(0.25, 0.95, spec.severity)
    told = (readings.throttled(fabric, place.gpu, reason), readings.clocks_held_down(fabric, place.gpu, reason))
    found: list[traces.Trace] = [Emission(begins_s, place.host, Source.NVML, each) for each in told]
    watts, degrees = between(600.0, 420.0, spec.severity), between(84.0, HOT_C, spec.severity)
    return found + _held_down(fabric, place, late_by(spec.severity), watts, degrees, counter, share)


def _power_brake(spec: FaultSpec, fabric: Fabric, place: Place, rng: random.Random) -> list[traces.Trace]:
    told = (
        readings.throttled(fabric, place.gpu, "hw_power_brake"),
        readings.clocks_held_down(fabric, place.gpu, "hw_power_brake", "hw_slowdown hw_power_brake"),
    )
    begins_s, share = rng.uniform(0.3, 2.0), between(0.3, 1.0, spec.severity)
    found: list[traces.Trace] = [Emission(begins_s, place.host, Source.NVML, each) for each in told]
    watts = between(520.0, 240.0, spec.severity)
    return found + _held_down(fabric, place, late_by(spec.severity), watts, COOL_C - 8, "throttled_power_brake_us", share)


def _power_cap(spec: FaultSpec, fabric: Fabric, place: Place, rng: random.Random) -> list[traces.Trace]:
    """Somebody lowered the limit: no event tells, the limit itself does."""
    gpu, cap_w = readings.gpu_by_pci(fabric, place.gpu), float(round(between(560.0, 250.0, spec.severity)))
    held = readings.clocks_held_down(fabric, place.gpu, "", "sw_power_cap")
    found: list[traces.Trace] = [Emission(rng.uniform(0.3, 2.0), place.host, Source.NVML, held)]
    found += traces.stands(Source.NVML, place.host, gpu, {"power_limit_w": cap_w}, wavers=0.0)
    share = between(0.7, 0.95, spec.severity)
    return found + _held_down(fabric, place, late_by(spec.severity), cap_w - 6.0, COOL_C - 6, "throttled_power_us", share)


GpuTraces = Callable[[FaultSpec, Fabric, Place, random.Random], list[traces.Trace]]


def _gpu(flavour: str, leaves: GpuTraces, note: str) -> Maker:
    def make(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
        place = victim_place(spec, layout, rng)
        late, left = late_by(spec.severity), traces.left(leaves(spec, fabric, place, rng))
        return Fault(
            spec=spec,
            flavour=flavour,
            component=place.gpu,
            also_right=(ids.rank_id(layout.job, place.rank),),
            ranks=(place.rank,),
            host=place.host,
            note=f"GPU {place.local} of {place.host} {note}: rank {place.rank} is late by {late:.0%} of a step",
            obstacle=nothing_blocks,
            emissions=left.emissions,
            rises=left.rises,
            levels=left.levels,
            slowdown=Slowdown(factor=1.0 + late, late={place.rank: late}, phase="forward", ramp_s=6.0),
            cured_by=lambda kind, target: kind in MOVES_AWAY and hits(target, place),
        )

    return make


def _slow_nic(flavour: str) -> Maker:
    """The link came back from a retraining with fewer or slower lanes. Nothing is red; transfers take longer, and as the
    ring waits for its slowest link, nobody's own work does."""

    def make(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
        place = victim_place(spec, layout, rng)
        nic = traces.nic_of(fabric, layout, place.rank)
        gbps, lanes = (100, 1) if spec.severity >= 0.5 else (200, 2)
        if flavour == "slow_nic_rate":
            lanes = 4
        slower = (400 / gbps - 1) * between(0.12, 0.3, spec.severity)  # the share of a step that waits for the network
        port, host = lines.rdma_port(fabric, nic), place.host
        found = traces.again(host, Source.RDMA, readings.slow_port(fabric, nic, gbps), rng.uniform(0.5, 5.0), 30.0)
        settings = readings.link_settings(fabric, nic, gbps, lanes)
        found += traces.again(host, Source.ETHTOOL, settings, rng.uniform(0.5, 5.0), 30.0)
        if spec.severity >= 0.3:  # the retraining itself was seen; a marginal one happened before anybody looked
            found += [Emission(0.05, place.host, Source.KERNEL_LOG, lines.kernel_link(fabric, nic, False))]
            found += [Emission(1.2, place.host, Source.KERNEL_LOG, lines.kernel_link(fabric, nic, True))]
        found += traces.rises(Source.ETHTOOL, host, port, {"rx_prio3_pause": between(20, 900, spec.severity)})
        left = traces.left(found)
        return Fault(
            spec=spec,
            flavour=flavour,
            component=nic,
            also_right=traces.around(fabric, nic),
            ranks=traces.ranks_of_nic(fabric, layout, nic),
            host=place.host,
            note=f"{fabric.attr(nic, 'netdev')} of {place.host} runs at {gbps} of 400 Gb/s on {lanes} lanes",
            obstacle=nothing_blocks,
            emissions=left.emissions,
            rises=left.rises,
            slowdown=Slowdown(factor=1.0 + slower, phase="backward"),
            cured_by=lambda kind, target: (
                (kind in MOVES_AWAY and on_host(target, place.host))
                or (
                    kind in (ActionKind.EXCLUDE_NIC, ActionKind.ISOLATE_LINK)
                    and target in (nic, *traces.around(fabric, nic))
                )
            ),
        )

    return make


def _wanted(flavour: str, severity: float) -> dict[str, float]:
    """What the host's pressure tables say."""
    if flavour == "slow_host_cpu":
        return {
            "pressure_cpu_some_share": between(0.18, 0.85, severity),
            "pressure_cpu_full_share": between(0.02, 0.3, severity),
        }
    return {
        "pressure_memory_some_share": between(0.08, 0.7, severity),
        "pressure_memory_full_share": between(0.04, 0.5, severity),
        "pressure_io_some_share": between(0.10, 0.4, severity),
        "memory_available_share": between(0.06, 0.01, severity),
    }


def _slow_host(flavour: str) -> Maker:
    """Another process takes the host's CPUs (or its memory, so that it swaps): all ranks of the host are late, each by its
    own measure."""

    def make(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
        place = victim_place(spec, layout, rng)
        host, ranks = ids.host_id(place.host), layout.on_host(place.host)
        late = late_by(spec.severity)
        each_late = {rank: late * rng.uniform(0.6, 1.0) for rank in ranks}

        wanted = _wanted(flavour, spec.severity)
        found = traces.stands(Source.HOST, place.host, host, wanted, wavers=0.06, ramp_s=5.0)
        us = {f"{name.removesuffix('_share')}_us": share * 1e6 for name, share in wanted.items() if "pressure" in name}
        found += traces.rises(Source.HOST, place.host, host, us)
        if flavour == "slow_host_memory":
            pages = between(400, 60_000, spec.severity)
            found += traces.rises(
                Source.HOST, place.host, host, {"swap_out_pages": pages, "swap_in_pages": pages * 0.8}, 3.0
            )
        left = traces.left(found)
        what = "the CPUs are wanted by others" if flavour == "slow_host_cpu" else "memory is short and the host swaps"
        return Fault(
            spec=spec,
            flavour=flavour,
            component=host,
            ranks=ranks,
            host=place.host,
            note=f"{place.host}: {what}; its ranks are late by up to {late:.0%} of a step",
            obstacle=nothing_blocks,
            rises=left.rises,
            levels=left.levels,
            waits_us={host: between(*ANSWERS_AFTER_US, spec.severity)},
            slowdown=Slowdown(factor=1.0 + max(each_late.values()), late=each_late, phase="forward", ramp_s=8.0),
            cured_by=lambda kind, target: kind in MOVES_AWAY and on_host(target, place.host),
        )

    return make


def _slow_data(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
    """One rank's input comes slowly (a shard on a busy disk, a worker short of CPU): it spends the time in `data`."""
    place = victim_place(spec, layout, rng)
    late, rank = late_by(spec.severity), place.rank
    component, host = ids.rank_id(layout.job, rank), ids.host_id(place.host)

    share = between(0.05, 0.35, spec.severity)
    left = traces.left(traces.stands(Source.HOST, place.host, host, {"pressure_io_some_share": share}, wavers=0.08))
    return Fault(
        spec=spec,
        flavour="slow_data",
        component=component,
        also_right=(host,),
        ranks=(rank,),
        host=place.host,
        note=f"rank {rank} on {place.host} waits for its input: {late:.0%} of a step longer",
        obstacle=nothing_blocks,
        levels=left.levels,
        slowdown=Slowdown(factor=1.0 + late, late={rank: late}, phase="data"),
        cured_by=lambda kind, target: kind is ActionKind.RESTART_JOB or (kind in MOVES_AWAY and hits(target, place)),
    )


FLAVOURS: dict[str, Maker] = {
    "thermal": _gpu("thermal", _thermal, "is too hot"),
    "power_brake": _gpu("power_brake", _power_brake, "is held down by the power brake"),
    "power_cap": _gpu("power_cap", _power_cap, "has had its power limit lowered"),
    "slow_nic_rate": _slow_nic("slow_nic_rate"),
    "slow_nic_width": _slow_nic("slow_nic_width"),
    "slow_host_cpu": _slow_host("slow_host_cpu"),
    "slow_host_memory": _slow_host("slow_host_memory"),
    "slow_data": _slow_data,
}
