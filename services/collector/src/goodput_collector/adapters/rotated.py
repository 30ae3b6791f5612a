"""Where a log that was rotated away has gone, and what of it nobody has read yet.

    kern.log -> kern.log.1 -> kern.log.2.gz        kern.log -> kern.log-20260301 -> kern.log-20260301.gz

Rotated files are found by their names and known by the bytes before the place that was read to. Everything behind that
place, and all files that are newer, is unread. That may be gigabytes: it is read in pieces, one file after the other, and
which file comes next is looked up anew each time, for in the meantime they may be rotated on.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

FOOT_BYTES = 64
SIBLINGS_MAX = 8
RECENT_BYTES = FOOT_BYTES + 128 * 1024  # of what was read: enough to know the place before a half line
PACKED = (".gz", ".xz", ".bz2", ".zst", ".lz4")
_CHUNK = 1 << 20
_DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError)
_PASSES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})  # says nothing of the file


def is_rotated(path: Path, others: set[str]) -> bool:
    """Is it the rotated form of one of `others` (paths as text), or packed?"""
    if path.suffix in PACKED:
        return True
    name = path.name
    cuts = [at for at, letter in enumerate(name) if letter in ".-" and at > 0]
    return any(_looks_rotated(name[at + 1 :]) and str(path.with_name(name[:at])) in others for at in cuts)


class Unread:
    """The rest of one rotated file."""

    def __init__(self, file: BinaryIO, before: bytes = b"", position: int = 0, back: int = 0) -> None:
        """`file` stands at `position`, behind the bytes `before`, of which the last `back` are given out (again)."""
        self._file = file
        self._pending = before[len(before) - back :]
        self._recent = before[: len(before) - back]
        self.position = position - back
        self.inode = os.fstat(file.fileno()).st_ino

    def read(self, limit: int) -> bytes:
        """b"" at the end, and where a packed file is damaged."""
        try:
            data, self._pending = self._pending or self._file.read(limit), b""
        except _DAMAGED:
            return b""
        self.position += len(data)
        self._recent = (self._recent + data)[-RECENT_BYTES:]
        return data

    def foot(self, back: int = 0) -> int:
        """Checksum of the last bytes before the place that is so far behind this one."""
        end = len(self._recent) - back
        return zlib.crc32(self._recent[max(0, end - FOOT_BYTES) : end])

    def close(self) -> None:
        self._file.close()


def find_unread(path: Path, *, position: int, foot: int, back: int = 0) -> Unread | None:
    """Whichever rotated form of `path` has the bytes of that checksum before `position`, open `back` bytes before it. None
    when there is none (any more). Raises OSError for what says nothing of the files, as no descriptor being left."""
    for sibling in _siblings(path):
        unread = _behind(sibling, position, lambda found: zlib.crc32(found) == foot, back)
        if unread is not None:
            return unread
    return None


def find_newer(path: Path, unread: Unread) -> tuple[bool, Unread | None]:
    """(whether `unread`, read to its end, is still there; the rotated form that came after it). Raises OSError."""
    newer: Path | None = None
    for sibling in _siblings(path):
        same = _behind(sibling, unread.position, lambda found: zlib.crc32(found) == unread.foot(), 0)
        if same is not None:
            same.close()
            return True, None if newer is None else Unread(_opened(newer))
        newer = sibling
    return False, None


def _siblings(path: Path) -> list[Path]:
    """Newest first."""
    found = []
    try:
        for each in path.parent.iterdir():
            rest = each.name.removeprefix(path.name)
            if rest != each.name and rest[:1] in (".", "-") and _looks_rotated(rest[1:]) and each.is_file():
                found.append((each.stat().st_mtime, each))
    except OSError:
        return []
    return [each for _, each in sorted(found, reverse=True)[:SIBLINGS_MAX]]


def _looks_rotated(rest: str) -> bool:
    """`1`, `2.gz`, `20260301`, `2026-03-01.gz`, `old`"""
    for suffix in PACKED:
        rest = rest.removesuffix(suffix)
    return rest in ("old", "bak") or (rest[:1].isdigit() and all(letter.isdigit() or letter in "-_.T" for letter in rest))


def _behind(path: Path, position: int, is_it: Callable[[bytes], bool], back: int) -> Unread | None:
    size = min(FOOT_BYTES + back, position)
    try:
        file = _opened(path)
    except OSError as error:
        if error.errno in _PASSES:
            raise
        return None
    try:
        if _skip(file, position - size, packed=path.suffix in _OPENERS):
            before = file.read(size)
            if len(before) == size and is_it(before[-FOOT_BYTES:]):
                return Unread(file, before, position, back)
    except _DAMAGED:
        pass
    file.close()
    return None


_OPENERS: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}


def _opened(path: Path) -> BinaryIO:
    opener = _OPENERS.get(path.suffix)
    return cast("BinaryIO", opener(path)) if opener is not None else path.open("rb")


def _skip(file: BinaryIO, count: int, *, packed: bool) -> bool:
    if not packed:
        return file.seek(count) == count
    while count:
        data = file.read(min(_CHUNK, count))
        if not data:
            return False
        count -= len(data)
    return True
