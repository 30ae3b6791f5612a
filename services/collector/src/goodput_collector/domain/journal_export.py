"""`journalctl -o export` and `-o json`: entries with fields, each with its own time, host and boot.

Export: `KEY=value` a line, an empty line ends the entry. A value that holds newlines comes as `KEY`, a length in 8 bytes
(little end first), as many raw bytes, and a newline. Bytes may arrive cut anywhere. A field that is too long is cut, an
entry that makes no sense is passed over up to the next empty line and counted: what follows is read again.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from goodput_collector.domain.timestamps import Placed

FIELD_BYTES_MAX = 64 * 1024
_VALUE_BYTES_MAX = 1 << 28
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LENGTH = struct.Struct("<Q")
_WANTED = frozenset(
    {"__REALTIME_TIMESTAMP", "__CURSOR", "MESSAGE", "_HOSTNAME", "SYSLOG_IDENTIFIER", "_BOOT_ID"},
)


class JournalEntries:
    """Feed it bytes; gives what is whole: an entry (one for each line of its message), and a border when the boot changes.

    `cursor` names the last entry that was given, `seen` counts entries, `damaged` what could not be understood.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._fields: dict[str, str] = {}
        self._value: tuple[str, int] | None = None  # a field with a length: its name, and the bytes still to come
        self._kept = b""  # of that field
        self._cut = False  # in a line that is too long
        self._lost = False  # in an entry that makes no sense
        self._boot = ""
        self.cursor = ""
        self.seen = 0
        self.damaged = 0

    def feed(self, data: bytes) -> list[Placed]:
        self._buffer += data
        told: list[Placed] = []
        at = 0
        while True:
            if self._value is not None:
                moved = self._take_value(at)
                if moved == at and self._value is not None:
                    break
                at = moved
                continue
            end = self._buffer.find(b"\n", at)
            if end < 0:
                break
            line = bytes(self._buffer[at:end])
            length_end = end + 1 + _LENGTH.size
            if self._opens_value(line) and len(self._buffer) < length_end:
                break
            at = end + 1
            if self._cut:
                self._cut = False
            elif self._opens_value(line):
                at = self._open_value(line, at)
            else:
                told += self._line(line)
        del self._buffer[:at]
        if self._value is None and len(self._buffer) > FIELD_BYTES_MAX:
            if not self._cut:
                told += self._line(bytes(self._buffer[:FIELD_BYTES_MAX]))
            self._cut = True
            self._buffer.clear()
        return told

    # -- fields with a length ---------------------------------------------------------------------------------------

    def _opens_value(self, line: bytes) -> bool:
        return bool(line) and not self._cut and not self._lost and b"=" not in line and line[:1] != b"{"

    def _open_value(self, name: bytes, at: int) -> int:
        (length,) = _LENGTH.unpack_from(self._buffer, at)
        if length > _VALUE_BYTES_MAX:  # not a length: this is not an export, or a hole in one
            self._lost = True
            self.damaged += 1
            return at
        self._value, self._kept = (name.decode("utf-8", "replace"), length + 1), b""
        return at + _LENGTH.size

    def _take_value(self, at: int) -> int:
        assert self._value is not None
        name, left = self._value
        part = bytes(self._buffer[at : at + left])
        if len(self._kept) < FIELD_BYTES_MAX:
            self._kept = (self._kept + part)[:FIELD_BYTES_MAX]
        left -= len(part)
        self._value = (name, left) if left else None
        if not left and name in _WANTED:
            self._fields[name] = self._kept.removesuffix(b"\n").decode("utf-8", "replace")
        return at + len(part)

    # -- lines ------------------------------------------------------------------------------------------------------

    def _line(self, line: bytes) -> list[Placed]:
        line = line.removesuffix(b"\r")
        if line.startswith(b"{"):
            return self._json(line)
        if line:
            name, _, value = line.partition(b"=")
            if (key := name.decode("utf-8", "replace")) in _WANTED:
                self._fields[key] = value.decode("utf-8", "replace")
            return []
        fields, self._fields = self._fields, {}
        self._lost = False
        return self._entry(fields) if fields else []

    def _json(self, line: bytes) -> list[Placed]:
        try:
            fields = msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            self.damaged += 1
            return []
        return self._entry({key: _text(value) for key, value in fields.items() if key in _WANTED})

    def _entry(self, fields: dict[str, str]) -> list[Placed]:
        self.seen += 1
        stamp = fields.get("__REALTIME_TIMESTAMP", "")
        if not stamp.isascii() or not stamp.isdigit() or len(stamp) > 17:
            self.damaged += 1
            return []
        at = _EPOCH + timedelta(microseconds=int(stamp))
        host = fields.get("_HOSTNAME", "")
        told = []
        boot = fields.get("_BOOT_ID", self._boot)
        if boot != self._boot:
            if self._boot:
                told.append(Placed(at, f"-- Boot {boot} --", host, "", boot))
            self._boot = boot
        ident = fields.get("SYSLOG_IDENTIFIER", "")
        told += [Placed(at, line, host, ident, "") for line in fields.get("MESSAGE", "").split("\n") if line]
        self.cursor = fields.get("__CURSOR", self.cursor)
        return told


def _text(value: Any) -> str:
    """A JSON field: text; numbers of bytes where it is no text; a list where it was given twice; null where too long."""
    if isinstance(value, list):
        if value and all(isinstance(each, int) and 0 <= each < 256 for each in value):
            return bytes(value).decode("utf-8", "replace")
        return "\n".join(_text(each) for each in value if each is not None)
    return "" if value is None else str(value)
