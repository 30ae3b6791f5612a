"""Paths and values of gNMI: whatever a switch sends is taken apart or left alone, and never crashes the reader."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.domain.gnmi_path import Elem, elem, names, parse_path, path_text
from goodput_collector.domain.gnmi_update import DEPTH_MAX, bare, leaves, text, whole, word

WORDS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)
PATHS = st.lists(
    st.builds(elem, WORDS, st.dictionaries(WORDS.filter(lambda each: "=" not in each), WORDS, max_size=2)), max_size=5
).map(tuple)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("spelled", "parsed"),
    [
        ("/a/b", (Elem("a"), Elem("b"))),
        ("a/b/", (Elem("a"), Elem("b"))),
        ("/", ()),
        ("/i[name=Ethernet1/1]/s", (Elem("i", (("name", "Ethernet1/1"),)), Elem("s"))),
        ("/i[b=2][a=1]", (Elem("i", (("a", "1"), ("b", "2"))),)),
        (r"/i[name=a\]b]", (Elem("i", (("name", "a]b"),)),)),
        ("/COUNTERS/Ethernet*/Pfcwd", (Elem("COUNTERS"), Elem("Ethernet*"), Elem("Pfcwd"))),
    ],
)
def test_a_path_is_read_as_it_is_spelled(spelled: str, parsed: tuple[Elem, ...]) -> None:
    assert parse_path(spelled) == parsed


@pytest.mark.parametrize("spelled", ["/a[b", "/a[b]", "/a[=1]", "/a[b=1]c"])
def test_a_path_that_cannot_be_read_says_which(spelled: str) -> None:
    with pytest.raises(ValueError, match="path"):
        parse_path(spelled)


@given(PATHS)
def test_a_path_is_what_its_spelling_is_read_as(path: tuple[Elem, ...]) -> None:
    plain = all("\\" not in name and "[" not in name and "]" not in name for each in path for name, _ in each.keys)
    if plain and all("]" not in each.name for each in path):
        assert parse_path(path_text(path)) == path


@given(st.text(max_size=40))
def test_no_text_breaks_the_reader_of_paths(spelled: str) -> None:
    try:
        parse_path(spelled)
    except ValueError as error:
        assert "path" in str(error)


def test_a_key_is_found_by_name_or_as_the_only_one() -> None:
    each = elem("queue", {"name": "3"})
    assert (each.key("name"), each.key("id"), each.only_key(), Elem("x").only_key()) == ("3", "", "3", "")


def test_a_branch_in_json_is_taken_apart_into_leaves_without_modules() -> None:
    branch = {
        "openconfig-interfaces:interface": [
            {"name": "Ethernet1", "state": {"oper-status": "UP", "counters": {"in-errors": "7"}}},
            {"name": "Ethernet2", "state": {"oper-status": "DOWN"}},
        ]
    }
    found = {path_text(path): value for path, value in leaves(parse_path("/interfaces"), branch)}
    assert found["/interfaces/interface[name=Ethernet1]/state/counters/in-errors"] == "7"
    assert found["/interfaces/interface[name=Ethernet2]/state/oper-status"] == "DOWN"
    assert len(found) == 5  # the keys are leaves too


def test_a_list_of_plain_values_is_one_leaf() -> None:
    assert list(leaves(parse_path("/a"), [1, 2])) == [(parse_path("/a"), [1, 2])]


@given(JSON)
def test_no_leaf_of_a_json_value_is_dropped_or_invented(value: Any) -> None:
    assert len(list(leaves((Elem("top"),), value))) == _count(value)


def _count(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_count(each) for each in value.values())
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        return sum(_count(each) for each in value if isinstance(each, dict))
    return 1


def test_what_is_nested_without_end_is_cut_off() -> None:
    deep = json.loads('{"a":' * (DEPTH_MAX + 5) + "1" + "}" * (DEPTH_MAX + 5))
    assert list(leaves((Elem("top"),), deep)) == []


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (7, 7), ("7", 7), (7.0, 7), ("18446744073709551615", 2**64 - 1),
        (-1, None), ("-1", None), (True, None), ("7.5", None), (7.5, None), ("", None), ("²", None), (None, None),
        ([], None), ("9" * 30, None), (float("inf"), None),
    ],
)  # fmt: skip
def test_a_count_is_a_whole_number_that_is_not_negative(value: Any, count: int | None) -> None:
    assert whole(value) == count


@given(JSON)
def test_no_value_breaks_the_readers_of_scalars(value: Any) -> None:
    count = whole(value)
    assert count is None or count >= 0
    assert len(text(value)) <= 400
    assert word(value) == word(value).lower() or isinstance(value, str)


def test_modules_are_taken_off_names_and_words() -> None:
    assert bare("openconfig-if-types:UP") == "UP"
    assert word(" openconfig-interfaces:LOWER_LAYER_DOWN ") == "lower_layer_down"
    assert names(parse_path("/a[b=c]/d")) == ("a", "d")
