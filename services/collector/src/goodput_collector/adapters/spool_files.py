"""The small files beside a spool's segments: its lock, the place up to which was sent, and the numbers given out."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import struct
import zlib
from pathlib import Path

import msgspec

from goodput_common.runtime.lifecycle import StartError

NUMBERS = "numbers"
_NAMED = "."  # between the boot and the name of its numbers
_NUMBERS_BYTES = 4096
_PLACE = struct.Struct("<QQ")
_CHECKED = struct.Struct("<QQI")
_encoder = msgspec.json.Encoder()


class _Numbers(msgspec.Struct):
    boot_id: str
    last: dict[str, int]


def numbering(directory: Path, *, boot_id: str) -> str:
    """The boot as it is told on the bus. Where the numbers given out in this boot are not there any more (a spool that went
    with its container), they begin anew under a name of its own: under the old one the bus would take the messages for
    those that it has, and drop them."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        named = msgspec.json.decode((directory / NUMBERS).read_bytes(), type=_Numbers).boot_id
        if named == boot_id or named.startswith(f"{boot_id}{_NAMED}"):
            return named
    return f"{boot_id}{_NAMED}{secrets.token_hex(4)}"


class Numbers:
    """The last number that was given out to each source in this boot. Raises OSError when the file cannot be made."""

    def __init__(self, path: Path, *, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._last: dict[str, int] = {}
        self._fd = open_file(path)
        with contextlib.suppress(OSError, msgspec.DecodeError):
            numbers = msgspec.json.decode(os.pread(self._fd, _NUMBERS_BYTES, 0), type=_Numbers)
            if numbers.boot_id == boot_id:
                self._last = numbers.last

    def next(self, source: str) -> int:
        self._last[source] = self._last.get(source, 0) + 1
        return self._last[source]

    def learn(self, source: str, seq: int) -> None:
        self._last[source] = max(seq, self._last.get(source, 0))

    def write(self) -> None:
        """In place, in a page that is there already: a full disk cannot stop it, nor kill -9 leave half of it."""
        text = _encoder.encode(_Numbers(boot_id=self._boot_id, last=self._last))
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, text.ljust(_NUMBERS_BYTES), 0)

    def open_again(self) -> None:
        """After somebody has taken the file away. Raises OSError."""
        fd = open_file(self._path)
        close_file(self._fd)
        self._fd = fd
        self.write()

    def is_there(self) -> bool:
        return is_there(self._path, self._fd)

    def close(self) -> None:
        close_file(self._fd)


class Sent:
    """Segment and offset up to which everything is acknowledged. With a checksum: a place that a disk has damaged would
    pass for that of something newer, and all of the spool for sent. Raises OSError when the file cannot be made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = open_file(path)

    def read(self) -> tuple[int, int]:
        """The start, where nothing is told: what was sent is sent again, and known by its id."""
        raw = os.pread(self._fd, _CHECKED.size + 1, 0)
        if len(raw) == _CHECKED.size and zlib.crc32(raw[: _PLACE.size]) == _CHECKED.unpack(raw)[2]:
            return _PLACE.unpack(raw[: _PLACE.size])
        return (0, 0)

    def write(self, segment: int, offset: int) -> None:
        place = _PLACE.pack(segment, offset)
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, _CHECKED.pack(segment, offset, zlib.crc32(place)), 0)

    def open_again(self) -> None:
        """After somebody has taken the file away. Raises OSError."""
        fd = open_file(self._path)
        close_file(self._fd)
        self._fd = fd

    def is_there(self) -> bool:
        return is_there(self._path, self._fd)

    def close(self) -> None:
        close_file(self._fd)


def is_there(path: Path, fd: int) -> bool:
    """Does the name still stand for the file that is open? Raises OSError for what says nothing of that."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))  # noqa: PTH116 - at every message
    except (FileNotFoundError, NotADirectoryError):
        return False


def open_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def close_file(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)


def lock(directory: Path) -> int:
    """Raises StartError when another collector has the directory."""
    fd = open_file(directory / "lock")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise StartError(
            f"another collector uses {directory}",
            do_next="stop it, or give this one its own GOODPUT_SPOOL_DIR or GOODPUT_HOST",
        ) from None
    return fd
