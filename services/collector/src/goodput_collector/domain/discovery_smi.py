"""`nvidia-smi` in words, for hosts where the driver's library cannot be asked directly.

    nvidia-smi --query-gpu=index,pci.bus_id,uuid,name --format=csv,noheader
    0, 00000000:1B:00.0, GPU-5269b708-678a-b1a8-60f0-c90406537486, NVIDIA H100 80GB HBM3

    nvidia-smi topo -m
            GPU0    GPU1    NIC0    CPU Affinity ...
    GPU0     X      NV18    PXB     0-47 ...

`NV18` counts the NVLinks between two GPUs. Through a switch each GPU appears joined to each other by *all* its links, so the
numbers of a row are not to be added up.
"""

from __future__ import annotations

from goodput_collector.domain.discovery import GpuFact
from goodput_common.contracts import ids

GPUS_MAX = 256


def parse_query(text: str) -> tuple[dict[str, GpuFact], int]:
    """(PCI address -> GPU, lines that were not understood)."""
    found: dict[str, GpuFact] = {}
    unread = 0
    for line in text.splitlines():
        fields = [each.strip() for each in line.split(",")]
        try:
            if len(fields) < 3 or len(found) >= GPUS_MAX:
                raise ValueError
            fact = GpuFact(index=int(fields[0]), uuid=fields[2], model=fields[3] if len(fields) > 3 else "")
            found[ids.normal_pci(fields[1])] = fact
        except ValueError:
            unread += bool(line.strip())
    return found, unread


def parse_topo(text: str) -> dict[int, dict[int, int]]:
    """GPU index -> other GPU's index -> NVLinks between them; only what is joined by NVLink. Legends are no rows."""
    rows = [line.replace("\x1b[4m", "").replace("\x1b[0m", "").split() for line in text.splitlines()]
    head = next(
        (
            row
            for row in rows
            if row and _gpu(row[0]) is not None and (len(row) < 2 or _gpu(row[1]) is not None or not _cell(row[1]))
        ),
        None,
    )
    columns = [_gpu(word) for word in head] if head else []
    found: dict[int, dict[int, int]] = {}
    for row in rows:
        index = _gpu(row[0]) if row else None
        if index is None or row is head:
            continue
        for column, cell in zip(columns, row[1:], strict=False):
            links = int(cell[2:]) if cell.startswith("NV") and cell[2:].isdigit() and len(cell) < 6 else 0
            if column is not None and column != index and links:
                found.setdefault(index, {})[column] = links
    return found


def with_links(gpus: dict[str, GpuFact], topo: dict[int, dict[int, int]]) -> dict[str, GpuFact]:
    """The GPUs with what `topo -m` says. Links to every other GPU alike lead to a switch."""
    address = {fact.index: pci for pci, fact in gpus.items()}
    found = {}
    for pci, fact in gpus.items():
        row = topo.get(fact.index if fact.index is not None else -1, {})
        through_switch = len(row) > 1 and len(row) == len(gpus) - 1 and len(set(row.values())) == 1
        links = (
            {"switch": next(iter(row.values()))}
            if through_switch and len(gpus) > 2
            else {address[other]: count for other, count in row.items() if other in address}
        )
        found[pci] = GpuFact(index=fact.index, uuid=fact.uuid, model=fact.model, links=links)
    return found


def _gpu(word: str) -> int | None:
    number = word.removeprefix("GPU")
    return int(number) if word.startswith("GPU") and number.isascii() and number.isdigit() and len(number) < 5 else None


def _cell(word: str) -> bool:
    return word == "X" or word.startswith("NV") or word in ("PIX", "PXB", "PHB", "NODE", "SYS")
