"""What a transceiver or cable says of itself: its memory, as SFF-8636, CMIS and SFF-8472 lay it out.

A module has 256 bytes in view: the lower 128 always the same, the upper 128 one of many pages. The first byte says which
document describes the rest:

    SFF-8636 (QSFP+, QSFP28)         lower page: flags at 3-14, temperature 22, voltage 26, received 34, bias 42, sent 50
    CMIS (QSFP-DD, OSFP, …)          lower page: flags at 8-11, temperature 14, voltage 16; per lane: page 11h of bank 0;
                                     which lanes and monitors there are: page 00h byte 210, page 01h bytes 159-160
    SFF-8472 (SFP)                   a second device, A2h: temperature 96, voltage 98, bias 100, sent 102, received 104

Temperatures are signed 1/256 of a degree, voltages 0.1 mV, currents 2 uA, powers 0.1 uW. A power of nothing is told as
-40 dBm. Copper has no optics: no lanes are told then. What a module does not have is left out, not told as zero: a lane or a
monitor that is not there reads as 0, and would be told as a laser that has died.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

PAGE_BYTES = 128
CMIS_ADVERTISING_PAGE, CMIS_LANES_PAGE = 0x01, 0x11
_SFF_8636 = {0x0C: "QSFP", 0x0D: "QSFP+", 0x11: "QSFP28"}
_CMIS = {0x18: "QSFP-DD", 0x19: "OSFP", 0x1B: "DSFP", 0x1E: "QSFP+ CMIS", 0x1F: "SFP-DD CMIS", 0x20: "SFP+ CMIS"}
_SFP = {0x03: "SFP"}
_MODULE_STATES = {1: "low power", 2: "powering up", 3: "ready", 4: "powering down", 5: "fault"}
_SFF_8636_REV_2_8 = 0x08
_FLOOR_DBM = -40.0
_FOUR = ("high_alarm", "low_alarm", "high_warning", "low_warning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    number: int  # from 1
    rx_power_dbm: float | None = None
    tx_power_dbm: float | None = None
    tx_bias_ma: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """`flags` are what the module complains of (`temperature_high_alarm`, `rx_los_lane2`). They are latched: reading clears
    them, so each is told by the one reading that finds it."""

    kind: str
    vendor: str = ""
    part: str = ""
    serial: str = ""
    state: str = ""
    optical: bool = True
    temperature_c: float | None = None
    voltage_v: float | None = None
    lanes: tuple[Lane, ...] = ()
    flags: tuple[str, ...] = ()


def is_cmis(lower: bytes) -> bool:
    return bool(lower) and lower[0] in _CMIS


def is_sfp(lower: bytes) -> bool:
    return bool(lower) and lower[0] in _SFP


def has_pages(lower: bytes) -> bool:
    """Whether there is more than the upper page 00h."""
    return len(lower) > 2 and not lower[2] & (0x80 if is_cmis(lower) else 0x04)


def decode(lower: bytes, upper: bytes, more: bytes = b"", advertised: bytes = b"") -> Module:
    """`lower` are bytes 0-127, `upper` page 00h (its byte 0 is the module's 128), `more` CMIS's page 11h, or 256 bytes of an
    SFP's A2h, `advertised` CMIS's page 01h; each may be empty. Raises ValueError for a memory that is none of the known."""
    if len(lower) < PAGE_BYTES:
        raise ValueError(f"{len(lower)} bytes of a module's memory, expected {PAGE_BYTES}")
    kind = lower[0]
    upper = upper.ljust(PAGE_BYTES, b"\0")
    if kind in _SFF_8636:
        return _sff_8636(_SFF_8636[kind], lower, upper)
    if kind in _CMIS:
        return _cmis(_CMIS[kind], lower, upper, more, advertised)
    if kind in _SFP:
        return _sfp(lower, more)
    raise ValueError(f"a module of kind 0x{kind:02x}, which is not known here")


def _sff_8636(kind: str, lower: bytes, upper: bytes) -> Module:
    copper = upper[147 - 128] >> 4 >= 0x0A
    has = upper[220 - 128]
    sent = lower[50:58] if has & 0x04 else b""
    lanes = [] if copper else [_lane(index, lower[34:42], sent, lower[42:50]) for index in range(4)]
    says = lower[1] >= _SFF_8636_REV_2_8  # whether temperature and voltage are there
    return Module(
        kind=kind,
        vendor=_text(upper, 148 - 128, 16),
        part=_text(upper, 168 - 128, 16),
        serial=_text(upper, 196 - 128, 16),
        state="not ready" if lower[2] & 1 else "ready",
        optical=not copper,
        temperature_c=None if _not_there(lower[22:24], copper, says and not has & 0x20) else _temperature(lower, 22),
        voltage_v=None if _not_there(lower[26:28], copper, says and not has & 0x10) else _voltage(lower, 26),
        lanes=tuple(lanes),
        flags=() if copper else tuple(_sff_8636_flags(lower)),
    )


def _sff_8636_flags(lower: bytes) -> Iterator[str]:
    yield from _lane_bits(lower[3] & 0x0F, "rx_los")
    yield from _lane_bits(lower[3] >> 4, "tx_los")
    yield from _lane_bits(lower[4] & 0x0F, "tx_fault")
    yield from _lane_bits(lower[5] & 0x0F, "rx_lol")
    yield from _lane_bits(lower[5] >> 4, "tx_lol")
    yield from _nibble(lower[6] >> 4, "temperature")
    yield from _nibble(lower[7] >> 4, "voltage")
    for at, name in ((9, "rx_power"), (11, "tx_bias"), (13, "tx_power")):
        for lane in range(4):
            both = lower[at + lane // 2]
            yield from _nibble(both >> 4 if lane % 2 == 0 else both & 0x0F, name, lane + 1)


def _cmis(kind: str, lower: bytes, upper: bytes, page: bytes, advertised: bytes) -> Module:
    state = _MODULE_STATES.get(lower[3] >> 1 & 7, "")
    copper = upper[212 - 128] >= 0x0A and upper[212 - 128] <= 0x0F
    flags = [f"{name}_{word}" for index, (name, word) in enumerate(_CMIS_MODULE_FLAGS) if lower[9] >> index & 1]
    lanes: list[Lane] = []
    paged = len(advertised) >= PAGE_BYTES  # else nothing says which monitors there are
    if len(page) >= PAGE_BYTES and not copper:
        there = [index for index in range(8) if not upper[210 - 128] >> index & 1]
        if paged:
            has = advertised[160 - 128]
            received, sent = page[58:74] if has & 0x04 else b"", page[26:42] if has & 0x02 else b""
            factor = _BIAS_FACTORS[has >> 3 & 3]
            bias = page[42:58] if has & 0x01 and factor else b""
            lanes = [_lane(index, received, sent, bias, factor) for index in there]
        flags += [f"{name}_lane{lane + 1}" for at, name in _CMIS_LANE_FLAGS for lane in there if page[at - 128] >> lane & 1]
    has_module = advertised[159 - 128] if paged else 0
    return Module(
        kind=kind,
        vendor=_text(upper, 129 - 128, 16),
        part=_text(upper, 148 - 128, 16),
        serial=_text(upper, 166 - 128, 16),
        state=state,
        optical=not copper,
        temperature_c=None if _not_there(lower[14:16], copper, paged and not has_module & 1) else _temperature(lower, 14),
        voltage_v=None if _not_there(lower[16:18], copper, paged and not has_module & 2) else _voltage(lower, 16),
        lanes=tuple(lanes),
        flags=tuple(flags),
    )


def _sfp(lower: bytes, diagnostics: bytes) -> Module:
    found = Module(
        kind="SFP",
        vendor=_text(lower, 20, 16),
        part=_text(lower, 40, 16),
        serial=_text(lower, 68, 16),
        optical=not lower[8] & 0x0C,
    )
    measured = lower[92] & 0x60 == 0x60  # diagnostics there are, and calibrated by the module itself
    if not measured or len(diagnostics) < PAGE_BYTES:
        return found
    flags = []
    for at, word in ((112, "alarm"), (116, "warning")):
        bits = int.from_bytes(diagnostics[at : at + 2], "big") >> 6
        flags += [f"{name}_{side}_{word}" for index, (name, side) in enumerate(_SFP_FLAGS) if bits >> (9 - index) & 1]
    flags += [name for bit, name in ((2, "tx_fault_lane1"), (1, "rx_los_lane1")) if diagnostics[110] >> bit & 1]
    return Module(
        kind=found.kind,
        vendor=found.vendor,
        part=found.part,
        serial=found.serial,
        optical=found.optical,
        temperature_c=_temperature(diagnostics, 96),
        voltage_v=_voltage(diagnostics, 98),
        lanes=(_lane(0, diagnostics[104:106], diagnostics[102:104], diagnostics[100:102]),) if found.optical else (),
        flags=tuple(flags),
    )


_BIAS_FACTORS = (1, 2, 4, 0)  # how many times 2 uA a unit stands for; the last is reserved
_CMIS_MODULE_FLAGS = tuple((name, word) for name in ("temperature", "voltage") for word in _FOUR)
_CMIS_LANE_FLAGS = (
    (135, "tx_fault"),
    (136, "tx_los"),
    (137, "tx_lol"),
    *((139 + index, f"tx_power_{word}") for index, word in enumerate(_FOUR)),
    *((143 + index, f"tx_bias_{word}") for index, word in enumerate(_FOUR)),
    (147, "rx_los"),
    (148, "rx_lol"),
    *((149 + index, f"rx_power_{word}") for index, word in enumerate(_FOUR)),
)
_SFP_FLAGS = tuple(
    (name, side) for name in ("temperature", "voltage", "tx_bias", "tx_power", "rx_power") for side in ("high", "low")
)


def _lane(index: int, received: bytes, sent: bytes, bias: bytes, factor: int = 1) -> Lane:
    """What is empty is not measured."""
    return Lane(
        number=index + 1,
        rx_power_dbm=_dbm(_u16(received, 2 * index)) if received else None,
        tx_power_dbm=_dbm(_u16(sent, 2 * index)) if sent else None,
        tx_bias_ma=round(_u16(bias, 2 * index) * 0.002 * factor, 3) if bias else None,
    )


def _not_there(raw: bytes, copper: bool, not_advertised: bool) -> bool:
    return not_advertised or (copper and raw == b"\0\0")


def _lane_bits(bits: int, name: str) -> Iterator[str]:
    for lane in range(4):
        if bits >> lane & 1:
            yield f"{name}_lane{lane + 1}"


def _nibble(bits: int, name: str, lane: int = 0) -> Iterator[str]:
    for index, word in enumerate(_FOUR):
        if bits >> (3 - index) & 1:
            yield f"{name}_{word}" + (f"_lane{lane}" if lane else "")


def _temperature(data: bytes, at: int) -> float:
    return round(float(struct.unpack_from(">h", data, at)[0]) / 256, 2)


def _voltage(data: bytes, at: int) -> float:
    return round(_u16(data, at) * 1e-4, 4)


def _u16(data: bytes, at: int) -> int:
    return int(struct.unpack_from(">H", data, at)[0])


def _dbm(tenths_of_microwatt: int) -> float:
    return round(10 * math.log10(tenths_of_microwatt * 1e-4), 2) if tenths_of_microwatt else _FLOOR_DBM


def _text(data: bytes, at: int, size: int) -> str:
    return "".join(chr(each) for each in data[at : at + size] if 32 <= each < 127).strip()
