"""Where a log that was rotated away has gone, and what of it nobody has read yet.

    kern.log -> kern.log.1 -> kern.log.2.gz        kern.log -> kern.log-20260301 -> kern.log-20260301.gz

Rotated files are found by their names and known by the bytes before the place that was read to. Everything behind that
place, and all files that are newer, is unread.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

FOOT_BYTES = 64
SIBLINGS_MAX = 8
REST_BYTES_MAX = 64 << 20
PACKED = (".gz", ".xz", ".bz2", ".zst", ".lz4")
_CHUNK = 1 << 20


def is_rotated(path: Path, others: set[str]) -> bool:
    """Is it the rotated form of one of `others` (paths as text), or packed?"""
    if path.suffix in PACKED:
        return True
    name = path.name
    cuts = [at for at, letter in enumerate(name) if letter in ".-" and at > 0]
    return any(_looks_rotated(name[at + 1 :]) and str(path.with_name(name[:at])) in others for at in cuts)


def unread_lines(path: Path, *, position: int, is_it: Callable[[bytes], bool]) -> list[bytes] | None:
    """The lines behind `position` of whichever rotated form of `path` has the bytes that `is_it` knows before it, and of all
    newer ones. None when there is none (any more)."""
    newer: list[Path] = []
    for sibling in _siblings(path):
        rest = _behind(sibling, position, is_it)
        if rest is not None:
            parts = [rest, *(_whole(each) for each in reversed(newer))]
            return [line for part in parts for line in _lines(part)]
        newer.append(sibling)
    return None


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


def _behind(path: Path, position: int, is_it: Callable[[bytes], bool]) -> bytes | None:
    try:
        with _opened(path) as file:
            size = min(FOOT_BYTES, position)
            if not _skip(file, position - size, packed=path.suffix == ".gz") or not is_it(file.read(size)):
                return None
            return file.read(REST_BYTES_MAX)
    except (OSError, EOFError, zlib.error):
        return None


def _whole(path: Path) -> bytes:
    try:
        with _opened(path) as file:
            return file.read(REST_BYTES_MAX)
    except (OSError, EOFError, zlib.error):
        return b""


def _opened(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _skip(file: BinaryIO, count: int, *, packed: bool) -> bool:
    if not packed:
        return file.seek(count) == count
    while count:
        data = file.read(min(_CHUNK, count))
        if not data:
            return False
        count -= len(data)
    return True


def _lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]
