"""Which adapter is behind a network interface: its component, as sysfs knows it.

An interface of an RDMA adapter is that adapter's port (`nic:<host>/mlx5_0/1`), any other is named by itself. In a
network namespace with a foreign /sys the interface is not found there, and is named by itself too.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from goodput_collector.application.rdma_tree import pci_of
from goodput_common.contracts import ids


class Netdev(NamedTuple):
    component: str
    attrs: dict[str, str]


def netdev(sys_root: Path, host: str, name: str) -> Netdev:
    """Component and identity (netdev, pci, rdma) of one interface."""
    attrs = {"netdev": name}
    device = sys_root / "class" / "net" / name / "device"
    pci = pci_of(device)
    if pci:
        attrs["pci"] = pci
    rdma = _first(device / "infiniband")
    if rdma is None:
        return Netdev(ids.nic_id(host, name), attrs)
    attrs["rdma"] = rdma
    return Netdev(ids.nic_id(host, rdma, _port(sys_root / "class" / "net" / name)), attrs)


def _first(folder: Path) -> str | None:
    try:
        return min((each.name for each in folder.iterdir()), default=None)
    except OSError:
        return None


def _port(interface: Path) -> int:
    """`dev_port` counts from 0 on adapters whose ports share a PCI function."""
    try:
        return int((interface / "dev_port").read_text()) + 1
    except (OSError, ValueError):
        return 1
