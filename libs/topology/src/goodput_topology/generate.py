"""Fabrics of any size, with stable names: rail-optimised H100 pods, GB200 NVL72 racks, and the small lab.

*Rail-optimised* means that NIC r of every host in a pod goes to leaf switch r of that pod: ranks with the same local number
talk over one leaf, and a leaf carries exactly one rail. Spines join all leaves. The same arguments always give the same
ids, so a ledger, a recording and a topology file made apart still fit together.

PCI addresses are those of the real machines (a DGX H100; a GB200 compute tray with its four PCI domains), one for each
device of a host: kernel log lines name GPUs and NICs by nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, Relation
from goodput_topology.graph import Fabric

H100_GPU_PCI = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
H100_NIC_PCI = ("18", "40", "4f", "5e", "9a", "c0", "ce", "dc")
GB200_GPU_PCI = ("0008:01:00", "0009:01:00", "0018:01:00", "0019:01:00")
GB200_NIC_PCI = ("0000:03:00", "0002:03:00", "0010:03:00", "0012:03:00")
SPARE_NIC = 8  # RDMA device number of the adapter that is fitted but not provisioned
MANAGEMENT_NETDEV = "eth0"


@dataclass
class _Draft:
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


def _uuid(component: ComponentId) -> str:
    """A GPU UUID that is always the same for the same component."""
    text = hashlib.sha256(component.encode()).hexdigest()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


def _guid(component: ComponentId) -> str:
    return f"0x{hashlib.sha256(component.encode()).hexdigest()[:16]}"


def _addr(rail: int, host: int) -> str:
    """The RoCE address of a NIC: one network a rail."""
    return f"10.{64 + rail}.{host // 250}.{host % 250 + 1}"


def _ethernet(number: int) -> str:
    """SONiC's name of the n-th 8-lane port."""
    return f"Ethernet{number * 8}"


def _side_ports(draft: _Draft, host: str) -> None:
    """The ports that every real host has and no job uses: the management NIC, and an adapter that nobody has cabled."""
    for device, netdev, pci in (
        (MANAGEMENT_NETDEV, MANAGEMENT_NETDEV, "0000:05:00.0"),
        (f"mlx5_{SPARE_NIC}", f"rdma{SPARE_NIC}", "0000:29:00.0"),
    ):
        nic = ids.nic_id(host, device)
        rdma = {"rdma": device} if device != netdev else {}
        draft.add(nic, ids.host_id(host), netdev=netdev, pci=pci, carries_traffic="false", guid=_guid(nic), **rdma)


def _leaves_and_spines(draft: _Draft, leaves: Sequence[tuple[str, int]], spines: Sequence[str], down: int) -> None:
    """Switches, and a cable from every leaf to every spine. `leaves` are (name, rail); ports 0..down-1 of a leaf face
    hosts."""
    for spine in spines:
        draft.add(ids.switch_id(spine), tier="spine")
    for number, (leaf, rail) in enumerate(leaves):
        draft.add(ids.switch_id(leaf), tier="leaf", rail=str(rail))
        for at, spine in enumerate(spines):
            draft.cable(draft.port(leaf, _ethernet(down + at)), draft.port(spine, _ethernet(number)))


