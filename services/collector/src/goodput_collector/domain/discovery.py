"""What a host is made of, from facts gathered in several places, as records of the topology.

Each fact comes from whoever knows it: the PCI tree (what is near what), sysfs (which interface and RDMA device an adapter
is), the GPU driver (UUIDs, NVLink, fabric), LLDP (the switch at the other end), the cloud (rack, pod). Any of them may be
missing; then what follows from it is *left out*, never made up:

* a GPU's index is its place in PCI order, as the driver counts; it keeps it until the next boot, also when a neighbour falls
  off the bus and the driver counts anew without it;
* an adapter's rail is its place in PCI order among those that GPUs use or would use if its driver had come up, and stays its
  own (`pci_tree.numbered`) until one more is found;
* `carries_traffic` is `true` for an adapter that GPUs use and whose port has been up, `false` for one that has no RDMA on
  a host whose GPUs use others, else unknown, unless the setting names training's adapters. A second port of a used card, or
  a member of the same bond, shows no RDMA device of its own (RoCE LAG) and may carry half the traffic: unknown.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from goodput_collector.domain.lldp import NameKind, Neighbour
from goodput_collector.domain.nic_log import pci_name
from goodput_collector.domain.pci_tree import PciDevice, PciKind, attach, numbered
from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, Relation

_CHIPS = {
    (0x15B3, 0x1017): "ConnectX-5", (0x15B3, 0x1019): "ConnectX-5", (0x15B3, 0x101B): "ConnectX-6",
    (0x15B3, 0x101D): "ConnectX-6", (0x15B3, 0x1021): "ConnectX-7", (0x15B3, 0x1023): "ConnectX-8",
    (0x15B3, 0xA2D6): "BlueField-2", (0x15B3, 0xA2DC): "BlueField-3",
    (0x1D0F, 0xEFA0): "EFA", (0x1D0F, 0xEFA1): "EFA", (0x1D0F, 0xEFA2): "EFA", (0x1D0F, 0xEFA3): "EFA",
}  # fmt: skip
_GENERATIONS = {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "8": 3, "16.0": 4, "16": 4, "32.0": 5, "32": 5, "64.0": 6, "64": 6}


@dataclass(frozen=True, slots=True, kw_only=True)
class NicFact:
    """One port of an adapter. `device` is the RDMA device, else the interface; `pci` is its function's full address."""

    device: str
    port: int = 1
    pci: str = ""
    netdev: str = ""
    rdma: str = ""
    mac: str = ""
    guid: str = ""
    link_layer: str = ""
    addr: str = ""
    active: bool | None = None
    master: str = ""  # the bond that the interface is a member of


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFact:
    """What the driver says of one GPU. `links` counts its active NVLinks by where they lead: `switch`, `cpu`, or another
    GPU's PCI address. `cluster` and `clique` are empty where the GPU belongs to no fabric of several hosts."""

    index: int | None = None
    uuid: str = ""
    model: str = ""
    links: Mapping[str, int] = field(default_factory=dict)
    cluster: str = ""
    clique: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything gathered. `gpus` is by PCI address as `ids.normal_pci` writes it, `neighbours` by interface, the last heard
    first; `interfaces` are all that there are, also those without an adapter of their own; `training` are patterns of
    adapter names, none: by nearness."""

    host: str
    host_attrs: Mapping[str, str] = field(default_factory=dict)
    pci: Sequence[PciDevice] = ()
    nics: Sequence[NicFact] = ()
    gpus: Mapping[str, GpuFact] = field(default_factory=dict)
    neighbours: Mapping[str, Neighbour] = field(default_factory=dict)
    interfaces: Collection[str] = ()
    training: Sequence[str] = ()


@dataclass(slots=True)
class Remembered:
    """Numbers once given (by full PCI address), and adapters that have been up. Rails and ups outlive a reboot, indexes do
    not: then the driver counts anew."""

    rails: dict[str, int] = field(default_factory=dict)
    indexes: dict[str, int] = field(default_factory=dict)
    been_up: set[str] = field(default_factory=set)


Records = tuple[tuple[ComponentRecord, ...], tuple[EdgeRecord, ...]]


def draw(inventory: Inventory, remembered: Remembered) -> Records:
    """The host's records; notes in `remembered` what must stay. Records fit together: no id twice, an end has one cable."""
    return _Drawing(inventory, remembered).records()


