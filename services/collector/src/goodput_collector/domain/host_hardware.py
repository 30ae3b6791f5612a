"""What the host's hardware counts about itself: PCIe errors, memory errors, processors held down for heat.

Each PCIe device keeps three tables of advanced error reports, by what they meant for the link:

    RxErr 0                 aer_dev_correctable: repaired by the link itself; many of them are a bad slot or riser
    BadTLP 12
    TOTAL_ERR_COR 12        aer_dev_nonfatal: a transaction is lost;  aer_dev_fatal: the link is
"""

from __future__ import annotations

import enum

VENDORS_OF_GPUS = frozenset({0x10DE, 0x1002})


class Part(enum.Enum):
    """What a PCI device is to a training job."""

    GPU = "gpu"
    NIC = "nic"
    DISK = "disk"
    OTHER = "other"


def part_of(pci_class: str, vendor: str) -> Part:
    """By the texts of sysfs (`0x030200`, `0x10de`). The little screen of a management controller is no GPU."""
    try:
        number, maker = int(pci_class, 16), int(vendor, 16)
    except ValueError:
        return Part.OTHER
    base, kind = number >> 16, number >> 8
    if base == 0x03 and maker in VENDORS_OF_GPUS:
        return Part.GPU
    if base == 0x02:
        return Part.NIC
    return Part.DISK if kind == 0x0108 else Part.OTHER


def parse_aer(text: bytes) -> dict[str, int]:
    """Error -> count; the total is under `total` (summed up where the kernel does not give it)."""
    counts: dict[str, int] = {}
    total: int | None = None
    for line in text.splitlines():
        name, _, number = line.strip().rpartition(b" ")
        if not name or not number.isdigit() or len(number) > 20:
            continue
        if name.startswith(b"TOTAL_ERR"):
            total = int(number)
        else:
            counts[name.decode("utf-8", "replace")] = int(number)
    if not counts and total is None:
        return {}
    return counts | {"total": total if total is not None else sum(counts.values())}


def parse_count(text: bytes) -> int | None:
    word = text.strip()
    return int(word) if word.isdigit() and len(word) <= 20 else None
