"""Checks records and turns them into the index that `Fabric` answers from.

Records come from people, importers and other machines, so everything about them is checked once, here, and every complaint
names the record: after that no query can fail on a half-known graph. networkx serves the checks only; queries run on plain
dictionaries (`Index`), which are some fifty times faster and never change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import networkx as nx

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, Relation

PROBLEMS_SHOWN = 20
ALIAS_ATTRS = ("pci", "uuid", "guid", "netdev", "rdma", "addr", "serial")
GLOBAL_ATTRS = ("uuid", "guid", "addr", "serial")  # unique in the whole fabric, so they resolve without a host


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


def _spelled(where: int, edge: EdgeRecord) -> str:
    return f"edges[{where}] ({edge.a} {edge.relation.value} {edge.b})"


class _Checks:
    """Collects every problem instead of stopping at the first: a list of 500 records is corrected in one go."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def components(self, components: Iterable[ComponentRecord]) -> dict[ComponentId, ComponentRecord]:
        known: dict[ComponentId, ComponentRecord] = {}
        places: dict[ComponentId, int] = {}
        for where, record in enumerate(components):
            if not record.id.startswith(_PREFIXES[record.kind]) or len(record.id) == len(_PREFIXES[record.kind]):
                try:
                    kind = ids.kind_of(record.id)
                except ids.InvalidComponentId as error:
                    self.problems.append(f"components[{where}]: {error}")
                    continue
                self.problems.append(
                    f"components[{where}] ({record.id}): kind is {record.kind.value}, its id says {kind.value}"
                )
            if record.id in known:
                self.problems.append(
                    f"components[{where}] ({record.id}): already defined by components[{places[record.id]}]"
                )
                continue
            known[record.id] = record
            places[record.id] = where
        return known

    def edges(
        self, edges: tuple[EdgeRecord, ...], known: Mapping[ComponentId, ComponentRecord]
    ) -> list[tuple[int, EdgeRecord]]:
        """The edges whose ends exist and differ."""
        sound = []
        for where, edge in enumerate(edges):
            missing = [end for end in (edge.a, edge.b) if end not in known]
            if missing:
                self.problems.append(f"{_spelled(where, edge)}: no component {' and no '.join(missing)}")
            elif edge.a == edge.b:
                self.problems.append(f"{_spelled(where, edge)}: both ends are the same")
            else:
                sound.append((where, edge))
        return sound

    def no_part_of_cycle(self, name: str, parts: list[tuple[ComponentId, ComponentId]]) -> None:
        inner = {parent for _, parent in parts}  # only what has parts and is a part can be in a circle
        graph = nx.DiGraph([(part, whole) for part, whole in parts if part in inner])
        if not nx.is_directed_acyclic_graph(graph):
            cycle = [str(edge[0]) for edge in nx.find_cycle(graph)]
            self.problems.append(f"part_of goes in a circle: {' -> '.join([*cycle, cycle[0]])}")


_PREFIXES = {kind: f"{kind.value}:" for kind in ComponentKind}
_ON_HOSTS = frozenset({ComponentKind.GPU, ComponentKind.NIC, ComponentKind.NVLINK, ComponentKind.NVSWITCH})
_RAIL_KINDS = (ComponentKind.GPU, ComponentKind.NIC)
_CABLE_KINDS = (ComponentKind.NIC, ComponentKind.PORT, ComponentKind.NVLINK)


