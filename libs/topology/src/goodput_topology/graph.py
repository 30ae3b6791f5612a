"""`Fabric`: everything that is known about how one region is put together, as an immutable index.

Hosts hold GPUs and NICs; GPUs of a host (or of a rack) share an NVLink domain; each GPU uses a NIC on its *rail*; a cable (a
link) joins the NIC to a switch port; switches form leaf, spine and core tiers. Diagnosis asks the same few questions all the
time: whose PCI address is this, which link hangs on that NIC, which hosts are behind that port, which switches lie
between two ranks. They are answered here in microseconds, from records that `build.index` has checked.

A thing that the fabric does not know is answered by None or by an empty tuple, never by an exception: a graph is often
partial, and "unknown" must stay distinguishable from "broken".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, Relation, TopologySnapshot
from goodput_topology.build import Index, index
from goodput_topology.merge import Contradiction, merge
from goodput_topology.paths import PATHS_LISTED, Paths, Router

NEIGHBOURS_MAX = 10_000
KNOWN_AS_MAX = 500_000
_TIERS = {"leaf": 1, "spine": 2, "core": 3}


class Fabric:
    """One region's graph. Make it by `Fabric.build`, never by the constructor; it cannot be changed afterwards."""

    __slots__ = ("_below", "_index", "_known_as", "_router", "contradictions", "name")

    def __init__(self, name: str, checked: Index, contradictions: tuple[Contradiction, ...] = ()) -> None:
        self.name = name
        self.contradictions = contradictions  # what sources say differently, with what was believed
        self._index = checked
        self._router = Router(checked)
        self._below: dict[ComponentId, tuple[ComponentId, ...]] = {}  # filled on demand: switch -> nics beneath
        self._known_as: dict[ComponentId, ComponentId] = {}  # and what foreign names stand for

    @classmethod
    def build(cls, name: str, components: Iterable[ComponentRecord], edges: Iterable[EdgeRecord]) -> Fabric:
        """Raises `goodput_topology.build.InvalidFabric`, naming each record that does not fit."""
        return cls(name, index(name, components, edges))

    @classmethod
    def empty(cls, name: str) -> Fabric:
        return cls.build(name, (), ())

    @classmethod
    def from_snapshots(cls, name: str, snapshots: Iterable[TopologySnapshot]) -> Fabric:
        """From all parts of one or more sources' snapshots, by the rules of `goodput_topology.merge`: sources that differ
        make contradictions, not errors. Raises `build.InvalidFabric` only for a single source that contradicts itself."""
        merged = merge(snapshots)
        return cls(name, index(name, merged.components, merged.edges), merged.contradictions)

    # ------------------------------------------------------------------------------------------------- records

    @property
    def components(self) -> Mapping[ComponentId, ComponentRecord]:
        """Every component by id, links included."""
        return self._index.records

    @property
    def edges(self) -> tuple[EdgeRecord, ...]:
        return self._index.edges

    def __len__(self) -> int:
        return len(self._index.records)

    def __contains__(self, component: object) -> bool:
        return component in self._index.records

    def __repr__(self) -> str:
        return f"Fabric({self.name!r}, {len(self)} components)"

    def component(self, component: ComponentId) -> ComponentRecord | None:
        return self._index.records.get(component)

    def attr(self, component: ComponentId, name: str, default: str = "") -> str:
        record = self._index.records.get(component)
        return default if record is None else record.attrs.get(name, default)

    def of_kind(self, kind: ComponentKind) -> Iterator[ComponentId]:
        return (each for each, record in self._index.records.items() if record.kind is kind)

    def hosts(self) -> tuple[str, ...]:
        return tuple(each.partition(":")[2] for each in self.of_kind(ComponentKind.HOST))

    def carries_traffic(self, component: ComponentId) -> bool | None:
        """False for management and unprovisioned ports; None when the fabric does not say. A link carries what both its
        ends do."""
        record = self._index.records.get(component)
        if record is None:
            return None
        if record.kind is ComponentKind.LINK:
            ends = [self.carries_traffic(end) for end in self._index.ends_of[component]]
            return False if False in ends else None if None in ends else True
        said = record.attrs.get("carries_traffic")
        return None if said is None else said == "true"

    # ------------------------------------------------------------------------------------------------- names

    def resolve(self, host: str | None, alias: str) -> ComponentId | None:
        """The component that `alias` names on `host` (or on a switch, by its name): PCI address, netdev, RDMA device, UUID,
        GUID, port name. Without a host only UUIDs and GUIDs resolve. None when unknown, and when two components fit."""
        return self._index.aliases.find(host, alias)

    def canonical(self, component: ComponentId) -> ComponentId:
        """The fabric's own id for an id made from an alias (`gpu:h7/0000:9b:00` -> `gpu:h7/3`, a NIC by its netdev);
        the id as given when the fabric does not know better."""
        if component in self._index.records:
            return component
        found = self._known_as.get(component)
        if found is None:
            found = self._canonical(component)
            if len(self._known_as) < KNOWN_AS_MAX:
                self._known_as[component] = found
        return found

    def _canonical(self, component: ComponentId) -> ComponentId:
        try:
            kind, path = ids.parse(component)
        except ids.InvalidComponentId:
            return component
        host, _, rest = path.partition("/")
        if kind is ComponentKind.LINK:
            first, second = ids.link_ends(component)
            return ids.link_id(self.canonical(first), self.canonical(second))
        if kind is ComponentKind.NIC:
            rest = rest.rpartition("/")[0] or rest
        found = self.resolve(host, rest) if rest else None
        return found if found is not None and ids.kind_of(found) is kind else component

    # ------------------------------------------------------------------------------------------------- parts

    def part_of(self, component: ComponentId) -> tuple[ComponentId, ...]:
        return self._index.parents.get(component, ())

    def parts(self, component: ComponentId, kind: ComponentKind | None = None) -> tuple[ComponentId, ...]:
        children = self._index.children.get(component, ())
        return children if kind is None else tuple(each for each in children if self._index.records[each].kind is kind)

    def gpus_of_host(self, host: str) -> tuple[ComponentId, ...]:
        return self.parts(ids.host_id(host), ComponentKind.GPU)

    def nics_of_host(self, host: str) -> tuple[ComponentId, ...]:
        return self.parts(ids.host_id(host), ComponentKind.NIC)

    def nics_of_gpu(self, gpu: ComponentId) -> tuple[ComponentId, ...]:
        """The NICs on the GPU's rail."""
        return self._index.nics_of_gpu.get(gpu, ())

    def gpus_of_nic(self, nic: ComponentId) -> tuple[ComponentId, ...]:
        return self._index.gpus_of_nic.get(nic, ())

    def nvdomain_of(self, component: ComponentId) -> ComponentId | None:
        """The NVLink domain of a GPU or NVSwitch."""
        return next((each for each in self.part_of(component) if each.startswith("nvdomain:")), None)

    def gpus_of_nvdomain(self, domain: ComponentId) -> tuple[ComponentId, ...]:
        return self.parts(domain, ComponentKind.GPU)

    # ------------------------------------------------------------------------------------------------- cables

    def link_of(self, end: ComponentId) -> ComponentId | None:
        return self._index.link_of.get(end)

    def ends_of(self, link: ComponentId) -> tuple[ComponentId, ComponentId] | None:
        return self._index.ends_of.get(link)

    def peer_of(self, end: ComponentId) -> ComponentId | None:
        """What is at the other end of the cable."""
        ends = self._index.ends_of.get(self._index.link_of.get(end, ""))
        return None if ends is None else ends[1] if ends[0] == end else ends[0]

    def links_of_host(self, host: str) -> tuple[ComponentId, ...]:
        found = (self._index.link_of.get(nic) for nic in self.nics_of_host(host))
        return tuple(link for link in found if link is not None)

    def links_of_switch(self, switch: ComponentId) -> tuple[ComponentId, ...]:
        found = (self._index.link_of.get(port) for port in self.ports_of_switch(switch))
        return tuple(link for link in found if link is not None)

    def switch_of(self, port_or_nic: ComponentId) -> ComponentId | None:
        """The switch of a port; for a NIC the switch that it is cabled to."""
        port = port_or_nic if port_or_nic in self._index.switch_of_port else self.peer_of(port_or_nic)
        return None if port is None else self._index.switch_of_port.get(port)

    def ports_of_switch(self, switch: ComponentId) -> tuple[ComponentId, ...]:
        return self.parts(switch, ComponentKind.PORT)

    def path(self, a: ComponentId, b: ComponentId, *, limit: int = PATHS_LISTED) -> Paths:
        """All equal-cost paths between two ends (nics or ports); see `paths.Paths`."""
        return self._router.between(a, b, limit)

    # ------------------------------------------------------------------------------------------------- consequence

    def nics_behind(self, component: ComponentId) -> tuple[ComponentId, ...]:
        """The NICs whose traffic may depend on a switch, port, link or NIC: for a spine all beneath it, for an uplink all
        beneath its lower end."""
        record = self._index.records.get(component)
        if record is None:
            return ()
        if record.kind is ComponentKind.NIC:
            return (component,)
        if record.kind is ComponentKind.SWITCH:
            return self._nics_below(component)
        if record.kind is ComponentKind.PORT:
            link = self._index.link_of.get(component)
            return () if link is None else self.nics_behind(link)
        if record.kind is not ComponentKind.LINK:
            return ()
        ends = self._index.ends_of[component]
        nics = tuple(end for end in ends if self._index.records[end].kind is ComponentKind.NIC)
        if nics:
            return nics
        switches = sorted(
            (self._index.switch_of_port[end] for end in ends if end in self._index.switch_of_port), key=self._tier
        )
        return self._nics_below(switches[0]) if switches else ()

    def gpus_behind(self, component: ComponentId) -> tuple[ComponentId, ...]:
        """The GPUs that a component carries: itself, a host's, a domain's, those on the rail of a NIC, link, port or
        switch."""
        record = self._index.records.get(component)
        if record is None:
            return ()
        if record.kind is ComponentKind.GPU:
            return (component,)
        if record.kind in (ComponentKind.HOST, ComponentKind.NVDOMAIN):
            return self.parts(component, ComponentKind.GPU)
        if record.kind is ComponentKind.NVSWITCH:
            domain = self.nvdomain_of(component)
            return () if domain is None else self.gpus_of_nvdomain(domain)
        return tuple(dict.fromkeys(gpu for nic in self.nics_behind(component) for gpu in self.gpus_of_nic(nic)))

    def hosts_behind(self, component: ComponentId) -> tuple[str, ...]:
        """The hosts that lose something when `component` fails."""
        try:
            own = ids.host_of(component)
        except ids.InvalidComponentId:
            return ()
        if own is not None and ids.host_id(own) in self._index.records:
            return (own,)
        behind = self.gpus_behind(component) + self.nics_behind(component)
        return tuple(dict.fromkeys(host for each in behind if (host := ids.host_of(each)) is not None))

    def failure_domains(self, component: ComponentId) -> tuple[ComponentId, ...]:
        """What else may be to blame when `component` (a GPU, NIC or host) is cut off, nearest first: its host, NVLink
        domain, NICs, links, ports, switches up to the spines."""
        found: dict[ComponentId, None] = {}
        record = self._index.records.get(component)
        if record is None:
            return ()
        for parent in self.part_of(component):
            found[parent] = None
        nics = {
            ComponentKind.NIC: (component,),
            ComponentKind.GPU: self.nics_of_gpu(component),
            ComponentKind.HOST: self.parts(component, ComponentKind.NIC),
        }.get(record.kind, ())
        leaves: dict[ComponentId, None] = {}
        for nic in nics:
            for each in (nic, self.link_of(nic), self.peer_of(nic)):
                if each is not None and each != component:
                    found[each] = None
            if (leaf := self.switch_of(nic)) is not None:
                leaves[leaf] = None
        found.update(leaves)
        for leaf in leaves:
            found.update(dict.fromkeys(self._router.next_to(leaf)))
        return tuple(found)

    def shared_domains(self, components: Iterable[ComponentId]) -> tuple[ComponentId, ...]:
        """The failure domains common to all, nearest first: one of them explains all of them at once."""
        each_has = [(each, *self.failure_domains(each)) for each in components]
        if not each_has:
            return ()
        common = set(each_has[0]).intersection(*each_has[1:])
        return tuple(each for each in each_has[0] if each in common)

    def neighbours(self, component: ComponentId, relation: Relation | None = None) -> tuple[ComponentId, ...]:
        """What is one step away. A link counts as a step of its own between its two ends."""
        steps: dict[ComponentId, None] = {}
        if relation in (None, Relation.PART_OF):
            steps.update(dict.fromkeys(self.part_of(component)))
            steps.update(dict.fromkeys(self.parts(component)))
        if relation in (None, Relation.CABLED):
            if (link := self.link_of(component)) is not None:
                steps[link] = None
            steps.update(dict.fromkeys(self.ends_of(component) or ()))
        if relation in (None, Relation.RAIL):
            steps.update(dict.fromkeys(self.nics_of_gpu(component)))
            steps.update(dict.fromkeys(self.gpus_of_nic(component)))
        return tuple(steps)

    def neighbourhood(self, component: ComponentId, distance: int, *, limit: int = NEIGHBOURS_MAX) -> dict[ComponentId, int]:
        """Every component within `distance` steps, with its distance, nearest first; stops at `limit` components."""
        if component not in self._index.records:
            return {}
        found = {component: 0}
        frontier = [component]
        for steps in range(1, distance + 1):
            after = []
            for near in frontier:
                for far in self.neighbours(near):
                    if far not in found:
                        if len(found) >= limit:
                            return found
                        found[far] = steps
                        after.append(far)
            frontier = after
        return found

    def subgraph(self, components: Iterable[ComponentId]) -> Fabric:
        """The fabric under some components only (what a tenant may see): edges between them stay, others go."""
        kept = set(components)
        return Fabric.build(
            self.name,
            [r for each, r in self._index.records.items() if each in kept and r.kind is not ComponentKind.LINK],
            [edge for edge in self._index.edges if edge.a in kept and edge.b in kept],
        )

    # ------------------------------------------------------------------------------------------------- private

    def _tier(self, switch: ComponentId) -> int:
        return _TIERS.get(self._index.records[switch].attrs.get("tier", ""), 0)

    def _nics_below(self, switch: ComponentId) -> tuple[ComponentId, ...]:
        found = self._below.get(switch)
        if found is None:
            own = (self.peer_of(port) for port in self.ports_of_switch(switch))
            nics = dict.fromkeys(
                each for each in own if each is not None and self._index.records[each].kind is ComponentKind.NIC
            )
            for far in self._router.next_to(switch):
                if self._tier(far) < self._tier(switch):
                    nics.update(dict.fromkeys(self._nics_below(far)))
            found = self._below[switch] = tuple(nics)
        return found
