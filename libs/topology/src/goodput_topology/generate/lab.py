"""The small lab of real processes, as a fabric."""

from __future__ import annotations

from goodput_common.contracts import ids
from goodput_topology.generate.draft import H100_GPU_PCI, Draft, uuid_of
from goodput_topology.graph import Fabric


def lab(hosts: int = 4, rails: int = 1, *, gpus_per_host: int = 2, name: str = "default") -> Fabric:
    """The real-process lab: hosts `h0` … as network namespaces, rail r a bridge `leaf<r>`, management apart.

    The ranks run on CPUs; `gpu:h0/0` … stand for their devices so that a kernel log line can name one by its PCI address.
    """
    if hosts < 1 or rails < 1 or not 1 <= gpus_per_host <= len(H100_GPU_PCI):
        raise ValueError(f"need hosts >= 1, rails >= 1, 1 to 8 GPUs a host; got {hosts}, {rails}, {gpus_per_host}")
    draft = Draft()
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
            draft.add(gpu, own, domain, pci=f"0000:{H100_GPU_PCI[at]}:00.0", uuid=uuid_of(gpu), chip="lab")
            draft.rail(gpu, ids.nic_id(host, f"rail{at % rails}"))
    return draft.fabric(name)
