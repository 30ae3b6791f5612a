"""Flight-recorder files as they appear: in the run directory, and wherever torch was told to write them.

A file is read once it is complete: one that was renamed into place under the run directory at once, any other when its
size has stood still for a while. Each content is told once, however often the file is touched. A file that cannot be
read is told once too, as a state with the reason: its rank is unknown, not healthy and not guilty.

Folders are listed, and patterns matched, when the date of one of them or of a file found there has moved, while a file
grows, and now and then (`FolderDates`): recorders are dumped once in a great while.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.adapters.folder_dates import FolderDates
from goodput_collector.adapters.process import registered_ranks
from goodput_collector.application.ports import Reading
from goodput_collector.application.small_file import read_small
from goodput_common import flight_recorder
from goodput_common.contracts import ids
from goodput_common.contracts.job import FlightRecorderDump, RankRegistered
from goodput_common.contracts.subjects import token
from goodput_common.contracts.telemetry import Source, State
from goodput_common.runtime.clock import Clock

FILES_MAX = 4096
CONTENTS_REMEMBERED = 8192
READ_PER_ROUND = 32
UNNAMED_JOB = "unnamed"


class _Version(NamedTuple):
    size: int
    mtime_ns: int


class DumpReader:
    """See `goodput_collector.application.ports.SourceReader`. `patterns` are globs of files outside the run directory."""

    source = Source.FLIGHT_RECORDER
    instance = ""
    deadline_s = 30.0

    def __init__(
        self,
        *,
        run_dir: Path,
        patterns: Sequence[str] = (),
        fabric: str,
        host: str,
        clock: Clock,
        bookmarks: Bookmarks,
        interval_s: float = 1.0,
        stable_for_s: float = 1.5,
        max_age_s: float = 3600.0,
        more_patterns: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self.interval_s = interval_s
        self._run_dir = run_dir
        self._patterns = patterns
        self._fabric = fabric
        self._host = host
        self._clock = clock
        self._bookmarks = bookmarks
        self._stable_for_s = stable_for_s
        self._max_age_s = max_age_s
        self._more_patterns = more_patterns
        self._dates = FolderDates()
        self._unkept: list[Path] = []
        self._told: OrderedDict[Path, _Version] = OrderedDict()
        self._growing: dict[Path, tuple[_Version, float]] = {}
        self._contents: OrderedDict[bytes, None] = OrderedDict()

    def open(self) -> None:
        """Nothing to open: folders may come and go. What was told too late is told again."""
        for path in self._unkept:
            self._told.pop(path, None)
            self._contents.clear()
        self._unkept = []
        self._dates.forget()

    def wake_fd(self) -> int | None:
        return None

    def read(self) -> Reading:
        dumps: list[FlightRecorderDump] = []
        states: list[State] = []
        ranks: list[RankRegistered] | None = None
        marks: dict[str, int | str] = {}
        for path, version in self._complete():
            if len(dumps) + len(states) >= READ_PER_ROUND:
                self._dates.forget()  # there may be more
                break
            self._remember(path, version)
            marks[f"dump/{path}"] = version.mtime_ns
            self._unkept.append(path)
            ranks = list(registered_ranks(self._run_dir)) if ranks is None else ranks
            told = self._tell(path, version, ranks)
            if isinstance(told, FlightRecorderDump):
                dumps.append(told)
            elif told is not None:
                states.append(told)
        kept = partial(self._keep, marks) if marks else None
        return Reading(samples=states, dumps=dumps, kept=kept, marks=marks)

    def close(self) -> None:
        """Nothing is held open; what has been told stays told."""
        self._bookmarks.save()

    def _keep(self, marks: dict[str, int | str]) -> None:
        self._unkept = []
        self._bookmarks.keep(marks)

    def _complete(self) -> Iterator[tuple[Path, _Version]]:
        """Files not told yet that will not change any more."""
        now_s = self._clock.monotonic_s()
        if not self._growing and not self._dates.due(now_s):
            return
        self._dates.begin(now_s)
        oldest_s = self._clock.now().timestamp() - self._max_age_s
        growing = set[Path]()
        for path, renamed in self._candidates():
            try:
                status = path.stat()
            except OSError:
                continue
            version = _Version(status.st_size, status.st_mtime_ns)
            if self._told.get(path) == version or status.st_mtime < oldest_s:
                continue
            if path not in self._told and self._bookmarks.get(f"dump/{path}") == version.mtime_ns:
                self._remember(path, version)  # told before a restart
                continue
            if renamed:
                yield path, version
                continue
            growing.add(path)
            seen, since_s = self._growing.get(path, (None, now_s))
            if seen != version:
                self._growing[path] = (version, now_s)
                while len(self._growing) > FILES_MAX:
                    self._growing.pop(next(iter(self._growing)))
            elif now_s - since_s >= self._stable_for_s:
                self._growing.pop(path, None)
                yield path, version
        for gone in self._growing.keys() - growing:
            del self._growing[gone]

    def _candidates(self) -> Iterator[tuple[Path, bool]]:
        """(path, whether it was renamed into place). What is listed is noted first."""
        dumps = self._run_dir / "dumps"
        for folder in (self._run_dir / "ranks", dumps, *sorted(dumps.glob("*"))):
            self._dates.note(folder)
        own = sorted(dumps.glob("*/*"))[:FILES_MAX]
        yield from ((path, True) for path in own if not path.name.startswith(".") and path.is_file())
        for pattern in dict.fromkeys((*self._patterns, *self._more_patterns())):
            self._dates.note_pattern(pattern)
            for name in sorted(glob.glob(pattern, recursive=True))[:FILES_MAX]:  # noqa: PTH207
                path = Path(name)
                if path.is_file() and not path.name.startswith(".") and not path.name.endswith(".tmp"):
                    self._dates.note(path)
                    yield path, False

    def _remember(self, path: Path, version: _Version) -> None:
        self._told[path] = version
        self._told.move_to_end(path)
        while len(self._told) > FILES_MAX:
            self._told.popitem(last=False)

    def _tell(self, path: Path, version: _Version, ranks: Sequence[RankRegistered]) -> FlightRecorderDump | State | None:
        named = flight_recorder.rank_from_name(path.name)
        job = self._job_of(path, ranks)
        at = datetime.fromtimestamp(version.mtime_ns / 1e9, UTC)
        try:
            if version.size > flight_recorder.DUMP_BYTES_MAX:
                raise flight_recorder.UnreadableDump(f"{version.size} bytes are too many", origin=str(path))
            data = read_small(path, bytes_max=flight_recorder.DUMP_BYTES_MAX)
            digest = hashlib.blake2b(data, digest_size=16, key=os.fsencode(path)[-64:]).digest()
            if digest in self._contents:
                return None
            self._contents[digest] = None
            while len(self._contents) > CONTENTS_REMEMBERED:
                self._contents.popitem(last=False)
            raw = flight_recorder.parse(data, origin=str(path))
            rank = _rank(named, flight_recorder.own_ranks(raw))
            if rank is None:
                raise flight_recorder.UnreadableDump(
                    "neither its name nor its groups say whose dump it is", origin=str(path)
                )
            return flight_recorder.normalise(
                raw,
                fabric=self._fabric,
                job=job,
                rank=rank,
                host=self._host,
                at=at,
                origin=str(path),
                reason="file",
                generation=max((each.generation for each in ranks if each.job == job and each.rank == rank), default=0),
            )
        except (OSError, flight_recorder.UnreadableDump) as error:
            reason = error.reason if isinstance(error, flight_recorder.UnreadableDump) else error.strerror or str(error)
            component = ids.rank_id(job, named.rank) if named is not None else ids.host_id(self._host)
            return State(
                component=component,
                name="flight_recorder",
                observed_at=at,
                value="unreadable",
                attrs={"path": str(path), "reason": reason, "host": self._host},
            )

    def _job_of(self, path: Path, ranks: Sequence[RankRegistered]) -> str:
        """By the folder's name under the run directory, else the only job that is registered here."""
        jobs = sorted({each.job for each in ranks})
        with contextlib.suppress(ValueError):
            folder = path.relative_to(self._run_dir / "dumps").parts[0]
            return next((job for job in jobs if token(job) == folder), folder)
        return jobs[0] if len(jobs) == 1 else UNNAMED_JOB


def _rank(named: flight_recorder.NamedRank | None, own: Sequence[int]) -> int | None:
    """What the groups prove, else what the name says."""
    if len(own) == 1:
        return own[0]
    return named.rank if named is not None else None
