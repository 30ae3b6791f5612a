"""The PCI tree under sysfs: GPUs, network adapters and NVSwitches, with the bridges above them.

    <root>/bus/pci/devices/0000:18:00.0 -> ../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0

The link's target is the path through the tree; nothing of the bridges themselves is read. None of these files asks a
device anything that it does not answer in microseconds, but the link speed and width are read from it: of the devices of
interest only.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from goodput_collector.domain.pci_tree import PciDevice, kind_of

DEVICES_MAX = 4096
_ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_BYTES = 256


def listing(sys_root: Path) -> tuple[str, ...]:
    """What is on the bus, and which interfaces and RDMA devices there are, by name: another answer means another look."""
    return tuple(
        name
        for folder in ("bus/pci/devices", "class/net", "class/infiniband")
        for name in sorted(names_in(sys_root / folder))
    )


def read_devices(sys_root: Path, boring: set[str] | None = None) -> list[PciDevice]:
    """The devices of interest, in no order. What cannot be read of one is left open. `boring` are addresses not to be looked
    at again, and gets those that turn out to be of no interest."""
    boring = set() if boring is None else boring
    folder = sys_root / "bus" / "pci" / "devices"
    found = []
    for address in names_in(folder)[:DEVICES_MAX]:
        if address in boring:
            continue
        device = folder / address
        vendor = _number(device / "vendor")
        kind = kind_of(_number(device / "class"), vendor) if _ADDRESS.match(address) else None
        if kind is None:
            boring.add(address)
            continue
        numa = text_of(device / "numa_node")
        width, width_max = text_of(device / "current_link_width"), text_of(device / "max_link_width")
        found.append(
            PciDevice(
                address=address,
                kind=kind,
                vendor=vendor,
                device=_number(device / "device"),
                bridges=bridges_of(device),
                numa=int(numa) if numa.isdigit() else None,  # -1: the firmware does not say
                pf=_pf(device),
                width=int(width) if width.isdigit() else 0,
                width_max=int(width_max) if width_max.isdigit() else 0,
                speed=text_of(device / "current_link_speed"),
                speed_max=text_of(device / "max_link_speed"),
            )
        )
    return found


def bridges_of(device: Path) -> tuple[str, ...]:
    """The PCI addresses above a device, the root port first."""
    return address_path(device)[:-1]


def address_path(link: Path) -> tuple[str, ...]:
    """The PCI addresses on the way to where a link of sysfs leads; a device on a bus below PCI (virtio) ends at its PCI
    device."""
    try:
        target = os.path.realpath(link, strict=True)
    except OSError:
        return ()
    return tuple(part for part in target.split("/") if _ADDRESS.match(part))


def _pf(device: Path) -> str:
    try:
        name = (device / "physfn").readlink().name
    except OSError:
        return ""
    return name if _ADDRESS.match(name) else ""


def names_in(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder)]
    except OSError:
        return []


def _number(path: Path) -> int:
    """A number as sysfs writes it (0x10de); 0 where it cannot be read."""
    try:
        return int(text_of(path), 16)
    except ValueError:
        return 0


def text_of(path: Path) -> str:
    """A small file, "" where it cannot be read (a GID that is not set, an attribute that the driver lacks)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, _BYTES).decode("ascii", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(fd)
