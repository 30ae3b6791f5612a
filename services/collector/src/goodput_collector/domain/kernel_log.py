"""One line of a kernel log (or of the system journal) -> what was seen.

The parser knows lines of GPUs (`xid`), NICs (`nic_log`), and of the host itself (`host_log`; where the firmware takes
many lines to report one error, `firmware_log`), and passes over the rest.
It only reports: a lone corrected PCIe error, a link that goes down while a machine boots, are seen, and judged
elsewhere.

A host name in the line wins over the host that the reader assumes, because logs are collected from many hosts into one
file. Lines whose moment cannot be told take the collection time, and say so (`attrs["at"] = "unknown"`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

import msgspec

from goodput_collector.domain.firmware_log import FirmwareLines
from goodput_collector.domain.host_log import parse_host
from goodput_collector.domain.needles import Needles
from goodput_collector.domain.nic_log import parse_nic
from goodput_collector.domain.timestamps import LineClock, Placed
from goodput_collector.domain.xid import SxidLines, parse_nvidia
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Event, EventName

NEEDLES = Needles(
    *(
        b"Xid (",
        b"NVRM: ",
        b"Unable to determine the device",
        b"mlx5_core",
        b"ink down",
        b"ink up",
        b"ink is ",
        b"ink Down",
        b"ink Up",
    ),
    *(b" carrier", b"link connected", b"link disconnected", b"AER: ", b"PCIe Bus Error", b"DPC: ", b"pciehp"),
    *(b"blocked for more than", b"soft lockup", b"hard LOCKUP", b"ut of memory", b"rcu: INFO"),
    *(b"not responding", b"nfs: server", b"Lustre", b"ceph: ", b"mmfs: ", b"nvme nvme", b"timing out command"),
    *(b"I/O error, dev", b"[Hardware Error]", b"EDAC MC", b"Memory failure: ", b"achine check", b"temperature"),
    *(b"MCE", b"Linux version ", b"-- Boot ", b"-- Reboot "),
)
"""In every line that the parser can make something of; a reader of large logs skips the others unread."""

_PARSERS: tuple[Callable[..., Event | None], ...] = (parse_nvidia, parse_nic, parse_host)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_text(text: str, *, host: str, at: datetime) -> Event | None:
    """The event in one line whose time stamp has been taken off already."""
    for parser in _PARSERS:
        event = parser(text, host=host, at=at)
        if event is not None:
            return event
    return None


class KernelLogParser:
    """Feed it the lines of one log in order."""

    def __init__(self, *, host: str, clock: LineClock, reference: datetime | None = None) -> None:
        self._host = host
        self._clock = clock
        self._reference = reference or _EPOCH
        self._sxid = SxidLines()
        self._firmware = FirmwareLines()

    def feed(self, line: str) -> Event | None:
        return self.see(self._clock.place(line))

    def see(self, placed: Placed) -> Event | None:
        at = placed.at or self._reference
        host = placed.host or self._host
        if placed.boot:
            attrs = {"boot_id": placed.boot} if placed.boot != "?" else {}
            event: Event | None = Event(
                component=ids.host_id(host), name=EventName.BOOT, observed_at=at, excerpt=placed.text, attrs=attrs
            )
        else:
            event = self._sxid.feed(placed.text, host=host, at=at) or parse_text(
                f"{placed.ident}: {placed.text}" if placed.ident in _USER_SPACE else placed.text, host=host, at=at
            )
            event = self._firmware.see(placed.text, event, host=host, at=at)
        if event is not None and placed.at is None:
            event = msgspec.structs.replace(event, attrs=event.attrs | {"at": "unknown"})
        return event

    def feed_all(self, lines: Iterable[str]) -> Iterator[Event]:
        for line in lines:
            event = self.feed(line)
            if event is not None:
                yield event


_USER_SPACE = frozenset({"systemd-networkd", "NetworkManager"})
