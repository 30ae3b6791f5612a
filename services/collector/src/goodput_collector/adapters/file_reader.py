"""All log files that match some patterns, or that others name, through one parser each.

What is read moves its bookmark when its events are in the spool. A file that was rotated away is followed by what it
held, so the rotated forms that a pattern matches too are left alone.

Most logs say nothing in most seconds: of a file that was read to its end a read asks for its size, and no more. Files are
looked for when a folder in which they are or may appear has changed, and now and then (`FolderDates`).
"""

from __future__ import annotations

import contextlib
import glob
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.adapters.files import READ_BYTES, Mark, Tail
from goodput_collector.adapters.folder_dates import FolderDates, folder_of
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
LOOKS_APART_S = 1.0
BYTES_PER_READ = 4 << 20  # of all files: what is left comes with the next


@dataclass(slots=True)
class _Followed:
    path: Path
    name: str  # of its bookmark
    tail: Tail
    lines: LogLines


class FileReader:
    """See `goodput_collector.application.ports.SourceReader`.

    `lines_of` makes a parser for a path; `before_read` is called before the lines of a read, if there are any, are parsed;
    `named` gives files besides those that match the patterns, others when something changed in `named_in`.
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
        named_in: Iterable[Path] = (),
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
        self._named_in = tuple(named_in)
        self._dates = FolderDates(apart_s=LOOKS_APART_S)
        self._first_look = True
        self._files: dict[Path, _Followed] = {}
        self._any_lines = False
        self._folder = Folder()
        self._counts = LineCounts(self._host, source)
        self._trouble = ""
        self._watch: FolderWatch | None = None
        self._offered: dict[str, str] = {}
        """Marks by name whose reading is not known to have reached the spool: they are offered with each reading."""
        self._begin: dict[str, Mark | None] = {}
        """Where each file ended that was there at the first look, until its bookmark is kept. None: read from its end."""

    def open(self) -> None:
        self._dates.forget()
        if self._offered:  # a reading that never reached the spool: its lines are read again
            self._folder, self._offered = Folder(), {}
        self._watch = FolderWatch()
        self._hurry(False)

    def wake_fd(self) -> int | None:
        return None if self._watch is None else self._watch.fd

    def read(self) -> Reading:
        if self._watch is not None:
            self._watch.clear()
        now_s = self._clock.monotonic_s()
        if self._dates.due(now_s):
            self._look(now_s)
        self._any_lines = False
        samples: list[Sample] = []
        marks: dict[str, int | str] = {}
        trouble = self._trouble
        left = BYTES_PER_READ
        for file in list(self._files.values()):
            if file.tail.is_quiet() and file.name not in self._offered:
                continue
            if left <= 0:
                break
            try:
                read = self._read(file, samples, min(READ_BYTES, left))
                left -= read
                if read >= READ_BYTES // 2:  # more than the others get: its turn comes last
                    self._files[file.path] = self._files.pop(file.path)
                mark = file.tail.mark()
            except OSError as error:
                trouble = f"{path_text(file.path)}: {error.strerror or error}"
                continue
            if mark is not None and self._bookmarks.text(file.name) != (text := mark.text()):
                marks[file.name] = self._offered[file.name] = text
            else:
                self._offered.pop(file.name, None)
        self._hurry(left < BYTES_PER_READ - READ_BYTES // 2)
        now = self._clock.now()
        samples += self._folder.flush(now)
        samples += self._counts.due(now, now_s)
        kept = partial(self._keep, marks, bool(samples)) if marks else None
        covered = [self._host] if self._files else []
        return Reading(samples=samples, trouble=trouble, covered=covered, kept=kept, marks=marks)

    def close(self) -> None:
        for file in self._files.values():
            file.tail.close()
        self._files.clear()
        if self._watch is not None:
            self._watch.close()
        self._watch = None
        self._bookmarks.save()

    def _hurry(self, more: bool) -> None:
        """Nothing wakes for what was there before: while there is more of it, look again soon."""
        watched = self._watch is not None and self._watch.fd is not None
        self.interval_s = HURRY_S if more else INTERVAL_S if watched else INTERVAL_UNWATCHED_S

    def _keep(self, marks: Mapping[str, int | str], told: bool) -> None:
        for name, mark in marks.items():
            self._begin.pop(name, None)
            if self._offered.get(name) == mark:
                del self._offered[name]
        if told:
            self._bookmarks.keep(marks)
            return
        for name, mark in marks.items():
            self._bookmarks.set(name, mark)

    def _read(self, file: _Followed, samples: list[Sample], limit: int) -> int:
        """Returns how many bytes were read."""
        gaps = file.tail.gaps
        new = file.tail.read(limit)
        if file.tail.gaps > gaps:
            self._counts.lost += 1
            samples.append(self._gap(file.path))
        self._counts.seen += len(new)
        if new and not self._any_lines:
            self._any_lines = True
            self._before_read()
        for event in file.lines.feed(new) if new else ():
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

    def _look(self, now_s: float) -> None:
        """Find files that are new; forget those that are gone."""
        self._dates.begin(now_s)
        for pattern in self._patterns:
            self._dates.note_pattern(pattern)
        for folder in (*self._named_in, *(path.parent for path in self._files)):
            self._dates.note(folder)
        files = self._find()
        self._trouble = "" if files or not self._patterns else f"no file matches {', '.join(self._patterns)} yet"
        if len(files) > FILES_MAX:
            self._trouble = f"{len(files)} files match; the first {FILES_MAX} are read"
            files = files[:FILES_MAX]
        first, self._first_look = self._first_look, False
        kept = set(files)
        for gone in [path for path in self._files if path not in kept]:
            file = self._files.pop(gone)
            file.tail.close()
            self._offered.pop(file.name, None)
        for path in files:
            if path not in self._files:
                name = _name(path)
                if first:
                    self._begin[name] = Mark.at_end(path)
                mark = Mark.of_text(self._bookmarks.text(name)) or self._begin.get(name)
                tail = Tail(path, mark=mark, from_end=name in self._begin)
                self._files[path] = _Followed(path, name, tail, self._lines_of(path))
        if self._watch is not None:
            folders = {*map(folder_of, self._patterns), *self._named_in, *(path.parent for path in files)}
            self._watch.watch(folders)

    def _find(self) -> list[Path]:
        names = {name for pattern in self._patterns for name in glob.glob(pattern, recursive=True)}  # noqa: PTH207
        for path in self._named():
            self._dates.note(path.parent)
            names.add(str(path))
        return sorted(path for path in map(Path, names) if not is_rotated(path, names) and _readable(path))


def _name(path: Path) -> str:
    """Of its bookmark."""
    return f"file/{path_text(path)}"


def _readable(path: Path) -> bool:
    with contextlib.suppress(OSError):
        mode = path.stat().st_mode
        return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)
    return False
