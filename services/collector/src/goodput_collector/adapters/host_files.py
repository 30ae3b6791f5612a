"""Files of /proc and /sys that are read again and again: opened once, read from their start with one call.

The kernel makes their text anew for each read. Opening and closing costs more than reading, and at one read a second of
a few hundred files that is what the CPU time would go to.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from goodput_collector.application.small_file import small_text

_SMALL_BYTES = 4096
_CHUNK_BYTES = 64 * 1024
_WHOLE_BYTES_MAX = 8 << 20


class KeptFile:
    """Reads raise OSError; the next one opens anew."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self._fd = -1

    def small(self) -> bytes:
        """An attribute: what one read gives."""
        return self._read(_SMALL_BYTES, 0)

    def whole(self) -> bytes:
        """A table, which the kernel hands out in pieces."""
        first = self._read(_CHUNK_BYTES, 0)
        if not first:
            return first
        parts, size = [first], len(first)
        while size < _WHOLE_BYTES_MAX and (part := self._read(_CHUNK_BYTES, size)):
            parts.append(part)
            size += len(part)
        return b"".join(parts)

    def close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def _read(self, size: int, offset: int) -> bytes:
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(self._fd, size, offset)
        except OSError:
            self.close()
            raise


def small_or_none(file: KeptFile) -> bytes | None:
    try:
        return file.small()
    except OSError:
        return None


def text_of(path: Path) -> str:
    """Read once; "" where there is nothing to read."""
    try:
        return small_text(path)
    except OSError:
        return ""
