"""Equal-cost paths between two network ends.

Routers spread flows over all shortest paths (ECMP), so between two NICs there is not one path but a small graph of them. The
answer here is that graph: which links and switches *may* carry the flow, which *must* (those on every path), and the paths
one by one up to a bound. `links` and `always` are exact however many paths there are; only the list is cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from goodput_common.contracts.ids import ComponentId
from goodput_topology.build import Index

PATHS_LISTED = 64
DISTANCES_KEPT = 4096  # switches whose distances are remembered; beyond it the cache starts anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """All equal-cost paths from one end to another. Each path alternates nic, link, port, switch, port, link … nic.

    `count` is how many there are; `listed` holds the first of them in a stable order. Not connected: count 0, all empty.
    """

    count: int
    listed: tuple[tuple[ComponentId, ...], ...]
    links: frozenset[ComponentId]  # on at least one path
    switches: frozenset[ComponentId]
    always: frozenset[ComponentId]  # links and switches on every path

    @property
    def truncated(self) -> bool:
        return self.count > len(self.listed)

    @property
    def hops(self) -> int:
        """Links from end to end; 0 when there is no path."""
        return sum(1 for each in self.listed[0] if each.startswith("link:")) if self.listed else 0


NO_PATHS = Paths(count=0, listed=(), links=frozenset(), switches=frozenset(), always=frozenset())

_Hop = tuple[ComponentId, ComponentId, ComponentId, ComponentId]  # (own port, link, far port, far switch)


class Router:
    """Shortest paths over switches. NICs are never in transit, so distances are between switches only and few."""

    def __init__(self, index: Index) -> None:
        self._index = index
        hops: dict[ComponentId, list[_Hop]] = defaultdict(list)
        for link, (a, b) in index.ends_of.items():
            near, far = index.switch_of_port.get(a), index.switch_of_port.get(b)
            if near is not None and far is not None and near != far:
                hops[near].append((a, link, b, far))
                hops[far].append((b, link, a, near))
        self._hops: Mapping[ComponentId, tuple[_Hop, ...]] = {key: tuple(sorted(value)) for key, value in hops.items()}
        self._distances: dict[ComponentId, dict[ComponentId, int]] = {}

    def hops_from(self, switch: ComponentId) -> tuple[_Hop, ...]:
        return self._hops.get(switch, ())

    def distances(self, switch: ComponentId) -> Mapping[ComponentId, int]:
        """Hops from `switch` to every switch that it reaches."""
        found = self._distances.get(switch)
        if found is None:
            if len(self._distances) >= DISTANCES_KEPT:
                self._distances.clear()
            found = {switch: 0}
            frontier = [switch]
            while frontier:
                after = []
                for near in frontier:
                    for _, _, _, far in self.hops_from(near):
                        if far not in found:
                            found[far] = found[near] + 1
                            after.append(far)
                frontier = after
            self._distances[switch] = found
        return found

    def between(self, a: ComponentId, b: ComponentId, limit: int = PATHS_LISTED) -> Paths:
        """Paths from end `a` to end `b` (nics, or ports with a cable)."""
        link_a, link_b = self._index.link_of.get(a), self._index.link_of.get(b)
        if a == b or link_a is None or link_b is None:
            return NO_PATHS
        if link_a == link_b:
            return Paths(
                count=1,
                listed=((a, link_a, b),),
                links=frozenset((link_a,)),
                switches=frozenset(),
                always=frozenset((link_a,)),
            )
        entry, leave = self._far(a, link_a), self._far(b, link_b)
        start, goal = self._index.switch_of_port.get(entry), self._index.switch_of_port.get(leave)
        if start is None or goal is None:
            return NO_PATHS
        to_goal = self.distances(goal)
        if start not in to_goal:
            return NO_PATHS
        counts_to_goal = self._count(start, goal, to_goal)
        counts_from_start = self._count(goal, start, self.distances(start))
        total = counts_to_goal[start]
        links, always = {link_a, link_b}, {link_a, link_b, start, goal}
        for switch, through in counts_to_goal.items():
            if through * counts_from_start[switch] == total:
                always.add(switch)
            for _, link, _, far in self.hops_from(switch):
                if to_goal.get(far, -1) == to_goal[switch] - 1:
                    links.add(link)
                    if counts_from_start[switch] * counts_to_goal[far] == total:
                        always.add(link)
        walked = self._walk(start, goal, to_goal)
        listed = tuple(
            (a, link_a, entry, start, *middle, leave, link_b, b) for _, middle in zip(range(limit), walked, strict=False)
        )
        return Paths(
            count=total, listed=listed, links=frozenset(links), switches=frozenset(counts_to_goal), always=frozenset(always)
        )

    def _far(self, end: ComponentId, link: ComponentId) -> ComponentId:
        first, second = self._index.ends_of[link]
        return second if first == end else first

    def _count(self, start: ComponentId, goal: ComponentId, to_goal: Mapping[ComponentId, int]) -> dict[ComponentId, int]:
        """How many shortest paths lead from each switch between `start` and `goal` to `goal`."""
        layers = [[start]]
        seen = {start}
        while layers[-1] != [goal]:
            after = sorted(
                {
                    far
                    for near in layers[-1]
                    for _, _, _, far in self.hops_from(near)
                    if far not in seen and to_goal.get(far, -1) == to_goal[near] - 1
                }
            )
            seen.update(after)
            layers.append(after)
        counts = {goal: 1}
        for layer in reversed(layers[:-1]):
            for near in layer:
                counts[near] = sum(
                    counts[far] for _, _, _, far in self.hops_from(near) if to_goal.get(far, -1) == to_goal[near] - 1
                )
        return counts

    def _walk(
        self, start: ComponentId, goal: ComponentId, to_goal: Mapping[ComponentId, int]
    ) -> Iterator[tuple[ComponentId, ...]]:
        """Everything between the first switch and the last port, path by path."""
        stack: list[tuple[ComponentId, tuple[ComponentId, ...]]] = [(start, ())]
        while stack:
            at, so_far = stack.pop()
            if at == goal:
                yield so_far
                continue
            for own, link, port, far in reversed(self.hops_from(at)):
                if to_goal.get(far, -1) == to_goal[at] - 1:
                    stack.append((far, (*so_far, own, link, port, far)))
