"""Where each log had been read to, so that a restart goes on there. A lost bookmark costs lines told twice or missed.

A mark moves when what it stands for is in the spool (`Reading.kept`), and is written then, so that kill -9 tells nothing
twice. That happens with every batch, so a save appends the marks that moved, one line, and the file is written anew only
when it has grown.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

SAVE_EVERY_S = 2.0
_GROWN_LINES = 512
_Mark = int | str


class Bookmarks:
    """Lines of JSON objects, of which the last word on a mark holds. At most `marks_max` marks; the one set longest ago goes
    first. May be used from several threads."""

    def __init__(self, path: Path, *, monotonic_s: Callable[[], float] = time.monotonic, marks_max: int = 8192) -> None:
        self._path = path
        self._monotonic_s = monotonic_s
        self._marks_max = marks_max
        self._saved_s = float("-inf")
        self._lock = threading.Lock()
        self._marks: dict[str, _Mark] = {}
        self._moved: dict[str, _Mark] = {}
        self._lines = _GROWN_LINES  # the first save writes it anew: whatever was cut short goes
        with contextlib.suppress(OSError):
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):  # the last one may be cut short
                    self._take(msgspec.json.decode(line, type=dict[str, _Mark]))

    def get(self, name: str) -> int | None:
        mark = self._marks.get(name)
        return mark if isinstance(mark, int) else None

    def text(self, name: str) -> str | None:
        mark = self._marks.get(name)
        return mark if isinstance(mark, str) else None

    def set(self, name: str, value: _Mark) -> None:
        """Written now and then."""
        with self._lock:
            self._take({name: value})
            self._moved[name] = value
            due = self._monotonic_s() - self._saved_s >= SAVE_EVERY_S
        if due:
            self.save()

    def keep(self, marks: dict[str, _Mark]) -> None:
        """Written at once."""
        with self._lock:
            self._take(marks)
            self._moved |= marks
        self.save()

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

    def _take(self, marks: dict[str, _Mark]) -> None:
        for name, value in marks.items():
            self._marks.pop(name, None)
            self._marks[name] = value
        while len(self._marks) > self._marks_max:
            self._marks.pop(next(iter(self._marks)))

    def _append(self) -> None:
        with self._path.open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(self._moved) + b"\n")
        self._lines += 1

    def _write_anew(self) -> None:
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        temporary.write_bytes(msgspec.json.encode(self._marks) + b"\n")
        temporary.replace(self._path)
        self._lines = 1
