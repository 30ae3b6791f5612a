"""Netlink's bytes: held against pyroute2's encoder and decoder, and against anything at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.marshal import MarshalRtnl

from goodput_collector.domain import netlink_wire as wire
from goodput_collector.domain.netlink_link import Link, parse_link


def link_message(**attrs: object) -> bytes:
    """An RTM_NEWLINK datagram as pyroute2 encodes it."""
    message = ifinfmsg()
    message["header"]["type"] = 16
    message["header"]["sequence_number"] = 7
    message["index"], message["flags"] = 12, 1
    message["attrs"] = list(attrs.items())
    message.encode()
    return bytes(message.data)


def test_a_link_message_of_pyroute2_is_read_as_pyroute2_reads_it() -> None:
    data = link_message(
        IFLA_IFNAME="rail0",
        IFLA_MTU=9000,
        IFLA_OPERSTATE="UP",
        IFLA_CARRIER=1,
        IFLA_MASTER=3,
        IFLA_CARRIER_UP_COUNT=8,
        IFLA_CARRIER_DOWN_COUNT=9,
    )
    (message,) = wire.messages(data)
    (theirs,) = MarshalRtnl().parse(data)
    link = parse_link(message.payload)
    assert (message.kind, message.seq) == (16, 7)
    assert link == Link(
        index=theirs["index"],
        name=theirs.get_attr("IFLA_IFNAME"),
        admin_up=True,
        carrier=True,
        operstate=theirs.get_attr("IFLA_OPERSTATE").lower(),
        ups=theirs.get_attr("IFLA_CARRIER_UP_COUNT"),
        downs=theirs.get_attr("IFLA_CARRIER_DOWN_COUNT"),
        master=theirs.get_attr("IFLA_MASTER"),
    )


def test_a_member_of_a_bond_says_whether_it_is_in_use() -> None:
    data = link_message(
        IFLA_IFNAME="p0",
        IFLA_OPERSTATE="UP",
        IFLA_LINKINFO={
            "attrs": [
                ("IFLA_INFO_SLAVE_KIND", "bond"),
                (
                    "IFLA_INFO_SLAVE_DATA",
                    {"attrs": [("IFLA_BOND_SLAVE_STATE", 1), ("IFLA_BOND_SLAVE_MII_STATUS", 2)]},
                ),
            ]
        },
    )
    (message,) = wire.messages(data)
    link = parse_link(message.payload)
    assert (link.bond, link.mii, link.ups) == ("backup", "down", -1)


def test_what_is_written_is_read_back() -> None:
    payload = wire.generic(54, 1, wire.string(1, "pci"), wire.u32(3, 9), wire.u8(4, 2), wire.attribute(5, b"abc"))
    (message,) = wire.messages(wire.request(33, wire.DUMP, 5, payload))
    found = message.attributes()
    assert (message.kind, message.seq, message.command) == (33, 5, 54)
    assert (wire.text(found[1]), wire.number(found[3]), wire.number(found[4]), found[5]) == ("pci", 9, 2, b"abc")
    assert wire.number(b"abc") is None
    assert (wire.text(None), wire.number(None)) == ("", None)


@given(st.lists(st.tuples(st.integers(0, 0x3FFF), st.binary(max_size=40)), max_size=8))
def test_no_attribute_is_lost_or_made_up(given_: list[tuple[int, bytes]]) -> None:
    data = b"".join(wire.attribute(kind, payload) for kind, payload in given_)
    assert list(wire.attribute_list(data)) == given_


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        for message in wire.messages(data):
            assert message.error is not None
            parse_link(message.payload)
    except wire.Malformed:
        pass


@given(st.binary(min_size=1, max_size=60))
def test_bytes_that_are_cut_short_are_refused(tail: bytes) -> None:
    whole = wire.request(16, 0, 1, wire.attribute(3, tail))
    with pytest.raises(wire.Malformed):
        list(wire.messages(whole[: 16 + 4 + len(tail) - 1]))
