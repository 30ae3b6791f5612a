"""Records as a generator makes them, and what all generated hosts have in common: names, addresses, PCI slots.

PCI addresses are those of the real machines (a DGX H100; a GB200 compute tray with its four PCI domains), one for each
device of a host: kernel log lines name GPUs and NICs by nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, Relation
from goodput_topology.graph import Fabric

H100_GPU_PCI = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
H100_NIC_PCI = ("18", "40", "4f", "5e", "9a", "c0", "ce", "dc")
GB200_GPU_PCI = ("0008:01:00", "0009:01:00", "0018:01:00", "0019:01:00")
GB200_NIC_PCI = ("0000:03:00", "0002:03:00", "0010:03:00", "0012:03:00")
SPARE_NIC = 8  # RDMA device number of the adapter that is fitted but not provisioned
MANAGEMENT_NETDEV = "eth0"


@dataclass
class Draft:
    """Records as they are made."""

    components: list[ComponentRecord] = field(default_factory=list)
    edges: list[EdgeRecord] = field(default_factory=list)

    def add(self, component: ComponentId, *parents: ComponentId, **attrs: str) -> ComponentId:
        self.components.append(ComponentRecord(id=component, kind=ids.kind_of(component), attrs=attrs))
        self.edges.extend(EdgeRecord(a=component, b=parent, relation=Relation.PART_OF) for parent in parents)
        return component

    def cable(self, a: ComponentId, b: ComponentId) -> None:
        self.edges.append(EdgeRecord(a=a, b=b, relation=Relation.CABLED))

    def rail(self, gpu: ComponentId, nic: ComponentId) -> None:
        self.edges.append(EdgeRecord(a=gpu, b=nic, relation=Relation.RAIL))

    def port(self, switch: str, interface: str, carries: str = "true") -> ComponentId:
        return self.add(ids.port_id(switch, interface), ids.switch_id(switch), carries_traffic=carries)

    def fabric(self, name: str) -> Fabric:
        return Fabric.build(name, self.components, self.edges)


def uuid_of(component: ComponentId) -> str:
    """A GPU UUID that is always the same for the same component."""
    text = hashlib.sha256(component.encode()).hexdigest()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


def guid_of(component: ComponentId) -> str:
    return f"0x{hashlib.sha256(component.encode()).hexdigest()[:16]}"


def addr_of(rail: int, host: int) -> str:
    """The RoCE address of a NIC: one network a rail."""
    return f"10.{64 + rail}.{host // 250}.{host % 250 + 1}"


def ethernet(number: int) -> str:
    """SONiC's name of the n-th 8-lane port."""
    return f"Ethernet{number * 8}"


def side_ports(draft: Draft, host: str) -> None:
    """The ports that every real host has and no job uses: the management NIC, and an adapter that nobody has cabled."""
    for device, netdev, pci in (
        (MANAGEMENT_NETDEV, MANAGEMENT_NETDEV, "0000:05:00.0"),
        (f"mlx5_{SPARE_NIC}", f"rdma{SPARE_NIC}", "0000:29:00.0"),
    ):
        nic = ids.nic_id(host, device)
        rdma = {"rdma": device} if device != netdev else {}
        draft.add(nic, ids.host_id(host), netdev=netdev, pci=pci, carries_traffic="false", guid=guid_of(nic), **rdma)


def leaves_and_spines(draft: Draft, leaves: Sequence[tuple[str, int]], spines: Sequence[str], down: int) -> None:
    """Switches, and a cable from every leaf to every spine. `leaves` are (name, rail); ports 0..down-1 of a leaf face
    hosts."""
    for spine in spines:
        draft.add(ids.switch_id(spine), tier="spine")
    for number, (leaf, rail) in enumerate(leaves):
        draft.add(ids.switch_id(leaf), tier="leaf", rail=str(rail))
        for at, spine in enumerate(spines):
            draft.cable(draft.port(leaf, ethernet(down + at)), draft.port(spine, ethernet(number)))


def h100_host(
    draft: Draft,
    host: str,
    nics: int,
    number: int,
    place: dict[str, str],
    port: Callable[[int], ComponentId],
    *,
    rails: bool = True,
) -> None:
    """A host with 8 H100 GPUs behind four NVSwitches and `nics` NICs (8, 4, 2 or 1), GPUs shared out among them in PCI
    order. `port(n)` makes the switch port that NIC n is cabled to. `rails` False: NICs are equals, none belongs to a
    rail."""
    gpus = len(H100_GPU_PCI)
    own = draft.add(ids.host_id(host), chip="H100", **place)
    domain = draft.add(ids.nvdomain_id(host), own, chip="H100")
    for switch in range(4):
        draft.add(ids.nvswitch_id(host, str(switch)), own, domain, pci=f"0000:{6 + switch:02x}:00.0", chip="NVSwitch3")
    made = []
    for n in range(nics):
        nic = ids.nic_id(host, f"mlx5_{n}")
        rail = {"rail": str(n)} if rails else {}
        draft.add(
            nic, own, rdma=f"mlx5_{n}", netdev=f"rdma{n}", pci=f"0000:{H100_NIC_PCI[n * gpus // nics]}:00.0", **rail,
            carries_traffic="true", guid=guid_of(nic), addr=addr_of(n, number), chip="ConnectX-7",
        )  # fmt: skip
        draft.cable(nic, port(n))
        made.append(nic)
    side_ports(draft, host)
    for n, bus in enumerate(H100_GPU_PCI):
        gpu = ids.gpu_id(host, n)
        draft.add(gpu, own, domain, pci=f"0000:{bus}:00.0", uuid=uuid_of(gpu), chip="H100")
        draft.rail(gpu, made[n * nics // gpus])
