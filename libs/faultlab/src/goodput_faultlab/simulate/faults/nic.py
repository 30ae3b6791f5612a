"""A network adapter whose firmware hangs: nothing flows, no link goes down.

The port reads ACTIVE, the switch sees it up, and counters simply stop. The kernel tells of commands that time out and of a
health counter that no longer moves; peers run out of retries and name two ends.
"""

from __future__ import annotations

import random

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Source
from goodput_common.contracts.verdict import ActionKind
from goodput_faultlab.simulate import fault_lines, lines, readings
from goodput_faultlab.simulate.collectors import MakeSample
from goodput_faultlab.simulate.faults import traces
from goodput_faultlab.simulate.faults.model import (
    MOVES_AWAY,
    Emission,
    Fault,
    Maker,
    count_between,
    first_of,
    on_host,
    victim_place,
)
from goodput_faultlab.simulate.layout import Layout
from goodput_faultlab.simulate.spec import FaultSpec
from goodput_faultlab.simulate.stall import Obstacle
from goodput_topology.graph import Fabric


def hang_lines(
    flavour: str, fabric: Fabric, nic: ComponentId, pid: int, severity: float, rng: random.Random
) -> list[traces.Trace]:
    """What the adapter's own host tells."""
    host = nic.partition(":")[2].partition("/")[0]
    log: list[tuple[float, MakeSample]] = []
    if flavour != "health":
        for n in range(count_between(1, 6, severity)):
            command = fault_lines.command_timeout(fabric, nic, pid, rng.choice(fault_lines.COMMANDS))
            log.append((0.5 + n * rng.uniform(1.0, 4.0), command))
    if flavour != "commands" or severity >= 0.7:
        log.append((rng.uniform(1.0, 4.0), fault_lines.health_compromised(fabric, nic)))
    if flavour == "firmware":
        log.append((rng.uniform(1.0, 2.0), fault_lines.syndrome(fabric, nic)))
    found: list[traces.Trace] = [Emission(at_s, host, Source.KERNEL_LOG, made) for at_s, made in log]
    if flavour != "commands" and severity >= 0.3:
        at_s = rng.uniform(2.0, 7.0)
        told = readings.health_reporter(fabric, nic, "fw_fatal" if flavour == "firmware" else "fw", "error", 1)
        found += [Emission(at_s, host, Source.DEVLINK, made) for made in told]
    look_s = rng.uniform(1.0, 5.0)
    found.append(Emission(look_s, host, Source.RDMA, lines.port_state(fabric, nic, True)))  # it still reads UP
    return found


def _hang(flavour: str) -> Maker:
    def make(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
        place = victim_place(spec, layout, rng)
        nic = traces.nic_of(fabric, layout, place.rank)
        ranks = traces.ranks_of_nic(fabric, layout, nic)
        groups = frozenset(layout.group(rank, "data").name for rank in ranks)
        found = hang_lines(flavour, fabric, nic, place.pid, spec.severity, rng)
        if flavour == "firmware":
            dead = fault_lines.async_catastrophe(fabric, nic, place)
            found.append(Emission(rng.uniform(1.0, 3.0), place.host, Source.JOB_LOG, dead))
        found += traces.peers_time_out(fabric, layout, ranks, rng)
        left = traces.left(found)
        return Fault(
            spec=spec,
            flavour=flavour,
            component=nic,
            ranks=ranks,
            host=place.host,
            note=f"the firmware of {fabric.attr(nic, 'rdma')} of {place.host} hangs, its link is up",
            obstacle=lambda op: Obstacle(broken=groups, broken_from=max(op, first_of("data"))),
            emissions=left.emissions,
            rises=left.rises,
            drops={nic: 1.0},
            cured_by=lambda kind, target: (
                (kind in MOVES_AWAY and on_host(target, place.host)) or (kind is ActionKind.EXCLUDE_NIC and target == nic)
            ),
        )

    return make


FLAVOURS: dict[str, Maker] = {each: _hang(each) for each in ("commands", "health", "firmware")}
