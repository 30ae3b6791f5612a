"""`nvidia-smi -q`: everything that the driver says of each GPU, as an indented tree.

    Timestamp                                 : Sun Feb 23 16:24:18 2025
    GPU 00000000:53:00.0
        ECC Errors
            Volatile
                DRAM Uncorrectable            : 2

The words of a branch are joined to a path (`ecc errors/volatile/dram uncorrectable`), which is looked up in tables below.
What is not in them is understood and passed over: the tree has several hundred leaves, and drivers differ. Values come out
in the names that `gpu_samples` takes, so that a paste gives the same samples as NVML itself. `N/A` is no answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from goodput_collector.domain.gpu_memory import BANKS
from goodput_collector.domain.pasted import Unread, number
from goodput_common.contracts import ids

GPUS_MAX = 256
_GPU = re.compile(r"^\s*GPU (?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_COLON = re.compile(r":(?: |$)")
_BRANCH = re.compile(r"^(?P<indent>\s*)(?P<name>[A-Za-z][\w .,/()'&-]*)$")
_NUMBER = re.compile(r"^-?\d{1,12}(?:\.\d{1,6})?")
_LOG = re.compile(r"^\s*=+\s*NVSMI LOG\s*=+\s*$")

_COUNTS = {
    "ecc errors/volatile/sram correctable": "ecc_corrected_volatile_sram",
    "ecc errors/volatile/sram uncorrectable": "ecc_uncorrected_volatile_sram",
    "ecc errors/volatile/dram correctable": "ecc_corrected_volatile_dram",
    "ecc errors/volatile/dram uncorrectable": "ecc_uncorrected_volatile_dram",
    "ecc errors/aggregate/sram correctable": "ecc_corrected_aggregate_sram",
    "ecc errors/aggregate/sram uncorrectable": "ecc_uncorrected_aggregate_sram",
    "ecc errors/aggregate/dram correctable": "ecc_corrected_aggregate_dram",
    "ecc errors/aggregate/dram uncorrectable": "ecc_uncorrected_aggregate_dram",
    "ecc errors/volatile/single bit/total": "ecc_corrected_volatile_total",
    "ecc errors/volatile/double bit/total": "ecc_uncorrected_volatile_total",
    "ecc errors/aggregate/single bit/total": "ecc_corrected_aggregate_total",
    "ecc errors/aggregate/double bit/total": "ecc_uncorrected_aggregate_total",
    "remapped rows/correctable error": "remapped_rows_correctable",
    "remapped rows/uncorrectable error": "remapped_rows_uncorrectable",
    "retired pages/single bit ecc": "retired_pages_single_bit",
    "retired pages/double bit ecc": "retired_pages_double_bit",
    "pci/replays since reset": "pcie_replays",
}
_SUMMED = {  # newer drivers tell the two kinds of uncorrectable SRAM errors apart
    f"ecc errors/{life}/sram uncorrectable {kind}": f"ecc_uncorrected_{life}_sram"
    for life in ("volatile", "aggregate")
    for kind in ("parity", "sec-ded")
}
_REASONS = {
    "idle": 0x001, "applications clocks setting": 0x002, "sw power cap": 0x004, "hw slowdown": 0x008, "sync boost": 0x010,
    "sw thermal slowdown": 0x020, "hw slowdown/hw thermal slowdown": 0x040, "hw thermal slowdown": 0x040,
    "hw slowdown/hw power brake slowdown": 0x080, "hw power brake slowdown": 0x080, "hw power braking": 0x080,
    "display clock setting": 0x100,
}  # fmt: skip
_FABRIC = {"not supported": 0, "n/a": 0, "not started": 1, "in progress": 2, "completed": 3}
_ACTIONS = {"none": 0, "reset": 1, "gpu reset": 1, "reboot": 2, "node reboot": 2, "drain p2p": 3, "drain and reset": 4}
_GENERATION, _WIDTH = "pci/gpu link info/pcie generation/", "pci/gpu link info/link width/"
_GENERATIONS = {_GENERATION + "current": "pcie_gen", _GENERATION + "max": "pcie_gen_max"}
_WIDTHS = {_WIDTH + "current": "pcie_width", _WIDTH + "max": "pcie_width_max"}


@dataclass(slots=True)
class SmiGpu:
    """One GPU. `values` and `counts` have the names that `gpu_samples` takes; `tree` is all that was said, by path."""

    pci: str
    index: int
    uuid: str = ""
    model: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    tree: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class SmiLog:
    timestamp: str = ""
    driver: str = ""
    attached: int = -1  # as many GPUs as the driver has; -1: not said
    gpus: list[SmiGpu] = field(default_factory=list)


def parse(text: str) -> tuple[SmiLog, Unread]:
    log = SmiLog()
    unread = Unread()
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        line = line.expandtabs(8).rstrip()
        if (match := _GPU.match(line)) is not None:
            if len(log.gpus) < GPUS_MAX:
                log.gpus.append(SmiGpu(ids.normal_pci(match["pci"]), len(log.gpus)))
            path = []
        elif (match := _COLON.search(line)) is not None and (name := line[: match.start()].strip()):
            _take(log, _path(path, len(line) - len(line.lstrip()), name), line[match.end() :].strip())
        elif (match := _BRANCH.match(line)) is not None:
            path = [each for each in path if each[0] < len(match["indent"])]
            path.append((len(match["indent"]), match["name"].lower()))
        elif _LOG.match(line) is None:
            unread.note(line)
    for gpu in log.gpus:
        _finish(gpu)
    return log, unread


def _path(path: list[tuple[int, str]], indent: int, name: str) -> str:
    while path and path[-1][0] >= indent:
        path.pop()
    path.append((indent, name.lower()))  # a leaf may have branches of its own (`HW Slowdown : Not Active`)
    return "/".join(word for _, word in path)


def _take(log: SmiLog, path: str, told: str) -> None:
    if not log.gpus:
        if path == "timestamp":
            log.timestamp = told
        elif path == "driver version":
            log.driver = told[:32]
        elif path == "attached gpus" and (count := number(told)) is not None:
            log.attached = count
        return
    log.gpus[-1].tree.setdefault(path, told)


def _finish(gpu: SmiGpu) -> None:
    tree, values, counts = gpu.tree, gpu.values, gpu.counts
    gpu.uuid = tree.get("gpu uuid", "") if tree.get("gpu uuid", "").startswith("GPU-") else ""
    gpu.model = tree.get("product name", "")[:64]
    for path, name in _COUNTS.items():
        if (count := number(tree.get(path, ""))) is not None:
            counts[name] = count
    for path, name in _SUMMED.items():
        if (count := number(tree.get(path, ""))) is not None:
            counts[name] = counts.get(name, 0) + count
    for names, convert in ((_GENERATIONS, number), (_WIDTHS, _width)):
        for path, name in names.items():
            if (value := convert(tree.get(path, ""))) is not None:
                values[name] = value
    for name, paths in _MEASURED.items():
        found = next((each for each in map(_measured, (tree.get(path, "") for path in paths)) if each is not None), None)
        if found is not None:
            values[name] = found * 1000 if name.endswith("_mw") else found
    _reasons(gpu)
    _modes(gpu)
    _rows(gpu)
    _fabric(gpu)


_MEASURED = {
    "temperature_c": ("temperature/gpu current temp",),
    "memory_temperature_c": ("temperature/memory current temp",),
    "power_mw": (
        "gpu power readings/power draw",
        "gpu power readings/instantaneous power draw",
        "gpu power readings/average power draw",
        "power readings/power draw",
    ),
    "power_limit_mw": (
        "gpu power readings/current power limit",
        "power readings/enforced power limit",
        "power readings/power limit",
    ),
    "clock_sm_mhz": ("clocks/sm",),
    "clock_memory_mhz": ("clocks/memory",),
    "clock_sm_max_mhz": ("max clocks/sm",),
    "clock_memory_max_mhz": ("max clocks/memory",),
}


def _measured(told: str) -> float | None:
    match = _NUMBER.match(told)
    return float(match[0]) if match is not None else None


def _width(told: str) -> int | None:
    return number(told.removesuffix("x")) if told.endswith("x") else None


def _reasons(gpu: SmiGpu) -> None:
    mask, told = 0, False
    for title in ("clocks event reasons/", "clocks throttle reasons/"):
        for name, bit in _REASONS.items():
            if (value := gpu.tree.get(title + name)) in ("Active", "Not Active"):
                told = True
                mask |= bit if value == "Active" else 0
    if told:
        gpu.values["reasons"] = mask


def _modes(gpu: SmiGpu) -> None:
    on_off = {"Enabled": 1, "Disabled": 0}
    for ours, path in (("ecc_mode", "ecc mode"), ("mig_mode", "mig mode")):
        now, pending = (gpu.tree.get(f"{path}/{which}", "") for which in ("current", "pending"))
        if now in on_off:
            gpu.values[ours] = (on_off[now], on_off.get(pending, on_off[now]))
    action = gpu.tree.get("gpu recovery action", "").lower()
    if action in _ACTIONS:
        gpu.values["recovery_action"] = _ACTIONS[action]


def _rows(gpu: SmiGpu) -> None:
    yes_no = {"Yes": 1, "No": 0}
    failed = yes_no.get(gpu.tree.get("remapped rows/remapping failure occurred", ""))
    if failed is not None:
        pending = yes_no.get(gpu.tree.get("remapped rows/pending", ""), 0)
        rows = (gpu.counts.get(f"remapped_rows_{kind}", 0) for kind in ("correctable", "uncorrectable"))
        gpu.values["rows"] = (*rows, pending, failed)
        banks = [number(gpu.tree.get(_BANK + name, "").removesuffix(" bank(s)")) for name in BANKS]
        if None not in banks:
            gpu.values["banks"] = banks
    blacklist = ("retired pages/pending page blacklist", "retired pages/pending")
    pending_pages = next((yes_no[v] for path in blacklist if (v := gpu.tree.get(path, "")) in yes_no), None)
    if pending_pages is not None:
        gpu.values["retired_pending"] = pending_pages
    for ours, name in (("retired_single", "retired_pages_single_bit"), ("retired_double", "retired_pages_double_bit")):
        if name in gpu.counts:
            gpu.values[ours] = gpu.counts[name]


_BANK = "remapped rows/bank remap availability histogram/"


def _fabric(gpu: SmiGpu) -> None:
    state = _FABRIC.get(gpu.tree.get("fabric/state", "").lower())
    if not state:
        return  # not told, or not supported
    told = gpu.tree.get("fabric/clusteruuid", "").replace("-", "")
    cluster = bytes.fromhex(told) if len(told) == 32 and all(each in _HEX for each in told) else b""
    status: Callable[[str], int] = lambda text: 0 if text in ("", "Success", "N/A") else 1  # noqa: E731
    gpu.values["fabric"] = {
        "cluster": cluster,
        "clique": number(gpu.tree.get("fabric/cliqueid", "")) or 0,
        "state": state,
        "status": status(gpu.tree.get("fabric/status", "")),
        "mask": 0,
        "summary": {"healthy": 1, "unhealthy": 2, "limited capacity": 3}.get(
            gpu.tree.get("fabric/health/summary", "").lower(), 0
        ),
    }


_HEX = frozenset("0123456789abcdefABCDEF")
