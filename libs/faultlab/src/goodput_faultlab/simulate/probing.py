"""Probes along the ways that the job's traffic takes, where a specification asks for them.

Every NIC of the job probes those that its ranks send to, over a few flows each: routers choose a way by the flow, so one
flow always crosses the same components, and together the flows cover the ways. A probe is lost with the share that a
component on its way, or on the answer's, drops, and waits where it is sent out of a port that is paused. A host whose
processors are busy is slow to answer and slow to take answers, which is no delay of the network. A healthy fabric loses one
probe in a hundred thousand (guess: no capture has probes).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from itertools import pairwise

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Probe, Sample, Source
from goodput_faultlab.simulate.clockwork import Clockwork
from goodput_faultlab.simulate.collectors import Collectors
from goodput_faultlab.simulate.flows import Flows, Hop
from goodput_topology.graph import Fabric

EVERY_S = 10.0
SENT = 100  # of one flow in that time
FLOWS_A_PAIR = 2
FIRST_PORT = 49_152
LOST_ANYWAY = 1e-5
HOST_US, HOP_US = 3.0, 0.9  # in an adapter and its driver; a switch and a cable (guess)
TAIL = 2.5  # the slowest of a hundred against the median (guess)

Way = tuple[ComponentId, ...]


def crossed(fabric: Fabric, hops: tuple[Hop, ...]) -> Way:
    """Links, ports and switches of a way, in order."""
    found: list[ComponentId] = []
    for hop in hops:
        link, switch = fabric.link_of(hop.out), fabric.switch_of(hop.into) if hop.into.startswith("port:") else None
        ports = [end for end in hop if end.startswith("port:")]
        before = [hop.out] if hop.out in ports else []
        after = [hop.into] if hop.into in ports else []
        found += [*before, *([link] if link else []), *after, *([switch] if switch else [])]
    return tuple(found)


class _Pair:
    """One flow from a NIC to another."""

    __slots__ = ("answers", "component", "flow", "target", "way")

    def __init__(self, fabric: Fabric, flows: Flows, near: ComponentId, far: ComponentId, number: int) -> None:
        self.component, self.target, self.flow = near, far, FIRST_PORT + number
        self.way = _chosen(fabric, flows, near, far, self.flow)
        self.answers = _chosen(fabric, flows, far, near, self.flow)


def _chosen(fabric: Fabric, flows: Flows, a: ComponentId, b: ComponentId, flow: int) -> Way:
    """What a router's hash comes to: always the same for the same flow."""
    ways = flows.ways(a, b)
    if not ways:
        return ()
    number = int.from_bytes(hashlib.sha256(f"{a}/{b}/{flow}".encode()).digest()[:4], "big")
    return crossed(fabric, ways[number % len(ways)])


class Probing:
    """`drops` is what components drop now, as a share, and `waits_us` how long probes wait there; whoever breaks something
    says so."""

    def __init__(self, fabric: Fabric, clockwork: Clockwork, collectors: Collectors, flows: Flows) -> None:
        self.drops: dict[int, Mapping[ComponentId, float]] = {}  # by fault
        self.waits_us: dict[int, Mapping[ComponentId, float]] = {}
        self._fabric = fabric
        self._clockwork = clockwork
        self._collectors = collectors
        self._flows = flows
        self._pairs: dict[str, list[_Pair]] = {}

    def start(self) -> None:
        numbers: dict[tuple[ComponentId, ComponentId], None] = {}
        for flow in self._flows.all:
            near, far = self._flows.nic(flow.rank), self._flows.nic(flow.to)
            if near is not None and far is not None and flow.share > 0.1:
                numbers[near, far] = None
        for near, far in numbers:
            made = [_Pair(self._fabric, self._flows, near, far, n) for n in range(FLOWS_A_PAIR)]
            self._pairs.setdefault(ids.host_of(near) or "", []).extend(made)
        rng = self._clockwork.rng("probes")
        for host in self._pairs:
            self._clockwork.after(rng.uniform(1.0, EVERY_S), partial(self._tell, host))

    def _tell(self, host: str) -> None:
        self._clockwork.after(EVERY_S, lambda: self._tell(host))
        at = self._collectors.clock(host)
        told: list[Sample] = [self._probe(pair, at) for pair in self._pairs[host]]
        self._collectors.send(host, Source.PROBES, told, at)

    def _probe(self, pair: _Pair, at: datetime) -> Probe:
        rng = self._clockwork.rng("probes")
        arrives = 1.0 - LOST_ANYWAY
        for drops in self.drops.values():
            for each in (pair.component, *pair.way, *pair.answers, pair.target) if drops else ():
                arrives *= 1.0 - drops.get(each, 0.0)
        lost = _binomial(SENT, 1.0 - arrives, rng.random(), rng.gauss(0.0, 1.0))
        network_us = 2 * HOST_US + HOP_US * (len(pair.way) + len(pair.answers)) / 2
        responder_us = prober_us = HOST_US
        if any(self.waits_us.values()):
            for way in ((pair.component, *pair.way), (pair.target, *pair.answers)):
                network_us += sum(self._waits(each) for each in _sent_out(way))
            responder_us, prober_us = HOST_US + self._in_host(pair.target), HOST_US + self._in_host(pair.component)
        network_us *= math.exp(0.03 * rng.gauss(0.0, 1.0))
        answered = lost < SENT
        return Probe(
            component=pair.component,
            target=pair.target,
            flow=pair.flow,
            observed_at=at,
            interval_s=EVERY_S,
            sent=SENT,
            lost=lost,
            path=pair.way,
            answer_path=pair.answers,
            network_us_p50=round(network_us, 1) if answered else -1.0,
            network_us_p99=round(network_us * TAIL, 1) if answered else -1.0,
            responder_us_p50=round(responder_us, 1) if answered else -1.0,
            responder_us_p99=round(responder_us * TAIL, 1) if answered else -1.0,
            prober_us_p50=round(prober_us, 1) if answered else -1.0,
            prober_us_p99=round(prober_us * TAIL, 1) if answered else -1.0,
        )

    def _waits(self, component: ComponentId) -> float:
        return sum(waits.get(component, 0.0) for waits in self.waits_us.values())

    def _in_host(self, nic: ComponentId) -> float:
        return self._waits(ids.host_id(ids.host_of(nic) or ""))


def _sent_out(way: Way) -> tuple[ComponentId, ...]:
    """The ends from which it goes out onto a cable."""
    return tuple(each for each, after in pairwise(way) if after.startswith("link:"))


def _binomial(count: int, share: float, uniform: float, normal: float) -> int:
    """How many of so many, from two draws: by hand where few are expected, else about normal."""
    mean = count * share
    if mean < 3.0:
        number, term = 0, (1.0 - share) ** count
        total = term
        while uniform > total and number < count:
            number += 1
            term *= (count - number + 1) / number * share / (1.0 - share)
            total += term
        return number
    return min(count, max(0, round(mean + normal * math.sqrt(mean * (1.0 - share)))))
