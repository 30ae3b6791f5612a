"""Which adapter is behind a network interface: its component, as sysfs knows it.

An interface of an RDMA adapter is that adapter's port (`nic:<host>/mlx5_0/1`), any other is named by itself. In a
network namespace with a foreign /sys the interface is not found there, and is named by itself too.

A virtual function (SR-IOV) says whose it is: its physical function, its number there, and the pod that has it. Once it has
been moved into the pod's network namespace its interface is not seen from here, its RDMA device still is.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from goodput_collector.application.rdma_tree import pci_of
from goodput_collector.application.small_file import small_text
from goodput_collector.domain.pod_devices import names_of_pods, pods_of_devices
from goodput_common.contracts import ids

FUNCTIONS_MAX = 1024
_CHECKPOINT = "device-plugins/kubelet_internal_checkpoint"
_CHECKPOINT_BYTES = 16 << 20


class Netdev(NamedTuple):
    component: str
    attrs: dict[str, str]


class Pods:
    """The pod of a virtual function, as far as the kubelet's files can be read here: `unknown` where they cannot, "" where
    they say that no pod has it."""

    def __init__(self, kubelet: Path = Path("/var/lib/kubelet"), logs: Path = Path("/var/log/pods")) -> None:
        self._checkpoint = kubelet / _CHECKPOINT
        self._logs = logs
        self._pods: dict[str, str] | None = None
        self._names: dict[str, str] = {}
        self._read_of: tuple[int, int] | None = None

    def refresh(self) -> bool:
        """Look whether the kubelet has written anew; whether anything has changed."""
        before = self._pods, self._names
        self._read()
        return (self._pods, self._names) != before

    def _read(self) -> None:
        try:
            stat = self._checkpoint.stat()
            if (stat.st_ino, stat.st_mtime_ns) == self._read_of:
                return
            with self._checkpoint.open("rb") as file:
                self._pods = pods_of_devices(file.read(_CHECKPOINT_BYTES))
            self._read_of = (stat.st_ino, stat.st_mtime_ns)
        except (OSError, ValueError):
            self._pods, self._read_of = None, None
            return
        try:
            self._names = names_of_pods(each.name for each in self._logs.iterdir())
        except OSError:
            self._names = {}

    def of(self, address: str) -> str:
        """`address` in full: 0000:3b:02.1."""
        if self._pods is None:
            return "unknown"
        uid = self._pods.get(address.lower(), "")
        return self._names.get(uid, uid)


def netdev(sys_root: Path, host: str, name: str, pods: Pods | None = None) -> Netdev:
    """Component and identity (netdev, pci, rdma; for a virtual function pf, vf, pod) of one interface."""
    attrs = {"netdev": name}
    device = sys_root / "class" / "net" / name / "device"
    pci = pci_of(device)
    if pci:
        attrs["pci"] = pci
        attrs |= function_of(device, pods)
    rdma = _first(device / "infiniband")
    if rdma is None:
        return Netdev(ids.nic_id(host, name), attrs)
    attrs["rdma"] = rdma
    return Netdev(ids.nic_id(host, rdma, _port(sys_root / "class" / "net" / name)), attrs)


def function_of(device: Path, pods: Pods | None = None) -> dict[str, str]:
    """Of a virtual function: `pf` (PCI), `pf_netdev` where it has one, `vf` (its number), `pod`. {} of any other."""
    physical = device / "physfn"
    pf = pci_of(physical)
    if not pf:
        return {}
    try:
        address = device.resolve(strict=True).name
    except OSError:
        return {}
    attrs = {"pf": pf, "pod": pods.of(address) if pods is not None else "unknown"}
    if (number := _number_of(physical, address)) is not None:
        attrs["vf"] = str(number)
    if (netdev_of_pf := _first(physical / "net")) is not None:
        attrs["pf_netdev"] = netdev_of_pf
    return attrs


def _number_of(physical: Path, address: str) -> int | None:
    """The physical function links to its virtual ones: virtfn0, virtfn1 …"""
    try:
        links = [each for each in physical.iterdir() if each.name.startswith("virtfn")]
    except OSError:
        return None
    for link in links[:FUNCTIONS_MAX]:
        try:
            if link.readlink().name == address and link.name[6:].isdigit():
                return int(link.name[6:])
        except OSError:
            continue
    return None


def _first(folder: Path) -> str | None:
    try:
        return min((each.name for each in folder.iterdir()), default=None)
    except OSError:
        return None


def _port(interface: Path) -> int:
    """`dev_port` counts from 0 on adapters whose ports share a PCI function."""
    try:
        return int(small_text(interface / "dev_port")) + 1
    except (OSError, ValueError):
        return 1
