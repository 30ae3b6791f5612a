"""`journalctl -o export` and `-o json`: entries with fields, each with its own time, host and boot.

Export: `KEY=value` a line, an empty line ends the entry. A field whose value holds newlines comes as `KEY`, an 8-byte
length and raw bytes; such a field is passed over, which costs that entry's message and nothing else.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from goodput_collector.domain.timestamps import Placed

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WANTED = frozenset(
    {"__REALTIME_TIMESTAMP", "_SOURCE_REALTIME_TIMESTAMP", "MESSAGE", "_HOSTNAME", "SYSLOG_IDENTIFIER", "_BOOT_ID"}
)


class JournalEntries:
    """Feed it lines; gives an entry when one is whole, and a boot border when the boot changes."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}
        self._boot = ""

    def feed(self, line: str) -> list[Placed]:
        line = line.rstrip("\r\n")
        if line.startswith("{"):
            try:
                fields = msgspec.json.decode(line.encode(), type=dict[str, Any])
            except (msgspec.DecodeError, UnicodeEncodeError):
                return []
            return self._entry({key: str(value) for key, value in fields.items() if key in _WANTED})
        if line:
            key, equals, value = line.partition("=")
            if equals and key in _WANTED:
                self._fields[key] = value
            return []
        fields, self._fields = self._fields, {}
        return self._entry(fields)

    def _entry(self, fields: dict[str, str]) -> list[Placed]:
        stamp = fields.get("__REALTIME_TIMESTAMP", "")
        if not stamp.isdigit() or len(stamp) > 17:
            return []
        at = _EPOCH + timedelta(microseconds=int(stamp))
        host = fields.get("_HOSTNAME", "")
        told = []
        boot = fields.get("_BOOT_ID", self._boot)
        if boot != self._boot:
            if self._boot:
                told.append(Placed(at, f"-- Boot {boot} --", host, "", boot))
            self._boot = boot
        if fields.get("MESSAGE"):
            told.append(Placed(at, fields["MESSAGE"], host, fields.get("SYSLOG_IDENTIFIER", ""), ""))
        return told
