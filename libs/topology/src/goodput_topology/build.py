"""Checks records and turns them into the index that `Fabric` answers from.

Records come from people, importers and other machines, so everything about them is checked once, here, and every complaint
names the record: after that no query can fail on a half-known graph. Queries run on plain dictionaries (`Index`), which are
some fifty times faster than networkx's and never change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, Relation
from goodput_topology.aliases import Aliases

PROBLEMS_SHOWN = 20


class InvalidFabric(ValueError):
    """The records do not make a graph. `problems` has one line for each, naming the record; the message shows the first."""

    def __init__(self, name: str, problems: list[str]) -> None:
        shown = problems[:PROBLEMS_SHOWN]
        more = f"\n  … and {len(problems) - len(shown)} more" if len(problems) > len(shown) else ""
        super().__init__(
            f"fabric {name!r}: {len(problems)} problem(s); correct the records named here\n  " + "\n  ".join(shown) + more
        )
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """The graph, ready to be asked. Every value is a tuple or a record; nothing here is changed after `index()`."""

    records: Mapping[ComponentId, ComponentRecord]  # links included
    edges: tuple[EdgeRecord, ...]
    parents: Mapping[ComponentId, tuple[ComponentId, ...]]
    children: Mapping[ComponentId, tuple[ComponentId, ...]]
    link_of: Mapping[ComponentId, ComponentId]  # end -> link
    ends_of: Mapping[ComponentId, tuple[ComponentId, ComponentId]]  # link -> ends
    nics_of_gpu: Mapping[ComponentId, tuple[ComponentId, ...]]
    gpus_of_nic: Mapping[ComponentId, tuple[ComponentId, ...]]
    switch_of_port: Mapping[ComponentId, ComponentId]
    aliases: Aliases


_PREFIXES = {kind: f"{kind.value}:" for kind in ComponentKind}
_ON_HOSTS = frozenset({ComponentKind.GPU, ComponentKind.NIC, ComponentKind.NVLINK, ComponentKind.NVSWITCH})
_CABLED = frozenset({ComponentKind.NIC, ComponentKind.PORT, ComponentKind.NVLINK})


def index(name: str, components: Iterable[ComponentRecord], edges: Iterable[EdgeRecord]) -> Index:
    """Check the records and index them. Raises InvalidFabric with every problem found."""
    build = _Build()
    given = tuple(edges)
    build.components(components)
    build.edges(given)
    build.whole()
    if build.problems:
        raise InvalidFabric(name, build.problems)
    return Index(
        records=build.records,
        edges=given,
        parents=_frozen(build.parents),
        children=_frozen(build.children),
        link_of=build.link_of,
        ends_of=build.ends_of,
        nics_of_gpu=_frozen(build.nics_of_gpu),
        gpus_of_nic=_frozen(build.gpus_of_nic),
        switch_of_port=build.switch_of_port,
        aliases=Aliases(build.records),
    )


def _frozen(lists: Mapping[ComponentId, list[ComponentId]]) -> dict[ComponentId, tuple[ComponentId, ...]]:
    return {key: (values[0],) if len(values) == 1 else tuple(dict.fromkeys(values)) for key, values in lists.items()}


class _Build:
    """Takes records in and notes every problem instead of stopping at the first: a list of 500 is corrected in one go."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.records: dict[ComponentId, ComponentRecord] = {}
        self.parents: dict[ComponentId, list[ComponentId]] = defaultdict(list)
        self.children: dict[ComponentId, list[ComponentId]] = defaultdict(list)
        self.link_of: dict[ComponentId, ComponentId] = {}
        self.ends_of: dict[ComponentId, tuple[ComponentId, ComponentId]] = {}
        self.nics_of_gpu: dict[ComponentId, list[ComponentId]] = defaultdict(list)
        self.gpus_of_nic: dict[ComponentId, list[ComponentId]] = defaultdict(list)
        self.switch_of_port: dict[ComponentId, ComponentId] = {}

    def components(self, components: Iterable[ComponentRecord]) -> None:
        places: dict[ComponentId, int] = {}
        for where, record in enumerate(components):
            if not record.id.startswith(_PREFIXES[record.kind]) or len(record.id) == len(_PREFIXES[record.kind]):
                self.problems.append(f"components[{where}]{_wrong_kind(record)}")
            if record.id in places:
                self.problems.append(
                    f"components[{where}] ({record.id}): already defined by components[{places[record.id]}]"
                )
                continue
            self.records[record.id] = record
            places[record.id] = where

    def edges(self, edges: tuple[EdgeRecord, ...]) -> None:
        take = {Relation.PART_OF: self._part_of, Relation.RAIL: self._rail, Relation.CABLED: self._cable}
        for where, edge in enumerate(edges):
            a, b = self.records.get(edge.a), self.records.get(edge.b)
            if a is None or b is None:
                missing = [end for end, record in ((edge.a, a), (edge.b, b)) if record is None]
                wrong = f"no component {' and no '.join(missing)}"
            elif a is b:
                wrong = "both ends are the same"
            else:
                wrong = take[edge.relation](edge, a.kind, b.kind)
            if wrong:
                self.problems.append(f"edges[{where}] ({edge.a} {edge.relation.value} {edge.b}): {wrong}")

    def _part_of(self, edge: EdgeRecord, part: ComponentKind, of: ComponentKind) -> str:
        self.parents[edge.a].append(edge.b)
        self.children[edge.b].append(edge.a)
        if part is ComponentKind.PORT and of is ComponentKind.SWITCH:
            self.switch_of_port[edge.a] = edge.b
        elif of is ComponentKind.HOST and part in _ON_HOSTS:
            host = edge.a.partition(":")[2].partition("/")[0]
            if edge.b != f"host:{host}":
                return f"the id of {edge.a} says host {host}"
        return ""

    def _rail(self, edge: EdgeRecord, gpu: ComponentKind, nic: ComponentKind) -> str:
        if gpu is not ComponentKind.GPU or nic is not ComponentKind.NIC:
            return "a rail goes from a gpu to a nic"
        self.nics_of_gpu[edge.a].append(edge.b)
        self.gpus_of_nic[edge.b].append(edge.a)
        return ""

    def _cable(self, edge: EdgeRecord, a: ComponentKind, b: ComponentKind) -> str:
        if a not in _CABLED or b not in _CABLED:
            return "a cable joins nics, ports or nvlinks"
        for end in (edge.a, edge.b):
            if end in self.link_of:
                return f"{end} already has the cable {self.link_of[end]}"
        link = ids.link_id(edge.a, edge.b)
        self.link_of[edge.a] = self.link_of[edge.b] = link
        self.ends_of[link] = (edge.a, edge.b) if edge.a < edge.b else (edge.b, edge.a)
        if link not in self.records:
            self.records[link] = ComponentRecord(id=link, kind=ComponentKind.LINK, attrs=edge.attrs)
        return ""

    def whole(self) -> None:
        """What can only be said once every edge is known."""
        for each, record in self.records.items():
            if record.kind is ComponentKind.PORT and each not in self.switch_of_port:
                self.problems.append(f"component {each}: a port must be part_of a switch")
            elif record.kind is ComponentKind.LINK and each not in self.ends_of:
                self.problems.append(f"component {each}: no cabled edge joins its ends")
        # only what has parts and is a part itself can be in a circle
        inner = {part: wholes for part, wholes in self.parents.items() if part in self.children}
        try:
            TopologicalSorter(inner).prepare()
        except CycleError as error:
            circle = " -> ".join(str(step) for step in reversed(error.args[1]))
            self.problems.append(f"part_of goes in a circle: {circle}")


def _wrong_kind(record: ComponentRecord) -> str:
    try:
        return f" ({record.id}): kind is {record.kind.value}, its id says {ids.kind_of(record.id).value}"
    except ids.InvalidComponentId as error:
        return f": {error}"
