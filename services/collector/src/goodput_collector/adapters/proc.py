"""What /proc and the freezer say of one process."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class ProcStat(NamedTuple):
    """`state` is the kernel's letter: R running, S sleeping, D uninterruptible, T stopped, t traced, Z zombie."""

    state: str
    cpu_ticks: int  # user and system, all threads
    start_ticks: int  # since boot; with the pid it names the process


def read_stat(proc: Path, pid: int) -> ProcStat | None:
    """None when there is no such process."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # the name in parentheses may hold blanks and parentheses itself
    fields = text.rpartition(")")[2].split()
    try:
        return ProcStat(fields[0], int(fields[11]) + int(fields[12]), int(fields[19]))
    except (IndexError, ValueError):
        return None


def wchan(proc: Path, pid: int) -> str:
    """The kernel function that the main thread sleeps in; "" where it does not or the kernel will not say."""
    try:
        text = (proc / str(pid) / "wchan").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
    return "" if text == "0" else text[:64]


def is_frozen(proc: Path, cgroup: Path, pid: int) -> bool:
    """Is its control group frozen (v2: itself or an ancestor; v1: the freezer)?"""
    try:
        lines = (proc / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        relative = path.lstrip("/")
        if controllers == "" and _says(cgroup / relative / "cgroup.events", "frozen 1"):
            return True
        if "freezer" in controllers.split(",") and _says(cgroup / "freezer" / relative / "freezer.state", "FROZEN"):
            return True
    return False


def _says(path: Path, line: str) -> bool:
    try:
        return line in path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
