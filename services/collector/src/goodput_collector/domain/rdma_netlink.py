"""RDMA devices and their statistics as the kernel's `rdma` netlink tells them (what `rdma statistic show` reads).

    devices      RDMA_NLDEV_CMD_GET, a dump        -> index, name
    statistics   RDMA_NLDEV_CMD_STAT_GET of a port -> HWCOUNTERS > ENTRY > (NAME, VALUE)

It gives the same counters as `hw_counters/` in sysfs, all of a port in one message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from goodput_collector.domain import netlink_wire as wire

_CLIENT = 5  # RDMA_NL_NLDEV
GET, STAT_GET = (_CLIENT << 10) + 1, (_CLIENT << 10) + 17
_DEV_INDEX, _DEV_NAME, _PORT_INDEX = 1, 2, 3
_HWCOUNTERS, _ENTRY_NAME, _ENTRY_VALUE = 80, 82, 83
_VALUE_BYTES = 8


def port_request(device: int, port: int) -> bytes:
    return wire.u32(_DEV_INDEX, device) + wire.u32(_PORT_INDEX, port)


def devices(answer: Iterable[wire.Message]) -> dict[str, int]:
    """Name -> index. Raises Malformed."""
    found = {}
    for message in answer:
        attrs = wire.attributes(message.payload)
        index = wire.number(attrs.get(_DEV_INDEX))
        if index is not None and (name := wire.text(attrs.get(_DEV_NAME))):
            found[name] = index
    return found


class Layout:
    """Where the values stand in an answer about one port. The next answer differs from it in nothing else, so one `unpack`
    takes them all out, and shows by the bytes between them that this is so. Raises Malformed."""

    def __init__(self, payload: bytes) -> None:
        found = dict(_places(payload))
        self.names = tuple(found)
        form, at = "=", 0
        for place in found.values():
            form += f"{place - at}sQ"
            at = place + _VALUE_BYTES
        self._struct = struct.Struct(f"{form}{len(payload) - at}s")
        self._between = self._struct.unpack(payload)[::2]

    def values(self, payload: bytes) -> tuple[int, ...] | None:
        """In the order of `names`; None when the answer is laid out differently."""
        if len(payload) != self._struct.size:
            return None
        parts = self._struct.unpack(payload)
        return parts[1::2] if parts[::2] == self._between else None


def _places(payload: bytes) -> Iterator[tuple[str, int]]:
    for kind, start, end in wire.spans(payload):
        if kind == _HWCOUNTERS:
            for _, first, last in wire.spans(payload, start, end):
                name, place = "", -1
                for part, at, until in wire.spans(payload, first, last):
                    if part == _ENTRY_NAME:
                        name = wire.text(payload[at:until])
                    elif part == _ENTRY_VALUE and until - at == _VALUE_BYTES:
                        place = at
                if name and place >= 0:
                    yield name, place
