"""Equal-cost paths between two network ends.

Routers spread flows over all shortest paths (ECMP), so between two NICs there is not one path but a small graph of them. The
answer here is that graph: which links and switches *may* carry the flow, which *must* (those on every path), and the paths
one by one up to a bound. `links` and `always` are exact however many paths there are; only the list is cut.
"""

from __future__ import annotations

import itertools
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

_Cable = tuple[ComponentId, ComponentId, ComponentId]  # (own port, link, far port)


class Router:
    """Shortest paths over switches. NICs are never in transit, so distances are between switches only and few."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._between: dict[ComponentId, dict[ComponentId, list[_Cable]]] = {}  # near switch -> far switch -> cables
        for link, (a, b) in index.ends_of.items():
            near, far = index.switch_of_port.get(a), index.switch_of_port.get(b)
            if near is not None and far is not None and near != far:
                self._between.setdefault(near, {}).setdefault(far, []).append((a, link, b))
                self._between.setdefault(far, {}).setdefault(near, []).append((b, link, a))
        self._distances: dict[ComponentId, dict[ComponentId, int]] = {}

    def next_to(self, switch: ComponentId) -> tuple[ComponentId, ...]:
        """The switches one cable away."""
        return tuple(sorted(self._between.get(switch, ())))

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
                    for far in self._between.get(near, ()):
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
        if start not in self.distances(goal):
            return NO_PATHS
        layers = self._layers(start, goal)
        to_goal = self._count(layers[::-1])
        from_start = self._count(layers)
        total = to_goal[start]
        links, always = {link_a, link_b}, {link_a, link_b}
        for layer, after in itertools.pairwise(layers):
            always.update(switch for switch in layer if to_goal[switch] * from_start[switch] == total)
            for near in layer:
                for far in after:
                    for _, link, _ in self._between.get(near, {}).get(far, ()):
                        links.add(link)
                        if from_start[near] * to_goal[far] == total:
                            always.add(link)
        always.add(goal)
        walked = self._walk(layers)
        listed = tuple(
            (a, link_a, entry, start, *middle, leave, link_b, b) for _, middle in zip(range(limit), walked, strict=False)
        )
        return Paths(
            count=total, listed=listed, links=frozenset(links), switches=frozenset(to_goal), always=frozenset(always)
        )

    def _far(self, end: ComponentId, link: ComponentId) -> ComponentId:
        first, second = self._index.ends_of[link]
        return second if first == end else first

    def _layers(self, start: ComponentId, goal: ComponentId) -> list[list[ComponentId]]:
        """The switches on shortest paths, by their distance from `start`. Found from both ends, each time from the side
        whose switches have fewer cables: a spine has hundreds, a leaf a few tens."""
        from_start, to_goal = self.distances(start), self.distances(goal)
        length = to_goal[start]
        front, back = [[start]], [[goal]]
        while len(front) + len(back) < length + 1:
            if self._degree(front[-1]) <= self._degree(back[-1]):
                front.append(self._next(front[-1], to_goal, length - len(front), from_start, len(front)))
            else:
                back.append(self._next(back[-1], from_start, length - len(back), to_goal, len(back)))
        return front if length == 0 else [*front, *back[::-1]]

    def _degree(self, layer: list[ComponentId]) -> int:
        return sum(len(self._between.get(switch, ())) for switch in layer)

    def _next(
        self,
        layer: list[ComponentId],
        ahead: Mapping[ComponentId, int],
        to_go: int,
        behind: Mapping[ComponentId, int],
        gone: int,
    ) -> list[ComponentId]:
        return sorted(
            {
                far
                for near in layer
                for far in self._between.get(near, ())
                if ahead.get(far, -1) == to_go and behind.get(far, -1) == gone
            }
        )

    def _count(self, layers: list[list[ComponentId]]) -> dict[ComponentId, int]:
        """How many shortest paths lead from the first layer to each switch."""
        counts = dict.fromkeys(layers[0], 1)
        for layer, after in itertools.pairwise(layers):
            for far in after:
                counts[far] = sum(counts[near] * len(self._between[far].get(near, ())) for near in layer)
        return counts

    def _walk(self, layers: list[list[ComponentId]]) -> Iterator[tuple[ComponentId, ...]]:
        """Everything between the first switch and the last port, path by path, in the order of names."""
        stack: list[tuple[int, ComponentId, tuple[ComponentId, ...]]] = [(0, layers[0][0], ())]
        while stack:
            depth, at, so_far = stack.pop()
            if depth == len(layers) - 1:
                yield so_far
                continue
            steps = [
                (own, link, port, far) for far in layers[depth + 1] for own, link, port in self._between[at].get(far, ())
            ]
            for own, link, port, far in sorted(steps, reverse=True):
                stack.append((depth + 1, far, (*so_far, own, link, port, far)))
