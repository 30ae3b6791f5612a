"""All log files that match some patterns, or that others name, through one parser each.

What is read moves its bookmark when its events are in the spool. A file that was rotated away is followed by what it
held, so the rotated forms that a pattern matches too are left alone.
"""

from __future__ import annotations

import contextlib
import glob
import stat
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.adapters.files import READ_BYTES, Mark, Tail
from goodput_collector.adapters.inotify import FolderWatch
from goodput_collector.adapters.rotated import is_rotated
from goodput_collector.application.ports import Reading
from goodput_collector.domain.dedup import Folder
from goodput_collector.domain.line_counts import LineCounts
from goodput_collector.domain.log_lines import LogLines
from goodput_collector.domain.path_text import path_text
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Event, EventName, Sample, Severity, Source
from goodput_common.runtime.clock import Clock

FILES_MAX = 512
INTERVAL_S = 1.0
INTERVAL_UNWATCHED_S = 0.2
HURRY_S = 0.05
BYTES_PER_READ = 4 << 20  # of all files: what is left comes with the next


class FileReader:
    """See `goodput_collector.application.ports.SourceReader`.

    `lines_of` makes a parser for a path; `before_read` is called before the lines of a read are parsed; `named` gives
    files besides those that match the patterns.
    """

    interval_s = INTERVAL_S
    deadline_s = 5.0

    def __init__(
        self,
        source: Source,
        patterns: Sequence[str],
        *,
        host: str,
        lines_of: Callable[[Path], LogLines],
        before_read: Callable[[], None],
        clock: Clock,
        bookmarks: Bookmarks,
        named: Callable[[], Iterable[Path]] = tuple,
        look_every_s: float = 1.0,
        instance: str = "",
    ) -> None:
        self.source = source
        self.instance = instance
        self._patterns = patterns
        self._host = ids.host_id(host)
        self._lines_of = lines_of
        self._before_read = before_read
        self._clock = clock
        self._bookmarks = bookmarks
        self._named = named
        self._look_every_s = look_every_s
        self._looked_s = float("-inf")
        self._first_look = True
        self._tails: dict[Path, tuple[Tail, LogLines]] = {}
        self._folder = Folder()
        self._counts = LineCounts(self._host, source)
        self._trouble = ""
        self._watch: FolderWatch | None = None
        self._unkept = False
        self._begin: dict[str, Mark | None] = {}
        """Where each file ended that was there at the first look, until its bookmark is kept. None: read from its end."""

    def open(self) -> None:
        self._looked_s = float("-inf")
        if self._unkept:  # a reading that never reached the spool: its lines are read again
            self._folder, self._unkept = Folder(), False
        self._watch = FolderWatch()
        self._hurry(False)

    def wake_fd(self) -> int | None:
        return None if self._watch is None else self._watch.fd

    def read(self) -> Reading:
        if self._watch is not None:
            self._watch.clear()
        self._look()
        self._before_read()
        samples: list[Sample] = []
        marks: dict[str, int | str] = {}
        trouble = self._trouble
        left = BYTES_PER_READ
        for path, (tail, lines) in list(self._tails.items()):
            if left <= 0:
                break
            try:
                read = self._read(path, tail, lines, samples, min(READ_BYTES, left))
                left -= read
                if read >= READ_BYTES // 2:  # more than the others get: its turn comes last
                    self._tails[path] = self._tails.pop(path)
                mark = tail.mark()
            except OSError as error:
                trouble = f"{path_text(path)}: {error.strerror or error}"
                continue
            if mark is not None and self._bookmarks.text(_name(path)) != mark.text():
                marks[_name(path)] = mark.text()
        self._hurry(left < BYTES_PER_READ - READ_BYTES // 2)
        now = self._clock.now()
        samples += self._folder.flush(now)
        samples += self._counts.due(now, self._clock.monotonic_s())
        self._unkept = bool(marks)
        kept = partial(self._keep, marks, bool(samples)) if marks else None
        covered = [self._host] if self._tails else []
        return Reading(samples=samples, trouble=trouble, covered=covered, kept=kept, marks=marks)

    def close(self) -> None:
        for tail, _ in self._tails.values():
            tail.close()
        self._tails.clear()
        if self._watch is not None:
            self._watch.close()
        self._watch = None
        self._bookmarks.save()

    def _hurry(self, more: bool) -> None:
        """Nothing wakes for what was there before: while there is more of it, look again soon."""
        watched = self._watch is not None and self._watch.fd is not None
        self.interval_s = HURRY_S if more else INTERVAL_S if watched else INTERVAL_UNWATCHED_S

    def _keep(self, marks: dict[str, int | str], told: bool) -> None:
        self._unkept = False
        for name in marks:
            self._begin.pop(name, None)
        if told:
            self._bookmarks.keep(marks)
            return
        for name, mark in marks.items():
            self._bookmarks.set(name, mark)

    def _read(self, path: Path, tail: Tail, lines: LogLines, samples: list[Sample], limit: int) -> int:
        """Returns how many bytes were read."""
        gaps = tail.gaps
        new = tail.read(limit)
        if tail.gaps > gaps:
            self._counts.lost += 1
            samples.append(self._gap(path))
        self._counts.seen += len(new)
        for event in lines.feed(new) if new else ():
            self._counts.matched += 1
            samples += self._folder.add(event)
        return sum(map(len, new)) + len(new)

    def _gap(self, path: Path) -> Event:
        return Event(
            component=self._host,
            name=EventName.LOG_GAP,
            observed_at=self._clock.now(),
            severity=Severity.WARNING,
            excerpt=f"{path_text(path)} was replaced or cut short, and what stood in it before is gone",
            attrs={"missed": "unknown", "log": path_text(path)},
        )

    # -- which files ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Find files that are new; forget those that are gone."""
        if self._clock.monotonic_s() - self._looked_s < self._look_every_s:
            return
        self._looked_s = self._clock.monotonic_s()
        files = self._files()
        self._trouble = "" if files or not self._patterns else f"no file matches {', '.join(self._patterns)} yet"
        if len(files) > FILES_MAX:
            self._trouble = f"{len(files)} files match; the first {FILES_MAX} are read"
            files = files[:FILES_MAX]
        first, self._first_look = self._first_look, False
        kept = set(files)
        for gone in [path for path in self._tails if path not in kept]:
            self._tails.pop(gone)[0].close()
        for path in files:
            if path not in self._tails:
                name = _name(path)
                if first:
                    self._begin[name] = Mark.at_end(path)
                mark = Mark.of_text(self._bookmarks.text(name)) or self._begin.get(name)
                self._tails[path] = (Tail(path, mark=mark, from_end=name in self._begin), self._lines_of(path))
        if self._watch is not None:
            self._watch.watch({path.parent for path in files} | {_folder_of(pattern) for pattern in self._patterns})

    def _files(self) -> list[Path]:
        names = {name for pattern in self._patterns for name in glob.glob(pattern, recursive=True)}  # noqa: PTH207
        names |= {str(path) for path in self._named()}
        return sorted(path for path in map(Path, names) if not is_rotated(path, names) and _readable(path))


def _name(path: Path) -> str:
    """Of its bookmark."""
    return f"file/{path_text(path)}"


def _readable(path: Path) -> bool:
    with contextlib.suppress(OSError):
        mode = path.stat().st_mode
        return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)
    return False


def _folder_of(pattern: str) -> Path:
    """The folder in which a pattern's first file may appear."""
    parts = Path(pattern).parts
    wild = next((index for index, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return Path(*parts[:wild])
