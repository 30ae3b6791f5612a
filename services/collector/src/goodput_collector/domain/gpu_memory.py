"""A GPU's memory: errors by place, rows that were put out of use, and whether that went well.

`volatile` counts begin anew when the driver is loaded or the GPU is reset; `aggregate` counts, remapped rows and retired
pages are kept in the board's own memory and outlive both. A reading after a reload therefore means something else for
each, and they are counted apart.

Chips since Ampere put single rows out of use: `pending` waits for a reset and is routine, `failed` means that no spare row
was left and the board is to be replaced. The banks' spare rows are told as a histogram. Older chips retire pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from goodput_collector.domain.gpu_presence import Gpu
from goodput_common.contracts.telemetry import State

PLACES = {0: "l1", 1: "l2", 2: "dram", 3: "register_file", 4: "texture", 5: "texture_shm", 6: "cbu", 7: "sram"}
KINDS = {0: "corrected", 1: "uncorrected"}
LIVES = {0: "volatile", 1: "aggregate"}
BANKS = ("max", "high", "partial", "low", "none")


def ecc_name(kind: int, life: int, place: int) -> str:
    """`ecc_uncorrected_volatile_dram`."""
    return f"ecc_{KINDS[kind]}_{LIVES[life]}_{PLACES[place]}"


def ecc_total_name(kind: int, life: int) -> str:
    return f"ecc_{KINDS[kind]}_{LIVES[life]}_total"


def outlives_reset(name: str) -> bool:
    """Whether the counter is kept in the board's memory."""
    return "_aggregate_" in name or name.startswith(("remapped_rows", "retired_pages"))


def ecc_state(gpu: Gpu, mode: tuple[int, int], counts: Mapping[str, int], at: datetime) -> State:
    """`counts` (all of them, by name) go along where they are not zero, so that errors from before anybody looked show."""
    now, pending = ("on" if each else "off" for each in mode)
    attrs = {"pending": pending} if pending != now else {}
    standing = {name: str(value) for name, value in counts.items() if value}
    return State(component=gpu.component, name="ecc", observed_at=at, value=now, attrs=attrs | standing)


def row_remap_state(gpu: Gpu, rows: tuple[int, int, int, int], banks: Sequence[int] | None, at: datetime) -> State:
    """`rows`: correctable, uncorrectable, pending, failure. `banks`: how many banks have which share of spare rows left."""
    correctable, uncorrectable, pending, failed = rows
    value = "failed" if failed else "pending" if pending else "ok"
    attrs = {"correctable": str(correctable), "uncorrectable": str(uncorrectable), "pending": str(int(bool(pending)))}
    if banks is not None:
        attrs |= {f"banks_{name}": str(count) for name, count in zip(BANKS, banks, strict=False)}
    return State(component=gpu.component, name="row_remap", observed_at=at, value=value, attrs=attrs)


def retired_pages_state(gpu: Gpu, single: int | None, double: int | None, pending: int | None, at: datetime) -> State:
    """None: not told (a virtual GPU, or one that remaps rows)."""
    counts = {"single_bit": single, "double_bit": double}
    return State(
        component=gpu.component,
        name="retired_pages",
        observed_at=at,
        value="unknown" if pending is None else "pending" if pending else "ok",
        attrs={name: str(count) for name, count in counts.items() if count is not None},
    )


_RECOVERY_ACTIONS = (
    "none",
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex",
    "bus_reset",
    "system_reboot",
)


def recovery_action_state(gpu: Gpu, code: int, at: datetime) -> State:
    """What the driver itself wants done; the same that an Xid 154 says when it changes."""
    known = 0 <= code < len(_RECOVERY_ACTIONS)
    value = _RECOVERY_ACTIONS[code] if known else f"action_{code}"
    return State(component=gpu.component, name="recovery_action", observed_at=at, value=value)
