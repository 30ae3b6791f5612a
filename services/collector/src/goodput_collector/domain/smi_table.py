"""The table that plain `nvidia-smi` prints: one or more lines a GPU between borders.

    |   0  NVIDIA H100 80GB HBM3          On  | 00000000:53:00.0 Off |                    0 |
    | N/A   34C    P0              69W / 700W |      2MiB / 81559MiB |      0%      Default |

Of each GPU it tells its place on the bus, its temperature and power, and the uncorrected ECC errors since the driver was
loaded. `ERR!` in a GPU's lines means that the driver got no answer, which is not yet a lost GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from goodput_collector.domain.pasted import Unread, number
from goodput_common.contracts import ids

GPUS_MAX = 256
_ROW = re.compile(
    r"^\s*\|\s*(?P<index>\d{1,3})\s+(?P<name>\S.*?)\s+(?:On|Off|N/A|ERR!)?\s*\|\s*"
    r"(?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s+\S+\s*\|\s*(?P<ecc>\S+)\s*\|\s*$"
)
_SECOND = re.compile(
    r"^\s*\|\s*(?:N/A|ERR!|\d+%|Unknown Error)\s+(?P<temperature>\d{1,3}C|N/A|ERR!)\s+\S+\s+"
    r"(?P<draw>\d+W|N/A|ERR!|Unknown Error)\s*/\s*(?P<limit>\d+W|N/A|ERR!)\s*\|(?P<rest>.*)$"
)
_BORDER = frozenset("-=+| \t")
_CELL = re.compile(r"^\s*\|.*\|\s*$")
_SAID = re.compile(r"^\s*(?:No devices were found|NVIDIA-SMI has failed)")


@dataclass(slots=True)
class TableGpu:
    """`values` and `counts` in the names that `gpu_samples` takes. `silent`: a cell says ERR!."""

    pci: str
    index: int
    model: str
    silent: bool = False
    values: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


def parse(text: str) -> tuple[list[TableGpu], Unread]:
    """Lines of the processes below the GPUs are understood: whose they are is not told here."""
    gpus: list[TableGpu] = []
    unread = Unread()
    processes = False
    for line in text.splitlines():
        if _BORDER.issuperset(line) or _SAID.match(line) is not None:
            continue
        if _CELL.match(line) is None:
            unread.note(line)
        elif processes or "Processes:" in line:
            processes = True
        elif (match := _ROW.match(line)) is not None and len(gpus) < GPUS_MAX:
            gpus.append(TableGpu(ids.normal_pci(match["pci"]), int(match["index"]), match["name"][:64], "ERR!" in line))
            if (count := number(match["ecc"])) is not None:
                gpus[-1].counts["ecc_uncorrected_volatile_total"] = count
        elif (match := _SECOND.match(line)) is not None and gpus:
            _second(gpus[-1], match)
        elif gpus:
            gpus[-1].silent = gpus[-1].silent or "ERR!" in line
        elif not any(word in line for word in _TITLES):
            unread.note(line)
    return gpus, unread


_TITLES = ("NVIDIA-SMI", "Persistence-M", "Bus-Id", "Fan  Temp", "Fan Temp", "MIG M.")


def _second(gpu: TableGpu, match: re.Match[str]) -> None:
    gpu.silent = gpu.silent or "ERR!" in match[0]
    if match["temperature"].endswith("C"):
        gpu.values["temperature_c"] = float(match["temperature"][:-1])
    for name, cell in (("power_mw", "draw"), ("power_limit_mw", "limit")):
        if match[cell].endswith("W"):
            gpu.values[name] = float(match[cell][:-1][:6]) * 1000
