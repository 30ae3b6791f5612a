"""What a port's link is set to and, where it is down, why: ethtool's netlink answers.

    LINKSTATE  link, ext_state (a reason for a link that is down), ext_substate
    LINKMODES  speed, duplex, lanes, autonegotiation
    FEC        the error correction in use, as the number of its link mode

The kernel tells of all interfaces in one answer each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from goodput_collector.domain import netlink_wire as wire

LINKMODES_GET, LINKSTATE_GET, FEC_GET, EEPROM_GET = 4, 6, 29, 31
_HEADER, _DEV_NAME = 1, 2
_AUTONEG, _SPEED, _DUPLEX, _LANES = 2, 5, 6, 9
_LINK, _EXT_STATE, _EXT_SUBSTATE = 2, 5, 6
_FEC_AUTO, _FEC_ACTIVE = 3, 4
_SPEED_UNKNOWN = 0xFFFFFFFF
_DUPLEXES = {0: "half", 1: "full"}
_FECS = {49: "none", 50: "rs", 51: "baser", 74: "llrs"}
EXT_STATES = (
    "autoneg",
    "link training failure",
    "link logical mismatch",
    "bad signal integrity",
    "no cable",
    "cable issue",
    "eeprom issue",
    "calibration failure",
    "power budget exceeded",
    "overheat",
    "module",
)
_SUBSTATES: dict[int, tuple[str, ...]] = {
    0: (
        "no partner detected",
        "ack not received",
        "next page exchange failed",
        "no partner detected, force mode",
        "FEC mismatch during override",
        "no highest common denominator",
    ),
    1: (
        "KR frame lock not acquired",
        "KR link inhibit timeout",
        "KR link partner did not set receiver ready",
        "remote side is not ready",
    ),
    2: (
        "PCS did not acquire block lock",
        "PCS did not acquire AM lock",
        "PCS did not get align_status",
        "FC FEC is not locked",
        "RS FEC is not locked",
    ),
    3: ("large number of physical errors", "unsupported rate", "SerDes reference clock lost", "SerDes ALOS"),
    5: ("unsupported cable", "cable test failure"),
    10: ("CMIS module is not in ModuleReady state",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Only what the driver knows: speed_mbps and lanes are 0, words "", where it does not."""

    link: bool | None = None
    speed_mbps: int = 0
    duplex: str = ""
    lanes: int = 0
    autoneg: str = ""
    fec: str = ""
    reason: str = ""

    def attrs(self) -> dict[str, str]:
        told = {
            "speed_mbps": str(self.speed_mbps or ""),
            "duplex": self.duplex,
            "lanes": str(self.lanes or ""),
            "autoneg": self.autoneg,
            "fec": self.fec,
            "reason": self.reason,
        }
        return {name: value for name, value in told.items() if value}


def settings_of(
    states: Iterable[wire.Message], modes: Iterable[wire.Message], fecs: Iterable[wire.Message]
) -> dict[str, LinkSettings]:
    """By interface. Raises Malformed."""
    parts: dict[str, dict[str, Any]] = {}
    readers: tuple[tuple[Iterable[wire.Message], Callable[[Mapping[int, bytes]], dict[str, Any]]], ...] = (
        (states, _state),
        (modes, _modes),
        (fecs, _fec),
    )
    for answer, read in readers:
        for message in answer:
            attrs = message.attributes()
            name = wire.text(wire.attributes(attrs.get(_HEADER, b"")).get(_DEV_NAME))
            if name:
                parts.setdefault(name, {}).update(read(attrs))
    return {name: LinkSettings(**found) for name, found in parts.items()}


def reason_of(state: int | None, substate: int | None) -> str:
    """Why a link is down, in words; "" where the driver does not say."""
    if state is None:
        return ""
    words = EXT_STATES[state] if state < len(EXT_STATES) else f"state {state}"
    known = _SUBSTATES.get(state, ())
    if substate is not None and 1 <= substate <= len(known):
        return f"{words}: {known[substate - 1]}"
    return words


def _state(attrs: Mapping[int, bytes]) -> dict[str, Any]:
    link = wire.number(attrs.get(_LINK))
    return {
        "link": None if link is None else bool(link),
        "reason": reason_of(wire.number(attrs.get(_EXT_STATE)), wire.number(attrs.get(_EXT_SUBSTATE))),
    }


def _modes(attrs: Mapping[int, bytes]) -> dict[str, Any]:
    speed = wire.number(attrs.get(_SPEED))
    autoneg = wire.number(attrs.get(_AUTONEG))
    return {
        "speed_mbps": 0 if speed is None or speed == _SPEED_UNKNOWN else speed,
        "duplex": _DUPLEXES.get(wire.number(attrs.get(_DUPLEX)) or 0, "") if _DUPLEX in attrs else "",
        "lanes": wire.number(attrs.get(_LANES)) or 0,
        "autoneg": "" if autoneg is None else ("on" if autoneg else "off"),
    }


def _fec(attrs: Mapping[int, bytes]) -> dict[str, Any]:
    active = wire.number(attrs.get(_FEC_ACTIVE))
    return {"fec": "" if active is None else _FECS.get(active, f"mode {active}")}
