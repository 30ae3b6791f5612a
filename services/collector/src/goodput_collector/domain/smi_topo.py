"""`nvidia-smi topo -m`: which adapters stand near which GPU, beside the NVLinks that `discovery_smi` reads from it.

            GPU0    GPU1    NIC0    NIC1    CPU Affinity    NUMA Affinity
    GPU0     X      NV18    PXB     SYS     0-47            0
    NIC0    PXB     SYS      X      SYS
    NIC Legend:
      NIC0: mlx5_0

Older releases name the adapters in the table itself (`mlx5_0`). `PIX` and `PXB` are below the same root port; `PHB`, `NODE`
and `SYS` cross the processor. Only the nearest counts, and only where it does not cross a processor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from goodput_collector.domain.discovery_smi import parse_topo
from goodput_collector.domain.pasted import Unread

_NEARNESS = {"PIX": 0, "PXB": 1}
_CELLS = frozenset({"X", "PIX", "PXB", "PHB", "NODE", "SYS", "N/A"})
_NV = re.compile(r"^NV\d{1,3}$")
_LABEL = re.compile(r"^(?:GPU\d{1,4}|NIC\d{1,4}|[a-z][\w-]*_\w+|mlx\d\w*)$")
_LEGEND = re.compile(r"^\s*(?P<nic>NIC\d{1,4}):\s*(?P<device>[\w.-]{1,64})\s*$")
_WORDS = re.compile(r"^\s*(?:Legend:|NIC Legend:|(?:X|SYS|NODE|PHB|PXB|PIX|NV#)\s+=)")


@dataclass(slots=True)
class Topo:
    """`near`: GPU index -> (device, PIX or PXB) of the nearest adapters. `nvlinks`: GPU index -> other -> links."""

    gpus: tuple[int, ...] = ()
    nvlinks: dict[int, dict[int, int]] = field(default_factory=dict)
    near: dict[int, tuple[tuple[str, str], ...]] = field(default_factory=dict)


def parse(text: str) -> tuple[Topo, Unread]:
    unread = Unread()
    columns: list[str] = []
    rows: dict[str, list[str]] = {}
    devices: dict[str, str] = {}
    for line in text.splitlines():
        words = line.split()
        if (match := _LEGEND.match(line)) is not None:
            devices[match["nic"]] = match["device"]
        elif not columns and words and _LABEL.match(words[0]) and not (len(words) > 1 and _is_cell(words[1])):
            columns = [word for word in words if _LABEL.match(word)]
        elif words and _LABEL.match(words[0]) and len(words) > 1 and _is_cell(words[1]):
            rows[words[0]] = words[1 : 1 + len(columns)]
        elif words and not _WORDS.match(line):
            unread.note(line)
    gpus = tuple(sorted(int(name[3:]) for name in rows if name.startswith("GPU") and name[3:].isdigit()))
    near = {gpu: _nearest(rows[f"GPU{gpu}"], columns, devices) for gpu in gpus}
    return Topo(gpus, parse_topo(text), {gpu: found for gpu, found in near.items() if found}), unread


def _nearest(cells: list[str], columns: list[str], devices: dict[str, str]) -> tuple[tuple[str, str], ...]:
    found = [
        (devices.get(column, "" if column.startswith("NIC") else column), cell)
        for column, cell in zip(columns, cells, strict=False)
        if not column.startswith("GPU") and cell in _NEARNESS
    ]
    best = min((_NEARNESS[cell] for _, cell in found), default=0)
    return tuple((device, cell) for device, cell in found if device and _NEARNESS[cell] == best)


def _is_cell(word: str) -> bool:
    return word in _CELLS or _NV.match(word) is not None
