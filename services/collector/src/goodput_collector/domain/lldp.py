"""LLDP: what the other end of a cable says about itself.

Every 30 s a switch sends on each port a frame with its name, that port's name and how long to believe it (IEEE 802.1AB). The
frame is a list of TLVs: 7 bits of type, 9 bits of length, the value. Chassis, port and time to live come first and must be
there, in this order. The daemon `lldpd` hears the same frames and prints them as JSON (`lldpctl -f json`); that output does
not name the switch that it speaks *for*, only the neighbour, which is what is wanted here.

Names go into component ids, so they are cleaned: a name is the other end's choice.
"""

from __future__ import annotations

import enum
import ipaddress
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ETHERTYPE = 0x88CC
NAME_MAX = 96
TLVS_MAX = 256
_CHASSIS, _PORT, _TTL, _PORT_DESCRIPTION, _SYSTEM_NAME, _SYSTEM_DESCRIPTION, _CAPABILITIES, _ADDRESS = range(1, 9)
_BRIDGE, _ROUTER, _STATION = 0x04, 0x10, 0x80


class NameKind(enum.Enum):
    """What sort of text names a chassis or a port."""

    MAC = "mac"
    INTERFACE = "ifname"
    ALIAS = "ifalias"
    ADDRESS = "ip"
    LOCAL = "local"