def ordered(components: Iterable[ComponentRecord], edges: Iterable[EdgeRecord]) -> Records:
    """The same records always in the same order: only then does a digest of them tell whether anything is new."""
    return (
        tuple(sorted(components, key=lambda each: each.id)),
        tuple(sorted(edges, key=lambda each: (each.relation.value, each.a, each.b))),
    )


class _Drawing:
    def __init__(self, inventory: Inventory, remembered: Remembered) -> None:
        self._all = inventory
        self._host = ids.host_id(inventory.host)
        self._remembered = remembered
        self._components: dict[ComponentId, ComponentRecord] = {}
        self._edges: list[EdgeRecord] = []
        self._beside: set[ComponentId] = set()  # adapters on a card, or in a bond, with one that GPUs use
        self._of_kind = {
            kind: sorted((each for each in inventory.pci if each.kind is kind), key=lambda each: each.order)
            for kind in PciKind
        }

    def records(self) -> Records:
        self._put(self._host, self._all.host_attrs)
        gpus = self._gpus()
        nics = self._nics()
        self._nvlink(gpus)
        self._rails(gpus, nics)
        self._cables()
        return ordered(self._components.values(), self._edges)

    def _put(self, component: ComponentId, attrs: Mapping[str, str], *wholes: ComponentId) -> None:
        if component in self._components:
            return
        kept = {name: value for name, value in attrs.items() if value}
        self._components[component] = ComponentRecord(id=component, kind=ids.kind_of(component), attrs=kept)
        self._edges.extend(EdgeRecord(a=component, b=whole, relation=Relation.PART_OF) for whole in wholes)

    # -- devices ------------------------------------------------------------------------------------------------------

    def _gpus(self) -> dict[str, ComponentId]:
        """By full PCI address. The driver's own index is believed where it gives one and nothing has vanished."""
        devices = self._of_kind[PciKind.GPU]
        indexes = self._remembered.indexes
        there = {each.address for each in devices}
        if indexes.keys().isdisjoint(there):
            indexes.clear()
        vanished = indexes.keys() - there
        indexes.update(numbered(there, indexes))
        told = {
            each.address: self._all.gpus[pci_name(each.address)].index
            for each in devices
            if pci_name(each.address) in self._all.gpus
        }
        # a driver that was started anew counts on without the one that is gone: whoever has a number keeps it till then
        if not vanished and None not in told.values() and told.keys() == there:
            indexes.update({address: index for address, index in told.items() if index is not None})
        found = {}
        for device in devices:
            short = pci_name(device.address)
            fact = self._all.gpus.get(short, GpuFact())
            attrs = _pci_attrs(device) | {"uuid": fact.uuid, "chip": fact.model or _chip(device), "nvlinks": _count(fact)}
            component = ids.gpu_id(self._all.host, indexes[device.address])
            self._put(component, attrs, self._host)
            found[device.address] = component
        return found

    def _nics(self) -> dict[str, list[ComponentId]]:
        """By full PCI address: an adapter function may have several ports."""
        devices = {each.address: each for each in self._of_kind[PciKind.NIC]}
        found: dict[str, list[ComponentId]] = {}
        for fact in sorted(self._all.nics, key=lambda each: (each.device, each.port)):
            component = ids.nic_id(self._all.host, fact.device, fact.port)
            device = devices.get(fact.pci)
            attrs = {
                "netdev": fact.netdev, "rdma": fact.rdma, "mac": fact.mac, "guid": fact.guid, "addr": fact.addr,
                "link_layer": fact.link_layer,
            }  # fmt: skip
            if device is not None:
                attrs |= _pci_attrs(device) | {"chip": _chip(device), "pf": pci_name(device.pf) if device.pf else ""}
                found.setdefault(fact.pci, []).append(component)
            if fact.active:
                self._remembered.been_up.add(component)
            self._put(component, attrs, self._host)
        for number, device in enumerate(self._of_kind[PciKind.NVSWITCH]):
            self._put(ids.nvswitch_id(self._all.host, str(number)), _pci_attrs(device), self._host)
        return found

    # -- what belongs together ----------------------------------------------------------------------------------------

    def _nvlink(self, gpus: Mapping[str, ComponentId]) -> None:
        """A domain of the whole fabric where the driver names one, else of this host where GPUs are joined here."""
        switches = [each for each in self._components if each.startswith("nvswitch:")]
        for address, gpu in gpus.items():
            fact = self._all.gpus.get(pci_name(address), GpuFact())
            if fact.cluster:
                name = f"{fact.cluster}.{fact.clique or '0'}"
            elif switches or sum(fact.links.values()):
                name = self._all.host
            else:
                continue
            domain = ids.nvdomain_id(name)
            self._put(domain, {"cluster": fact.cluster, "clique": fact.clique if fact.cluster else ""})
            self._edges.append(EdgeRecord(a=gpu, b=domain, relation=Relation.PART_OF))
            for switch in switches:
                edge = EdgeRecord(a=switch, b=domain, relation=Relation.PART_OF)
                if edge not in self._edges:
                    self._edges.append(edge)

    def _rails(self, gpus: Mapping[str, ComponentId], nics: Mapping[str, list[ComponentId]]) -> None:
        usable = [
            each
            for each in self._of_kind[PciKind.NIC]
            if any(self._components[nic].attrs.get("rdma") for nic in nics.get(each.address, ()))
        ]
        physical = [each for each in usable if not each.pf]
        attached = attach(self._of_kind[PciKind.GPU], physical or usable)
        used = {address for each in attached.values() for address in each.nics}
        rails = self._remembered.rails
        counted = used | self._silent(physical or usable, nics)
        if rails.keys() < counted:
            rails.clear()  # one came up late, and all before it were there: the count that had missed it was wrong
        rails.update(numbered(counted, rails))
        for gpu_address, each in attached.items():
            for address in each.nics:
                for nic in nics[address]:
                    attrs = {"by": each.nearness.name.lower()}
                    self._edges.append(EdgeRecord(a=gpus[gpu_address], b=nic, relation=Relation.RAIL, attrs=attrs))
        on_rail = {nic: rails[address] for address in used for nic in nics[address]}
        bonds = {fact.master for fact in self._all.nics if fact.pci in used and fact.master}
        cards = {_card(address) for address in used}
        self._beside = {
            ids.nic_id(self._all.host, fact.device, fact.port)
            for fact in self._all.nics
            if fact.master in bonds or (fact.pci and _card(fact.pci) in cards)
        }
        for component, record in self._components.items():
            if record.kind is ComponentKind.NIC:
                attrs = {"rail": str(on_rail[component])} if component in on_rail else {}
                if carries := self._carries(record, on_rail):
                    attrs["carries_traffic"] = carries
                self._components[component] = ComponentRecord(id=component, kind=record.kind, attrs=record.attrs | attrs)

    def _carries(self, record: ComponentRecord, on_rail: Mapping[ComponentId, int]) -> str:
        """true, false, or "" where it cannot be known."""
        names = [record.attrs[name] for name in ("rdma", "netdev") if name in record.attrs]
        if self._all.training:
            named = any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in self._all.training)
            return "true" if named else "false"
        if record.id in on_rail:
            return "true" if record.id in self._remembered.been_up else ""
        idle = on_rail and "rdma" not in record.attrs and "pf" not in record.attrs and record.id not in self._beside
        return "false" if idle else ""

    def _silent(self, usable: Sequence[PciDevice], nics: Mapping[str, list[ComponentId]]) -> set[str]:
        """Adapters on the bus of a usable one's model without any driver (their firmware died, say) that GPUs would use:
        each has its number, or the others would be counted wrong."""
        models = {(each.vendor, each.device) for each in usable}
        dead = [
            each
            for each in self._of_kind[PciKind.NIC]
            if not each.pf and each.address not in nics and (each.vendor, each.device) in models
        ]
        if not dead:
            return set()
        attached = attach(self._of_kind[PciKind.GPU], [*usable, *dead])
        return {each.address for each in dead} & {address for each in attached.values() for address in each.nics}

    # -- cables -------------------------------------------------------------------------------------------------------

    def _cables(self) -> None:
        by_netdev = {
            record.attrs["netdev"]: component
            for component, record in self._components.items()
            if record.kind is ComponentKind.NIC and "netdev" in record.attrs
        }
        ends: set[ComponentId] = set()
        for netdev, neighbour in self._all.neighbours.items():
            nic = by_netdev.get(netdev)
            if nic is None:
                if netdev not in self._all.interfaces:
                    continue  # heard before its adapter vanished
                nic = ids.nic_id(self._all.host, netdev)
                self._put(nic, {"netdev": netdev}, self._host)
            for edge in far_end(nic, neighbour, self._put):
                if edge.a != edge.b and ends.isdisjoint((edge.a, edge.b)):  # a host may hear itself over a bridge
                    ends |= {edge.a, edge.b}
                    self._edges.append(edge)


