"""What the agent leaves on the host for the collector: one registration a rank, one dump a rank.

Files appear whole or not at all: written under a temporary name in the same folder, then renamed.

    <run dir>/ranks/<job>.<rank>.json      a RankRegistered
    <run dir>/dumps/<job>/rank_<rank>      the flight recorder as JSON
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.subjects import token


class RunDirectory:
    def __init__(self, root: Path, job: str, rank: int) -> None:
        self.registration = root / "ranks" / f"{token(job)}.{rank}.json"
        self.dump = root / "dumps" / token(job) / f"rank_{rank}"

    def register(self, registered: RankRegistered) -> None:
        """Raises OSError."""
        _write_whole(self.registration, msgspec.json.encode(registered))

    def withdraw(self) -> None:
        """After a clean end there is nobody to watch. Raises OSError."""
        self.registration.unlink(missing_ok=True)

    def write_dump(self, data: bytes) -> Path:
        """Raises OSError."""
        _write_whole(self.dump, data)
        return self.dump


def _write_whole(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
