"""Flows against the components that they cross.

A flow whose way is known crosses each component on it surely: share 1. Of a flow whose way is not known only the two ends
are; between them routers chose one of several equal-cost ways (ECMP), so a component has the share of those ways that lead
over it. Blame is divided by these shares.

Components that the same flows cross in the same shares cannot be told apart by probes: an adapter, its cable and its switch
port are one *column*. A switch port counts as its link. Links between switches have a column for each direction besides,
for a link may lose one way only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from goodput_common.contracts.ids import ComponentId, ComponentKind, InvalidComponentId, kind_of, link_ends
from goodput_correlator.domain.localise.counted import Counted, Flow
from goodput_correlator.domain.localise.ends import host_behind
from goodput_topology.graph import Fabric

PATH_MAX = 64  # components of one way that are looked at
WAYS_MAX = 64  # equal-cost ways that are looked at one by one
CACHE_MAX = 200_000
KINDS = (ComponentKind.NIC, ComponentKind.LINK, ComponentKind.PORT, ComponentKind.SWITCH, ComponentKind.HOST)

Steps = tuple[ComponentId, ...]
Crossed = dict[str, float]  # component, or component and direction -> share of the flow's ways that lead over it
INTO = " into "  # `<link> into <end>`: a link in one direction


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Components that probes cannot tell apart, and the flows that cross them. `rows` are (row, share) of the bad flows;
    `good` sums, by share, over all flows the probes that fared well."""

    components: tuple[ComponentId, ...]
    into: str = ""  # one direction of a link only: the end that it leads to
    rows: tuple[tuple[int, float], ...]
    good: tuple[tuple[float, int], ...]  # share -> probes that were not lost, of all flows
    clean: tuple[tuple[float, int], ...]  # share -> probes of the flows that lost none
    flows: int  # that may cross it
    weight: float  # the same, by shares
    sent: float  # probes, by shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """`sent` and `bad` are of the bad flows, row by row; `rows` says which flow each is. `lengths` is how many components
    each crosses."""

    columns: tuple[Column, ...]
    rows: tuple[int, ...]
    sent: tuple[int, ...]
    bad: tuple[int, ...]
    lengths: tuple[float, ...]
    of_row: tuple[tuple[tuple[int, float], ...], ...]  # the columns of each row
    sent_in_all: int
    bad_in_all: int
    flows: int


class Ways:
    """What flows cross, by the topology; remembered, for many flows share their ways."""

    def __init__(self, topology: Fabric) -> None:
        self.topology = topology
        self._of: dict[tuple[ComponentId, ComponentId, Steps, Steps], Crossed] = {}
        self._ends: dict[ComponentId, tuple[ComponentId, Crossed]] = {}
        self._suspects: dict[ComponentId, tuple[ComponentId, bool] | None] = {}
        self._directions: dict[tuple[ComponentId, ComponentId], str | None] = {}
        self._between: dict[tuple[ComponentId, ComponentId], Crossed] = {}

    def of(self, flow: Flow | Counted) -> Crossed:
        """The components of a round trip. Not to be changed."""
        key = (flow.prober, flow.target, flow.path, flow.answer_path)
        found = self._of.get(key)
        if found is None:
            if len(self._of) >= CACHE_MAX:
                self._of.clear()
            found = self._of[key] = self.round_trip(flow)
        return found

    def round_trip(self, flow: Flow | Counted) -> Crossed:
        """The same, worked out."""
        prober, own = self._end(flow.prober)
        target, others = self._end(flow.target)
        crossed = self._told((*flow.path, target)) if flow.path else dict(self._possible(prober, target))
        back = self._told((*flow.answer_path, prober)) if flow.answer_path else self._possible(target, prober)
        for each, share in back.items():
            before = crossed.get(each)
            crossed[each] = share if before is None else 1 - (1 - before) * (1 - share)
        crossed.update(own)
        crossed.update(others)
        return crossed

    def _end(self, told: ComponentId) -> tuple[ComponentId, Crossed]:
        """An adapter by the fabric's name, and what all its flows cross: itself, its cable, its host."""
        found = self._ends.get(told)
        if found is None:
            nic = self.topology.canonical(told)
            own = (nic, self.topology.link_of(nic), host_behind(nic))
            found = self._ends[told] = (nic, {each: 1.0 for each in own if each is not None})
        return found

    def _told(self, path: tuple[ComponentId, ...]) -> Crossed:
        return dict.fromkeys(self._walk(path[: PATH_MAX + 1]), 1.0)

    def _possible(self, a: ComponentId, b: ComponentId) -> Crossed:
        """What lies between two adapters, with shares. It is the same for all adapters of the same two leaves."""
        leaves = (self.topology.switch_of(a) or a, self.topology.switch_of(b) or b)
        found = self._between.get(leaves)
        if found is None:
            if len(self._between) >= CACHE_MAX:
                self._between.clear()
            found = self._between[leaves] = self._middle(a, b)
        return found

    def _middle(self, a: ComponentId, b: ComponentId) -> Crossed:
        ways = self.topology.path(a, b, limit=WAYS_MAX)
        own = {a, b, self.topology.link_of(a), self.topology.link_of(b)}
        counts: dict[str, int] = {}
        for way in ways.listed:
            for each in dict.fromkeys(self._walk(way)):
                counts[each] = counts.get(each, 0) + 1
        found = {each: count / len(ways.listed) for each, count in counts.items() if each not in own}
        some = [each for each in sorted(ways.links | ways.switches) if each not in ways.always]
        if ways.truncated and some:  # those not listed lead elsewhere: the mean share of what is on some ways only
            on_one = len(set(self._walk(ways.listed[0])).intersection(some))
            found = {each: 1.0 for each, share in found.items() if share == 1.0} | dict.fromkeys(some, on_one / len(some))
        return found

    def _walk(self, path: Sequence[ComponentId]) -> Iterable[str]:
        """The suspects on one way, ports as their links, links between switches in their direction besides."""
        known, directions = self._suspects, self._directions
        link: ComponentId | None = None  # the step before, where that was one
        for each in path:
            if link is not None:
                if (link, each) not in directions:
                    directions[link, each] = self._into(link, each)
                if (into := directions[link, each]) is not None:
                    yield into
                link = None
            if each not in known:
                known[each] = self._suspect(each)
            if (suspect := known[each]) is None:
                continue
            component, is_link = suspect
            yield component
            if is_link:
                link = component

    def _suspect(self, each: ComponentId) -> tuple[ComponentId, bool] | None:
        """What a step of a way stands for, and whether it is a link itself; None for what is no part of a network."""
        component = self.topology.canonical(each)
        try:
            kind = kind_of(component)
        except InvalidComponentId:
            return None
        if kind is ComponentKind.PORT:
            return self.topology.link_of(component) or component, False
        return (component, kind is ComponentKind.LINK) if kind in KINDS else None

    def _into(self, link: ComponentId, after: ComponentId) -> str | None:
        """A link between switches in the direction of the end that a way leads to, where the next step tells."""
        ends = self.topology.ends_of(link)
        if ends is None:
            try:
                ends = link_ends(link)
            except InvalidComponentId:
                return None
        if any(end.startswith("nic:") for end in ends):
            return None
        far = self.topology.canonical(after)
        into = next((end for end in ends if far in (end, self._switch(end))), None)
        return None if into is None else f"{link}{INTO}{into}"

    def _switch(self, port: ComponentId) -> ComponentId | None:
        if (known := self.topology.switch_of(port)) is not None:
            return known
        kind, _, path = port.partition(":")
        return f"switch:{path.partition('/')[0]}" if kind == ComponentKind.PORT else None


