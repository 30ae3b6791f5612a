"""Freezing a process from outside, by the strongest means at hand.

The cgroup freezer (what `docker pause` and `kubectl debug` leave behind) where this user may make a cgroup, else SIGSTOP.
A frozen process of the first hierarchy shows state D in /proc and cannot be killed until it is thawed; one of the second
shows S and burns no time; a stopped one shows T.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

PREFIX = "goodput-lab-"
_V1 = Path("/sys/fs/cgroup/freezer")
_V2 = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


class Freezer:
    """One frozen group at a time. `means` says how the last freeze was done."""

    def __init__(self, name: str) -> None:
        self._name = f"{PREFIX}{name}"
        self._group: Path | None = None
        self._pids: tuple[int, ...] = ()
        self.means = ""

    def freeze(self, *pids: int) -> None:
        self._pids = pids
        for root, setting, frozen, means in _hierarchies():
            group = root / self._name
            try:
                group.mkdir(exist_ok=True)
                for pid in pids:
                    (group / "cgroup.procs").write_text(str(pid))
                (group / setting).write_text(frozen)
            except OSError:
                with contextlib.suppress(OSError):
                    group.rmdir()
                continue
            self._group, self.means = group, means
            return
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        self.means = "SIGSTOP"

    def thaw(self) -> None:
        """Also of processes that were killed meanwhile: only now do they end."""
        if self._group is not None:
            _dissolve(self._group)
            self._group = None
        elif self.means == "SIGSTOP":
            for pid in self._pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        self._pids = ()
        self.means = ""


def sweep() -> None:
    """Thaw and remove what a lab that was killed has left."""
    for root, *_ in _hierarchies():
        for group in root.glob(f"{PREFIX}*"):
            owner = group.name.removeprefix(PREFIX).partition("-")[0]
            if owner.isdigit() and Path(f"/proc/{owner}").exists():
                continue
            _dissolve(group, kill=True)


def _hierarchies() -> list[tuple[Path, str, str, str]]:
    found = []
    if (_V1 / "cgroup.procs").exists() and os.access(_V1, os.W_OK):
        found.append((_V1, "freezer.state", "FROZEN", "cgroup freezer"))
    return found + [
        (root, "cgroup.freeze", "1", "cgroup v2 freezer")
        for root in _V2
        if (root / "cgroup.controllers").exists() and os.access(root, os.W_OK)
    ]


def _dissolve(group: Path, *, kill: bool = False) -> None:
    with contextlib.suppress(OSError):
        if kill:
            for pid in (group / "cgroup.procs").read_text().split():
                if pid != "0":  # 0: a process of another pid namespace, which ends with it
                    os.kill(int(pid), signal.SIGKILL)
        thaw = ("freezer.state", "THAWED") if (group / "freezer.state").exists() else ("cgroup.freeze", "0")
        (group / thaw[0]).write_text(thaw[1])
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (group.parent / "cgroup.procs").write_text(pid)
    for _ in range(20):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)
