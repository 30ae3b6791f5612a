"""The list of switches: what is wrong in it is named by entry and field, and secrets stay where they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.adapters.switch_credentials import credentials
from goodput_collector.application.ports import Unreadable
from goodput_collector.domain.gnmi_streams import Kind
from goodput_collector.domain.switch_list import SWITCHES_MAX, Credentials, InvalidSwitches, Switch, endpoint, parse_switches


def listed(*entries: dict[str, Any]) -> bytes:
    return json.dumps(entries).encode()


LEAF = {"name": "leaf-1", "address": "10.0.0.1:8080"}


def test_an_entry_needs_a_name_and_an_address() -> None:
    (switch,) = parse_switches(listed(LEAF))
    assert (switch.kind, switch.every_s, switch.tls.plaintext, switch.tls.skip_verify) == (Kind.AUTO, 10.0, False, False)


def test_snmp_is_asked_less_often_unless_it_is_said_how_often() -> None:
    usual, given_s = parse_switches(
        listed(LEAF | {"kind": "snmp"}, {"name": "leaf-2", "address": "h", "kind": "snmp", "sample_s": 5})
    )
    assert (usual.every_s, given_s.every_s) == (30.0, 5.0)


@pytest.mark.parametrize(
    ("entry", "names"),
    [
        ({"name": "leaf-1"}, "address"),
        (LEAF | {"kind": "junos"}, "kind"),
        (LEAF | {"adress": "x"}, "adress"),
        (LEAF | {"name": "leaf 1"}, "name"),
        (LEAF | {"name": "a/b"}, "name"),
        (LEAF | {"address": "10.0.0.1:99999"}, "address"),
        (LEAF | {"address": "http://leaf"}, "address"),
        (LEAF | {"credentials": "hunter2"}, "credentials"),
        (LEAF | {"tls": {"cert": "a.pem"}}, "tls.key"),
        (LEAF | {"tls": {"plaintext": True, "ca": "a.pem"}}, "plaintext"),
        (LEAF | {"tls": {"skip_verify": True, "ca": "a.pem"}}, "skip_verify"),
        (LEAF | {"tls": {"skip_verify": 1}}, "skip_verify"),
        (LEAF | {"snmp": {"version": "1"}}, "snmp.version"),
        (LEAF | {"snmp": {"retries": 99}}, "retries"),
        (LEAF | {"sample_s": 0.1}, "sample_s"),
        (LEAF | {"ignore": "("}, "ignore"),
    ],
)
def test_what_is_wrong_is_named(entry: dict[str, Any], names: str) -> None:
    with pytest.raises(InvalidSwitches, match=names) as error:
        parse_switches(listed({"name": "other", "address": "h"}, entry))
    assert "$[1]" in str(error.value)
    assert "hunter2" not in str(error.value)


def test_a_name_twice_and_too_many_are_refused() -> None:
    with pytest.raises(InvalidSwitches, match="twice"):
        parse_switches(listed(LEAF, LEAF))
    with pytest.raises(InvalidSwitches, match="at most"):
        parse_switches(listed(*({"name": f"s{n}", "address": "h"} for n in range(SWITCHES_MAX + 1))))


@pytest.mark.parametrize(
    ("address", "found"),
    [("leaf", ("leaf", 1)), ("leaf:57400", ("leaf", 57400)), ("[fe80::1]:9", ("fe80::1", 9)), ("fe80::1", ("fe80::1", 1))],
)
def test_an_address_may_have_a_port(address: str, found: tuple[str, int]) -> None:
    assert endpoint(address, 1) == found


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_file_breaks_the_reader(data: bytes) -> None:
    try:
        parse_switches(data)
    except InvalidSwitches as error:
        assert str(error)


# -- credentials -------------------------------------------------------------------------------------------------------


def switch(where: str) -> Switch:
    return Switch(name="leaf-1", address="h", credentials=where)


def test_credentials_come_from_a_file_or_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "leaf.json"
    path.write_text('{"username": "u", "password": "p"}')
    assert credentials(switch(f"file:{path}"), {}) == Credentials(username="u", password="p")
    assert credentials(switch("env:LEAF"), {"LEAF_COMMUNITY": "c"}) == Credentials(community="c")
    assert credentials(switch(""), {}) == Credentials()


@pytest.mark.parametrize("content", [None, "hunter2", '{"password": ["hunter2"]}', '{"pass": "hunter2"}', "\ud800"])
def test_credentials_that_cannot_be_read_are_never_quoted(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "leaf.json"
    if content is not None:
        path.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(Unreadable) as error:
        credentials(switch(f"file:{path}"), {})
    assert str(path) in str(error.value)
    assert "hunter2" not in f"{error.value} {error.value.remedy}"


def test_an_empty_environment_says_what_to_set() -> None:
    with pytest.raises(Unreadable) as error:
        credentials(switch("env:LEAF"), {})
    assert "LEAF_USERNAME" in error.value.remedy


def test_credentials_do_not_show_when_they_are_printed() -> None:
    assert "hunter2" not in repr(Credentials(username="u", password="hunter2", auth_key="hunter2"))
