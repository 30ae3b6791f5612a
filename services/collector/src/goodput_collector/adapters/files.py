"""Log files as they grow: kernel logs kept by a syslog daemon, journal exports, job logs.

A file is read from where the last run left off, else from its end; one that appears later, from its start. A rotated
file is read to its end before its successor is opened; one that shrank starts anew. A last line without its newline
waits for the rest. Bounds: so many bytes a file and read (what is left comes with the next), so long a line (the rest
of it is cut).
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.adapters.inotify import FolderWatch
from goodput_collector.application.ports import Reading
from goodput_collector.domain.dedup import Folder
from goodput_common.contracts.telemetry import Event, Sample, Source
from goodput_common.runtime.clock import Clock

READ_BYTES = 1 << 20
LINE_BYTES = 64 * 1024
FILES_MAX = 512
INTERVAL_S = 1.0
INTERVAL_UNWATCHED_S = 0.2


class Tail:
    """The new lines of one file. `read` raises OSError only for trouble other than the file not being there."""

    def __init__(self, path: Path, *, position: int | None) -> None:
        """`position` None: the end."""
        self._path = path
        self._start = position
        self._file: int | None = None
        self._inode = 0
        self._position = 0
        self._partial = b""

    @property
    def inode(self) -> int:
        return self._inode

    @property
    def position(self) -> int:
        """Behind the last whole line that was given out."""
        return self._position - len(self._partial)

    def read(self, limit: int = READ_BYTES) -> list[str]:
        if self._file is None and not self._open():
            return []
        assert self._file is not None
        size = os.fstat(self._file).st_size
        if size < self._position:  # truncated in place
            self._position, self._partial = 0, b""
            os.lseek(self._file, 0, os.SEEK_SET)
        data = os.read(self._file, limit)
        self._position += len(data)
        if not data and self._replaced():
            lines = [self._partial] if self._partial else []
            self.close()
            self._start = 0
            return [line.decode("utf-8", "replace") for line in lines] + self.read(limit)
        *whole, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > LINE_BYTES:
            whole.append(self._partial[:LINE_BYTES])
            self._partial = self._partial[-1:] if self._partial.endswith(b"\r") else b""
        return [line[:LINE_BYTES].decode("utf-8", "replace") for line in whole]

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
        self._file, self._partial = None, b""

    def _open(self) -> bool:
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        status = os.fstat(self._file)
        self._inode = status.st_ino
        start = status.st_size if self._start is None else min(self._start, status.st_size)
        self._position = os.lseek(self._file, start, os.SEEK_SET)
        self._start = 0
        return True

    def _replaced(self) -> bool:
        try:
            return self._path.stat().st_ino != self._inode
        except FileNotFoundError:
            return False


class LineParser(Protocol):
    def feed(self, line: str) -> Event | None: ...


class FileReader:
    """All files that match the patterns, through one parser each. See `goodput_collector.application.ports.SourceReader`.

    `parser_of` makes a parser for a path; `before_read` is told the time before the lines of a read are parsed.
    """

    interval_s = 1.0
    deadline_s = 5.0

    def __init__(
        self,
        source: Source,
        patterns: Sequence[str],
        *,
        parser_of: Callable[[Path], LineParser],
        before_read: Callable[[], None],
        clock: Clock,
        bookmarks: Bookmarks,
        look_every_s: float = 1.0,
    ) -> None:
        self.source = source
        self.instance = ""
        self._patterns = patterns
        self._parser_of = parser_of
        self._before_read = before_read
        self._clock = clock
        self._bookmarks = bookmarks
        self._look_every_s = look_every_s
        self._looked_s = float("-inf")
        self._first_look = True
        self._tails: dict[Path, tuple[Tail, LineParser]] = {}
        self._folder = Folder()
        self._trouble = ""
        self._watch: FolderWatch | None = None

    def open(self) -> None:
        self._looked_s = float("-inf")
        self._watch = FolderWatch()
        self.interval_s = INTERVAL_S if self._watch.fd is not None else INTERVAL_UNWATCHED_S

    def wake_fd(self) -> int | None:
        return None if self._watch is None else self._watch.fd

    def read(self) -> Reading:
        if self._watch is not None:
            self._watch.clear()
        self._look()
        self._before_read()
        samples: list[Sample] = []
        trouble = self._trouble
        for path, (tail, parser) in self._tails.items():
            try:
                lines = tail.read()
            except OSError as error:
                trouble = f"{path}: {error.strerror or error}"
                continue
            if not lines:
                continue
            for event in _events(lines, parser):
                samples += self._folder.add(event)
            self._bookmarks.set(f"file/{path}/{tail.inode}", tail.position)
        samples += self._folder.flush(self._clock.now())
        return Reading(samples=samples, trouble=trouble)

    def close(self) -> None:
        for tail, _ in self._tails.values():
            tail.close()
        self._tails.clear()
        if self._watch is not None:
            self._watch.close()
        self._watch = None
        self._bookmarks.save()

    def _look(self) -> None:
        """Find files that are new; forget those that are gone."""
        if self._clock.monotonic_s() - self._looked_s < self._look_every_s:
            return
        self._looked_s = self._clock.monotonic_s()
        found = {Path(name) for pattern in self._patterns for name in glob.glob(pattern, recursive=True)}  # noqa: PTH207
        files = sorted(path for path in found if path.is_file())
        self._trouble = "" if files else f"no file matches {', '.join(self._patterns)} yet"
        if len(files) > FILES_MAX:
            self._trouble = f"{len(files)} files match; the first {FILES_MAX} are read"
            files = files[:FILES_MAX]
        for gone in [path for path in self._tails if path not in files]:
            self._tails.pop(gone)[0].close()
        for path in files:
            if path not in self._tails:
                self._tails[path] = (Tail(path, position=self._start_of(path)), self._parser_of(path))
        self._first_look = False
        if self._watch is not None:
            self._watch.watch({path.parent for path in files} | {_folder_of(pattern) for pattern in self._patterns})

    def _start_of(self, path: Path) -> int | None:
        with contextlib.suppress(OSError):
            known = self._bookmarks.get(f"file/{path}/{path.stat().st_ino}")
            if known is not None:
                return known
        return None if self._first_look else 0


def _folder_of(pattern: str) -> Path:
    """The folder in which a pattern's first file may appear."""
    parts = Path(pattern).parts
    wild = next((index for index, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return Path(*parts[:wild])


def _events(lines: Iterable[str], parser: LineParser) -> Iterable[Event]:
    for line in lines:
        event = parser.feed(line)
        if event is not None:
            yield event
