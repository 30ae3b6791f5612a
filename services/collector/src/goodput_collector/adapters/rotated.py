"""Where a log that was rotated away has gone, and what of it nobody has read yet.

    kern.log -> kern.log.1 -> kern.log.2.gz        kern.log -> kern.log-20260301 -> kern.log-20260301.gz

Rotated files are found by their names and known by the bytes before the place that was read to. Everything behind that
place, and all files that are newer, is unread. That may be gigabytes: it is read in pieces, one file after the other, and
which file comes next is looked up anew each time, for in the meantime they may be rotated on.

How a file is packed is told by its first bytes: as plain text it would give lines that nobody wrote. One that cannot be
unpacked, or not to its end, is left out, which is logged and counts as a gap.
"""

from __future__ import annotations

import bz2
import contextlib
import errno
import gzip
import lzma
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import zstandard

from goodput_collector.domain.path_text import path_text
from goodput_common.runtime.logs import StateLog, get_logger

FOOT_BYTES = 64
SIBLINGS_MAX = 8
RECENT_BYTES = FOOT_BYTES + 128 * 1024  # of what was read: enough to know the place before a half line
PACKED = (".gz", ".xz", ".bz2", ".zst", ".lz4")
_CHUNK = 1 << 20
_WINDOW_BYTES_MAX = 32 << 20  # of memory, to unpack one
_ZSTD_BYTES = 512  # at once: four of them may stand for 128 KiB
_DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
_PASSES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})  # says nothing of the file

_states = StateLog(get_logger(__name__))


def is_rotated(path: Path, others: set[str]) -> bool:
    """Is it the rotated form of one of `others` (paths as text), or packed?"""
    if path.suffix in PACKED:
        return True
    name = path.name
    cuts = [at for at, letter in enumerate(name) if letter in ".-" and at > 0]
    return any(_looks_rotated(name[at + 1 :]) and str(path.with_name(name[:at])) in others for at in cuts)


class Unread:
    """The rest of one rotated file."""

    def __init__(self, path: Path, file: BinaryIO, before: bytes = b"", position: int = 0, back: int = 0) -> None:
        """`file` stands at `position`, behind the bytes `before`, of which the last `back` are given out (again)."""
        self._path = path
        self._file = file
        self.damaged = False
        self._pending = before[len(before) - back :]
        self._recent = before[: len(before) - back]
        self.position = position - back
        self.inode = os.fstat(file.fileno()).st_ino

    def read(self, limit: int) -> bytes:
        """b"" at the end, and where a packed file is damaged."""
        try:
            data, self._pending = self._pending or self._file.read(limit), b""
        except _DAMAGED as error:
            self.damaged = True
            _leave_out(self._path, f"damaged, or larger than can be unpacked: {error}")
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
    """(whether nothing is missing between `unread`, read to its end, and what comes; the rotated form that came after it).
    Raises OSError."""
    newer: list[Path] = []
    for sibling in _siblings(path):
        if _is_same(sibling, unread):
            whole = not unread.damaged
            for each in reversed(newer):
                try:
                    return whole, Unread(each, _opened(each).file)
                except _NotUnpacked:
                    whole = False
            return whole, None
        newer.append(sibling)
    return False, None


def _is_same(path: Path, unread: Unread) -> bool:
    """Known by what was read of it; if that is nothing, by its inode."""
    if not unread.position:
        with contextlib.suppress(OSError):
            return path.stat().st_ino == unread.inode
        return False
    same = _behind(path, unread.position, lambda found: zlib.crc32(found) == unread.foot(), 0)
    if same is not None:
        same.close()
    return same is not None


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
        file, packed = _opened(path)
    except _NotUnpacked:
        return None
    except OSError as error:
        if error.errno in _PASSES:
            raise
        return None
    try:
        if _skip(file, position - size, packed=packed):
            before = file.read(size)
            if len(before) == size and is_it(before[-FOOT_BYTES:]):
                return Unread(path, file, before, position, back)
    except _DAMAGED:
        pass
    file.close()
    return None


class _NotUnpacked(Exception):
    pass


class _Opened(NamedTuple):
    file: BinaryIO
    packed: bool


class _Zstd:
    """What is used of a file, unpacked. (The library's own reader takes a file that was cut short for whole.)"""

    def __init__(self, path: Path) -> None:
        self._packed = path.open("rb")
        self._frames = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)
        self._frame = self._frames.decompressobj()
        self._begun = False
        self._ready = bytearray()

    def read(self, size: int) -> bytes:
        """Raises zstandard.ZstdError, EOFError, OSError."""
        while len(self._ready) < size and (packed := self._packed.read(_ZSTD_BYTES)):
            while packed:
                self._begun = True
                self._ready += self._frame.decompress(packed)
                packed = b""
                if self._frame.eof:
                    packed = self._frame.unused_data
                    self._frame, self._begun = self._frames.decompressobj(), False
        if not self._ready and self._begun:
            raise EOFError("it was cut short")
        given = bytes(self._ready[:size])
        del self._ready[:size]
        return given

    def fileno(self) -> int:
        return self._packed.fileno()

    def close(self) -> None:
        self._packed.close()


_LZ4 = b"\x04\x22\x4d\x18"
_OPENERS: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"\xfd7zXZ\0": lzma.open,
    b"BZh": bz2.open,
    b"\x28\xb5\x2f\xfd": _Zstd,
}


def _opened(path: Path) -> _Opened:
    """Raises OSError, _NotUnpacked."""
    file = path.open("rb")
    magic = file.read(6)
    for begin, opener in _OPENERS.items():
        if magic.startswith(begin):
            file.close()
            return _Opened(cast("BinaryIO", opener(path)), packed=True)
    if magic.startswith(_LZ4):
        file.close()
        _leave_out(path, "packed with lz4: have logrotate use gzip, xz, bzip2 or zstd")
        raise _NotUnpacked
    file.seek(0)
    return _Opened(file, packed=False)


def _leave_out(path: Path, why: str) -> None:
    _states.report(path_text(path.parent), why, "rotated log left out", level="warning", path=path_text(path))


def _skip(file: BinaryIO, count: int, *, packed: bool) -> bool:
    if not packed:
        return file.seek(count) == count
    while count:
        data = file.read(min(_CHUNK, count))
        if not data:
            return False
        count -= len(data)
    return True
