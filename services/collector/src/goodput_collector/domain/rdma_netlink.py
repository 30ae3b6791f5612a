"""RDMA devices and their statistics as the kernel's `rdma` netlink tells them (what `rdma statistic show` reads).

    devices      RDMA_NLDEV_CMD_GET, a dump        -> index, name
    statistics   RDMA_NLDEV_CMD_STAT_GET of a port -> HWCOUNTERS > ENTRY > (NAME, VALUE)

It gives the same counters as `hw_counters/` in sysfs, all of a port in one message.
"""

from __future__ import annotations

from collections.abc import Iterable

from goodput_collector.domain import netlink_wire as wire
from goodput_collector.domain.rdma_counters import is_reported

_CLIENT = 5  # RDMA_NL_NLDEV
GET, STAT_GET = (_CLIENT << 10) + 1, (_CLIENT << 10) + 17
_DEV_INDEX, _DEV_NAME, _PORT_INDEX = 1, 2, 3
_HWCOUNTERS, _ENTRY_NAME, _ENTRY_VALUE = 80, 82, 83


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


def counters(answer: Iterable[wire.Message]) -> dict[str, int]:
    """Counter -> value, under the driver's own names. Raises Malformed."""
    values: dict[str, int] = {}
    for message in answer:
        for _, entry in wire.attribute_list(wire.attributes(message.payload).get(_HWCOUNTERS, b"")):
            parts = wire.attributes(entry)
            name, value = wire.text(parts.get(_ENTRY_NAME)), wire.number(parts.get(_ENTRY_VALUE))
            if name and value is not None and is_reported(name):
                values[name] = value
    return values
