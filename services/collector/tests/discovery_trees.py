"""Hosts as sysfs shows them, built on disk: an H100 server, a GB200 tray, a plain virtual machine."""

from __future__ import annotations

import os
from pathlib import Path

from goodput_topology.generate import GB200_GPU_PCI, GB200_NIC_PCI, H100_GPU_PCI, H100_NIC_PCI


class Tree:
    """A sysfs under construction. `etc` and `proc` stand beside it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "sys"
        self.etc, self.proc = folder / "etc", folder / "proc"
        for each in ("bus/pci/devices", "class/net", "class/infiniband"):
            (self.root / each).mkdir(parents=True, exist_ok=True)
        self.write(self.etc / "machine-id", "3d1219c7c4c5404aaa1f6d2a48adfda4")
        self.write(self.proc / "sys/kernel/hostname", "h7.example")

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def pci(self, *path: str, pci_class: str, vendor: str, device: str, numa: int = -1, width: int = 16) -> Path:
        """A function at the end of `path` (host bridge, bridges, address), with the bridges above it."""
        at = self.root / "devices"
        for position, part in enumerate(path):
            at = at / part
            if position and not (self.root / "bus/pci/devices" / part).is_symlink():
                self.write(at / "class", "0x060400")
                self.write(at / "vendor", "0x1000")
                link = self.root / "bus/pci/devices" / part
                link.symlink_to(os.path.relpath(at, link.parent))
        for name, text in (
            ("class", pci_class), ("vendor", vendor), ("device", device), ("numa_node", str(numa)),
            ("current_link_width", str(width)), ("max_link_width", "16"),
            ("current_link_speed", "32.0 GT/s PCIe"), ("max_link_speed", "32.0 GT/s PCIe"),
        ):  # fmt: skip
            self.write(at / name, text)
        return at

    def gpu(self, *path: str, device: str = "0x2330", numa: int = -1) -> Path:
        return self.pci(*path, pci_class="0x030200", vendor="0x10de", device=device, numa=numa)

    def nic(
        self, *path: str, netdev: str = "", rdma: str = "", guid: str = "", device: str = "0x1021", numa: int = -1,
        mac: str = "", addr: str = "", state: str = "4: ACTIVE", layer: str = "Ethernet", width: int = 16,
    ) -> Path:  # fmt: skip
        at = self.pci(*path, pci_class="0x020000", vendor="0x15b3", device=device, numa=numa, width=width)
        if netdev:
            self.netdev(at, netdev, mac=mac)
        if rdma:
            (at / "infiniband" / rdma).mkdir(parents=True, exist_ok=True)
            made = self.root / "class/infiniband" / rdma
            port = made / "ports/1"
            self.write(made / "node_guid", ":".join(guid[n : n + 4] for n in range(0, 16, 4)))
            for name, text in (
                ("state", state),
                ("link_layer", layer),
                ("gids/0", f"fe80:0000:0000:0000:{guid[:4]}:{guid[4:8]}:{guid[8:12]}:{guid[12:]}"),
            ):
                self.write(port / name, text)
            if addr:
                first, second, third, fourth = (int(each) for each in addr.split("."))
                self.write(port / "gids/1", f"0000:0000:0000:0000:0000:ffff:{first:02x}{second:02x}:{third:02x}{fourth:02x}")
            (made / "device").symlink_to(os.path.relpath(at, made))
        return at

    def netdev(self, device: Path, name: str, *, mac: str = "", dev_port: int = 0) -> None:
        interface = self.root / "class/net" / name
        self.write(interface / "address", mac or "00:00:00:00:00:00")
        self.write(interface / "dev_port", str(dev_port))
        (interface / "device").symlink_to(os.path.relpath(device, interface))

    def remove(self, address: str) -> None:
        """The device is taken off the bus, and what hung on it with it."""
        link = self.root / "bus/pci/devices" / address
        at = link.resolve()
        link.unlink()
        for folder in ("net", "infiniband"):
            for each in (self.root / "class" / folder).iterdir():
                if (each / "device").resolve() == at:
                    self._delete(each)
        self._delete(at)

    def _delete(self, path: Path) -> None:
        for root, folders, files in os.walk(path, topdown=False):
            for name in files:
                (Path(root) / name).unlink()
            for name in folders:
                inner = Path(root) / name
                inner.unlink() if inner.is_symlink() else inner.rmdir()
        path.rmdir()


def guid(number: int) -> str:
    return f"e09d7303007a{number:04x}"


def h100(folder: Path) -> Tree:
    """8 GPUs and 8 adapters, each pair under a PCI switch of its own, four NVSwitches, a storage adapter with RDMA, a plain
    management interface, a management controller's display; 2 NUMA nodes."""
    tree = Tree(folder)
    for number, (gpu, nic) in enumerate(zip(H100_GPU_PCI, H100_NIC_PCI, strict=True)):
        numa, base = number // 4, int(nic, 16)
        above = (f"pci0000:{base - 3:02x}", f"0000:{base - 3:02x}:01.0", f"0000:{base - 2:02x}:00.0")
        tree.nic(
            *above, f"0000:{base - 1:02x}:00.0", f"0000:{nic}:00.0", netdev=f"eth{number + 2}", rdma=f"mlx5_{number}",
            guid=guid(number), numa=numa, mac=f"e0:9d:73:00:00:{number:02x}", addr=f"10.{64 + number}.0.7",
        )  # fmt: skip
        tree.gpu(*above, f"0000:{base - 1:02x}:01.0", f"0000:{gpu}:00.0", numa=numa)
    for number in range(4):
        tree.pci("pci0000:06", f"0000:{6 + number:02x}:00.0", pci_class="0x068000", vendor="0x10de", device="0x22a3")
    tree.nic(
        "pci0000:27", "0000:27:01.0", "0000:29:00.0", netdev="stor0", rdma="mlx5_8", guid=guid(99), device="0xa2dc", numa=0,
        mac="e0:9d:73:00:00:99",
    )  # fmt: skip
    management = tree.pci("pci0000:05", "0000:05:00.0", pci_class="0x020000", vendor="0x8086", device="0x1533", numa=0)
    tree.netdev(management, "eth0", mac="02:00:00:00:00:01")
    tree.pci("pci0000:04", "0000:04:00.0", pci_class="0x030000", vendor="0x1a03", device="0x2000")
    return tree


