"""The ranks that are registered on this host, for readers that ask every few seconds: what has not moved is not read again.

`<run dir>/ranks/<job>.<rank>.json` is renamed into place and taken away (`goodput_agent.files`), which moves its folder's
date either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from goodput_collector.adapters.folder_dates import FolderDates
from goodput_collector.adapters.process import registered_ranks
from goodput_common.contracts.job import RankRegistered
from goodput_common.runtime.clock import Clock


class Registrations:
    """For one reader: calls come one after the other."""

    def __init__(self, run_dir: Path, clock: Clock) -> None:
        self._run_dir = run_dir
        self._clock = clock
        self._dates = FolderDates()
        self._ranks: tuple[RankRegistered, ...] = ()

    def ranks(self) -> Sequence[RankRegistered]:
        now_s = self._clock.monotonic_s()
        if self._dates.due(now_s):
            self._dates.begin(now_s)
            self._dates.note(self._run_dir / "ranks")
            self._ranks = tuple(registered_ranks(self._run_dir))
        return self._ranks
