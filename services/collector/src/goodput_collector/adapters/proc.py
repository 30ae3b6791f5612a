"""What /proc and the freezer say of one process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_FILE_BYTES = 16 * 1024


class ProcStat(NamedTuple):
    """`state` is the kernel's letter: R running, S sleeping, D uninterruptible, T stopped, t traced, Z zombie."""

    state: str
    cpu_ticks: int  # user and system, all threads
    start_ticks: int  # since boot; with the pid it names the process


def read_stat(proc: Path, pid: int) -> ProcStat | None:
    """None when there is no such process."""
    text = _text(f"{proc}/{pid}/stat")
    # the name in parentheses may hold blanks and parentheses itself
    fields = text.rpartition(")")[2].split()
    try:
        return ProcStat(fields[0], int(fields[11]) + int(fields[12]), int(fields[19]))
    except (IndexError, ValueError):
        return None


def wchan(proc: Path, pid: int) -> str:
    """The kernel function that the main thread sleeps in; "" where it does not or the kernel will not say."""
    text = _text(f"{proc}/{pid}/wchan").strip()
    return "" if text == "0" else text[:64]


def is_frozen(proc: Path, cgroup: Path, pid: int) -> bool:
    """Is its control group frozen (v2: itself or an ancestor; v1: the freezer)?"""
    for line in _text(f"{proc}/{pid}/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        relative = path.lstrip("/")
        if controllers == "" and "frozen 1" in _text(f"{cgroup}/{relative}/cgroup.events"):
            return True
        if "freezer" in controllers.split(",") and "FROZEN" in _text(f"{cgroup}/freezer/{relative}/freezer.state"):
            return True
    return False


def _text(path: str) -> str:
    """A small file in one read, "" when it is not there: these are read many times a second."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, _FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
