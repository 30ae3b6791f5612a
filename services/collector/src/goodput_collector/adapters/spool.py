"""The spool on disk: a log in segments, a place up to which it has been sent, and the numbers given out.

    <directory>/lock                    held while a collector runs: two would give out the same numbers
    <directory>/sent                    segment and offset up to which everything is acknowledged
    <directory>/numbers                 the last number given out to each source, written in place
    <directory>/<n>.spool               records, each with length and checksum

A record is written with one call into the page cache before its message is sent. That outlives kill -9; it does not
outlive a crash of the host, after which the boot id is another one and numbers start anew, so nothing is ever synced. A
record that was cut short by the end of its process is cut off at the next start.

At the bound the oldest segment goes, sent or not, and what had not been sent is counted. If the disk refuses (full,
gone), the newest messages wait in memory instead, within a small bound, and the trouble is reported.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from goodput_collector.application.ports import Outgoing, SpoolState
from goodput_common.contracts.registry import BY_NAME, BY_STRUCT
from goodput_common.runtime.lifecycle import StartError

_HEAD = struct.Struct("<II")
_SENT = struct.Struct("<QQ")
_RECORD_BYTES_MAX = 4 << 20
_MEMORY_MESSAGES_MAX = 256
_FRESH_MESSAGES_MAX = 64


class _Numbers(msgspec.Struct):
    boot_id: str
    last: dict[str, int]


class _Record(msgspec.Struct, omit_defaults=True):
    name: str
    seq: int
    boot_id: str
    type: str
    subject: str
    id: str
    source: str
    time: Any
    body: msgspec.Raw
    component: str = ""
    marks: dict[str, int | str] = {}


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Record)
_NUMBERS_BYTES = 4096


class DiskSpool:
    """See `goodput_collector.application.ports.Spool`. Used from one thread. Raises StartError when another collector has
    the directory, OSError when it cannot be made."""

    def __init__(self, directory: Path, *, boot_id: str, bytes_max: int = 64 << 20, segment_bytes: int = 1 << 20) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._boot_id = boot_id
        self._bytes_max = bytes_max
        self._segment_bytes = min(segment_bytes, bytes_max // 4)
        self._lock = _lock(directory)
        self._last: dict[str, int] = {}
        self.marks: dict[str, int | str] = {}
        """The bookmarks of the messages that were found at the start."""
        self._dropped = 0
        self._trouble = ""
        self._memory: deque[Outgoing] = deque()
        self._memory_positions = 0
        self._fresh: deque[tuple[int, Outgoing]] = deque()  # the oldest that wait, while they need not be read back
        self._sent_fd = _open(directory / "sent")
        self._numbers_fd = _open(directory / "numbers")
        self._segment, self._offset = self._read_sent()
        self._sizes: dict[int, int] = {}
        self._waiting: dict[int, int] = {}
        self._recover()
        self._write_numbers()
        self._file = self._open_newest()

    # -- numbers ----------------------------------------------------------------------------------------------------

    def next_seq(self, source: str) -> int:
        self._last[source] = self._last.get(source, 0) + 1
        return self._last[source]

    # -- in ---------------------------------------------------------------------------------------------------------

    def append(self, message: Outgoing, *, source: str, seq: int) -> None:
        record = _Record(
            name=source,
            seq=seq,
            boot_id=self._boot_id,
            type=BY_STRUCT[type(message.data)].name,
            subject=message.subject,
            id=message.id,
            source=message.source,
            time=message.time,
            body=msgspec.Raw(_encoder.encode(message.data)),
            component=message.component,
            marks=dict(message.marks),
        )
        try:
            self._write(_framed(_encoder.encode(record)))
            self._freshen(message)
            self._waiting[self._newest()] += 1
            self._trouble = ""
        except OSError as error:
            self._trouble = f"spool {self._directory}: {error.strerror or error}; newest messages kept in memory"
            self._remember(message)
        self._write_numbers()

    def _freshen(self, message: Outgoing) -> None:
        """What has just been written need not be read back, as long as nothing older waits on the disk alone."""
        if sum(self._waiting.values()) == len(self._fresh) < _FRESH_MESSAGES_MAX:
            newest = self._newest()
            self._fresh.append((newest << 32 | self._sizes[newest], message))

    def _remember(self, message: Outgoing) -> None:
        if len(self._memory) >= _MEMORY_MESSAGES_MAX:
            self._memory.popleft()
            self._memory_positions += 1
            self._dropped += 1
        self._memory.append(message)

    def _write(self, framed: bytes) -> None:
        newest = self._newest()
        if self._sizes[newest] and self._sizes[newest] + len(framed) > self._segment_bytes:
            self._file.close()
            newest += 1
            self._sizes[newest], self._waiting[newest] = 0, 0
            self._file = self._open_newest()
        start = self._sizes[newest]
        try:
            if os.write(self._file.fileno(), framed) != len(framed):
                raise OSError(28, "no space left on device")
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), start)
            raise
        self._sizes[newest] = start + len(framed)
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        while sum(self._sizes.values()) > self._bytes_max and len(self._sizes) > 1:
            oldest = min(self._sizes)
            self._dropped += self._waiting[oldest]
            self._delete(oldest)

    # -- out --------------------------------------------------------------------------------------------------------

    def peek(self, count: int) -> Iterable[tuple[int, Outgoing]]:
        """A position is (segment << 32 | offset behind the record); negative for what waits in memory."""
        fresh = list(self._fresh)[:count]
        yield from fresh
        left = count - len(fresh)
        first, offset = divmod(fresh[-1][0], 1 << 32) if fresh else (self._segment, self._offset)
        more_on_disk = sum(self._waiting.values()) > len(fresh)
        for segment in sorted(self._sizes) if left and more_on_disk else ():
            if segment < first:
                continue
            start = offset if segment == first else 0
            for end, record in self._records(segment, start):
                if left == 0:
                    return
                if (message := _message(record)) is not None:
                    left -= 1
                    yield segment << 32 | end, message
        for index, message in enumerate(list(self._memory)[:left]):
            yield -(self._memory_positions + index + 1), message

    def acknowledge(self, position: int) -> None:
        if position < 0:
            while self._memory and self._memory_positions < -position:
                self._memory.popleft()
                self._memory_positions += 1
            return
        segment, offset = position >> 32, position & 0xFFFFFFFF
        if segment not in self._sizes:
            return  # dropped at the bound while it was on its way
        while self._fresh and self._fresh[0][0] <= position:
            self._fresh.popleft()
        self._segment, self._offset = segment, offset
        self._waiting[segment] -= 1
        with contextlib.suppress(OSError):
            os.pwrite(self._sent_fd, _SENT.pack(segment, offset), 0)
        for older in [each for each in self._sizes if each < segment]:
            self._delete(older)

    def state(self) -> SpoolState:
        waiting = sum(self._waiting.values()) + len(self._memory)
        filled = 1.0 if self._trouble else self._unsent_bytes() / self._bytes_max
        return SpoolState(waiting, self._dropped, self._trouble, filled)

    def _unsent_bytes(self) -> int:
        sent = self._offset if self._segment in self._sizes else 0
        return sum(self._sizes.values()) - sent

    def close(self) -> None:
        self._file.close()
        for fd in (self._sent_fd, self._numbers_fd, self._lock):
            with contextlib.suppress(OSError):
                os.close(fd)

    # -- segments ---------------------------------------------------------------------------------------------------

    def _newest(self) -> int:
        return max(self._sizes)

    def _path(self, segment: int) -> Path:
        return self._directory / f"{segment:08d}.spool"

    def _open_newest(self) -> Any:
        return self._path(self._newest()).open("ab", buffering=0)

    def _write_numbers(self) -> None:
        """In place, in a page that is there already: a full disk cannot stop it, nor kill -9 leave half of it."""
        text = _encoder.encode(_Numbers(boot_id=self._boot_id, last=self._last))
        with contextlib.suppress(OSError):
            os.pwrite(self._numbers_fd, text.ljust(_NUMBERS_BYTES), 0)

    def _read_numbers(self) -> None:
        try:
            numbers = msgspec.json.decode(os.pread(self._numbers_fd, _NUMBERS_BYTES, 0), type=_Numbers)
        except (OSError, msgspec.DecodeError):
            return
        if numbers.boot_id == self._boot_id:
            self._last = numbers.last

    def _delete(self, segment: int) -> None:
        self._sizes.pop(segment, None)
        self._waiting.pop(segment, None)
        while self._fresh and self._fresh[0][0] >> 32 <= segment:
            self._fresh.popleft()
        with contextlib.suppress(OSError):
            self._path(segment).unlink()

    def _read_sent(self) -> tuple[int, int]:
        raw = os.pread(self._sent_fd, _SENT.size, 0)
        return _SENT.unpack(raw) if len(raw) == _SENT.size else (0, 0)

    def _recover(self) -> None:
        """Learn what is there: sizes, what waits, the numbers of this boot; cut off a record that was cut short."""
        self._read_numbers()
        found = sorted(int(path.stem) for path in self._directory.glob("*.spool") if path.stem.isdigit())
        for segment in found:
            if segment < self._segment:
                self._delete(segment)
                continue
            end, waiting = 0, 0
            for end, record in self._records(segment, 0):
                waiting += self._learn(record, sent=segment == self._segment and end <= self._offset)
            with contextlib.suppress(OSError):
                os.truncate(self._path(segment), end)
            self._sizes[segment], self._waiting[segment] = end, waiting
        if not self._sizes:
            first = self._segment + 1
            self._sizes[first], self._waiting[first] = 0, 0

    def _learn(self, record: _Record, *, sent: bool) -> int:
        self.marks |= record.marks
        if record.boot_id == self._boot_id:
            self._last[record.name] = max(record.seq, self._last.get(record.name, 0))
        return 0 if sent else 1

    def _records(self, segment: int, start: int) -> Iterator[tuple[int, _Record]]:
        """(offset behind it, record) from `start` to the first record that is not whole."""
        try:
            with self._path(segment).open("rb") as file:
                file.seek(start)
                while True:
                    head = file.read(_HEAD.size)
                    if len(head) < _HEAD.size:
                        return
                    length, checksum = _HEAD.unpack(head)
                    body = file.read(length) if length <= _RECORD_BYTES_MAX else b""
                    if len(body) != length or zlib.crc32(body) != checksum:
                        return
                    yield file.tell(), _decoder.decode(body)
        except (OSError, msgspec.DecodeError):
            return


def _framed(body: bytes) -> bytes:
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _message(record: _Record) -> Outgoing | None:
    known = BY_NAME.get(record.type)
    if known is None:
        return None  # spooled by a newer collector
    return Outgoing(
        subject=record.subject,
        id=record.id,
        source=record.source,
        time=msgspec.convert(record.time, type=datetime),
        data=msgspec.json.decode(record.body, type=known.struct),
        component=record.component,
    )


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _lock(directory: Path) -> int:
    fd = _open(directory / "lock")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise StartError(
            f"another collector uses {directory}",
            do_next="stop it, or give this one its own GOODPUT_SPOOL_DIR or GOODPUT_HOST",
        ) from None
    return fd
