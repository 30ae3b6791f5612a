"""A graph in pages: components by id, each edge on the page on which the later of its two ends comes.

So whoever has read the pages up to some place holds a graph that is whole: no edge leads to a component that has not been
shown. The key is the id, which never changes: when the graph does between two pages, what stays is shown exactly once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.topology import EdgeRecord
from goodput_topology.graph import Fabric


@dataclass(frozen=True, slots=True)
class GraphPage:
    """`following` is the key behind which the next page begins, None on the last."""

    components: tuple[ComponentId, ...]
    edges: tuple[EdgeRecord, ...]
    following: ComponentId | None


@dataclass(frozen=True, slots=True)
class GraphPages:
    """Made once for each version of the graph: sorting is dear at 200,000 components."""

    ids: tuple[ComponentId, ...]
    edges: Mapping[ComponentId, tuple[EdgeRecord, ...]]  # by their later end

    @classmethod
    def of(cls, graph: Fabric) -> GraphPages:
        edges: dict[ComponentId, list[EdgeRecord]] = {}
        for edge in graph.edges:
            edges.setdefault(max(edge.a, edge.b), []).append(edge)
        return cls(tuple(sorted(graph.components)), {later: tuple(each) for later, each in edges.items()})

    def page(self, wanted: Callable[[ComponentId], bool], *, after: ComponentId | None, limit: int) -> GraphPage:
        """At most `limit` of the components that are wanted, and the edges between any two that are."""
        shown: list[ComponentId] = []
        more = False
        for place in range(bisect_right(self.ids, after) if after is not None else 0, len(self.ids)):
            if wanted(self.ids[place]):
                if more := len(shown) >= limit:
                    break
                shown.append(self.ids[place])
        edges = (edge for each in shown for edge in self.edges.get(each, ()) if wanted(edge.a) and wanted(edge.b))
        return GraphPage(tuple(shown), tuple(edges), shown[-1] if more else None)