def h100_pod(
    hosts: int = 64,
    *,
    pods: int = 1,
    rails: int = 8,
    spines: int = 8,
    name: str = "default",
    prefix: str = "",
    hosts_per_rack: int = 4,
) -> Fabric:
    """`pods` pods of `hosts` hosts with 8 H100 GPUs and `rails` NICs each (8, 4, 2 or 1), under leaves and spines.

    Host names run on over all pods: `h0`, `h1` … . Leaf r of pod p is `leaf-p<p>-r<r>`. `prefix` goes before every
    host, switch and rack name, so that several fabrics can be told apart.
    """
    gpus = len(H100_GPU_PCI)
    if hosts < 1 or pods < 1 or spines < 0 or rails not in (1, 2, 4, 8):
        raise ValueError(
            f"need hosts >= 1, pods >= 1, spines >= 0, rails 1, 2, 4 or 8; got {hosts}, {pods}, {spines}, {rails}"
        )
    draft = _Draft()
    leaves = [(f"{prefix}leaf-p{pod}-r{rail}", rail) for pod in range(pods) for rail in range(rails)]
    _leaves_and_spines(draft, leaves, [f"{prefix}spine-{n}" for n in range(spines)], down=hosts)
    for number in range(hosts * pods):
        pod, slot = divmod(number, hosts)
        host = f"{prefix}h{number}"
        place = {"pod": f"{prefix}pod-{pod}", "rack": f"{prefix}rack-{number // hosts_per_rack}"}
        own = draft.add(ids.host_id(host), chip="H100", **place)
        domain = draft.add(ids.nvdomain_id(host), own, chip="H100")
        for switch in range(4):
            draft.add(ids.nvswitch_id(host, str(switch)), own, domain, pci=f"0000:{6 + switch:02x}:00.0", chip="NVSwitch3")
        nics = []
        for rail in range(rails):
            nic = ids.nic_id(host, f"mlx5_{rail}")
            pci = f"0000:{H100_NIC_PCI[rail * gpus // rails]}:00.0"
            draft.add(
                nic, own, rdma=f"mlx5_{rail}", netdev=f"rdma{rail}", pci=pci, rail=str(rail), carries_traffic="true",
                guid=_guid(nic), addr=_addr(rail, number), chip="ConnectX-7",
            )  # fmt: skip
            draft.cable(nic, draft.port(f"{prefix}leaf-p{pod}-r{rail}", _ethernet(slot)))
            nics.append(nic)
        _side_ports(draft, host)
        for number_in_host, bus in enumerate(H100_GPU_PCI):
            gpu = ids.gpu_id(host, number_in_host)
            draft.add(gpu, own, domain, pci=f"0000:{bus}:00.0", uuid=_uuid(gpu), chip="H100")
            draft.rail(gpu, nics[number_in_host * rails // gpus])
    return draft.fabric(name)


def nvl72(
    racks: int = 1,
    *,
    spines: int = 4,
    racks_per_domain: int = 1,
    racks_per_pod: int = 4,
    name: str = "default",
    prefix: str = "",
) -> Fabric:
    """`racks` GB200 NVL72 racks: 18 compute trays of 4 GPUs and 4 NICs, 9 NVLink switch trays of 2 chips, one NVLink
    domain a rack (`racks_per_domain` = 8 gives domains of 576). Rail r of the trays of a pod of racks goes to leaf r of
    that pod.
    """
    if racks < 1 or racks_per_domain < 1 or racks_per_pod < 1 or spines < 0:
        raise ValueError("need racks, racks_per_domain and racks_per_pod >= 1, spines >= 0")
    draft = _Draft()
    trays, rails = 18, 4
    pods = -(-racks // racks_per_pod)
    leaves = [(f"{prefix}leaf-p{pod}-r{rail}", rail) for pod in range(pods) for rail in range(rails)]
    _leaves_and_spines(draft, leaves, [f"{prefix}spine-{n}" for n in range(spines)], down=trays * racks_per_pod)
    for rack in range(racks):
        domain = ids.nvdomain_id(f"{prefix}nvl-{rack // racks_per_domain}")
        if rack % racks_per_domain == 0:
            draft.add(domain, chip="GB200")
        pod, in_pod = divmod(rack, racks_per_pod)
        place = {"rack": f"{prefix}rack-{rack}", "pod": f"{prefix}pod-{pod}"}
        for tray in range(9):
            for chip in range(2):
                draft.add(
                    ids.nvswitch_id(f"{prefix}rack-{rack}-nvsw{tray}", str(chip)), domain, chip="NVLink5 switch", **place
                )
        for tray in range(trays):
            host = f"{prefix}r{rack}-t{tray}"
            own = draft.add(ids.host_id(host), chip="GB200", **place)
            for rail in range(rails):
                nic, gpu = ids.nic_id(host, f"mlx5_{rail}"), ids.gpu_id(host, rail)
                draft.add(
                    nic, own, rdma=f"mlx5_{rail}", netdev=f"rdma{rail}", pci=f"{GB200_NIC_PCI[rail]}.0", rail=str(rail),
                    carries_traffic="true", guid=_guid(nic), addr=_addr(rail, rack * trays + tray), chip="ConnectX-7",
                )  # fmt: skip
                draft.cable(nic, draft.port(f"{prefix}leaf-p{pod}-r{rail}", _ethernet(in_pod * trays + tray)))
                draft.add(gpu, own, domain, pci=f"{GB200_GPU_PCI[rail]}.0", uuid=_uuid(gpu), chip="GB200")
                draft.rail(gpu, nic)
            _side_ports(draft, host)
    return draft.fabric(name)


def lab(hosts: int = 4, rails: int = 1, *, gpus_per_host: int = 2, name: str = "default") -> Fabric:
    """The real-process lab: hosts `h0` … as network namespaces, rail r a bridge `leaf<r>`, management apart.

    The ranks run on CPUs; `gpu:h0/0` … stand for their devices so that a kernel log line can name one by its PCI address.
    """
    if hosts < 1 or rails < 1 or not 1 <= gpus_per_host <= len(H100_GPU_PCI):
        raise ValueError(f"need hosts >= 1, rails >= 1, 1 to 8 GPUs a host; got {hosts}, {rails}, {gpus_per_host}")
    draft = _Draft()
    for rail in range(rails):
        draft.add(ids.switch_id(f"leaf{rail}"), tier="leaf", rail=str(rail))
    for number in range(hosts):
        host = f"h{number}"
        own = draft.add(ids.host_id(host), chip="lab", rack="lab", pod="lab")
        domain = draft.add(ids.nvdomain_id(host), own, chip="lab")
        for rail in range(rails):
            netdev = f"rail{rail}"
            nic = draft.add(
                ids.nic_id(host, netdev), own, netdev=netdev, rail=str(rail), carries_traffic="true", chip="veth"
            )
            draft.cable(nic, draft.port(f"leaf{rail}", host))
        draft.add(ids.nic_id(host, "mgmt"), own, netdev="mgmt", carries_traffic="false", chip="veth")
        for at in range(gpus_per_host):
            gpu = ids.gpu_id(host, at)
            draft.add(gpu, own, domain, pci=f"0000:{H100_GPU_PCI[at]}:00.0", uuid=_uuid(gpu), chip="lab")
            draft.rail(gpu, ids.nic_id(host, f"rail{at % rails}"))
    return draft.fabric(name)


KINDS = {"h100": h100_pod, "nvl72": nvl72, "lab": lab}


def size(fabric: Fabric) -> dict[str, int]:
    """How many components of each kind, for logs and reports."""
    counts = dict.fromkeys((kind.value for kind in ComponentKind), 0)
    for record in fabric.components.values():
        counts[record.kind.value] += 1
    return {kind: count for kind, count in counts.items() if count}
