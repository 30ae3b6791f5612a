"""How a rank goes wrong from inside, on the lab's order.

The order is a file that the rank finds at a step's beginning: only the trainer of the lab looks for one. Each is done as the
real thing does it: the interpreter lock is held in C, a lost device is a call that does not return, a collective is skipped.
"""

from __future__ import annotations

import ctypes
import enum
import threading
from pathlib import Path

import msgspec


class Sabotage(enum.StrEnum):
    HOLD_GIL = "hold_gil"  # a C extension that never gives the interpreter lock back
    HANG = "hang"  # the main thread waits for a device that is gone; other threads go on
    SKIP_COLLECTIVE = "skip_collective"  # one rank takes the branch without the all-reduce


class Order(msgspec.Struct, frozen=True, kw_only=True):
    what: Sabotage
    seconds: float = 3600.0


def give(path: Path, order: Order) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.encode(order))
    temporary.replace(path)


def take(path: Path) -> Order | None:
    """The order, once: the file is gone afterwards."""
    if not path.exists():
        return None
    order = msgspec.json.decode(path.read_bytes(), type=Order)
    path.unlink(missing_ok=True)
    return order


def hold_gil(seconds: float) -> None:
    """`PyDLL` calls C without releasing the lock: no other Python thread of this process runs meanwhile."""
    ctypes.PyDLL(None).sleep(int(seconds))


def hang(seconds: float) -> None:
    """Like a synchronous call into a driver whose device is lost: this thread waits, the lock is free."""
    threading.Event().wait(seconds)
