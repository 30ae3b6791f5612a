"""Where each log had been read to, so that a restart goes on there. A lost bookmark costs lines told twice or missed.

A mark moves when what it stands for is in the spool (`Reading.kept`), and is written then, so that kill -9 tells nothing
twice. That happens with every batch, so a save appends the marks that moved, one line, and the file is written anew only
when it has grown.

The spool holds marks too, those of its messages, and the two can differ after a kill. So each mark has a running number,
given out here: of two words on a mark the later one holds (`restore`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from goodput_collector.application.small_file import read_small
from goodput_collector.domain.path_text import encodable

SAVE_EVERY_S = 2.0
_GROWN_LINES = 512
_FILE_BYTES_MAX = 64 << 20
_Mark = int | str
_Numbered = tuple[_Mark, int]


class Bookmarks:
    """Lines of JSON objects, of which the last word on a mark holds. At most `marks_max` marks; the one set longest ago goes
    first. May be used from several threads."""

    def __init__(self, path: Path, *, monotonic_s: Callable[[], float] = time.monotonic, marks_max: int = 8192) -> None:
        self._path = path
        self._monotonic_s = monotonic_s
        self._marks_max = marks_max
        self._saved_s = float("-inf")
        self._lock = threading.Lock()
        self._marks: dict[str, _Numbered] = {}
        self._moved: dict[str, _Numbered] = {}
        self._number = 0
        self._lines = _GROWN_LINES  # the first save writes it anew: whatever was cut short goes
        with contextlib.suppress(OSError):
            for line in read_small(path, bytes_max=_FILE_BYTES_MAX).splitlines():
                with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):  # the last one may be cut short
                    marks = msgspec.json.decode(line, type=dict[str, _Mark | _Numbered])
                    self._take({name: mark if isinstance(mark, tuple) else (mark, 0) for name, mark in marks.items()})

    def get(self, name: str) -> int | None:
        mark = self._mark(name)
        return mark if isinstance(mark, int) else None

    def text(self, name: str) -> str | None:
        mark = self._mark(name)
        return mark if isinstance(mark, str) else None

    def _mark(self, name: str) -> _Mark | None:
        mark = self._marks.get(encodable(name))
        return None if mark is None else mark[0]

    def next_number(self) -> int:
        """For marks that are spooled now: larger than that of every mark so far."""
        with self._lock:
            self._number += 1
            return self._number

    def set(self, name: str, value: _Mark) -> None:
        """Written now and then."""
        self._move({name: value})
        if self._monotonic_s() - self._saved_s >= SAVE_EVERY_S:
            self.save()

    def keep(self, marks: Mapping[str, _Mark]) -> None:
        """Written at once."""
        self._move(marks)
        self.save()

    def restore(self, marks: Mapping[str, tuple[_Mark, int]]) -> None:
        """Take over marks that were spooled, where this file has no later word: a kill may have kept it from hearing."""
        with self._lock:
            later = {name: mark for name, mark in marks.items() if name not in self._marks or mark[1] > self._marks[name][1]}
            self._take(later)
            self._moved |= later
            self._number = max([self._number, *(number for _, number in marks.values())])
        self.save()

    def _move(self, marks: Mapping[str, _Mark]) -> None:
        with self._lock:
            self._number += 1
            moved = {
                encodable(name): (encodable(mark) if isinstance(mark, str) else mark, self._number)
                for name, mark in marks.items()
            }
            self._take(moved)
            self._moved |= moved

    def save(self) -> None:
        with self._lock:
            self._saved_s = self._monotonic_s()
            if not self._moved:
                return
            with contextlib.suppress(OSError):
                if self._lines >= _GROWN_LINES:
                    self._write_anew()
                else:
                    self._append()
                self._moved.clear()

    def _take(self, marks: Mapping[str, _Numbered]) -> None:
        for name, mark in marks.items():
            self._marks.pop(name, None)
            self._marks[name] = mark
            self._number = max(self._number, mark[1])
        while len(self._marks) > self._marks_max:
            self._marks.pop(next(iter(self._marks)))

    def _append(self) -> None:
        """Raises OSError, also when only a part of the line found room: the next save writes the file anew, for what is
        appended to half a line is lost with it."""
        line = msgspec.json.encode(self._moved) + b"\n"
        with self._path.open("ab", buffering=0) as file:
            if file.write(line) != len(line):
                self._lines = _GROWN_LINES
                raise OSError(errno.ENOSPC, "no space left on device", str(self._path))
        self._lines += 1

    def _write_anew(self) -> None:
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        temporary.write_bytes(msgspec.json.encode(self._marks) + b"\n")
        temporary.replace(self._path)
        self._lines = 1