def far_end(nic: ComponentId, neighbour: Neighbour, put: object) -> Iterable[EdgeRecord]:
    """The cable to what LLDP says, and the records of the other end through `put`."""
    assert callable(put)
    name, port = neighbour.name.replace("/", "_"), port_name(neighbour)
    if (
        neighbour.is_station
    ):  # back to back: the other end is a host's adapter, under a name that its own discovery will tell
        other = ids.nic_id(name, port)
        put(other, {"netdev": port if neighbour.port_kind is NameKind.INTERFACE else "", "mac": _mac(neighbour)})
    else:
        switch, other = ids.switch_id(name), ids.port_id(name, port)
        chassis = neighbour.chassis if neighbour.chassis_kind is NameKind.MAC else ""
        put(switch, {"mac": chassis, "addr": next(iter(neighbour.addresses), "")})
        alias = neighbour.port_description if port != neighbour.port_description else neighbour.port
        put(other, {"alias": alias if alias != port else "", "mac": _mac(neighbour)}, switch)
    yield EdgeRecord(a=nic, b=other, relation=Relation.CABLED)


def port_name(neighbour: Neighbour) -> str:
    """What the port is called: as it names itself, but for a MAC address where it also has a describing word."""
    if neighbour.port_kind is NameKind.MAC and neighbour.port_description and "_" not in neighbour.port_description:
        return neighbour.port_description
    return neighbour.port


def _mac(neighbour: Neighbour) -> str:
    return neighbour.port if neighbour.port_kind is NameKind.MAC else ""


def generation(speed: str) -> int:
    """`32.0 GT/s PCIe` -> 5; 0 where it cannot be told."""
    return _GENERATIONS.get(speed.partition(" ")[0], 0)


def pcie_words(speed: str, width: int) -> str:
    """`gen5 x16`; "" where either is unknown."""
    return f"gen{generation(speed)} x{width}" if generation(speed) and 0 < width < 64 else ""


def _pci_attrs(device: PciDevice) -> dict[str, str]:
    return {
        "pci": pci_name(device.address),
        "numa": "" if device.numa is None else str(device.numa),
        "pcie_max": pcie_words(device.speed_max, device.width_max),
    }


def _card(address: str) -> str:
    """All functions of one card have this in common."""
    return address.rpartition(".")[0]


def _chip(device: PciDevice) -> str:
    return _CHIPS.get((device.vendor, device.device), f"{device.vendor:04x}:{device.device:04x}")


def _count(fact: GpuFact) -> str:
    total = sum(fact.links.values())
    return str(total) if total else ""
