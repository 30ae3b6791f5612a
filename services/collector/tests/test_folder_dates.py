"""When folders are listed again: at once where a date tells, now and then where none can."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from collector_fixtures import TurnedClock, register

from goodput_collector.adapters.folder_dates import LOOK_EVERY_S, LOOK_OPEN_EVERY_S, FolderDates, folder_of
from goodput_collector.adapters.registrations import Registrations

LONG_AGO_NS = time.time_ns() - 3600 * 10**9


def settle(path: Path, at_ns: int = LONG_AGO_NS) -> None:
    """Date it as if nothing had happened there for long."""
    os.utime(path, ns=(at_ns, at_ns))


@pytest.fixture
def dates() -> FolderDates:
    made = FolderDates()
    assert made.due(0.0)
    made.begin(0.0)
    return made


def test_a_settled_folder_is_looked_at_again_only_now_and_then(dates: FolderDates, tmp_path: Path) -> None:
    settle(tmp_path)
    dates.note(tmp_path)
    assert not dates.due(LOOK_EVERY_S - 0.1)
    assert dates.due(LOOK_EVERY_S)


@pytest.mark.parametrize("change", ["create", "rename", "remove", "be removed"])
def test_a_look_is_due_when_names_come_go_or_change(dates: FolderDates, tmp_path: Path, change: str) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a").touch()
    settle(folder)
    dates.note(folder)
    assert not dates.due(1.0)
    match change:
        case "create":
            (folder / "b").touch()
        case "rename":
            (folder / "a").rename(folder / "b")
        case "remove":
            (folder / "a").unlink()
        case _:
            (folder / "a").unlink()
            folder.rmdir()
    assert dates.due(1.0)


def test_a_second_change_within_one_tick_is_seen_also_where_dates_are_whole_seconds(
    dates: FolderDates, tmp_path: Path
) -> None:
    whole_ns = time.time_ns() // 10**9 * 10**9 - 10**9
    settle(tmp_path, whole_ns)
    dates.note(tmp_path)
    (tmp_path / "later in that second").touch()
    settle(tmp_path, whole_ns)
    assert dates.due(1.0)


def test_a_folder_that_is_not_there_is_waited_for(dates: FolderDates, tmp_path: Path) -> None:
    dates.note(tmp_path / "later")
    assert not dates.due(1.0)
    (tmp_path / "later").mkdir()
    assert dates.due(1.0)


def test_a_folder_that_changed_just_now_may_change_again_under_the_same_date(dates: FolderDates, tmp_path: Path) -> None:
    settle(tmp_path, time.time_ns() + 10**9)  # as fresh as can be
    dates.note(tmp_path)
    assert dates.due(1.0)


def test_looks_keep_their_distance(tmp_path: Path) -> None:
    dates = FolderDates(apart_s=1.0)
    dates.begin(0.0)
    dates.note(tmp_path / "later")
    (tmp_path / "later").mkdir()
    assert not dates.due(0.9)
    assert dates.due(1.0)


def test_where_a_pattern_leaves_the_folder_open_it_is_looked_for_more_often(dates: FolderDates, tmp_path: Path) -> None:
    settle(tmp_path)
    dates.note_pattern(str(tmp_path / "*.log"))
    assert not dates.due(LOOK_OPEN_EVERY_S)
    dates.note_pattern(str(tmp_path / "*" / "out.log"))
    assert dates.due(LOOK_OPEN_EVERY_S)


@pytest.mark.parametrize(
    ("pattern", "folder"),
    [("/a/b.log", "/a"), ("/a/*.log", "/a"), ("/a/j*/b.log", "/a"), ("/a/**/b.log", "/a"), ("/a/b[0-9]/c/d", "/a")],
)
def test_the_folder_of_a_pattern_is_the_last_that_is_known(pattern: str, folder: str) -> None:
    assert folder_of(pattern) == Path(folder)


def test_registrations_are_read_again_when_one_comes_or_goes(tmp_path: Path) -> None:
    clock = TurnedClock()
    registrations = Registrations(tmp_path, clock)
    assert registrations.ranks() == ()
    path = register(tmp_path, 0, 70)
    known = registrations.ranks()
    assert [each.rank for each in known] == [0]
    settle(path.parent)
    registrations.ranks()
    assert registrations.ranks() is registrations.ranks()
    path.unlink()
    assert registrations.ranks() == ()
