"""Who stands at the other end of a switch's ports, as LLDP tells, and what that says of the fabric.

A neighbour says what its system is called, which port this is (an interface's name, or a MAC address with the name as the
description) and, not dependably, what it is: a host that forwards packets for its containers calls itself a router. So a
neighbour is a switch if this collector serves one of that name, a host if it says that it is a station and nothing else.
Otherwise it cannot be told and makes no cable; what it said is kept at the port (`lldp_system`, `lldp_port`, ...), and its
other end may tell of the same cable.

The other end is described by all that is known of it, under the id that its own words make. Which component that is (a NIC
has an RDMA device's name, which LLDP does not know) is found where all sources come together (`goodput_topology.identity`).

LLDP forgets a neighbour two minutes after its last word, and a link that is down carries no words. The cable is still there:
a neighbour is dropped only while its port is up, or when another has taken its place.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from goodput_collector.domain.lldp import clean
from goodput_collector.domain.switch_facts import NeighbourFact, NeighbourGone
from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, Relation, TopologySnapshot
from goodput_topology.graph import Fabric
from goodput_topology.merge import SWITCH_PREFIX
from goodput_topology.snapshot import to_snapshots

NEIGHBOURS_MAX = 4_096
GONE_AFTER_S = 300.0
SETTLE_S = 5.0  # a table comes in pieces
AGAIN_S = 3_600.0
LOOK_S = 30.0  # nothing that was heard calls for a look: only time does
_MAC = re.compile(r"(?i)(?:0x)?" + "[:.-]?".join(["([0-9a-f]{2})"] * 6))
_INTERFACE = re.compile(r"[\w.:/-]{1,31}")
YES = "yes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """As it describes itself; every field may be empty. `station`: says that it only sends and receives; `bridging`: that
    it passes on."""

    system: str = ""
    chassis: str = ""
    port: str = ""
    port_descr: str = ""
    address: str = ""
    station: str = ""
    bridging: str = ""

    def attrs(self) -> dict[str, str]:
        told = {"lldp_system": self.system, "lldp_chassis": self.chassis, "lldp_port": self.port}
        told |= {"lldp_port_descr": self.port_descr, "lldp_address": self.address}
        return {name: value for name, value in told.items() if value}

    def interfaces(self) -> tuple[str, ...]:
        """The names that it may have for the port, the likelier first."""
        named = [each for each in (self.port, self.port_descr) if _INTERFACE.fullmatch(each) and not mac(each)]
        return tuple(dict.fromkeys(clean(each) for each in named))


def mac(words: str) -> str:
    """`0c:42:a1:00:00:0b` from any of the ways to write it; "" where it is none."""
    match = _MAC.fullmatch(words.strip())
    return ":".join(match.groups()).lower() if match else ""


class Directory:
    """The switches that this process serves."""

    def __init__(self, switches: Iterable[str] = ()) -> None:
        self._switches = {short(each): each for each in switches}

    def switch(self, system: str) -> str | None:
        return self._switches.get(short(system)) if system else None


class Neighbours:
    """The neighbours of one switch's ports, and the snapshot that they make."""

    def __init__(self, switch: str, *, fabric: str, directory: Directory) -> None:
        self._switch = switch
        self._fabric = fabric
        self._directory = directory
        self._heard: dict[tuple[str, str], Neighbour] = {}
        # by port: who it is, and since when nothing was heard of it (0: it is heard)
        self._kept: dict[str, tuple[Neighbour, float]] = {}
        self._ports: frozenset[str] = frozenset()
        self._changed_at_s: float | None = None
        self._looked_at_s: float | None = None
        self._told: tuple[tuple[ComponentRecord, ...], tuple[EdgeRecord, ...]] | None = None
        self._told_at_s = 0.0
        self._version = 0

    @property
    def source(self) -> str:
        return f"{SWITCH_PREFIX}{self._switch}"

    def take(self, fact: NeighbourFact | NeighbourGone, monotonic_s: float) -> None:
        self._changed_at_s = monotonic_s
        if isinstance(fact, NeighbourGone):
            for key in [key for key in self._heard if key[0] == fact.port and fact.key in ("", key[1])]:
                del self._heard[key]
            return
        key = (fact.port, fact.key)
        known = self._heard.get(key)
        if known is None and len(self._heard) >= NEIGHBOURS_MAX:
            return
        self._heard[key] = replace(known or Neighbour(), **{fact.field: fact.value})

    def replace_all(self, heard: Mapping[tuple[str, str], Neighbour], monotonic_s: float) -> None:
        """The whole table at once (SNMP)."""
        if heard != self._heard:
            self._heard = dict(list(heard.items())[:NEIGHBOURS_MAX])
            self._changed_at_s = monotonic_s

    def tell(
        self, ports: Mapping[str, str], aliases: Mapping[str, str], now: datetime, monotonic_s: float
    ) -> tuple[TopologySnapshot, ...]:
        """The snapshot when it has changed, and now and then again. `ports` gives each port's operational state, `aliases`
        the ports' own names by other names."""
        if self._ports != ports.keys():
            self._ports, self._changed_at_s = frozenset(ports), monotonic_s
        if self._changed_at_s is not None and monotonic_s - self._changed_at_s < SETTLE_S:
            return ()
        looked_at_s = self._looked_at_s
        fresh = looked_at_s is None or (self._changed_at_s is not None and self._changed_at_s >= looked_at_s)
        if not fresh and looked_at_s is not None and monotonic_s - looked_at_s < LOOK_S:
            return ()
        self._looked_at_s = monotonic_s
        self._keep(ports, monotonic_s)
        if not ports:
            return ()
        records = self._records(ports, aliases)
        if records == self._told and monotonic_s - self._told_at_s < AGAIN_S:
            return ()
        self._told, self._told_at_s = records, monotonic_s
        self._version = max(self._version + 1, int(now.timestamp() * 1000))
        fabric = Fabric.build(self._fabric, *records)
        return to_snapshots(fabric, source=self.source, version=self._version, at=now)

    def _keep(self, ports: Mapping[str, str], monotonic_s: float) -> None:
        """Of several neighbours on a port (a hub, a phone behind a phone) none is *the* other end."""
        on_port = Counter(port for port, _ in self._heard)
        heard = {port: each for (port, _), each in self._heard.items() if on_port[port] == 1 and port in ports}
        for port, each in heard.items():
            self._kept[port] = (each, 0.0)
        for port in [port for port in self._kept if port not in heard]:
            each, silent_since_s = self._kept[port]
            if port not in ports or on_port[port] > 1:
                del self._kept[port]
            elif ports[port] != "up" or not silent_since_s:
                self._kept[port] = (each, monotonic_s)
            elif monotonic_s - silent_since_s >= GONE_AFTER_S:
                del self._kept[port]

    def _records(
        self, ports: Mapping[str, str], aliases: Mapping[str, str]
    ) -> tuple[tuple[ComponentRecord, ...], tuple[EdgeRecord, ...]]:
        draft = _Draft()
        own = draft.add(ids.switch_id(self._switch))
        alias_of = {name: {"alias": alias} for alias, name in sorted(aliases.items())}
        for port in sorted(ports):
            said = self._kept[port][0].attrs() if port in self._kept else {}
            this = draft.add(ids.port_id(self._switch, port), alias_of.get(port, {}) | said)
            draft.part(this, own)
        others = {port: self._other(each) for port, (each, _) in self._kept.items()}
        times = Counter(each[0] for each in others.values() if each is not None)
        for port in sorted(others):
            other = others[port]
            if (
                other is not None and times[other[0]] == 1 and other[0] not in draft.components
            ):  # two claims: neither is sure
                draft.cable(ids.port_id(self._switch, port), *other)
        return tuple(draft.components.values()), tuple(draft.edges)

    def _other(self, neighbour: Neighbour) -> tuple[ComponentId, tuple[tuple[str, str], ...]] | None:
        """The other end's id and what identifies it; None where it cannot be told."""
        interfaces, address = neighbour.interfaces(), mac(neighbour.port)
        identity = {"mac": address} if address else {}
        switch = self._directory.switch(neighbour.system)
        if switch is not None and switch != self._switch and interfaces:
            identity |= {"alias": interfaces[1]} if len(interfaces) > 1 else {}
            return ids.port_id(switch, interfaces[0]), tuple(identity.items())
        host = clean(neighbour.system)
        if switch is None and host and neighbour.station == YES and neighbour.bridging != YES and (interfaces or address):
            identity |= {"netdev": interfaces[0]} if interfaces else {}
            return ids.nic_id(host, interfaces[0] if interfaces else address), tuple(identity.items())
        return None


