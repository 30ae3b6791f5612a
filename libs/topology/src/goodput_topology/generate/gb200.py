"""GB200 racks: NVLink domains of 72 GPUs in a rack, or of 576 over eight of them."""

from __future__ import annotations

from goodput_common.contracts import ids
from goodput_topology.generate.draft import (
    GB200_GPU_PCI,
    GB200_NIC_PCI,
    Draft,
    addr_of,
    ethernet,
    guid_of,
    leaves_and_spines,
    side_ports,
    uuid_of,
)
from goodput_topology.graph import Fabric

RACKS_OF_576 = 8


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
    draft = Draft()
    trays, rails = 18, 4
    pods = -(-racks // racks_per_pod)
    leaves = [(f"{prefix}leaf-p{pod}-r{rail}", rail) for pod in range(pods) for rail in range(rails)]
    leaves_and_spines(draft, leaves, [f"{prefix}spine-{n}" for n in range(spines)], down=trays * racks_per_pod)
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
                    carries_traffic="true", guid=guid_of(nic), addr=addr_of(rail, rack * trays + tray), chip="ConnectX-7",
                )  # fmt: skip
                draft.cable(nic, draft.port(f"{prefix}leaf-p{pod}-r{rail}", ethernet(in_pod * trays + tray)))
                draft.add(gpu, own, domain, pci=f"{GB200_GPU_PCI[rail]}.0", uuid=uuid_of(gpu), chip="GB200")
                draft.rail(gpu, nic)
            side_ports(draft, host)
    return draft.fabric(name)


def nvl576(domains: int = 1, *, spines: int = 4, racks_per_pod: int = 4, name: str = "default", prefix: str = "") -> Fabric:
    """`domains` NVLink domains of 576 GPUs: eight racks each, whose GPUs reach each other without the network. A pod of the
    network may be smaller than a domain: with 4 racks a pod, one domain spans two pods."""
    return nvl72(
        RACKS_OF_576 * domains,
        spines=spines,
        racks_per_domain=RACKS_OF_576,
        racks_per_pod=racks_per_pod,
        name=name,
        prefix=prefix,
    )
