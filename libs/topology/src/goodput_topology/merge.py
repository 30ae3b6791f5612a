"""One graph from what many sources say: hosts about themselves, switches, a scan of the subnet, somebody's drawing.

Each source replaces what it said before, and nothing that another said; a source that falls silent has taken nothing back.
Where two differ, one of them is believed and the other is *kept as a contradiction*, with both values and both names: a
cable that was moved without the drawing, two hosts that claim one port. Nothing here refuses: a graph must not vanish
because two machines disagree. (A snapshot that does not even fit together by itself is refused when it arrives: `check`.)

Who is believed (docs/adr/0006):

* identity (PCI address, GUID, interface): the host itself, then a switch, then a scan, then what was drawn;
* purpose and place (rail, tier, rack, pod, whether a port carries traffic): what was drawn, because people decide that; then
  the host, and so on;
* a cable: seen before drawn; among those seen the one that more sources see, then the one seen later;
* among equals the newer snapshot, then the first name. The order in which messages arrive never matters.
"""

from __future__ import annotations

import contextlib
import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, Relation, TopologySnapshot
from goodput_topology.build import index
from goodput_topology.identity import Identity, normal

CONTRADICTIONS_MAX = 1000
HOST_PREFIX, SWITCH_PREFIX, SCAN_PREFIX = "discovery-", "switch-", "ibnet-"
PURPOSE_ATTRS = frozenset({"rack", "pod", "block", "rail", "tier", "carries_traffic", "spare"})
IDENTITY_ATTRS = frozenset({"pci", "uuid", "guid", "netdev", "rdma", "addr", "serial", "mac"})
_COMPARED = PURPOSE_ATTRS | IDENTITY_ATTRS
_WHOLES = frozenset({ComponentKind.HOST, ComponentKind.NVDOMAIN})
_CABLED = frozenset({ComponentKind.NIC, ComponentKind.PORT, ComponentKind.NVLINK})

_MOVABLE = frozenset({ComponentKind.GPU, ComponentKind.NIC})
_UNIQUE_ATTRS = frozenset({"uuid", "guid"})


class Standing(enum.IntEnum):
    """What sort of source this is, by its name. The smaller is asked first about what a thing *is*."""

    HOST = 0  # discovery-<host>
    SWITCH = 1  # switch-<switch>
    SCAN = 2  # ibnet-<host>
    DRAWN = 3  # a file, a generator, the lab: any other name


