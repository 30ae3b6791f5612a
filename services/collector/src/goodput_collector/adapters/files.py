"""Log files as they grow: kernel logs kept by a syslog daemon, journal exports, job logs.

A file is read from where the last run left off, else from its end; one that appears later, from its start. Rotation
loses nothing: a file that was renamed is read to its end before its successor is opened; of one that was copied and cut
short, or rotated and packed while nobody looked, the rest is read from the copy. What was read last is known by its
bytes (`Mark.foot`), not by a name or an inode number, which are used again. A last line without its newline waits for
the rest. Bounds: so many bytes a file and read (what is left comes with the next), so long a line (the rest of it is cut).
"""

from __future__ import annotations

import contextlib
import os
import stat
import zlib
from pathlib import Path
from typing import NamedTuple

from goodput_collector.adapters.rotated import Unread, find_newer, find_unread

READ_BYTES = 1 << 20
LINE_BYTES = 64 * 1024
FOOT_BYTES = 64


class Mark(NamedTuple):
    """How far a file was read, and a checksum of the last bytes before that place."""

    inode: int
    position: int
    foot: int

    def text(self) -> str:
        return f"{self.inode}:{self.position}:{self.foot}"

    @classmethod
    def of_text(cls, text: str | None) -> Mark | None:
        parts = (text or "").split(":")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
            return None
        return cls(*(int(part) for part in parts))

    @classmethod
    def at_end(cls, path: Path) -> Mark | None:
        """None for what is not a file that can be read."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                return None
            return cls(status.st_ino, status.st_size, _foot(file, status.st_size))
        finally:
            os.close(file)


class Tail:
    """The new lines of one file. `read` raises OSError only for trouble other than the file not being there."""

    def __init__(self, path: Path, *, mark: Mark | None = None, from_end: bool = False) -> None:
        """Where to begin: behind `mark`, else at the end or at the start."""
        self._path = path
        self._name = str(path)
        self._begin = mark
        self._from_end = from_end
        self._file: int | None = None
        self._is_pipe = False
        self._inode = 0
        self._position = 0
        self._last_foot = 0
        self._partial = b""
        self._cutting = False
        self._unread: Unread | None = None  # what stands in rotated files before this one
        self._read_up_to: Mark | None = None  # the end of the rotated file before that
        self.gaps = 0
        """How often what was in a file before it was cut short or replaced could not be found any more."""

    def is_quiet(self) -> bool:
        """By one look at its name: nothing was written since the last read, and it is the file that was read. A read would
        give nothing and leave the mark where it is. False also where one look does not tell (a pipe)."""
        if self._file is None or self._is_pipe or self._unread is not None:
            return False
        try:
            status = os.stat(self._name)  # noqa: PTH116
        except OSError:
            return False
        return status.st_size == self._position and status.st_ino == self._inode

    def mark(self) -> Mark | None:
        """Behind the last whole line that was given out; None for what cannot be read again."""
        if self._file is None or self._is_pipe:
            return None
        if self._unread is not None:
            position = self._unread.position - len(self._partial)
            here = Mark(self._unread.inode, position, self._unread.foot(len(self._partial)))
            return here if position > 0 else self._read_up_to
        position = self._position - len(self._partial)
        return Mark(self._inode, position, _foot(self._file, position))

    def read(self, limit: int = READ_BYTES) -> list[bytes]:
        lines: list[bytes] = []
        if self._file is None:
            lines = self._open()
            if self._file is None:
                return lines
        if self._unread is None and not self._is_pipe and self._was_cut_short():
            lines += self._look_behind(Mark(self._inode, self._position, self._last_foot))
        if self._unread is not None:
            more, limit = self._catch_up(limit)
            lines += more
            if not limit:
                return lines
        data = self._next(limit)
        if not data and self._replaced():
            if self._partial:
                lines.append(self._partial)
            self.close()
            return lines + self.read(limit)
        return lines + self._split(data)

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
        if self._unread is not None:
            self._unread.close()
        self._file, self._unread, self._partial, self._cutting = None, None, b"", False

    # -- where it stands --------------------------------------------------------------------------------------------

    def _open(self) -> list[bytes]:
        """Opens it if it is there; gives what was left of a half line when what its predecessor held is gone."""
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return []
        status = os.fstat(self._file)
        self._inode, self._is_pipe = status.st_ino, stat.S_ISFIFO(status.st_mode)
        begin, self._begin = self._begin, None
        from_end, self._from_end = self._from_end, False
        if self._is_pipe:
            return []
        if begin is None:
            self._go_to(status.st_size if from_end else 0)
            return []
        if begin.position <= status.st_size and begin.foot == _foot(self._file, begin.position):
            self._go_to(begin.position)
            return []
        try:
            return self._look_behind(begin)
        except OSError:  # another time
            self.close()
            self._begin = begin
            raise

    def _go_to(self, position: int) -> None:
        assert self._file is not None
        self._position = os.lseek(self._file, position, os.SEEK_SET)
        self._partial, self._cutting = b"", False
        self._last_foot = _foot(self._file, position)

    def _was_cut_short(self) -> bool:
        """Smaller than it was, or grown again beyond that with other bytes."""
        assert self._file is not None
        size = os.fstat(self._file).st_size
        if size < self._position:
            return True
        return size > self._position and _foot(self._file, self._position) != self._last_foot

    def _replaced(self) -> bool:
        if self._is_pipe:
            return False
        try:
            return self._path.stat().st_ino != self._inode
        except FileNotFoundError:
            return False

    def _look_behind(self, mark: Mark) -> list[bytes]:
        """Find what stood behind `mark` before the file was cut short or replaced, where it was put; read it before this
        file. A half line that was read already is read again there."""
        found = find_unread(self._path, position=mark.position, foot=mark.foot, back=len(self._partial))
        half = self._partial
        self._go_to(0)
        self._unread, self._read_up_to = found, None
        if found is not None:
            return []
        self.gaps += mark.position > 0
        return [half] if half else []

    def _catch_up(self, limit: int) -> tuple[list[bytes], int]:
        """Lines out of rotated files, and how many bytes may still be read."""
        lines: list[bytes] = []
        while self._unread is not None and limit > 0:
            data = self._unread.read(limit)
            if data:
                limit = max(0, limit - len(data))
                lines += self._split(data)
                continue
            there, newer = find_newer(self._path, self._unread)
            if self._partial:
                lines.append(self._partial)
            self._partial, self._cutting = b"", False
            self._read_up_to = Mark(self._unread.inode, self._unread.position, self._unread.foot())
            self._unread.close()
            self.gaps += not there
            if newer is not None and newer.inode == self._inode:  # this file itself, rotated in the meantime
                newer.close()
                newer = None
            self._unread = newer
        return lines, limit

    # -- what it says -----------------------------------------------------------------------------------------------

    def _next(self, limit: int) -> bytes:
        assert self._file is not None
        try:
            data = os.read(self._file, limit)
        except BlockingIOError:  # a pipe whose writer is silent
            return b""
        self._position += len(data)
        if data and not self._is_pipe:
            self._last_foot = (
                zlib.crc32(data[-FOOT_BYTES:]) if len(data) >= FOOT_BYTES else _foot(self._file, self._position)
            )
        return data

    def _split(self, data: bytes) -> list[bytes]:
        *whole, partial = (self._partial + data).split(b"\n")
        if whole and self._cutting:
            self._cutting = False
            whole.pop(0)
        if len(partial) > LINE_BYTES:
            if not self._cutting:
                whole.append(partial[:LINE_BYTES])
            self._cutting, partial = True, b""
        self._partial = b"" if self._cutting else partial
        return [line[:LINE_BYTES] for line in whole]


def _foot(file: int, position: int) -> int:
    size = min(FOOT_BYTES, position)
    try:
        return zlib.crc32(os.pread(file, size, position - size))
    except OSError:
        return 0