class _Draft:
    """Records in the making; one is added once."""

    def __init__(self) -> None:
        self.components: dict[ComponentId, ComponentRecord] = {}
        self.edges: list[EdgeRecord] = []

    def add(self, component: ComponentId, attrs: Mapping[str, str] | None = None) -> ComponentId:
        record = ComponentRecord(id=component, kind=ids.kind_of(component), attrs=dict(attrs or {}))
        self.components.setdefault(component, record)
        return component

    def part(self, part: ComponentId, whole: ComponentId) -> None:
        self.edges.append(EdgeRecord(a=part, b=whole, relation=Relation.PART_OF))

    def cable(self, this: ComponentId, other: ComponentId, identity: tuple[tuple[str, str], ...]) -> None:
        scope = other.partition(":")[2].partition("/")[0]
        whole = ids.host_id(scope) if ids.kind_of(other) is ComponentKind.NIC else ids.switch_id(scope)
        self.add(whole)
        self.part(self.add(other, dict(identity)), whole)
        self.edges.append(EdgeRecord(a=min(this, other), b=max(this, other), relation=Relation.CABLED))


def short(system: str) -> str:
    """A system's name without its domain, in lower case; an address stays whole."""
    name = system.strip().lower()
    return name if name.replace(".", "").isdigit() else name.partition(".")[0]
