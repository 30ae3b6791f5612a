"""Cursors: opaque, exact, and refused by name when they are not ours."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_common.http.paging import BadCursor, decode_cursor, encode_cursor, next_cursor


@given(st.datetimes(timezones=st.just(UTC)), st.text(max_size=50), st.integers(-(2**53), 2**53))
def test_a_cursor_gives_its_key_back(at: datetime, name: str, number: int) -> None:
    cursor = encode_cursor([at, name, number], listing="verdicts")
    assert decode_cursor(cursor, [datetime, str, int], listing="verdicts") == (at, name, number)


@given(st.text(max_size=80))
def test_any_other_text_is_a_400_that_names_the_cursor(text: str) -> None:
    with pytest.raises(BadCursor) as raised:
        decode_cursor(text, [str, int])
    assert raised.value.status_code == 400
    assert "cursor" in raised.value.detail
    assert raised.value.kind == "bad-cursor"


@given(st.binary(max_size=60))
def test_any_bytes_in_base64_are_refused_too(content: bytes) -> None:
    import base64

    with pytest.raises(BadCursor):
        decode_cursor(base64.urlsafe_b64encode(content).decode(), [str, int])


def test_a_cursor_of_another_listing_or_shape_is_refused() -> None:
    cursor = encode_cursor(["a", 1], listing="verdicts job=a")
    with pytest.raises(BadCursor, match="another listing or other filters"):
        decode_cursor(cursor, [str, int], listing="verdicts job=b")
    with pytest.raises(BadCursor, match="is not one that was given out"):
        decode_cursor(cursor, [str], listing="verdicts job=a")
    with pytest.raises(BadCursor, match="is not one that was given out"):
        decode_cursor(cursor, [int, int], listing="verdicts job=a")


def test_an_oversized_cursor_is_cut_in_the_error() -> None:
    with pytest.raises(BadCursor) as raised:
        decode_cursor("x" * 5000, [str])
    assert len(raised.value.detail) < 200


def test_pages_join_without_gap_or_overlap_and_the_last_has_no_cursor() -> None:
    rows = [f"row-{number:03}" for number in range(25)]
    seen: list[str] = []
    after, pages = "", 0
    while True:
        found = [row for row in rows if row > after][: 10 + 1]
        page, cursor = next_cursor(found, 10, lambda row: [row])
        seen += page
        pages += 1
        if cursor is None:
            break
        (after,) = decode_cursor(cursor, [str])
    assert seen == rows
    assert pages == 3


def test_a_page_that_is_exactly_full_is_the_last() -> None:
    assert next_cursor(["a", "b"], 2, lambda row: [row]) == (["a", "b"], None)