def matrix(crossed: Sequence[Crossed], sent: Sequence[int], bad: Sequence[int]) -> Matrix:
    """Of flows of which `bad[i]` of `sent[i]` probes fared badly. Only what bad flows cross can be to blame: columns are
    made of that alone, but all flows that cross it bear witness."""
    rows = tuple(i for i in range(len(crossed)) if bad[i] > 0 and sent[i] > 0)
    wanted = {component for i in rows for component in crossed[i]}
    cells: dict[str, list[tuple[int, float]]] = {component: [] for component in sorted(wanted)}
    for i, components in enumerate(crossed) if rows else ():
        if sent[i] > 0:
            for component, share in components.items():
                if component in wanted:
                    cells[component].append((i, share))
    groups: dict[tuple[tuple[int, float], ...], list[str]] = {}
    for component, of_component in cells.items():
        groups.setdefault(tuple(of_component), []).append(component)
    number = {flow: row for row, flow in enumerate(rows)}
    columns = tuple(_column(members, group, sent, bad, number) for group, members in groups.items())
    return Matrix(
        columns=columns,
        rows=rows,
        sent=tuple(sent[i] for i in rows),
        bad=tuple(min(bad[i], sent[i]) for i in rows),
        lengths=tuple(sum(share for each, share in crossed[i].items() if INTO not in each) for i in rows),
        of_row=by_row(columns, len(rows)),
        sent_in_all=sum(max(0, n) for n in sent),
        bad_in_all=sum(bad[i] for i in rows),
        flows=len(crossed),
    )


def _column(
    members: list[str], group: tuple[tuple[int, float], ...], sent: Sequence[int], bad: Sequence[int], number: dict[int, int]
) -> Column:
    components, into = told_apart(members)
    good: dict[float, int] = {}
    clean: dict[float, int] = {}
    flows: dict[float, int] = {}
    crossed: dict[float, int] = {}
    for i, share in group:
        good[share] = good.get(share, 0) + sent[i] - bad[i]
        flows[share] = flows.get(share, 0) + 1
        crossed[share] = crossed.get(share, 0) + sent[i]
        if not bad[i]:
            clean[share] = clean.get(share, 0) + sent[i]
    return Column(
        components=components,
        into=into,
        rows=tuple((number[i], share) for i, share in group if i in number),
        good=tuple(sorted(good.items())),
        clean=tuple(sorted(clean.items())),
        flows=len(group),
        weight=sum(share * n for share, n in sorted(flows.items())),
        sent=sum(share * n for share, n in sorted(crossed.items())),
    )


def by_row(columns: Sequence[Column], rows: int) -> tuple[tuple[tuple[int, float], ...], ...]:
    """For each row the columns that it crosses, with the share."""
    found: list[list[tuple[int, float]]] = [[] for _ in range(rows)]
    for at, column in enumerate(columns):
        for row, share in column.rows:
            found[row].append((at, share))
    return tuple(map(tuple, found))


def told_apart(members: Sequence[str]) -> tuple[tuple[ComponentId, ...], str]:
    """The components of one column, and the end that it leads to where it is one direction of a link and no more."""
    whole = tuple(each for each in members if INTO not in each)
    links = [each.partition(INTO) for each in members]
    into = links[0][2] if not whole and len(links) == 1 else ""
    return whole or tuple(dict.fromkeys(link for link, _, _ in links)), into
