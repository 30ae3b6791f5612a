"""A host that is gone as a whole, and its collector with it: nobody on it can say why.

The kernel may have got a line out before it died; otherwise all there is is silence, the ports at the other end of its
cables, and peers that run out of retries. A host whose kernel hangs may keep its links up.
"""

from __future__ import annotations

import random

from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Source
from goodput_faultlab.simulate import fault_lines
from goodput_faultlab.simulate.faults import traces
from goodput_faultlab.simulate.faults.model import (
    MOVES_AWAY,
    Act,
    Deed,
    Emission,
    Fault,
    Maker,
    between,
    on_host,
    victim_place,
)
from goodput_faultlab.simulate.layout import Layout
from goodput_faultlab.simulate.spec import FaultSpec
from goodput_faultlab.simulate.stall import Obstacle
from goodput_topology.graph import Fabric

LAST_WORD_S = 0.4  # the last batch of kernel log lines gets out so shortly before the end


def _down(flavour: str) -> Maker:
    def make(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
        place = victim_place(spec, layout, rng)
        host, ranks = place.host, layout.on_host(place.host)
        found: list[traces.Trace] = []
        last_word = spec.severity >= 0.5  # a marginal case is one in which nothing got out
        if flavour == "panic" and last_word:
            found += [Emission(-0.1, host, Source.KERNEL_LOG, fault_lines.memory_error(host, corrected=False))]
            found += [Emission(0.0, host, Source.KERNEL_LOG, fault_lines.panic(host))]
        elif flavour == "lockup" and last_word:
            cpu = rng.randrange(96)
            found += [Emission(-0.2, host, Source.KERNEL_LOG, fault_lines.soft_lockup(host, cpu, place.pid))]
            found += [Emission(0.0, host, Source.KERNEL_LOG, fault_lines.hard_lockup(host, cpu))]
        if flavour in ("power", "panic"):
            reboots_s = 0.0 if flavour == "power" else between(20.0, 3.0, spec.severity)  # when the adapters are reset
            for nic in fabric.nics_of_host(host):
                if fabric.carries_traffic(nic):
                    found += traces.far_port(fabric, nic, reboots_s + rng.uniform(0.05, 0.6), up=False)
        found += traces.peers_time_out(fabric, layout, ranks, rng)
        left = traces.left(found)
        return Fault(
            spec=spec,
            flavour=flavour,
            component=ids.host_id(host),
            ranks=ranks,
            host=host,
            note=f"{host} is down ({flavour}){'' if last_word or flavour == 'power' else ' without a last word'}",
            obstacle=lambda op: Obstacle(stops_at=dict.fromkeys(ranks, op)),
            emissions=left.emissions,
            rises=left.rises,
            drops=dict.fromkeys(fabric.nics_of_host(host), 1.0),
            silent=frozenset(ranks),
            acts=(Act(LAST_WORD_S, Deed.COLLECTOR_STOPS, host),),
            symptoms=traces.symptoms_of(found, (ids.host_id(host),), fabric),
            cured_by=lambda kind, target: kind in MOVES_AWAY and on_host(target, host),
        )

    return make


FLAVOURS: dict[str, Maker] = {each: _down(each) for each in ("power", "panic", "lockup")}
