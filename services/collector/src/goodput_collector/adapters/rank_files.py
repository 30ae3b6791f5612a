"""The files that the registered ranks of this host write, asked of the kernel instead of the user: what standard output
and error go to, and where NCCL and torch were told to write.

    <proc>/<pid>/fd/{1,2}   <proc>/<pid>/environ    <proc>/<pid>/root: the file system as that process sees it

Each process is asked once. One that may not be asked (another user's, without the right) tells nothing; then the settings
must name its files.
"""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from goodput_collector.application.small_file import read_small
from goodput_collector.domain.nccl_files import dump_prefixes, log_of, parse_environ
from goodput_common.contracts.job import RankRegistered

_ENVIRON_BYTES_MAX = 8 << 20


@dataclass(frozen=True, slots=True)
class LogOwner:
    """Whose log it is; `rank` is None where several ranks of the host share it."""

    job: str
    rank: int | None


@dataclass(slots=True)
class _Asked:
    logs: list[Path] = field(default_factory=list)
    dumps: list[str] = field(default_factory=list)


class RankFiles:
    def __init__(self, ranks: Callable[[], Iterable[RankRegistered]], *, host: str, proc_root: Path = Path("/proc")) -> None:
        self._ranks = ranks
        self._host = host
        self._proc = proc_root
        self._asked: dict[tuple[int, int], _Asked] = {}

    def logs(self) -> dict[Path, LogOwner]:
        owners: dict[Path, LogOwner] = {}
        for rank, asked in self._all():
            for path in asked.logs:
                known = owners.get(path)
                number = rank.rank if known is None or known.rank == rank.rank else None
                owners[path] = LogOwner(rank.job, number)
        return owners

    def dump_patterns(self) -> list[str]:
        return list(dict.fromkeys(pattern for _, asked in self._all() for pattern in asked.dumps))

    def _all(self) -> list[tuple[RankRegistered, _Asked]]:
        found = [(rank, (rank.pid, rank.process_start)) for rank in self._ranks()]
        wanted = {key for _, key in found}
        self._asked = {key: asked for key, asked in self._asked.items() if key in wanted}
        for rank, key in found:
            if key not in self._asked:
                self._asked[key] = self._ask(rank)
        return [(rank, self._asked[key]) for rank, key in found]

    def _ask(self, rank: RankRegistered) -> _Asked:
        process = self._proc / str(rank.pid)
        root = str(process / "root") if self._sees_other_files(process) else ""
        asked = _Asked()
        for number in (1, 2):
            with contextlib.suppress(OSError):
                target = str((process / "fd" / str(number)).readlink())
                if target.startswith("/") and not target.startswith("/dev/") and not target.endswith(" (deleted)"):
                    asked.logs.append(Path(root + target))
        environ: dict[str, str] = {}
        with contextlib.suppress(OSError):
            environ = parse_environ(read_small(process / "environ", bytes_max=_ENVIRON_BYTES_MAX))
        if log := log_of(environ, host=self._host, pid=rank.pid):
            asked.logs.append(Path(root + log))
        if environ:
            asked.dumps = [
                f"{glob.escape(root + prefix)}*" for prefix in dump_prefixes(environ, nccl="nccl" in rank.backend)
            ]
        asked.logs = list(dict.fromkeys(asked.logs))
        return asked

    def _sees_other_files(self, process: Path) -> bool:
        """Is it in another mount namespace than we are?"""
        try:
            return (process / "ns" / "mnt").stat().st_ino != (self._proc / "self" / "ns" / "mnt").stat().st_ino
        except OSError:
            return False
