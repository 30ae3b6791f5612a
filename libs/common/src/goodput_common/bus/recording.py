"""A recorded stretch of the bus: JSON Lines, one message a line, for `goodput replay` and for tests.

    {"stream":"JOB","sequence":7,"received_at":"...","subject":"goodput.job...","id":"...","type":"goodput.job...v1",
     "source":"...","time":"...","data":{...}}          (and "component", where the message has one)

A line is written whole or, when the writer is killed, cut off at the end of the file: such a last line is left out and
reported. Any other bad line is an error that names its number.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import msgspec

from goodput_common.bus.codec import decode_body
from goodput_common.bus.errors import DecodeError
from goodput_common.bus.ports import Message
from goodput_common.contracts.registry import BY_NAME
from goodput_common.runtime.logs import get_logger

LINE_BYTES_MAX = 16 << 20
Warn = Callable[[str], None]


class RecordingError(Exception):
    """A line of a recording cannot be read; names the file and the line."""

    def __init__(self, path: Path, line: int, why: str) -> None:
        super().__init__(f"{path}:{line}: {why}")
        self.path = path
        self.line = line
        self.why = why


class _Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    stream: str
    sequence: int
    received_at: datetime
    subject: str
    id: str
    type: str
    source: str
    time: datetime
    component: str = ""
    data: msgspec.Raw


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Record)


def to_line(message: Message) -> bytes:
    """One line, with its line feed."""
    record = _Record(
        stream=message.stream,
        sequence=message.sequence,
        received_at=message.received_at.astimezone(UTC),
        subject=message.subject,
        id=message.id,
        type=message.type,
        source=message.source,
        time=message.time.astimezone(UTC),
        component=message.component,
        data=msgspec.Raw(_encoder.encode(message.data)),
    )
    return _encoder.encode(record) + b"\n"


def write_record(file: IO[bytes], message: Message) -> None:
    """Append one message. Not flushed: the caller decides how much may be lost."""
    file.write(to_line(message))


def from_line(line: bytes) -> Message:
    """Raises DecodeError."""
    try:
        record = _decoder.decode(line)
    except msgspec.ValidationError as error:
        raise DecodeError(f"not a record: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecodeError(f"not JSON: {error}") from error
    if record.type not in BY_NAME:
        raise DecodeError(f"type {record.type!r} is not a known message type")
    for name in ("received_at", "time"):
        if getattr(record, name).tzinfo is None:
            raise DecodeError(f"{name} has no time zone")
    data: Any = decode_body(record.type, record.data)
    return Message(
        id=record.id,
        type=record.type,
        source=record.source,
        subject=record.subject,
        time=record.time,
        data=data,
        stream=record.stream,
        sequence=record.sequence,
        received_at=record.received_at,
        component=record.component,
    )


def read_records(path: Path | str, *, warn: Warn | None = None) -> Iterator[Message]:
    """The messages of a recording in file order, read line by line.

    A last line that was cut off is left out and told to `warn` (default: the log). Raises RecordingError for any other line
    that is no record, FileNotFoundError.
    """
    path = Path(path)
    tell = warn or get_logger(__name__).warning
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LINE_BYTES_MAX):
            number += 1
            whole = line.endswith(b"\n")
            if not whole and len(line) == LINE_BYTES_MAX:
                raise RecordingError(path, number, f"longer than {LINE_BYTES_MAX} bytes; this is no recording")
            if not line.strip():
                continue
            try:
                yield from_line(line)
            except DecodeError as error:
                if whole:
                    raise RecordingError(path, number, error.reason) from error
                tell(f"{path}:{number}: the last line is cut off and was left out ({error.reason})")


def last_sequences(path: Path | str) -> dict[str, int]:
    """Highest recorded sequence of each stream: where to go on."""
    highest: dict[str, int] = {}
    for message in read_records(path):
        highest[message.stream] = max(highest.get(message.stream, 0), message.sequence)
    return highest


def cut_off_partial_line(path: Path) -> None:
    """Remove what a killed writer left after the last line feed, so that appending starts a new line."""
    size = path.stat().st_size if path.exists() else 0
    if size == 0:
        return
    with path.open("r+b") as file:
        end = size
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            feed = file.read(end - start).rfind(b"\n")
            if feed >= 0:
                end = start + feed + 1
                break
            end = start
        if end != size:
            file.truncate(end)


class Recorder:
    """Appends messages to a file, flushed after each batch. Counts what it wrote."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        cut_off_partial_line(self._path)
        self._file = self._path.open("ab")
        self._lock = threading.Lock()
        self.written = 0

    async def append(self, messages: Sequence[Message]) -> None:
        await asyncio.to_thread(self._append, messages)

    def _append(self, messages: Sequence[Message]) -> None:
        lines = b"".join(to_line(message) for message in messages)
        with self._lock:
            if self._file.closed:  # a cancelled append that came late; nothing half written
                return
            self._file.write(lines)
            self._file.flush()
            self.written += len(messages)

    def close(self) -> None:
        with self._lock:
            self._file.close()
