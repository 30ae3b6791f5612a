"""A line's moment, in every form that logs have, and None where it cannot be told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.domain.timestamps import LineClock, Placed, split

REFERENCE = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
BOOT = datetime(2026, 2, 1, tzinfo=UTC)


def place(line: str, **more: object) -> Placed:
    return LineClock(reference=REFERENCE, boot_at=BOOT, **more).place(line)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "at", "host", "text"),
    [
        ("[Sun Feb 23 16:24:18 2025] NVRM: x", "2025-02-23T16:24:18+00:00", "", "NVRM: x"),
        ("[24128.828315] NVRM: x", "2026-02-01T06:42:08.828315+00:00", "", "NVRM: x"),
        ("[    1.500000][ T1234] NVRM: x", "2026-02-01T00:00:01.500000+00:00", "", "NVRM: x"),
        ("<4>[ 12.5] text", "2026-02-01T00:00:12.500000+00:00", "", "text"),
        ("6,1234,5678901,-;NVRM: k", "2026-02-01T00:00:05.678901+00:00", "", "NVRM: k"),
        ("[Feb23 16:24] text", "2026-02-23T16:24:00+00:00", "", "text"),
        ("kern  :warn  : 2025-01-21T04:41:44,283302+00:00 z", "2025-01-21T04:41:44.283302+00:00", "", "z"),
        ("kern  :err   : [Sun Feb 23 16:24:18 2025] z", "2025-02-23T16:24:18+00:00", "", "z"),
        ("2025-01-21T04:41:44.283302+02:00 n-1 kernel: [12.3] z", "2025-01-21T02:41:44.283302+00:00", "n-1", "z"),
        ("2025-01-21T04:41:44+0000 n-1 kernel: z", "2025-01-21T04:41:44+00:00", "n-1", "z"),
        (
            "2025-01-21T04:41:44,5+00:00 mlx5_core 0000:01:00.0: y",
            "2025-01-21T04:41:44.500000+00:00",
            "",
            "mlx5_core 0000:01:00.0: y",
        ),
        (
            "10.5.0.2: kern:     err: [2025-01-21T04:41:44.283302831Z]: z",
            "2025-01-21T04:41:44.283302+00:00",
            "10.5.0.2",
            "z",
        ),
        ("10.5.0.2: kern: err: [24128.828315111]: z", "2026-02-01T06:42:08.828315+00:00", "10.5.0.2", "z"),
        (
            "Feb  7 06:18:01 vm-0 systemd-networkd[5398]: ib6: lost carrier",
            "2026-02-07T06:18:01+00:00",
            "vm-0",
            "ib6: lost carrier",
        ),
        ("Mar 01 2025 10:00:00 host kernel: z", "2025-03-01T10:00:00+00:00", "host", "z"),
        ("E1121 04:41:44.283302831 x.cpp:1] y", "2025-11-21T04:41:44.283302+00:00", "", "x.cpp:1] y"),
        ("E223 04:41:44 x.cpp:1] y", "2026-02-23T04:41:44+00:00", "", "x.cpp:1] y"),
        ("2025-01-21T04:41:44.1Z stderr F NCCL x", "2025-01-21T04:41:44.100000+00:00", "", "NCCL x"),
        ("[Feb 25 2025 13:59:45] [INFO] x", "2025-02-25T13:59:45+00:00", "", "[INFO] x"),
        ("2025-01-21 04:41:44,283 INFO x", "2025-01-21T04:41:44.283000+00:00", "", "INFO x"),
    ],
)
def test_each_form_gives_moment_host_and_text(line: str, at: str, host: str, text: str) -> None:
    placed = place(line)
    assert (placed.at, placed.host, placed.text) == (datetime.fromisoformat(at), host, text)


def test_a_relative_stamp_counts_from_the_line_before() -> None:
    clock = LineClock(reference=REFERENCE)
    assert clock.place("[  +0.5] before any").at is None
    first = clock.place("[Feb23 16:24] first").at
    second = clock.place("[  +0.000316] second").at
    third = clock.place("[  +1.000000] third").at
    assert first is not None and second is not None and third is not None
    assert second - first == timedelta(microseconds=316)
    assert third - second == timedelta(seconds=1)


def test_a_line_without_a_stamp_goes_with_the_line_before() -> None:
    clock = LineClock(reference=REFERENCE)
    clock.place("2025-01-21T04:41:44Z first")
    assert clock.place("  continued").at == datetime(2025, 1, 21, 4, 41, 44, tzinfo=UTC)


def test_a_live_line_without_a_stamp_was_written_just_now() -> None:
    clock = LineClock(reference=REFERENCE, live=True)
    clock.collected(REFERENCE + timedelta(seconds=5))
    assert clock.place("no stamp").at == REFERENCE + timedelta(seconds=5)


def test_a_year_is_the_latest_that_is_not_after_the_reference() -> None:
    assert place("Mar  1 06:00:00 h kernel: x").at == datetime(2026, 3, 1, 6, tzinfo=UTC)
    assert place("Dec 31 23:59:59 h kernel: x").at == datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert place("Feb 29 00:00:00 h kernel: x").at == datetime(2024, 2, 29, tzinfo=UTC)


def test_without_the_help_that_a_form_needs_the_moment_is_unknown() -> None:
    clock = LineClock()
    assert clock.place("[24128.828315] x").at is None
    assert clock.place("Mar  1 06:00:00 h kernel: x").at is None


def test_a_boot_border_names_the_boot_and_ends_the_boot_time() -> None:
    clock = LineClock(reference=REFERENCE, boot_at=BOOT)
    assert clock.place("-- Boot 0b5e9f0011223344 --").boot == "0b5e9f0011223344"
    assert clock.place("-- Reboot --").boot == "?"
    assert clock.place("[1.0] x").at is None


def test_a_zone_is_assumed_only_where_the_line_has_none() -> None:
    zone = timezone(timedelta(hours=2))
    assert place("2025-01-21 04:41:44 x", zone=zone).at == datetime(2025, 1, 21, 2, 41, 44, tzinfo=UTC)
    assert place("2025-01-21T04:41:44Z x", zone=zone).at == datetime(2025, 1, 21, 4, 41, 44, tzinfo=UTC)


@pytest.mark.parametrize(
    "line",
    ["[Sun Feb 31 16:24:18 2025] x", "2025-13-01T00:00:00Z x", "Feb 30 25:61:61 h k: x", "[99999999999999999999.0] x"],
)
def test_moments_that_no_calendar_has_are_unknown(line: str) -> None:
    assert place(line).at is None


@given(st.text(max_size=200))
def test_any_text_is_taken_apart_without_an_error(line: str) -> None:
    assert isinstance(place(line).text, str)
    split(line)
