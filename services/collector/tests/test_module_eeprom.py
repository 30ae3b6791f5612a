"""Memories of modules, byte by byte as SFF-8636, CMIS and SFF-8472 lay them out."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.domain import module_eeprom
from goodput_collector.domain.module_eeprom import Module, has_pages, is_cmis, is_sfp


def decode(
    lower: bytes | bytearray,
    upper: bytes | bytearray,
    more: bytes | bytearray = b"",
    advertised: bytes | bytearray = b"",
) -> Module:
    return module_eeprom.decode(bytes(lower), bytes(upper), bytes(more), bytes(advertised))


def put(memory: bytearray, at: int, *values: int | str, width: str = "H") -> None:
    for value in values:
        data = value.encode().ljust(16) if isinstance(value, str) else struct.pack(f">{width}", value)
        memory[at : at + len(data)] = data
        at += len(data)


def qsfp28(*, technology: int = 0x00) -> tuple[bytearray, bytearray]:
    lower, upper = bytearray(128), bytearray(128)
    lower[0] = 0x11
    put(lower, 22, round(48.5 * 256), width="h")
    put(lower, 26, 32950)
    put(lower, 34, 10000, 5012, 0, 1)  # 1 mW, 0.5 mW, nothing, 0.1 uW
    put(lower, 42, 3500, 3500, 3500, 3500)
    put(lower, 50, 12589, 10000, 10000, 10000)
    upper[147 - 128] = technology << 4
    upper[220 - 128] = 0x3C
    put(upper, 148 - 128, "ACME OPTICS")
    put(upper, 168 - 128, "QSFP28-100G")
    put(upper, 196 - 128, "SN001")
    return lower, upper


def osfp() -> tuple[bytearray, bytearray, bytearray, bytearray]:
    lower, upper, lanes, advertised = (bytearray(128) for _ in range(4))
    advertised[159 - 128], advertised[160 - 128] = 0x03, 0x07
    lower[0], lower[1], lower[3] = 0x19, 0x50, 3 << 1
    put(lower, 14, -256 * 5, width="h")
    put(lower, 16, 33000)
    put(upper, 1, "ACME OPTICS")
    put(upper, 148 - 128, "OSFP-800G")
    put(upper, 166 - 128, "SN002")
    upper[212 - 128] = 0x06
    put(lanes, 154 - 128, *[10000] * 8)
    put(lanes, 170 - 128, *[4000] * 8)
    put(lanes, 186 - 128, *[7943] * 8)
    return lower, upper, lanes, advertised


def test_a_qsfp28_tells_its_measurements() -> None:
    found = decode(*qsfp28())
    assert (found.kind, found.vendor, found.part, found.serial) == ("QSFP28", "ACME OPTICS", "QSFP28-100G", "SN001")
    assert (found.temperature_c, found.voltage_v, found.state, found.flags) == (48.5, 3.295, "ready", ())
    assert [lane.rx_power_dbm for lane in found.lanes] == [0.0, -3.0, -40.0, -40.0]
    assert (found.lanes[0].tx_bias_ma, found.lanes[0].tx_power_dbm) == (7.0, 1.0)


def test_a_qsfp28_complains_lane_by_lane() -> None:
    lower, upper = qsfp28()
    lower[3] = 0b0001_0010  # no signal sent on lane 1, none received on lane 2
    lower[6] = 0b1010_0000  # temperature: high alarm and high warning
    lower[9] = 0b0000_0100  # received power of lane 2: low alarm
    lower[12] = 0b0001_0000  # bias of lane 3: low warning
    assert set(decode(lower, upper).flags) == {
        "tx_los_lane1",
        "rx_los_lane2",
        "temperature_high_alarm",
        "temperature_high_warning",
        "rx_power_low_alarm_lane2",
        "tx_bias_low_warning_lane3",
    }


def test_a_copper_cable_has_no_light_and_no_temperature() -> None:
    lower, upper = qsfp28(technology=0x0A)
    lower[22:24] = b"\0\0"
    found = decode(lower, upper)
    assert (found.optical, found.lanes, found.flags, found.temperature_c) == (False, (), (), None)


def test_an_osfp_tells_eight_lanes_and_its_state() -> None:
    found = decode(*osfp())
    assert (found.kind, found.part, found.serial, found.state) == ("OSFP", "OSFP-800G", "SN002", "ready")
    assert (found.temperature_c, found.voltage_v, len(found.lanes)) == (-5.0, 3.3, 8)
    assert (found.lanes[7].rx_power_dbm, found.lanes[7].tx_power_dbm, found.lanes[7].tx_bias_ma) == (-1.0, 0.0, 8.0)


def test_an_osfp_complains_of_itself_and_of_its_lanes() -> None:
    lower, upper, lanes, _ = osfp()
    lower[3] = 5 << 1
    lower[9] = 0b0000_0101
    lanes[147 - 128] = 0b1000_0000
    lanes[150 - 128] = 0b0000_0001
    found = decode(lower, upper, lanes)
    assert found.state == "fault"
    assert set(found.flags) == {
        "temperature_high_alarm",
        "temperature_high_warning",
        "rx_los_lane8",
        "rx_power_low_alarm_lane1",
    }


def test_an_osfp_tells_no_lane_and_no_monitor_that_it_does_not_have() -> None:
    lower, upper, lanes, advertised = osfp()
    upper[210 - 128] = 0xF0  # four lanes: a DR4
    lanes[147 - 128] = 0xFF
    found = decode(lower, upper, lanes, advertised)
    assert [lane.number for lane in found.lanes] == [1, 2, 3, 4]
    assert found.flags == ("rx_los_lane1", "rx_los_lane2", "rx_los_lane3", "rx_los_lane4")
    advertised[159 - 128], advertised[160 - 128] = 0x02, 0x04
    found = decode(lower, upper, lanes, advertised)
    assert (found.temperature_c, found.voltage_v) == (None, 3.3)
    assert (found.lanes[0].rx_power_dbm, found.lanes[0].tx_power_dbm, found.lanes[0].tx_bias_ma) == (-1.0, None, None)
    assert decode(lower, upper, lanes).lanes == ()


@pytest.mark.parametrize(("bits", "bias_ma"), [(0, 8.0), (1, 16.0), (2, 32.0), (3, None)])
def test_an_osfp_counts_its_bias_in_the_unit_that_it_advertises(bits: int, bias_ma: float | None) -> None:
    lower, upper, lanes, advertised = osfp()
    advertised[160 - 128] = 0x07 | bits << 3
    assert decode(lower, upper, lanes, advertised).lanes[0].tx_bias_ma == bias_ma


def test_a_qsfp28_tells_no_monitor_that_it_does_not_have() -> None:
    lower, upper = qsfp28()
    upper[220 - 128] = 0
    found = decode(lower, upper)
    assert (found.lanes[0].tx_power_dbm, found.lanes[0].rx_power_dbm, found.temperature_c) == (None, 0.0, 48.5)
    lower[1] = 0x08  # from here on the byte speaks of temperature and voltage, too
    found = decode(lower, upper)
    assert (found.temperature_c, found.voltage_v) == (None, None)


def test_an_sfp_tells_what_is_behind_its_second_address() -> None:
    lower, diagnostics = bytearray(128), bytearray(128)
    lower[0], lower[92] = 0x03, 0x60
    put(lower, 20, "ACME OPTICS")
    put(lower, 40, "SFP28-25G")
    put(lower, 68, "SN003")
    put(diagnostics, 96, 30 * 256, width="h")
    put(diagnostics, 98, 33100, 3000, 10000, 1000)
    diagnostics[110] = 0b10
    diagnostics[113] = 0b0100_0000  # received power: low alarm
    found = decode(lower, b"", diagnostics)
    assert (found.kind, found.part, found.temperature_c, found.voltage_v) == ("SFP", "SFP28-25G", 30.0, 3.31)
    (lane,) = found.lanes
    assert (lane.tx_bias_ma, lane.tx_power_dbm, lane.rx_power_dbm) == (6.0, 0.0, -10.0)
    assert set(found.flags) == {"rx_los_lane1", "rx_power_low_alarm"}
    assert decode(lower, b"").lanes == ()


def test_what_is_no_module_is_refused_with_its_kind() -> None:
    with pytest.raises(ValueError, match="0x7f"):
        decode(bytes([0x7F]) + bytes(127), b"")
    with pytest.raises(ValueError, match="3 bytes"):
        decode(b"\x11\0\0", b"")


def test_which_document_a_memory_follows() -> None:
    assert (is_cmis(b"\x18"), is_cmis(b"\x11"), is_cmis(b"")) == (True, False, False)
    assert (is_sfp(b"\x03"), is_sfp(b"\x18")) == (True, False)
    assert has_pages(b"\x18\0\0")
    assert not has_pages(b"\x18\0\x80")
    assert not has_pages(b"\x11\0\x04")


@given(
    st.binary(max_size=128),
    st.binary(max_size=128),
    st.binary(max_size=256),
    st.binary(max_size=256),
    st.sampled_from([3, 0x0D, 0x11, 0x18, 0x19]),
)
def test_any_memory_is_decoded_or_refused(lower: bytes, upper: bytes, more: bytes, advertised: bytes, kind: int) -> None:
    try:
        found = decode(bytes([kind]) + lower[1:].ljust(127, b"\xff"), upper, more, advertised)
    except ValueError:
        return
    assert isinstance(found, Module)
    assert len(found.flags) == len(set(found.flags))
