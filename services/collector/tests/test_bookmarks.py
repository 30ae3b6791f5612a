"""Marks survive a restart and kill -9, whatever the file looks like, and stay bounded."""

from __future__ import annotations

import resource
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from goodput_collector.adapters.bookmarks import Bookmarks


def test_what_is_kept_is_there_after_a_restart_without_a_close(tmp_path: Path) -> None:
    path = tmp_path / "marks"
    marks = Bookmarks(path, monotonic_s=lambda: 0.0)
    for number in range(2000):
        marks.keep({"kmsg/b1": number, "journal": f"s={number}"})
    again = Bookmarks(path)
    assert (again.get("kmsg/b1"), again.text("journal")) == (1999, "s=1999")
    assert path.stat().st_size < 64 * 1024


def test_what_is_only_set_is_written_now_and_then(tmp_path: Path) -> None:
    now = [0.0]
    marks = Bookmarks(tmp_path / "marks", monotonic_s=lambda: now[0])
    marks.set("a", 1)
    marks.set("a", 2)
    assert Bookmarks(tmp_path / "marks").get("a") == 1
    now[0] = 3.0
    marks.set("b", 1)
    assert Bookmarks(tmp_path / "marks").get("a") == 2


def test_half_a_line_on_a_full_disk_costs_no_mark(tmp_path: Path) -> None:
    path = tmp_path / "marks"
    marks = Bookmarks(path, monotonic_s=lambda: 0.0)
    marks.keep({"a": 1})
    bounds = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, bounds[1]))
    try:
        marks.keep({"b": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, bounds)
    marks.keep({"c": 3})
    again = Bookmarks(path)
    assert [again.get(name) for name in "abc"] == [1, 2, 3]


def test_a_mark_of_the_other_kind_is_none(tmp_path: Path) -> None:
    marks = Bookmarks(tmp_path / "marks")
    marks.keep({"n": 1, "t": "x"})
    assert (marks.get("t"), marks.text("n")) == (None, None)


def test_the_mark_that_was_set_longest_ago_goes_first(tmp_path: Path) -> None:
    marks = Bookmarks(tmp_path / "marks", marks_max=2)
    for name in ("a", "b", "a", "c"):
        marks.set(name, 1)
    assert [marks.get(name) for name in "abc"] == [1, None, 1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_a_damaged_file_costs_marks_and_nothing_else(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "marks"
    path.write_bytes(b'{"a": 7}\n' + tail)
    marks = Bookmarks(path)
    marks.keep({"b": 1})
    assert Bookmarks(path).get("b") == 1
    assert b'"a"' in tail or Bookmarks(path).get("a") == 7


def test_a_folder_that_is_gone_is_no_reason_to_fail(tmp_path: Path) -> None:
    marks = Bookmarks(tmp_path / "gone" / "marks")
    marks.keep({"a": 1})
    assert marks.get("a") == 1


def test_spooled_marks_never_move_a_bookmark_back(tmp_path: Path) -> None:
    marks = Bookmarks(tmp_path / "marks")
    spooled = marks.next_number()
    marks.keep({"kmsg/b1": 10, "journal": "s=1"})
    marks.keep({"kmsg/b1": 20})
    unheard = marks.next_number()
    again = Bookmarks(tmp_path / "marks")
    again.restore({"kmsg/b1": (10, spooled), "journal": ("s=2", unheard), "file/a": ("1:2:3", spooled)})
    assert (again.get("kmsg/b1"), again.text("journal"), again.text("file/a")) == (20, "s=2", "1:2:3")
    assert again.next_number() > unheard


def test_marks_of_a_version_without_numbers_are_read(tmp_path: Path) -> None:
    (tmp_path / "marks").write_bytes(b'{"kmsg/b1":7,"journal":"s=1"}\n')
    marks = Bookmarks(tmp_path / "marks")
    marks.restore({"kmsg/b1": (5, 0), "journal": ("s=2", 3)})
    assert (marks.get("kmsg/b1"), marks.text("journal")) == (7, "s=2")


def test_a_name_that_is_not_utf_8_has_a_mark_like_any_other(tmp_path: Path) -> None:
    marks = Bookmarks(tmp_path / "marks")
    marks.keep({"dump/\udcff.log": 1, "b": 2})
    again = Bookmarks(tmp_path / "marks")
    assert (again.get("dump/\udcff.log"), again.get("b")) == (1, 2)