class NotLldp(ValueError):
    """The bytes are no LLDP frame, or the text is not lldpd's; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """The other end. `port` and `chassis` are as it names them, cleaned; `is_station` says that it is a host and no switch
    (None: it does not tell). `unread` counts TLVs that were not understood."""

    chassis: str
    chassis_kind: NameKind
    port: str
    port_kind: NameKind
    ttl_s: int = 0
    system: str = ""
    port_description: str = ""
    system_description: str = ""
    addresses: tuple[str, ...] = ()
    is_station: bool | None = None
    unread: int = 0

    @property
    def name(self) -> str:
        """What the device is called: its system name, else its chassis."""
        return self.system or self.chassis


def clean(name: str) -> str:
    """A name as it may stand in a component id: printable, no blanks, no `--` (it separates a link's ends), not too long."""
    kept = "".join(each if each.isprintable() and not each.isspace() else " " for each in name)
    joined = "_".join(kept.split())
    while "--" in joined:
        joined = joined.replace("--", "-")
    return joined.strip("/")[:NAME_MAX]


def parse(payload: bytes) -> Neighbour:
    """The frame behind its Ethernet header. Raises NotLldp."""
    tlvs = list(_tlvs(payload))
    if [kind for kind, _ in tlvs[:3]] != [_CHASSIS, _PORT, _TTL]:
        raise NotLldp("does not begin with chassis, port and time to live")
    chassis, chassis_kind = _identity(tlvs[0][1], _CHASSIS_KINDS, "chassis")
    port, port_kind = _identity(tlvs[1][1], _PORT_KINDS, "port")
    if len(tlvs[2][1]) < 2:
        raise NotLldp("its time to live is cut short")
    texts: dict[int, str] = {}
    addresses: list[str] = []
    is_station = None
    unread = 0
    for kind, value in tlvs[3:]:
        if kind in (_PORT_DESCRIPTION, _SYSTEM_NAME, _SYSTEM_DESCRIPTION):
            texts.setdefault(kind, _text(value))
        elif kind == _CAPABILITIES and len(value) >= 4:
            is_station = _station(int.from_bytes(value[2:4]))
        elif kind == _ADDRESS and (address := _management(value)):
            addresses.append(address)
        else:
            unread += 1
    return Neighbour(
        chassis=chassis,
        chassis_kind=chassis_kind,
        port=port,
        port_kind=port_kind,
        ttl_s=int.from_bytes(tlvs[2][1][:2]),
        system=clean(texts.get(_SYSTEM_NAME, "")),
        port_description=clean(texts.get(_PORT_DESCRIPTION, "")),
        system_description=texts.get(_SYSTEM_DESCRIPTION, "")[:200],
        addresses=tuple(addresses),
        is_station=is_station,
        unread=unread,
    )


_CHASSIS_KINDS = {
    1: NameKind.LOCAL, 2: NameKind.ALIAS, 3: NameKind.LOCAL, 4: NameKind.MAC, 5: NameKind.ADDRESS, 6: NameKind.INTERFACE,
    7: NameKind.LOCAL,
}  # fmt: skip
_PORT_KINDS = {
    1: NameKind.ALIAS, 2: NameKind.LOCAL, 3: NameKind.MAC, 4: NameKind.ADDRESS, 5: NameKind.INTERFACE, 6: NameKind.LOCAL,
    7: NameKind.LOCAL,
}  # fmt: skip


def _tlvs(payload: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    for _ in range(TLVS_MAX):
        if at + 2 > len(payload):
            return  # an end TLV should have come; senders that leave it out exist
        head = int.from_bytes(payload[at : at + 2])
        kind, length = head >> 9, head & 0x1FF
        if kind == 0:
            return
        if at + 2 + length > len(payload):
            raise NotLldp(f"a TLV of type {kind} is longer than the frame")
        yield kind, payload[at + 2 : at + 2 + length]
        at += 2 + length


def _identity(value: bytes, kinds: dict[int, NameKind], what: str) -> tuple[str, NameKind]:
    kind = kinds.get(value[0]) if value else None
    if kind is None:
        raise NotLldp(f"its {what} is named in no known way")
    body = value[1:]
    if kind is NameKind.MAC and len(body) == 6:
        text = body.hex(":")
    elif kind is NameKind.ADDRESS:
        text = _address(body[:1], body[1:])
    else:
        text = _text(body)
    name = clean(text)
    if not name:
        raise NotLldp(f"its {what} has no name")
    return name, kind


def _management(value: bytes) -> str:
    length = value[0] if value else 0
    return _address(value[1:2], value[2 : 1 + length]) if length >= 2 else ""


def _address(family: bytes, body: bytes) -> str:
    """An address by its IANA family (1: IPv4, 2: IPv6); hexadecimal for any other."""
    if (family, len(body)) in ((b"\x01", 4), (b"\x02", 16)):
        return str(ipaddress.ip_address(body))
    return body.hex()


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace").rstrip("\x00").strip()


def _station(enabled: int) -> bool | None:
    if enabled & (_BRIDGE | _ROUTER):
        return False
    return True if enabled & _STATION else None


# -- lldpd's own words -----------------------------------------------------------------------------------------------


def parse_lldpctl(text: str) -> tuple[dict[str, list[Neighbour]], int]:
    """(interface -> its neighbours, how many could not be read) from `lldpctl -f json` or `json0`. Raises NotLldp."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotLldp(f"not JSON: {error}") from None
    root = document.get("lldp") if isinstance(document, dict) else None
    found: dict[str, list[Neighbour]] = {}
    unread = 0
    for part in _each(root):
        for interface, entry in _named(part.get("interface")) if isinstance(part, dict) else ():
            neighbour = _of_lldpctl(entry) if str(entry.get("via", "LLDP")).upper() == "LLDP" else None
            if neighbour is None:
                unread += 1
            else:
                found.setdefault(interface, []).append(neighbour)
    if root is None:
        raise NotLldp("has no field lldp")
    return found, unread


def _of_lldpctl(entry: dict[str, Any]) -> Neighbour | None:
    chassis_name, chassis = next(iter(_named(entry.get("chassis"))), ("", {}))
    port = _first(entry.get("port"))
    if not isinstance(port, dict):
        return None
    chassis_id, chassis_kind = _id_of(chassis.get("id"))
    port_id, port_kind = _id_of(port.get("id"))
    if not chassis_id or not port_id:
        return None
    enabled = {
        str(each.get("type", "")).lower()
        for each in _each(chassis.get("capability"))
        if isinstance(each, dict) and each.get("enabled") is True
    }
    station = False if enabled & {"bridge", "router"} else True if "station" in enabled else None
    ttl = _value(port.get("ttl"))
    return Neighbour(
        chassis=chassis_id,
        chassis_kind=chassis_kind,
        port=port_id,
        port_kind=port_kind,
        ttl_s=min(int(ttl), 65535) if ttl.isascii() and ttl.isdigit() else 0,
        system="" if clean(chassis_name) in ("", chassis_id) else clean(chassis_name),
        port_description=clean(_value(port.get("descr"))),
        system_description=_value(chassis.get("descr"))[:200],
        addresses=tuple(filter(None, (_value(each) for each in _each(chassis.get("mgmt-ip"))))),
        is_station=station,
    )


def _id_of(given: Any) -> tuple[str, NameKind]:
    given = _first(given)
    if not isinstance(given, dict):
        return "", NameKind.LOCAL
    kinds = {each.value: each for each in NameKind}
    return clean(_value(given)), kinds.get(str(given.get("type", "")).lower(), NameKind.LOCAL)


def _named(given: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """lldpd keys things by their name (`{"eth0": {...}}`), lists them, or (json0) puts the name inside."""
    for each in _each(given):
        if not isinstance(each, dict):
            continue
        if "name" in each or "id" in each or "port" in each:
            yield _value(each.get("name")), each
        else:
            yield from ((name, inner) for name, inner in each.items() if isinstance(inner, dict))


def _each(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [] if given is None else [given]


def _first(given: Any) -> Any:
    return next(iter(_each(given)), None)


def _value(given: Any) -> str:
    """A text that stands as it is, in a field `value`, or in a list of one of these."""
    given = _first(given)
    if isinstance(given, dict):
        given = given.get("value")
    return str(given).strip() if isinstance(given, (str, int, float)) else ""
