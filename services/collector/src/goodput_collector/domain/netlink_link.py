"""A network interface as the kernel's link message tells it, and what two such messages mean together.

Each message carries how often the carrier went up and down, so a flap between two messages shows with its number. An
interface that somebody took down (`admin: down`) is not one that lost its carrier; a member of a bond that is not in use
(`backup`) is not one that is down; one that was given to a pod (moved to its network namespace) is not gone. All are told
apart.

A bridge speaks of its ports with messages of the same kinds, in which the carrier has no place: one that leaves a bridge is
"deleted" there and only there. They are of another address family, and say nothing about the interface itself.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import datetime

from goodput_collector.domain import netlink_wire as wire
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Counter, Event, EventName, Sample, Severity

_IFF_UP = 1
_UNSPECIFIED = 0  # the address family of a message about the interface itself
_FIXED = struct.Struct("=BxHiII")  # family, type, index, flags, change
_NAME, _MASTER, _OPERSTATE, _LINKINFO, _CARRIER, _UPS, _DOWNS = 3, 10, 16, 18, 33, 47, 48
_NEW_NAMESPACE, _NEW_INDEX = 45, 49  # of a deletion: it goes on elsewhere, under this number
_KIND, _SLAVE_KIND, _SLAVE_DATA = 1, 4, 5
_BOND_STATE, _BOND_MII = 1, 2
_WANTED = frozenset({_NAME, _MASTER, _OPERSTATE, _LINKINFO, _CARRIER, _UPS, _DOWNS})
_OPERSTATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")
_BOND_STATES = ("active", "backup")
_BOND_MIIS = ("up", "failing", "down", "recovering")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One interface at one moment. Counts are -1 where the kernel does not give them; `master` is the index of the bond or
    bridge above it, 0 where there is none; `bond` and `mii` are what a bond says of its member, "" elsewhere."""

    index: int
    name: str
    admin_up: bool
    carrier: bool
    operstate: str
    ups: int
    downs: int
    kind: str = ""
    master: int = 0
    bond: str = ""
    mii: str = ""

    @property
    def admin(self) -> str:
        return "up" if self.admin_up else "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Which component an interface is, and when: everything besides the two messages."""

    component: ComponentId
    attrs: dict[str, str]
    at: datetime
    interval_s: float


def index_of(payload: bytes) -> int:
    """Raises Malformed."""
    if len(payload) < _FIXED.size:
        raise wire.Malformed(f"a link message of {len(payload)} bytes")
    return int(_FIXED.unpack_from(payload)[2])


def of_the_interface(payload: bytes) -> bool:
    """Whether a link message is about the interface itself, not about its part in a bridge. Raises Malformed."""
    index_of(payload)
    return payload[0] == _UNSPECIFIED


def was_moved(payload: bytes) -> bool:
    """Of an RTM_DELLINK message: to another network namespace, where the interface goes on. Raises Malformed."""
    return any(kind in (_NEW_NAMESPACE, _NEW_INDEX) for kind, _, _ in wire.spans(payload, _FIXED.size))


def parse_link(payload: bytes) -> Link:
    """Of an RTM_NEWLINK message's payload. Raises Malformed."""
    index = index_of(payload)
    flags = _FIXED.unpack_from(payload)[3]
    found = {kind: value for kind, value in wire.attribute_list(payload, _FIXED.size) if kind in _WANTED}
    operstate = _word(_OPERSTATES, found.get(_OPERSTATE), "unknown")
    carrier = wire.number(found.get(_CARRIER))
    ups, downs = wire.number(found.get(_UPS)), wire.number(found.get(_DOWNS))
    kind = bond = mii = ""
    if _LINKINFO in found:
        info = wire.attributes(found[_LINKINFO])
        kind = wire.text(info.get(_KIND))
        if wire.text(info.get(_SLAVE_KIND)) == "bond":
            slave = wire.attributes(info.get(_SLAVE_DATA, b""))
            bond = _word(_BOND_STATES, slave.get(_BOND_STATE), "")
            mii = _word(_BOND_MIIS, slave.get(_BOND_MII), "")
    return Link(
        index=index,
        name=wire.text(found.get(_NAME)) or str(index),
        admin_up=bool(flags & _IFF_UP),
        carrier=bool(carrier) if carrier is not None else operstate == "up",
        operstate=operstate,
        ups=-1 if ups is None else ups,
        downs=-1 if downs is None else downs,
        kind=kind,
        master=wire.number(found.get(_MASTER)) or 0,
        bond=bond,
        mii=mii,
    )


def same_interface(before: Link, link: Link) -> bool:
    """Not renamed, and not another one under the old number: its counts would have begun anew."""
    fell = _rise(before.downs, link.downs, 0) < 0 or _rise(before.ups, link.ups, 0) < 0
    return before.name == link.name and not fell


def moved(before: Link, link: Link, seen: Seen) -> list[Sample]:
    """What has happened between two messages about the same interface."""
    downs = _rise(before.downs, link.downs, int(before.carrier and not link.carrier))
    ups = _rise(before.ups, link.ups, int(link.carrier and not before.carrier))
    changes = [(EventName.LINK_DOWN, downs), (EventName.LINK_UP, ups)]
    if not link.carrier:
        changes.reverse()
    samples: list[Sample] = [carrier_event(link, name, seen, count) for name, count in changes if count > 0]
    for counter, delta, value in (("carrier_down_count", downs, link.downs), ("carrier_up_count", ups, link.ups)):
        if delta > 0 and value >= 0:
            samples.append(
                Counter(
                    component=seen.component,
                    name=counter,
                    observed_at=seen.at,
                    delta=delta,
                    interval_s=round(seen.interval_s, 3),
                    value=value,
                )
            )
    return samples


def carrier_event(link: Link, name: EventName, seen: Seen, count: int, **more: str) -> Event:
    down = name is EventName.LINK_DOWN
    what = "carrier lost" if down else "carrier gained"
    times = f" {count} times" if count > 1 else ""
    return Event(
        component=seen.component,
        name=name,
        observed_at=seen.at,
        severity=Severity.ERROR if down else Severity.INFO,
        excerpt=f"{link.name}: {what}{times} (operstate {link.operstate}, admin {link.admin})",
        attrs=seen.attrs | {"by": "netlink", "operstate": link.operstate, "admin": link.admin} | more,
        count=count,
    )


def _rise(before: int, now: int, otherwise: int) -> int:
    """`otherwise` where a count was not told, or is not now: there is nothing to subtract from."""
    return now - before if before >= 0 and now >= 0 else otherwise


def _word(words: tuple[str, ...], payload: bytes | None, otherwise: str) -> str:
    number = wire.number(payload)
    return words[number] if number is not None and number < len(words) else otherwise
