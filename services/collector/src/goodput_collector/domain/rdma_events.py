"""Asynchronous events of an RDMA device, as the verbs library hands them out.

A port error comes within microseconds of the loss of the link and also where there is no network interface (InfiniBand); a
fatal event says that the adapter is dead, which nothing else says so plainly. Events of queue pairs belong to the process
that made them, and do not come here.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Event, EventName, Severity


class _Kind(NamedTuple):
    text: str
    name: EventName
    severity: Severity
    of_port: bool
    what: str = ""


DEVICE_FATAL = 8
_KINDS = {
    DEVICE_FATAL: _Kind("device fatal: the adapter is dead", EventName.NIC_HANG, Severity.FATAL, False, "device fatal"),
    9: _Kind("port active", EventName.LINK_UP, Severity.INFO, True),
    10: _Kind("port error", EventName.LINK_DOWN, Severity.ERROR, True),
    11: _Kind("LID change", EventName.ADDRESS_CHANGED, Severity.WARNING, True, "lid"),
    12: _Kind("partition key change", EventName.ADDRESS_CHANGED, Severity.WARNING, True, "pkey"),
    13: _Kind("subnet manager change", EventName.ADDRESS_CHANGED, Severity.INFO, True, "subnet manager"),
    17: _Kind("client reregistration", EventName.ADDRESS_CHANGED, Severity.INFO, True, "client reregistration"),
    18: _Kind("GID change", EventName.ADDRESS_CHANGED, Severity.INFO, True, "gid"),
}


def event_of(host: str, device: str, kind: int, port: int, at: datetime) -> Event | None:
    """None for what is no concern of a device or a port."""
    known = _KINDS.get(kind)
    if known is None:
        return None
    attrs = {"device": device, "by": "verbs"}
    if known.what:
        attrs["what"] = known.what
    return Event(
        component=ids.nic_id(host, device, port if known.of_port and port > 0 else 1),
        name=known.name,
        observed_at=at,
        severity=known.severity,
        excerpt=f"{device} port {port}: {known.text}" if known.of_port else f"{device}: {known.text}",
        attrs=attrs,
    )