def standing(source: str) -> Standing:
    prefixes = {HOST_PREFIX: Standing.HOST, SWITCH_PREFIX: Standing.SWITCH, SCAN_PREFIX: Standing.SCAN}
    return next((rank for prefix, rank in prefixes.items() if source.startswith(prefix)), Standing.DRAWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """`kept` is in the graph, `other` is not. `what` is an attribute's name, or cable, rail, part, record."""

    component: ComponentId
    what: str
    kept: str
    kept_from: str
    other: str
    other_from: str

    def __str__(self) -> str:
        return f"{self.component}: {self.what} is {self.kept} ({self.kept_from}), {self.other_from} says {self.other}"


@dataclass(frozen=True, slots=True)
class Merged:
    components: tuple[ComponentRecord, ...]
    edges: tuple[EdgeRecord, ...]
    contradictions: tuple[Contradiction, ...] = ()


@dataclass(slots=True)
class _Said:
    """What one source says, in canonical ids once it has been laid."""

    source: str
    standing: Standing
    at: float
    components: dict[ComponentId, ComponentRecord] = field(default_factory=dict)
    edges: list[EdgeRecord] = field(default_factory=list)
    canonical: dict[ComponentId, ComponentId] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """The host that speaks for itself; "" for any other source."""
        return self.source.removeprefix(HOST_PREFIX) if self.standing is Standing.HOST else ""

    @property
    def by_identity(self) -> tuple[object, ...]:
        return self.standing, -self.at, self.source

    @property
    def by_purpose(self) -> tuple[object, ...]:
        return self.standing is not Standing.DRAWN, *self.by_identity


def merge(snapshots: Iterable[TopologySnapshot]) -> Merged:
    """All parts of the newest version of each source. Never raises; gives records that always build."""
    said = _by_source(snapshots)
    if len(said) == 1:
        (alone,) = said
        return Merged(tuple(alone.components.values()), tuple(_undirected(alone.edges)))
    return _Merge(said).merged()


def check(parts: Iterable[TopologySnapshot]) -> None:
    """One source's snapshot by itself: it names every component that its edges join, and does not contradict itself. Raises
    `build.InvalidFabric`, naming what does not fit."""
    given = sorted(parts, key=lambda each: each.part)
    source = given[0].source if given else ""
    (alone,) = _by_source(given) or [_Said(source, standing(source), 0.0)]
    index(source, alone.components.values(), tuple(_undirected(alone.edges)))


def _by_source(snapshots: Iterable[TopologySnapshot]) -> list[_Said]:
    newest: dict[str, int] = {}
    held: dict[str, list[TopologySnapshot]] = defaultdict(list)
    for part in snapshots:
        if part.version > newest.get(part.source, part.version - 1):
            newest[part.source] = part.version
            held[part.source].clear()
        if part.version == newest[part.source]:
            held[part.source].append(part)
    said = []
    for source, parts in held.items():
        one = _Said(source, standing(source), max(part.at for part in parts).timestamp())
        for part in sorted(parts, key=lambda each: each.part):
            for record in part.components:
                known = one.components.get(record.id)
                if known is not None and known.kind is record.kind:
                    record = ComponentRecord(id=record.id, kind=record.kind, attrs=known.attrs | record.attrs)
                one.components[record.id] = record
            one.edges.extend(part.edges)
        said.append(one)
    return sorted(said, key=lambda each: (each.standing, each.source))


def _undirected(edges: Iterable[EdgeRecord]) -> Iterator[EdgeRecord]:
    """A cable told from both its ends is one."""
    found: dict[tuple[ComponentId, ComponentId, Relation], EdgeRecord] = {}
    for edge in edges:
        a, b = sorted((edge.a, edge.b)) if edge.relation is Relation.CABLED else (edge.a, edge.b)
        found[a, b, edge.relation] = edge
    return iter(found.values())


class _Merge:
    def __init__(self, said: list[_Said]) -> None:
        self._said = said
        self._order = {one.source: at for at, one in enumerate(sorted(said, key=lambda each: each.by_identity))}
        self._contradictions: list[Contradiction] = []
        self._identity = Identity()
        self._records: dict[ComponentId, ComponentRecord] = {}
        self._edges: dict[tuple[ComponentId, ComponentId, Relation], EdgeRecord] = {}
        self._parents: dict[ComponentId, list[ComponentId]] = defaultdict(list)

    def merged(self) -> Merged:
        identity = self._identity
        self._moved()
        for one in self._said:
            sound = {own: record for own, record in one.components.items() if self._sound(one, record)}
            hears = one.standing in (Standing.HOST, Standing.SWITCH)
            one.canonical = identity.lay(sound, one.edges, host=one.host, hears=hears)
            for own in sound.keys() - one.canonical.keys():
                self._contradict(own, "record", "another component in its place", "-", "one more", one.source)
        self._attributes()
        self._ports_have_switches()
        self._part_of()
        self._rails()
        self._cables()
        return Merged(tuple(self._records.values()), tuple(self._edges.values()), tuple(self._contradictions))

    # -- components ------------------------------------------------------------------------------------------------------

    def _moved(self) -> None:
        """A GPU or an adapter that two hosts have, by its UUID or GUID, was put from one into the other (or one is a clone):
        the newer word has it. The older keeps its slot, of which is not known now what is in it, and nothing else of either
        host is touched. One that is `missing` says itself that it is gone."""
        claims: dict[tuple[str, ComponentKind, str], dict[str, list[ComponentRecord]]] = defaultdict(dict)
        hosts = {one.source: one for one in self._said if one.host}
        for one in hosts.values():
            for record in one.components.values():
                if _scope(record.id) != one.host or record.kind not in _MOVABLE:
                    continue
                for name in _UNIQUE_ATTRS & record.attrs.keys():
                    if value := record.attrs[name]:
                        claims[name, record.kind, normal(name, value)].setdefault(one.source, []).append(record)
        for (name, _, _), told in sorted(claims.items()):
            if len(told) < 2:
                continue
            has, *others = sorted(told, key=lambda each: (_all_missing(told[each]), -hosts[each].at, each))
            for source in others:
                for record in told[source]:
                    known = hosts[source].components
                    attrs = {key: value for key, value in known[record.id].attrs.items() if key != name}
                    known[record.id] = ComponentRecord(id=record.id, kind=record.kind, attrs=attrs)
                    kept = told[has][0]
                    self._contradict(kept.id, name, kept.attrs[name], has, f"{record.id} has it", source)

    def _sound(self, one: _Said, record: ComponentRecord) -> bool:
        """Links follow from cables; anything else must be what its id says."""
        if record.kind is ComponentKind.LINK:
            return False
        kind, _, path = record.id.partition(":")
        if path and kind == record.kind and (record.kind is not ComponentKind.PORT or not path.startswith("/")):
            return True
        self._contradict(record.id, "record", "nothing", "-", f"a {record.kind.value}", one.source)
        return False

    def _attributes(self) -> None:
        told: dict[ComponentId, list[tuple[_Said, ComponentRecord]]] = defaultdict(list)
        for one in self._said:
            for own, canonical in one.canonical.items():
                told[canonical].append((one, one.components[own]))
        for canonical, contributions in told.items():
            kind = contributions[0][1].kind
            if len(contributions) == 1 and contributions[0][1].id == canonical:
                self._records[canonical] = contributions[0][1]
                continue
            attrs = self._joined(canonical, contributions) if len(contributions) > 1 else contributions[0][1].attrs
            self._records[canonical] = ComponentRecord(id=canonical, kind=kind, attrs=attrs)

    def _joined(self, canonical: ComponentId, contributions: list[tuple[_Said, ComponentRecord]]) -> dict[str, str]:
        attrs: dict[str, str] = {}
        owner: dict[str, str] = {}
        by_identity = sorted(contributions, key=lambda each: self._order[each[0].source])
        by_purpose = sorted(by_identity, key=lambda each: each[0].standing is not Standing.DRAWN)
        for purpose, order in ((False, by_identity), (True, by_purpose)):
            for one, record in order:
                for name, value in record.attrs.items():
                    if (name in PURPOSE_ATTRS) is not purpose:
                        continue
                    if name not in attrs:
                        attrs[name], owner[name] = value, one.source
                    elif name in _COMPARED and attrs[name] != value and normal(name, attrs[name]) != normal(name, value):
                        self._contradict(canonical, name, attrs[name], owner[name], value, one.source)
        return attrs

    def _ports_have_switches(self) -> None:
        for each in [each for each, record in self._records.items() if record.kind is ComponentKind.PORT]:
            switch = ids.switch_id(_scope(each))
            self._records.setdefault(switch, ComponentRecord(id=switch, kind=ComponentKind.SWITCH))
            self._part(EdgeRecord(a=each, b=switch, relation=Relation.PART_OF))

    # -- edges -----------------------------------------------------------------------------------------------------------

    def _told(self, relation: Relation, order: str) -> Iterator[tuple[_Said, EdgeRecord]]:
        """The edges of one relation in canonical ids, by who is believed first. An edge to what nobody describes is a
        contradiction of its own."""
        for one in sorted(self._said, key=lambda each: getattr(each, order)):
            canonical = one.canonical
            for edge in one.edges:
                if edge.relation is not relation:
                    continue
                a, b = canonical.get(edge.a, edge.a), canonical.get(edge.b, edge.b)
                if a not in self._records or b not in self._records:
                    missing = b if a in self._records else a
                    self._contradict(missing, relation.value, "not described by anybody", "-", f"{a} - {b}", one.source)
                elif a == b:
                    continue  # said of one thing by two names, or by a source that no one checked
                elif a == edge.a and b == edge.b:
                    yield one, edge
                else:
                    yield one, EdgeRecord(a=a, b=b, relation=relation, attrs=edge.attrs)

    def _part_of(self) -> None:
        domain: dict[ComponentId, tuple[ComponentId, str]] = {}
        for one, edge in self._told(Relation.PART_OF, "by_identity"):
            whole = self._records[edge.b].kind
            kind = self._records[edge.a].kind
            owned = (whole is ComponentKind.HOST and kind not in _WHOLES) or (
                whole is ComponentKind.SWITCH and kind is ComponentKind.PORT
            )
            if owned and _scope(edge.a) != _scope(edge.b):
                self._contradict(edge.a, "part", _scope(edge.a), "its id", edge.b, one.source)
                continue
            if whole is ComponentKind.NVDOMAIN:
                known = domain.setdefault(edge.a, (edge.b, one.source))
                if known[0] != edge.b:
                    self._contradict(edge.a, "part", known[0], known[1], edge.b, one.source)
                    continue
            if edge.b in self._parents and self._leads_to(edge.b, edge.a):
                self._contradict(edge.a, "part", "a whole of it", "-", edge.b, one.source)
                continue
            self._part(edge)

    def _part(self, edge: EdgeRecord) -> None:
        key = (edge.a, edge.b, edge.relation)
        if key not in self._edges and edge.a != edge.b:
            self._parents[edge.a].append(edge.b)
            self._edges[key] = edge

    def _leads_to(self, start: ComponentId, goal: ComponentId) -> bool:
        frontier, seen = [start], {start}
        while frontier:
            for parent in self._parents.get(frontier.pop(), ()):
                if parent == goal:
                    return True
                if parent not in seen:
                    seen.add(parent)
                    frontier.append(parent)
        return False

    def _rails(self) -> None:
        """All of a GPU's rails come from the one source that is believed most."""
        of: dict[ComponentId, dict[str, dict[ComponentId, EdgeRecord]]] = defaultdict(lambda: defaultdict(dict))
        for one, edge in self._told(Relation.RAIL, "by_purpose"):
            kinds = (self._records[edge.a].kind, self._records[edge.b].kind)
            if kinds == (ComponentKind.GPU, ComponentKind.NIC):
                of[edge.a][one.source].setdefault(edge.b, edge)
        for gpu, sources in of.items():
            (believed, nics), *others = sources.items()
            for nic, edge in nics.items():
                self._edges[gpu, nic, Relation.RAIL] = edge
            for source, other in others:
                if other.keys() != nics.keys():
                    self._contradict(gpu, "rail", " ".join(sorted(nics)), believed, " ".join(sorted(other)), source)

    def _cables(self) -> None:
        seen: dict[tuple[ComponentId, ComponentId], list[tuple[_Said, EdgeRecord]]] = defaultdict(list)
        for one, edge in (*self._told(Relation.CABLED, "by_identity"), *self._described()):
            if self._records[edge.a].kind in _CABLED and self._records[edge.b].kind in _CABLED:
                seen[(edge.a, edge.b) if edge.a < edge.b else (edge.b, edge.a)].append((one, edge))
        links = self._link_attributes()
        peer: dict[ComponentId, tuple[ComponentId, str]] = {}
        for ends, told in sorted(seen.items(), key=lambda item: (_belief(item[1]), item[0])):
            sources = "+".join(sorted({one.source for one, _ in told}))
            taken = [end for end in ends if end in peer]
            if taken:
                kept, kept_from = peer[taken[0]]
                other = ends[1] if ends[0] == taken[0] else ends[0]
                self._contradict(taken[0], "cable", kept, kept_from, other, sources)
                continue
            for end, far in (ends, ends[::-1]):
                peer[end] = (far, sources)
            attrs = links.get(ends, {})
            for _, edge in reversed(told):
                attrs |= edge.attrs
            self._edges[(*ends, Relation.CABLED)] = EdgeRecord(a=ends[0], b=ends[1], relation=Relation.CABLED, attrs=attrs)

    def _described(self) -> Iterator[tuple[_Said, EdgeRecord]]:
        """Cables of switches that heard who is at the other end and could not tell which component that is. Here it is."""
        for one in self._said:
            told = {end for edge in one.edges if edge.relation is Relation.CABLED for end in (edge.a, edge.b)}
            found: dict[ComponentId, list[ComponentId]] = defaultdict(list)
            for own, record in one.components.items():
                if record.kind is not ComponentKind.PORT or own in told or own not in one.canonical:
                    continue
                words = [record.attrs.get(name, "") for name in ("lldp_port", "lldp_port_descr", "lldp_chassis")]
                if any(words) and (other := self._identity.named(record.attrs.get("lldp_system", ""), words)) is not None:
                    found[other].append(one.canonical[own])
            for other, ports in found.items():
                if len(ports) == 1 and other in self._records and other != ports[0]:  # two ports that hear one name: neither
                    yield one, EdgeRecord(a=ports[0], b=other, relation=Relation.CABLED)

    def _link_attributes(self) -> dict[tuple[ComponentId, ComponentId], dict[str, str]]:
        """What is said of links as such, by their ends."""
        found: dict[tuple[ComponentId, ComponentId], dict[str, str]] = {}
        for one in sorted(self._said, key=lambda each: each.by_identity, reverse=True):
            for own, record in one.components.items():
                if record.kind is ComponentKind.LINK and record.attrs:
                    with contextlib.suppress(ids.InvalidComponentId):
                        a, b = sorted(one.canonical.get(end, end) for end in ids.link_ends(own))
                        found.setdefault((a, b), {}).update(record.attrs)
        return found

    def _contradict(self, component: ComponentId, what: str, kept: str, kept_from: str, other: str, other_from: str) -> None:
        if len(self._contradictions) < CONTRADICTIONS_MAX:
            self._contradictions.append(
                Contradiction(
                    component=component, what=what, kept=kept, kept_from=kept_from, other=other, other_from=other_from
                )
            )


def _belief(told: list[tuple[_Said, EdgeRecord]]) -> tuple[bool, int, float]:
    """Seen before drawn, by many before by few, late before early: the smaller the more."""
    observers = {one.source: one.at for one, _ in told if one.standing is not Standing.DRAWN}
    latest = max(observers.values(), default=max(one.at for one, _ in told))
    return not observers, -len(observers), -latest


def _all_missing(records: list[ComponentRecord]) -> bool:
    return all(each.attrs.get("missing") == "true" for each in records)


def _scope(component: ComponentId) -> str:
    return component.partition(":")[2].partition("/")[0]
