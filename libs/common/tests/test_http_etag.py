"""Conditional requests."""

from __future__ import annotations

import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st

from goodput_common.http.etag import conditional, not_modified, parse_tags, strong_etag, weak_etag


def _request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": raw})


@pytest.mark.parametrize(
    ("header", "tags"),
    [
        ('"a"', ('"a"',)),
        ('W/"a", "b" ,"c"', ('W/"a"', '"b"', '"c"')),
        ('""', ('""',)),
        ('"a,b"', ('"a,b"',)),
        (" * ", ("*",)),
        ("a", ()),
        ('"a" "b"', ()),
        ('w/"a"', ()),
        ('"a', ()),
        ("", ()),
    ],
)
def test_tags_of_a_header(header: str, tags: tuple[str, ...]) -> None:
    assert parse_tags(header) == tags


@given(st.text(alphabet=st.characters(max_codepoint=255), max_size=60))
def test_any_header_gives_tags_or_none_and_never_an_error(header: str) -> None:
    for tag in parse_tags(header):
        assert tag == "*" or tag.endswith('"')


def test_a_poller_that_has_it_gets_304_with_the_tag_and_no_body() -> None:
    first = conditional(_request(), {"a": 1})
    etag = first.headers["etag"]
    assert etag.startswith('"')
    again = conditional(_request(if_none_match=f'"other", {etag}'), {"a": 1})
    assert (again.status_code, again.body, again.headers["etag"]) == (304, b"", etag)
    assert again.headers["cache-control"] == first.headers["cache-control"] == "private, no-cache"
    assert again.headers["vary"] == "Authorization"
    changed = conditional(_request(if_none_match=etag), {"a": 2})
    assert (changed.status_code, changed.body) == (200, b'{"a":2}')


def test_if_none_match_compares_weakly_in_both_directions() -> None:
    weak = weak_etag("verdicts", 7)
    assert weak.startswith('W/"')
    for sent in (weak, weak.removeprefix("W/"), "*"):
        assert not_modified(_request(if_none_match=sent), weak) is not None
    strong = strong_etag(b"x")
    assert not_modified(_request(if_none_match=f"W/{strong}"), strong) is not None
    assert not_modified(_request(if_none_match=weak_etag("verdicts", 8)), weak) is None
    assert not_modified(_request(if_none_match="junk"), weak) is None


def test_weak_tags_differ_where_any_part_differs() -> None:
    tags = {weak_etag("a", 1), weak_etag("a", 2), weak_etag("a1"), weak_etag("a", "1", ""), weak_etag("", "a", 1)}
    assert len(tags) == 5
