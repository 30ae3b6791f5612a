"""Fabrics of any size, with stable names: rail-optimised H100 pods, GB200 racks, fat trees, hosts with two NICs, the lab.

The same arguments always give the same ids, so a ledger, a recording and a topology file made apart still fit together.
"""

from __future__ import annotations

from goodput_common.contracts.ids import ComponentKind
from goodput_topology.generate.clos import fat_tree, two_nic_pod
from goodput_topology.generate.draft import GB200_GPU_PCI, GB200_NIC_PCI, H100_GPU_PCI, H100_NIC_PCI
from goodput_topology.generate.gb200 import nvl72, nvl576
from goodput_topology.generate.h100 import h100_pod
from goodput_topology.generate.lab import lab
from goodput_topology.graph import Fabric

__all__ = [
    "GB200_GPU_PCI",
    "GB200_NIC_PCI",
    "H100_GPU_PCI",
    "H100_NIC_PCI",
    "KINDS",
    "fat_tree",
    "h100_pod",
    "lab",
    "nvl72",
    "nvl576",
    "size",
    "two_nic_pod",
]

KINDS = {
    "h100": h100_pod,
    "nvl72": nvl72,
    "nvl576": nvl576,
    "fat_tree": fat_tree,
    "two_nic": two_nic_pod,
    "lab": lab,
}


def size(fabric: Fabric) -> dict[str, int]:
    """How many components of each kind, for logs and reports."""
    counts = dict.fromkeys((kind.value for kind in ComponentKind), 0)
    for record in fabric.components.values():
        counts[record.kind.value] += 1
    return {kind: count for kind, count in counts.items() if count}