def index(name: str, components: Iterable[ComponentRecord], edges: Iterable[EdgeRecord]) -> Index:
    """Check the records and index them. Raises InvalidFabric with every problem found."""
    checks = _Checks()
    given = tuple(edges)
    records = checks.components(components)
    loose_links = {each for each, record in records.items() if record.kind is ComponentKind.LINK}
    parents: dict[ComponentId, list[ComponentId]] = defaultdict(list)
    children: dict[ComponentId, list[ComponentId]] = defaultdict(list)
    link_of: dict[ComponentId, ComponentId] = {}
    ends_of: dict[ComponentId, tuple[ComponentId, ComponentId]] = {}
    nics_of_gpu: dict[ComponentId, list[ComponentId]] = defaultdict(list)
    gpus_of_nic: dict[ComponentId, list[ComponentId]] = defaultdict(list)
    switch_of_port: dict[ComponentId, ComponentId] = {}
    parts: list[tuple[ComponentId, ComponentId]] = []

    for where, edge in checks.edges(given, records):
        kinds = (records[edge.a].kind, records[edge.b].kind)
        if edge.relation is Relation.PART_OF:
            parts.append((edge.a, edge.b))
            parents[edge.a].append(edge.b)
            children[edge.b].append(edge.a)
            if kinds == (ComponentKind.PORT, ComponentKind.SWITCH):
                switch_of_port[edge.a] = edge.b
            if kinds[1] is ComponentKind.HOST and kinds[0] in _ON_HOSTS:
                host = edge.a.partition(":")[2].partition("/")[0]
                if edge.b != f"host:{host}":
                    checks.problems.append(f"{_spelled(where, edge)}: the id of {edge.a} says host {host}")
        elif edge.relation is Relation.RAIL:
            if kinds != _RAIL_KINDS:
                checks.problems.append(f"{_spelled(where, edge)}: a rail goes from a gpu to a nic")
                continue
            nics_of_gpu[edge.a].append(edge.b)
            gpus_of_nic[edge.b].append(edge.a)
        else:
            if not all(kind in _CABLE_KINDS for kind in kinds):
                checks.problems.append(f"{_spelled(where, edge)}: a cable joins nics, ports or nvlinks")
                continue
            taken = [end for end in (edge.a, edge.b) if end in link_of]
            if taken:
                checks.problems.append(f"{_spelled(where, edge)}: {taken[0]} already has the cable {link_of[taken[0]]}")
                continue
            link = ids.link_id(edge.a, edge.b)
            first, second = ids.link_ends(link)
            link_of[first] = link_of[second] = link
            ends_of[link] = (first, second)
            loose_links.discard(link)
            if link not in records:
                records[link] = ComponentRecord(id=link, kind=ComponentKind.LINK, attrs=edge.attrs)

    for link in sorted(loose_links):
        checks.problems.append(f"component {link}: no cabled edge joins its ends")
    for each, record in records.items():
        if record.kind is ComponentKind.PORT and each not in switch_of_port:
            checks.problems.append(f"component {each}: a port must be part_of a switch")
    checks.no_part_of_cycle(name, parts)
    if checks.problems:
        raise InvalidFabric(name, checks.problems)
    return Index(
        records=records,
        edges=given,
        parents=_frozen(parents),
        children=_frozen(children),
        link_of=link_of,
        ends_of=ends_of,
        nics_of_gpu=_frozen(nics_of_gpu),
        gpus_of_nic=_frozen(gpus_of_nic),
        switch_of_port=switch_of_port,
        aliases=Aliases(records),
    )


def _frozen(lists: Mapping[ComponentId, list[ComponentId]]) -> dict[ComponentId, tuple[ComponentId, ...]]:
    return {key: tuple(dict.fromkeys(values)) for key, values in lists.items()}


def spellings(alias: str) -> tuple[str, ...]:
    """The forms under which an alias is kept: as written in lower case, a PCI address in its normal form, and a GID that
    holds an IPv4 address as that address."""
    text = alias.strip().lower().removeprefix("::ffff:")
    try:
        return (text, ids.normal_pci(text))
    except ValueError:
        return (text,)


def scopes(records: Mapping[ComponentId, ComponentRecord]) -> dict[str, tuple[ComponentId, ...]]:
    """The components by the host (or switch) that their id names."""
    found: dict[str, list[ComponentId]] = defaultdict(list)
    for each, record in records.items():
        if record.kind is not ComponentKind.LINK:
            found[each.partition(":")[2].partition("/")[0]].append(each)
    return {scope: tuple(members) for scope, members in found.items()}


class Aliases:
    """Other names of components, per host and for the whole fabric. A host's are read when first asked for: a fabric has a
    million names and few are ever used. The answer never changes."""

    def __init__(self, records: Mapping[ComponentId, ComponentRecord]) -> None:
        self._records = records
        self._scopes = scopes(records)
        self._of: dict[str, dict[str, ComponentId | None]] = {}
        self._everywhere: dict[str, ComponentId | None] | None = None

    def find(self, scope: str | None, alias: str) -> ComponentId | None:
        """None when nothing fits, and when two components do."""
        names = self._global() if not scope else self._scope(scope)
        for each in spellings(alias):
            found = names.get(each)
            if found is not None:
                return found
        return None

    def _scope(self, scope: str) -> dict[str, ComponentId | None]:
        names = self._of.get(scope)
        if names is None:
            names = {}
            for each in self._scopes.get(scope, ()):
                record, rest = self._records[each], each.partition(":")[2].partition("/")[2]
                if record.kind is ComponentKind.NIC:
                    _note(names, rest.rpartition("/")[0], each)
                elif record.kind in (ComponentKind.PORT, ComponentKind.NVSWITCH):
                    _note(names, rest, each)
                for attr in ALIAS_ATTRS:
                    _note(names, record.attrs.get(attr, ""), each)
            self._of[scope] = names
        return names

    def _global(self) -> dict[str, ComponentId | None]:
        if self._everywhere is None:
            names: dict[str, ComponentId | None] = {}
            for each, record in self._records.items():
                for attr in GLOBAL_ATTRS:
                    if value := record.attrs.get(attr):
                        _note(names, value, each)
            self._everywhere = names
        return self._everywhere


def _note(names: dict[str, ComponentId | None], alias: str, component: ComponentId) -> None:
    for each in spellings(alias) if alias else ():
        if names.setdefault(each, component) != component:
            names[each] = None  # two fit: cannot tell
