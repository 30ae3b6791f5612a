"""Where each log had been read to, so that a restart goes on there. A lost bookmark costs lines told twice or missed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

SAVE_EVERY_S = 2.0


class Bookmarks:
    """A small JSON file, replaced whole. At most `marks_max` marks; the one set longest ago goes first."""

    def __init__(self, path: Path, *, monotonic_s: Callable[[], float] = time.monotonic, marks_max: int = 1024) -> None:
        self._path = path
        self._monotonic_s = monotonic_s
        self._marks_max = marks_max
        self._saved_s = float("-inf")
        try:
            self._marks = msgspec.json.decode(path.read_bytes(), type=dict[str, int])
        except (OSError, msgspec.DecodeError):
            self._marks = {}

    def get(self, name: str) -> int | None:
        return self._marks.get(name)

    def set(self, name: str, value: int) -> None:
        self._marks.pop(name, None)
        self._marks[name] = value
        while len(self._marks) > self._marks_max:
            self._marks.pop(next(iter(self._marks)))
        if self._monotonic_s() - self._saved_s >= SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        self._saved_s = self._monotonic_s()
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        with contextlib.suppress(OSError):
            temporary.write_bytes(msgspec.json.encode(self._marks))
            temporary.replace(self._path)
