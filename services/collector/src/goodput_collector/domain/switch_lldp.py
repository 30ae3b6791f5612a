"""Who stands at the other end of a switch's ports, as LLDP tells, and what that says of the fabric.

A neighbour says what its system is called, which chassis it is (mostly a MAC address) and which port this is (an
interface's name, or a MAC address). What it does not say is a component id. So the other end is looked up: another switch by
its name and its port's, a NIC by the host's name and the interface's, or by a MAC address, in what is known of the fabric. A
neighbour that cannot be told for certain makes no cable; what it said is kept at the port (`lldp_system`, `lldp_port`, ...),
where whoever knows more can look it up later.

LLDP forgets a neighbour two minutes after its last word, and a link that is down carries no words. The cable is still there:
a neighbour is dropped only while its port is up, or when another has taken its place.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from goodput_collector.domain.switch_facts import NeighbourFact, NeighbourGone
from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, Relation, TopologySnapshot
from goodput_topology.graph import Fabric
from goodput_topology.snapshot import to_snapshots

NEIGHBOURS_MAX = 4_096
GONE_AFTER_S = 300.0
SETTLE_S = 5.0  # a table comes in pieces
AGAIN_S = 3_600.0
_MAC = re.compile(r"(?i)(?:0x)?" + "[:.-]?".join(["([0-9a-f]{2})"] * 6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    system: str = ""
    chassis: str = ""
    chassis_type: str = ""
    port: str = ""
    port_type: str = ""
    port_descr: str = ""
    address: str = ""

    def attrs(self) -> dict[str, str]:
        told = {"lldp_system": self.system, "lldp_chassis": self.chassis, "lldp_port": self.port}
        told |= {"lldp_port_descr": self.port_descr, "lldp_address": self.address}
        return {name: value for name, value in told.items() if value}


def mac(words: str) -> str:
    """`0c:42:a1:00:00:0b` from any of the ways to write it; "" where it is none."""
    match = _MAC.fullmatch(words.strip())
    return ":".join(match.groups()).lower() if match else ""


class Directory:
    """What is known of other ends: the switches of this process, which tell their ports as they learn them, and a drawn
    fabric where there is one. Shared by all readers; each writes its own entry, whole."""

    def __init__(self, fabric: Fabric | None = None) -> None:
        self._switches: dict[str, dict[str, str]] = {}
        self._spelled: dict[str, str] = {}
        self._fabric = fabric
        self._hosts: dict[str, str] = {}
        self._macs: dict[str, ComponentId | None] = {}
        for record in fabric.components.values() if fabric is not None else ():
            path = record.id.partition(":")[2]
            if record.kind is ComponentKind.HOST:
                self._hosts[short(path)] = path
            elif record.kind is ComponentKind.SWITCH:
                self._spelled[short(path)] = path
            elif record.kind in (ComponentKind.NIC, ComponentKind.PORT):
                for attr in ("mac", "addr", "guid"):
                    for each in _macs_of(record.attrs.get(attr, "")):
                        if self._macs.setdefault(each, record.id) != record.id:
                            self._macs[each] = None  # two of them: cannot tell

    def expect(self, switch: str) -> None:
        """A switch of this name is served here."""
        self._spelled[short(switch)] = switch
        self._switches.setdefault(switch, {})

    def learn(self, switch: str, names: Mapping[str, str]) -> None:
        """All names that a switch uses for its ports, each with the port's own name."""
        self._switches[switch] = dict(names)

    def find(self, neighbour: Neighbour) -> ComponentId | None:
        """None where it cannot be told."""
        switch = self._spelled.get(short(neighbour.system)) if neighbour.system else None
        if switch is not None:
            return self._port(switch, neighbour)
        host = self._hosts.get(short(neighbour.system)) if neighbour.system else None
        if host is not None and self._fabric is not None:
            for said in (neighbour.port, neighbour.port_descr):
                found = self._fabric.resolve(host, said) if said else None
                if found is not None and ids.kind_of(found) is ComponentKind.NIC:
                    return found
        return self._macs.get(mac(neighbour.port) or "-") or self._macs.get(mac(neighbour.chassis) or "-")

    def _port(self, switch: str, neighbour: Neighbour) -> ComponentId | None:
        known = self._switches.get(switch, {})
        for said in (neighbour.port, neighbour.port_descr):
            if said in known:
                return ids.port_id(switch, known[said])
            if self._fabric is not None and said and ids.port_id(switch, said) in self._fabric:
                return ids.port_id(switch, said)
        return None


