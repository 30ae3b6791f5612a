"""LLDP frames and lldpd's own words: what they say is read, what they hide is counted, and nothing crashes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.domain.lldp import NameKind, NotLldp, clean, parse, parse_lldpctl
from goodput_common.contracts import ids


def tlv(kind: int, value: bytes) -> bytes:
    return (kind << 9 | len(value)).to_bytes(2) + value


CHASSIS = tlv(1, b"\x04" + bytes.fromhex("aabbccddee01"))
PORT = tlv(2, b"\x05Ethernet8")
TTL = tlv(3, (120).to_bytes(2))
SWITCH = (
    CHASSIS
    + PORT
    + TTL
    + tlv(4, b"to host h7")
    + tlv(5, b"leaf-2.dc1.example\x00")
    + tlv(6, b"SONiC Software Version 202405")
    + tlv(7, b"\x00\x14\x00\x14")
    + tlv(8, b"\x05\x01\x0a\x00\x00\x02\x02\x00\x00\x00\x01\x00")
    + tlv(127, b"\x00\x80\xc2\x01\x00\x01")
    + tlv(0, b"")
)


def test_a_switch_is_read_with_its_port_its_names_and_its_address() -> None:
    found = parse(SWITCH)
    assert (found.name, found.port, found.port_kind) == ("leaf-2.dc1.example", "Ethernet8", NameKind.INTERFACE)
    assert (found.chassis, found.chassis_kind) == ("aa:bb:cc:dd:ee:01", NameKind.MAC)
    assert (found.port_description, found.ttl_s, found.addresses) == ("to_host_h7", 120, ("10.0.0.2",))
    assert found.is_station is False
    assert found.unread == 1  # a vendor's own


def test_a_station_says_so_and_a_silent_one_says_nothing() -> None:
    assert parse(CHASSIS + PORT + TTL + tlv(7, b"\x00\x80\x00\x80")).is_station is True
    assert parse(CHASSIS + PORT + TTL).is_station is None


def test_a_port_may_be_named_by_its_mac_or_an_address() -> None:
    mac = parse(CHASSIS + tlv(2, b"\x03" + bytes.fromhex("0c42a1000007")) + TTL)
    assert (mac.port, mac.port_kind, mac.name) == ("0c:42:a1:00:00:07", NameKind.MAC, "aa:bb:cc:dd:ee:01")
    address = parse(CHASSIS + tlv(2, b"\x04\x02" + bytes(15) + b"\x01") + TTL)
    assert (address.port, address.port_kind) == ("::1", NameKind.ADDRESS)


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"", "does not begin"),
        (PORT + CHASSIS + TTL, "does not begin"),
        (CHASSIS + PORT, "does not begin"),
        (CHASSIS + PORT + tlv(3, b"\x00"), "cut short"),
        (CHASSIS + tlv(2, b"") + TTL, "no known way"),
        (CHASSIS + tlv(2, b"\x05\x00\x00") + TTL, "no name"),
        (CHASSIS + PORT[:-3], "longer than the frame"),
    ],
)
def test_what_is_no_frame_is_said_to_be_none(frame: bytes, why: str) -> None:
    with pytest.raises(NotLldp, match=why):
        parse(frame)


@given(st.binary(max_size=300))
def test_no_bytes_crash(frame: bytes) -> None:
    try:
        parse(frame)
    except NotLldp as error:
        assert str(error)


@given(st.lists(st.tuples(st.integers(1, 127), st.binary(max_size=40)), max_size=12))
def test_no_tlv_is_dropped_silently(tlvs: list[tuple[int, bytes]]) -> None:
    found = parse(CHASSIS + PORT + TTL + b"".join(tlv(kind, value) for kind, value in tlvs) + tlv(0, b""))
    texts = {kind for kind, _ in tlvs if kind in (4, 5, 6)}
    read = sum(1 for kind, value in tlvs if kind in (4, 5, 6) or (kind == 7 and len(value) >= 4))
    assert found.unread + read + len(found.addresses) == len(tlvs)
    assert len(texts) <= 3


@given(st.text(max_size=300))
def test_a_cleaned_name_may_stand_in_an_id(name: str) -> None:
    cleaned = clean(name)
    assert "--" not in cleaned and not any(each.isspace() for each in cleaned)
    if cleaned:
        link = ids.link_id("nic:h7/mlx5_0/1", ids.port_id("leaf", cleaned))
        assert set(ids.link_ends(link)) == {"nic:h7/mlx5_0/1", f"port:leaf/{cleaned}"}


def test_lldpctl_is_read_in_its_three_shapes() -> None:
    entry = {
        "via": "LLDP", "rid": "1",
        "chassis": {"leaf-2": {
            "id": {"type": "mac", "value": "aa:bb:cc:dd:ee:01"}, "descr": "SONiC", "mgmt-ip": ["10.0.0.2", "fe80::1"],
            "capability": [{"type": "Bridge", "enabled": True}, {"type": "Router", "enabled": True}],
        }},
        "port": {"id": {"type": "ifname", "value": "Ethernet8"}, "descr": "to host", "ttl": "120"},
    }  # fmt: skip
    one = {"lldp": {"interface": {"eth2": entry}}}
    many = {"lldp": {"interface": [{"eth2": entry}, {"eth3": entry}]}}
    listed = {"lldp": [{"interface": [{
        "name": "eth2", "via": "LLDP",
        "chassis": [{"id": [{"type": "mac", "value": "aa:bb:cc:dd:ee:01"}], "name": [{"value": "leaf-2"}]}],
        "port": [{"id": [{"type": "ifname", "value": "Ethernet8"}], "ttl": [{"value": "120"}]}],
    }]}]}  # fmt: skip
    found, unread = parse_lldpctl(json.dumps(one))
    (only,) = found["eth2"]
    assert (only.name, only.port, only.ttl_s, unread) == ("leaf-2", "Ethernet8", 120, 0)
    assert only.addresses == ("10.0.0.2", "fe80::1")
    assert only.is_station is False
    assert set(parse_lldpctl(json.dumps(many))[0]) == {"eth2", "eth3"}
    (same,) = parse_lldpctl(json.dumps(listed))[0]["eth2"]
    assert (same.name, same.port, same.chassis) == ("leaf-2", "Ethernet8", "aa:bb:cc:dd:ee:01")


def test_lldpctl_without_a_name_names_the_chassis_and_other_protocols_are_counted() -> None:
    nameless = {
        "chassis": {"id": {"type": "mac", "value": "aa:bb:cc:dd:ee:01"}},
        "port": {"id": {"type": "mac", "value": "00:11:22:33:44:55"}},
    }
    document = {"lldp": {"interface": [{"eth2": nameless}, {"eth3": nameless | {"via": "CDPv2"}}, {"eth4": {}}]}}
    found, unread = parse_lldpctl(json.dumps(document))
    (only,) = found["eth2"]
    assert (only.name, only.system, unread) == ("aa:bb:cc:dd:ee:01", "", 2)


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"x": 1}', "[" * 100_000])
def test_what_is_not_lldpds_is_said_to_be_so(text: str) -> None:
    with pytest.raises(NotLldp):
        parse_lldpctl(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(["lldp", "interface", "chassis", "port", "id", "type", "value", "name", "mgmt-ip", "capability"]),
        inner, max_size=4,
    ),
    max_leaves=20,
)  # fmt: skip


@given(JSON)
def test_no_json_crashes(document: object) -> None:
    try:
        found, unread = parse_lldpctl(json.dumps({"lldp": document}))
    except NotLldp:
        return
    assert unread >= 0 and all(each.port for ends in found.values() for each in ends)
