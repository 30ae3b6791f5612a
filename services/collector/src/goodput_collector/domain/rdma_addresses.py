"""Addresses of an RDMA port: its LID, its GIDs, its partition keys. A connection names them; one that changes breaks it.

A LID changes when the subnet manager was restarted or the port moved to another switch; a GID when an address of its
interface came or went (RoCE), which is how a wrong GID index gets into a job; a partition key when somebody moved the port
to another tenant. All are told as events with what it was and what it is now; "" stands for none. One that cannot be read
(no file descriptor is left, say) is not none: it is taken for what it was.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Event, EventName, Severity

EVENTS_MAX = 64
_NO_PKEY = frozenset({"0x0000", "0x7fff"})


def address(what: str, text: str) -> str:
    """An address as it is told; "" for the value that stands for none."""
    text = text.strip().lower()
    if what == "gid":
        return "" if not text.strip("0:") else text
    if what == "pkey":
        return "" if text in _NO_PKEY else text
    return "" if text in ("0x0", "0", "0xffff") else text


class Addresses:
    """Remembers the addresses of one port: (what, index) -> address."""

    def __init__(self, component: ComponentId, attrs: Mapping[str, str]) -> None:
        self._component = component
        self._attrs = dict(attrs)
        self._known: dict[tuple[str, int], str] | None = None
        self._never_read: set[tuple[str, int]] = set()

    def update(
        self, addresses: Mapping[tuple[str, int], str], at: datetime, *, unknown: Collection[tuple[str, int]] = ()
    ) -> list[Event]:
        """What has changed since the last reading (of all addresses but the `unknown`); nothing for a first. At most
        EVENTS_MAX."""
        known = self._known
        if known is None:
            self._known, self._never_read = dict(addresses), set(unknown)
            return []
        unread = set(unknown)
        self._known = dict(addresses) | {key: known[key] for key in unread & known.keys()}
        events = []
        for key in sorted({*known, *addresses} - unread - self._never_read):
            before, now = known.get(key, ""), addresses.get(key, "")
            if before != now:
                events.append(self._event(*key, before, now, at))
        self._never_read &= unread
        return events[:EVENTS_MAX]

    def _event(self, what: str, index: int, before: str, now: str, at: datetime) -> Event:
        return Event(
            component=self._component,
            name=EventName.ADDRESS_CHANGED,
            observed_at=at,
            severity=Severity.WARNING if before else Severity.INFO,
            excerpt=f"{what} {index}: {before or 'none'} -> {now or 'none'}",
            attrs=self._attrs | {"what": what, "index": str(index), "from": before, "to": now},
        )