def gb200(folder: Path) -> Tree:
    """4 GPUs and 4 adapters, every one in a PCI domain of its own; only the NUMA node joins them; a DPU on node 0."""
    tree = Tree(folder)
    for number, (gpu, nic) in enumerate(zip(GB200_GPU_PCI, GB200_NIC_PCI, strict=True)):
        numa = number // 2
        tree.gpu(f"pci{gpu[:4]}:00", f"{gpu[:4]}:00:00.0", f"{gpu}.0", device="0x2941", numa=numa)
        tree.nic(
            f"pci{nic[:4]}:00", f"{nic[:4]}:00:00.0", f"{nic}.0", netdev=f"rdma{number}", rdma=f"mlx5_{number}",
            guid=guid(number), numa=numa, layer="InfiniBand",
        )  # fmt: skip
    tree.nic(
        "pci0006:00", "0006:00:00.0", "0006:03:00.0", netdev="dpu0", rdma="mlx5_4", guid=guid(98), device="0xa2dc", numa=0
    )
    return tree


def plain_vm(folder: Path) -> Tree:
    """A virtual machine: one virtio interface, no GPU, nothing to tell."""
    tree = Tree(folder)
    at = tree.pci("pci0000:00", "0000:00:03.0", pci_class="0x020000", vendor="0x1af4", device="0x1041")
    (at / "virtio2").mkdir()
    tree.netdev(at / "virtio2", "eth0", mac="02:00:00:00:00:02")
    return tree
