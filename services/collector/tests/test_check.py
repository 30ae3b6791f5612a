"""`goodput collector check` tells of every source what it is, and of one that fails what it would need."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from goodput_collector.application.check import READS, Outcome, SourceCheck, check
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.dry_run import dry_run
from goodput_collector.settings import Settings
from goodput_common.contracts.telemetry import Source, State
from goodput_common.runtime.clock import SystemClock
from goodput_common.runtime.settings import SettingsError

AT = datetime(2026, 3, 1, tzinfo=UTC)
STATE = State(component="nic:h0/mlx5_0/1", name="operstate", observed_at=AT, value="up")


class Fixed:
    """A source that always answers the same."""

    interval_s = 1.0
    deadline_s = 0.2

    def __init__(self, source: Source, answer: Reading | Exception | threading.Event, instance: str = "") -> None:
        self.source = source
        self.instance = instance
        self._answer = answer
        self.reads = self.closed = 0

    def open(self) -> None: ...

    def read(self) -> Reading:
        self.reads += 1
        if isinstance(self._answer, Exception):
            raise self._answer
        if isinstance(self._answer, threading.Event):
            self._answer.wait(5)
            return Reading()
        return self._answer

    def wake_fd(self) -> int | None:
        return None

    def close(self) -> None:
        self.closed += 1


async def checked(*readers: Fixed, off: dict[Source, str] | None = None) -> tuple[SourceCheck, ...]:
    return await check(readers, off or {}, clock=SystemClock())


async def test_a_readable_source_tells_what_it_covers_and_what_it_costs() -> None:
    reader = Fixed(Source.NETLINK, Reading(samples=[STATE], covered=["nic:h0/mlx5_0/1", "nic:h0/mlx5_1/1"]))
    (found,) = await checked(reader)
    assert found.outcome is Outcome.OK
    assert found.covered == ("nic:h0/mlx5_0/1", "nic:h0/mlx5_1/1")
    assert found.samples == READS == reader.reads
    assert found.read_us is not None
    assert found.read_us >= 0
    assert found.interval_s == 1.0
    assert reader.closed == 1


async def test_a_part_that_cannot_be_read_is_told() -> None:
    (found,) = await checked(Fixed(Source.RDMA, Reading(trouble="cannot read mlx5_3/1")))
    assert (found.outcome, found.reason) == (Outcome.PARTLY, "cannot read mlx5_3/1")


@pytest.mark.parametrize(
    ("answer", "outcome", "reason", "remedy"),
    [
        (Absent("no RDMA devices"), Outcome.ABSENT, "no RDMA devices", ""),
        (
            Unreadable("permission denied", remedy="give it CAP_SYSLOG"),
            Outcome.UNREADABLE,
            "permission denied",
            "give it CAP_SYSLOG",
        ),
        (ZeroDivisionError("a bug"), Outcome.UNREADABLE, "ZeroDivisionError: a bug", ""),
    ],
)
async def test_a_source_that_fails_says_why_and_hides_no_other(
    answer: Exception, outcome: Outcome, reason: str, remedy: str
) -> None:
    well = Fixed(Source.HOST, Reading(samples=[STATE]))
    failed, fine = await checked(well, Fixed(Source.RDMA, answer))
    assert (failed.source, failed.outcome, failed.reason, failed.remedy) == (Source.RDMA, outcome, reason, remedy)
    assert fine.outcome is Outcome.OK


async def test_a_source_that_hangs_is_unreadable_and_the_others_are_told() -> None:
    release = threading.Event()
    try:
        hung, fine = await checked(Fixed(Source.NVML, release), Fixed(Source.HOST, Reading()))
        assert (hung.outcome, hung.reason) == (Outcome.UNREADABLE, "no answer within 0.2 s")
        assert fine.outcome is Outcome.OK
    finally:
        release.set()


async def test_instances_and_what_is_switched_off_are_listed_in_a_fixed_order() -> None:
    found = await checked(
        Fixed(Source.SWITCH, Reading(), "leaf-2"),
        Fixed(Source.SWITCH, Reading(), "leaf-1"),
        off={Source.DCGM: "GOODPUT_DCGM_URL=..."},
    )
    assert [(each.source, each.instance, each.outcome) for each in found] == [
        (Source.DCGM, "", Outcome.OFF),
        (Source.SWITCH, "leaf-1", Outcome.OK),
        (Source.SWITCH, "leaf-2", Outcome.OK),
    ]
    assert found[0].remedy == "GOODPUT_DCGM_URL=..."


def listing(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def settings(tmp_path: Path, **more: object) -> Settings:
    (tmp_path / "sys").mkdir(exist_ok=True)
    given: dict[str, object] = {"host": "h0", "run_dir": tmp_path, "sys_root": tmp_path / "sys", "kernel_log": ""} | more
    return Settings(_env_file=None, **given)  # type: ignore[arg-type]


async def test_a_dry_run_names_every_source_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    given = settings(tmp_path)
    before = listing(tmp_path)
    found = await dry_run(given)
    assert {each.source for each in found} == set(Source) - {Source.HEARTBEAT}
    left_off = {each.source for each in found if each.outcome is Outcome.OFF}
    assert Source.KERNEL_LOG in left_off
    assert all(each.remedy for each in found if each.outcome is Outcome.OFF)
    assert listing(tmp_path) == before


async def test_a_source_can_be_switched_off(tmp_path: Path) -> None:
    found = await dry_run(settings(tmp_path, collector_off="rdma, process"))
    off = {each.source: each.remedy for each in found if each.outcome is Outcome.OFF}
    assert off[Source.RDMA] == "take rdma out of GOODPUT_COLLECTOR_OFF"
    assert Source.PROCESS in off
    assert Source.NETLINK not in off


def test_an_unknown_source_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"unknown source nvmi; there are kernel_log, netlink, .*nvml"):
        settings(tmp_path, collector_off="nvmi")
