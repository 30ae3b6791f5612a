"""Which ways the job's traffic takes through the fabric: hop by hop, over all equal-cost ways.

Data-parallel groups talk in rings (each rank to the next) and, for smaller messages, in trees and pairwise exchanges, which
reach further. So a rank sends most to its neighbour and less to ranks two and four places on. Whatever a fault does to a
port, a link or a switch, it does to the flows that cross it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from goodput_common.contracts.ids import ComponentId
from goodput_faultlab.simulate.layout import Layout
from goodput_topology.graph import Fabric

REACHES = ((1, 0.7), (2, 0.2), (4, 0.1))  # places on in the ring, and the share of what a rank sends
WAYS_MAX = 8
FLOWS_MAX = 6000  # beyond it, flows are left out evenly


class Hop(NamedTuple):
    """One cable, in the direction of the traffic: from the end that sends to the one that receives."""

    out: ComponentId
    into: ComponentId


class Flow(NamedTuple):
    """What one rank sends to another, as a share of all that it sends. Each way is a list of hops, all equally likely."""

    rank: int
    to: int
    share: float
    ways: tuple[tuple[Hop, ...], ...]


class Flows:
    """All flows of one layout of the job, found when first asked for. `about`: ranks whose flows matter most; in a large job
    theirs are all there, and of the others' as many as there may be."""

    def __init__(self, fabric: Fabric, layout: Layout, about: Iterable[int] = ()) -> None:
        self._fabric = fabric
        self._layout = layout
        self._about = frozenset(about)
        self._ways: dict[tuple[ComponentId, ComponentId], tuple[tuple[Hop, ...], ...]] = {}

    def nic(self, rank: int) -> ComponentId | None:
        nics = self._fabric.nics_of_gpu(self._layout.places[rank].gpu)
        return nics[0] if nics else None

    def ways(self, a: ComponentId, b: ComponentId) -> tuple[tuple[Hop, ...], ...]:
        """At most `WAYS_MAX` of the equal-cost ways from one NIC to another; none where there is no cable between them."""
        found = self._ways.get((a, b))
        if found is None:
            listed = self._fabric.path(a, b, limit=WAYS_MAX).listed
            found = tuple(tuple(Hop(way[n], way[n + 2]) for n in range(0, len(way) - 2, 4)) for way in listed)
            self._ways[a, b] = found
        return found

    @cached_property
    def all(self) -> tuple[Flow, ...]:
        pairs = list(self._pairs())
        every = -(-len(pairs) // FLOWS_MAX)
        found = []
        mine = self._about
        chosen = pairs if every == 1 else [each for n, each in enumerate(pairs) if n % every == 0 or mine & {*each[:2]}]
        for rank, to, share in chosen:
            a, b = self.nic(rank), self.nic(to)
            if a is not None and b is not None and a != b and (ways := self.ways(a, b)):
                found.append(Flow(rank, to, share, ways))
        return tuple(found)

    def _pairs(self) -> Iterator[tuple[int, int, float]]:
        for group in self._layout.data:
            ranks, size = group.ranks, len(group.ranks)
            for places, share in REACHES:
                if places < size or places == 1:
                    for n, rank in enumerate(ranks):
                        yield rank, ranks[(n + places) % size], share

    def through(self, component: ComponentId) -> tuple[Flow, ...]:
        """Flows with a way over a port or NIC, or through a switch."""
        return self._through.get(component, ())

    @cached_property
    def _through(self) -> Mapping[ComponentId, tuple[Flow, ...]]:
        found: dict[ComponentId, dict[Flow, None]] = defaultdict(dict)
        for flow in self.all:
            for way in flow.ways:
                for hop in way:
                    for end in hop:
                        found[end][flow] = None
                        switch = self._fabric.switch_of(end) if end.startswith("port:") else None
                        if switch is not None:
                            found[switch][flow] = None
        return {component: tuple(flows) for component, flows in found.items()}

    @cached_property
    def before(self) -> Mapping[ComponentId, Mapping[Hop, float]]:
        """For each end that sends, the hops that feed it, by how much: whom a pause there makes its switch pause in turn."""
        found: dict[ComponentId, dict[Hop, float]] = defaultdict(dict)
        for flow in self.all:
            for way in flow.ways:
                for earlier, later in itertools.pairwise(way):
                    feeds = found[later.out]
                    feeds[earlier] = feeds.get(earlier, 0.0) + flow.share / len(flow.ways)
        return found

    @cached_property
    def load(self) -> Mapping[ComponentId, tuple[float, float]]:
        """What each end sends and receives, in multiples of what one rank sends."""
        sent: dict[ComponentId, float] = defaultdict(float)
        received: dict[ComponentId, float] = defaultdict(float)
        for flow in self.all:
            for way in flow.ways:
                for hop in way:
                    sent[hop.out] += flow.share / len(flow.ways)
                    received[hop.into] += flow.share / len(flow.ways)
        return {end: (sent.get(end, 0.0), received.get(end, 0.0)) for end in {**sent, **received}}
