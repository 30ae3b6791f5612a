"""When to list folders again: when the kernel's date of one of them has moved, and now and then all the same.

Names that come, go or are renamed move the date of their folder, so whoever looks for new files once a second can mostly
leave it at asking for dates. A second change within one tick of the kernel's clock leaves the date as it was, so one that is
very fresh counts as moved. Some shared file systems (Lustre) keep whole seconds only: a date without a fraction is fresh for
longer. Where a pattern leaves the folders' names open, not all of them are known: then it is looked
again every few seconds.
"""

from __future__ import annotations

import contextlib
import glob
import os
import time
from pathlib import Path

LOOK_EVERY_S = 30.0
LOOK_OPEN_EVERY_S = 5.0
_FRESH_NS = 50_000_000  # several ticks
_SECOND_NS = 1_000_000_000
_FRESH_WHOLE_NS = 3 * _SECOND_NS  # FAT has a tick of 2 s
_MISSING, _UNSURE = 0, -1


class FolderDates:
    """Of one look at a time: `begin` it and `note` each folder (a file goes too) before it is listed; the next is `due` when
    one of them has changed, but no sooner than `apart_s` after this one."""

    def __init__(self, *, apart_s: float = 0.0) -> None:
        self._apart_s = apart_s
        self._every_s = LOOK_EVERY_S
        self._began_s = float("-inf")
        self._dates: dict[str, int] = {}

    def due(self, now_s: float) -> bool:
        passed_s = now_s - self._began_s
        if passed_s >= self._every_s:
            return True
        return passed_s >= self._apart_s and any(_has_moved(name, date) for name, date in self._dates.items())

    def begin(self, now_s: float) -> None:
        self._began_s, self._every_s = now_s, LOOK_EVERY_S
        self._dates = {}

    def note(self, path: Path | str) -> None:
        name = str(path)
        if name in self._dates:
            return
        date = _MISSING
        with contextlib.suppress(OSError):
            date = os.stat(name).st_mtime_ns  # noqa: PTH116
        fresh_ns = _FRESH_NS if date % _SECOND_NS else _FRESH_WHOLE_NS
        self._dates[name] = _UNSURE if time.time_ns() - date < fresh_ns else date

    def note_pattern(self, pattern: str) -> None:
        """The folder in which its files may appear."""
        self.note(folder_of(pattern))
        if glob.has_magic(os.path.dirname(pattern)):  # noqa: PTH120
            self._every_s = LOOK_OPEN_EVERY_S

    def forget(self) -> None:
        """A look is due."""
        self._began_s = float("-inf")


def folder_of(pattern: str) -> Path:
    """The folder in which a pattern's first file may appear."""
    parts = Path(pattern).parts
    wild = next((index for index, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return Path(*parts[:wild])


def _has_moved(name: str, date: int) -> bool:
    if date == _MISSING:
        return os.access(name, os.F_OK)  # an error each time would cost more than the answer
    try:
        return os.stat(name).st_mtime_ns != date  # noqa: PTH116
    except OSError:
        return True
