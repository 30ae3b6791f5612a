"""How near two PCI devices are to each other, and from that which adapter serves which GPU.

A GPU reads and writes a network adapter directly where both hang under one PCI switch; further apart the traffic passes the
CPU. So a training library gives each GPU the adapter that is nearest: a *common switch* beats a common *root port* beats the
same *NUMA node*. sysfs shows the tree as a path:

    devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0
    host bridge        root port    switch (up)  switch (down) the device

Two devices below one switch share its upstream port and the root port: two bridges. One shared bridge is the root port
alone. In a virtual machine all devices often stand side by side under no bridge at all, without a NUMA node: then nobody can
tell, and no adapter is given to any GPU.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

NVIDIA, AMD, MELLANOX = 0x10DE, 0x1002, 0x15B3
CLASS_BRIDGE = 0x0604
_DISPLAY, _3D, _DISPLAY_OTHER, _ACCELERATOR, _BRIDGE_OTHER = 0x0300, 0x0302, 0x0380, 0x1200, 0x0680
_NETWORK = 0x02


class PciKind(enum.Enum):
    GPU = "gpu"
    NIC = "nic"
    NVSWITCH = "nvswitch"


class Nearness(enum.IntEnum):
    """The smaller the nearer."""

    SWITCH = 0
    ROOT_PORT = 1
    NUMA = 2
    FAR = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PciDevice:
    """One function. `bridges` are the addresses above it, the root port first. Speeds as sysfs writes them (`32.0 GT/s
    PCIe`), "" where it does not; `numa` is None where the firmware does not say; `pf` is the address of the physical
    function that this one is a slice of."""

    address: str
    kind: PciKind
    vendor: int
    device: int
    bridges: tuple[str, ...] = ()
    numa: int | None = None
    pf: str = ""
    width: int = 0
    width_max: int = 0
    speed: str = ""
    speed_max: str = ""

    @property
    def order(self) -> tuple[int, ...]:
        return order_of(self.address)


def kind_of(pci_class: int, vendor: int) -> PciKind | None:
    """What a device is by its class (24 bits, as sysfs has them), None for everything that is of no interest here. The
    display adapter of a management controller is no GPU."""
    base = pci_class >> 8
    if base >> 8 == _NETWORK:
        return PciKind.NIC
    if vendor == NVIDIA:
        if base in (_DISPLAY, _3D):
            return PciKind.GPU
        if base == _BRIDGE_OTHER:
            return PciKind.NVSWITCH
    if vendor == AMD and base in (_ACCELERATOR, _DISPLAY_OTHER):
        return PciKind.GPU
    return None


def order_of(address: str) -> tuple[int, ...]:
    """By domain, bus, device, function as numbers: the order in which the GPU driver numbers its GPUs. (CUDA numbers by
    speed unless CUDA_DEVICE_ORDER=PCI_BUS_ID, and CUDA_VISIBLE_DEVICES reorders at will: neither is followed here.)"""
    parts = address.replace(".", ":").split(":")
    try:
        return tuple(int(part, 16) for part in parts)
    except ValueError:
        return (1 << 62,)


def nearness(a: PciDevice, b: PciDevice) -> tuple[Nearness, int]:
    """How near, and among equals by how many bridges in common (negative: more is nearer)."""
    common = next(
        (at for at, (one, other) in enumerate(zip(a.bridges, b.bridges, strict=False)) if one != other),
        min(len(a.bridges), len(b.bridges)),
    )
    if common >= 2:
        return Nearness.SWITCH, -common
    if common == 1:
        return Nearness.ROOT_PORT, -1
    if a.numa is not None and a.numa == b.numa:
        return Nearness.NUMA, 0
    return Nearness.FAR, 0


@dataclass(frozen=True, slots=True)
class Attached:
    """The adapters that one GPU uses, and how near they are."""

    nics: tuple[str, ...]
    nearness: Nearness


def attach(gpus: Iterable[PciDevice], nics: Iterable[PciDevice]) -> dict[str, Attached]:
    """GPU address -> the adapters nearest to it; a GPU without any that is near is left out.

    GPUs that have the same adapters at the same distance share them out in PCI order: two GPUs and two adapters under one
    switch are two pairs; four GPUs and two adapters are two GPUs an adapter; one GPU and two ports uses both.
    """
    adapters = sorted(nics, key=lambda each: each.order)
    groups: dict[tuple[Nearness, tuple[str, ...]], list[str]] = defaultdict(list)
    for gpu in sorted(gpus, key=lambda each: each.order):
        near = [(nearness(gpu, nic), nic) for nic in adapters]
        best = min((distance for distance, _ in near), default=(Nearness.FAR, 0))
        if best[0] is Nearness.FAR:
            continue
        candidates = [nic for distance, nic in near if distance == best]
        if best[0] is Nearness.NUMA:
            candidates = _most_common_model(candidates)
        groups[best[0], tuple(nic.address for nic in candidates)].append(gpu.address)
    found = {}
    for (distance, candidates_), members in groups.items():
        for at, address in enumerate(members):
            found[address] = Attached(_share(candidates_, at, len(members)), distance)
    return found


def _most_common_model(nics: Sequence[PciDevice]) -> list[PciDevice]:
    """On one NUMA node stand training adapters and those for storage; training needs one a GPU, so theirs are the most. A
    tie tells nothing, and all stay."""
    counts = Counter((nic.vendor, nic.device) for nic in nics).most_common(2)
    if len(counts) == 2 and counts[0][1] == counts[1][1]:
        return list(nics)
    return [nic for nic in nics if (nic.vendor, nic.device) == counts[0][0]]


def _share(nics: tuple[str, ...], at: int, among: int) -> tuple[str, ...]:
    """The part of `nics` for the `at`-th of `among` GPUs."""
    if among >= len(nics):
        return (nics[at * len(nics) // among],)
    return nics[at * len(nics) // among : (at + 1) * len(nics) // among]


def numbered(addresses: Iterable[str], remembered: Mapping[str, int]) -> dict[str, int]:
    """Numbers for `addresses` in PCI order: those that had one keep it, also while a neighbour is missing; new ones get the
    lowest that are free. When none of the remembered devices is there, it is another machine, and counting starts anew."""
    now = sorted(set(addresses), key=order_of)
    kept = dict(remembered) if any(each in remembered for each in now) else {}
    taken = set(kept.values())
    free = (number for number in range(len(now) + len(taken)) if number not in taken)
    return {each: kept[each] if each in kept else next(free) for each in now}