class Neighbours:
    """The neighbours of one switch's ports, and the snapshot that they make."""

    def __init__(self, switch: str, *, fabric: str, directory: Directory) -> None:
        self._switch = switch
        self._fabric = fabric
        self._directory = directory
        self._heard: dict[tuple[str, str], Neighbour] = {}
        self._kept: dict[
            str, tuple[Neighbour, float]
        ] = {}  # by port: who it is, and since when nothing was heard (0: heard)
        self._ports: frozenset[str] = frozenset()
        self._changed_at_s: float | None = None
        self._told: tuple[tuple[ComponentRecord, ...], tuple[EdgeRecord, ...]] | None = None
        self._told_at_s = 0.0
        self._version = 0

    @property
    def source(self) -> str:
        return f"lldp-{self._switch}"

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

    def tell(self, ports: Mapping[str, str], now: datetime, monotonic_s: float) -> tuple[TopologySnapshot, ...]:
        """The snapshot when it has changed, and now and then again. `ports` gives each port's operational state."""
        if self._ports != ports.keys():
            self._ports, self._changed_at_s = frozenset(ports), monotonic_s
        if self._changed_at_s is not None and monotonic_s - self._changed_at_s < SETTLE_S:
            return ()
        self._keep(ports, monotonic_s)
        records = self._records(ports)
        known = self._told
        if not records[0] or (records == known and monotonic_s - self._told_at_s < AGAIN_S):
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

    def _records(self, ports: Mapping[str, str]) -> tuple[tuple[ComponentRecord, ...], tuple[EdgeRecord, ...]]:
        own = ids.switch_id(self._switch)
        components = {own: ComponentRecord(id=own, kind=ComponentKind.SWITCH)}
        edges: list[EdgeRecord] = []
        found = {port: self._directory.find(each) for port, (each, _) in self._kept.items()}
        times = Counter(found.values())
        for port in sorted(ports):
            this = ids.port_id(self._switch, port)
            neighbour = self._kept[port][0] if port in self._kept else Neighbour()
            components[this] = ComponentRecord(id=this, kind=ComponentKind.PORT, attrs=neighbour.attrs())
            edges.append(EdgeRecord(a=this, b=own, relation=Relation.PART_OF))
        for port in sorted(found):
            other, this = found[port], ids.port_id(self._switch, port)
            if other is None or times[other] > 1 or other in components:
                continue
            components[other] = ComponentRecord(id=other, kind=ids.kind_of(other))
            if ids.kind_of(other) is ComponentKind.PORT:
                switch = ids.switch_id(other.partition(":")[2].partition("/")[0])
                components.setdefault(switch, ComponentRecord(id=switch, kind=ComponentKind.SWITCH))
                edges.append(EdgeRecord(a=other, b=switch, relation=Relation.PART_OF))
            edges.append(EdgeRecord(a=min(this, other), b=max(this, other), relation=Relation.CABLED))
        return tuple(components.values()), tuple(edges)


def short(system: str) -> str:
    """A system's name without its domain, in lower case; an address stays whole."""
    name = system.strip().lower()
    return name if name.replace(".", "").isdigit() else name.partition(".")[0]


def _macs_of(attr: str) -> tuple[str, ...]:
    """The MAC address that an attribute holds: as such, or inside a GUID, where NIC makers put two bytes in its middle."""
    if found := mac(attr):
        return (found,)
    digits = re.sub(r"[:.-]|^0x", "", attr.lower())
    if len(digits) == 16 and digits[6:10] in ("fffe", "0003", "0300"):
        return (mac(digits[:6] + digits[10:]),)
    return ()
