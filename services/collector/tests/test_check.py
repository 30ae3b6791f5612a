"""`goodput collector check` tells of every source what it is, and of one that fails what it would need."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from goodput_collector.application.check import READS, Advice, Outcome, SourceCheck, check
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.check_text import broken, lines
from goodput_collector.dry_run import Report, dry_run, report
from goodput_collector.settings import Settings
from goodput_collector.wiring.advice import SWITCHED_ON_BY, TOLD_BY, notes
from goodput_common.contracts.telemetry import Source, State
from goodput_common.runtime.clock import SystemClock
from goodput_common.runtime.settings import SettingsError

AT = datetime(2026, 3, 1, tzinfo=UTC)
STATE = State(component="nic:h0/mlx5_0/1", name="operstate", observed_at=AT, value="up")
NOT_READ = {Source.HEARTBEAT, Source.PROBES}  # the collector itself, and what it does not send yet


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


async def test_a_source_whose_close_raises_hides_neither_itself_nor_the_others() -> None:
    odd, fine = Fixed(Source.RDMA, Reading(samples=[STATE])), Fixed(Source.NETLINK, Reading(samples=[STATE]))

    def close() -> None:
        raise ValueError("closed already")

    odd.close = close  # type: ignore[method-assign]
    assert [each.outcome for each in await checked(odd, fine)] == [Outcome.OK, Outcome.OK]


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
    (found,) = await checked(Fixed(Source.RDMA, Reading(samples=[STATE], trouble="cannot read mlx5_3/1")))
    assert (found.outcome, found.reason) == (Outcome.PARTLY, "cannot read mlx5_3/1")


async def test_a_source_that_shows_nothing_is_neither_well_nor_partly_read() -> None:
    advice = Advice(
        why_nothing={Source.PROCESS: "no process is registered"}, remedies={Source.KERNEL_LOG: "see GOODPUT_KERNEL_LOG"}
    )
    readers = [Fixed(Source.PROCESS, Reading()), Fixed(Source.KERNEL_LOG, Reading(trouble="no file matches"))]
    log, quiet = await check(readers, {}, clock=SystemClock(), advice=advice)
    assert (quiet.outcome, quiet.reason, quiet.remedy) == (Outcome.NOTHING, "no process is registered", "")
    assert (log.outcome, log.reason, log.remedy) == (Outcome.NOTHING, "no file matches", "see GOODPUT_KERNEL_LOG")


async def test_a_remedy_of_the_source_itself_is_kept() -> None:
    advice = Advice(remedies={Source.RDMA: "something general"})
    own = Fixed(Source.RDMA, Unreadable("refused", remedy="something exact"))
    silent = Fixed(Source.NETLINK, Unreadable("refused"))
    rdma_or_netlink = await check([own, silent], {}, clock=SystemClock(), advice=advice)
    assert {each.source: each.remedy for each in rdma_or_netlink} == {Source.RDMA: "something exact", Source.NETLINK: ""}


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
        hung, fine = await checked(Fixed(Source.NVML, release), Fixed(Source.HOST, Reading(samples=[STATE])))
        assert (hung.outcome, hung.reason) == (Outcome.UNREADABLE, "no answer within 0.2 s")
        assert fine.outcome is Outcome.OK
    finally:
        release.set()


async def test_instances_and_what_is_switched_off_are_listed_in_a_fixed_order() -> None:
    found = await checked(
        Fixed(Source.SWITCH, Reading(samples=[STATE]), "leaf-2"),
        Fixed(Source.SWITCH, Reading(samples=[STATE]), "leaf-1"),
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
    return Settings(**given)  # type: ignore[arg-type]


async def test_a_dry_run_names_every_source_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    given = settings(tmp_path)
    before = listing(tmp_path)
    found = await dry_run(given)
    assert {each.source for each in found} == set(Source) - NOT_READ
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


def gpu_on_the_bus(tmp_path: Path, driver: str) -> None:
    device = tmp_path / "sys" / "bus" / "pci" / "devices" / "0000:18:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    (tmp_path / "sys" / "bus" / "pci" / "drivers" / driver).mkdir(parents=True)
    (device / "driver").symlink_to(tmp_path / "sys" / "bus" / "pci" / "drivers" / driver)


@pytest.mark.parametrize(
    ("driver", "outcome"), [("nvidia", Outcome.UNREADABLE), ("vfio-pci", Outcome.ABSENT), (None, Outcome.ABSENT)]
)
async def test_gpus_on_the_bus_whose_library_is_not_here_are_unseen_and_not_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str | None, outcome: Outcome
) -> None:
    def no_library() -> None:
        raise Absent("no NVIDIA driver")

    monkeypatch.setattr("goodput_collector.adapters.nvml_library.load_nvml", no_library)
    monkeypatch.setattr("goodput_collector.adapters.nvml_library.LIBRARY", "libnvidia-ml-that-is-not-here.so")
    given = settings(tmp_path)
    if driver is not None:
        gpu_on_the_bus(tmp_path, driver)
    found = [each for each in await dry_run(given) if each.source is Source.NVML]
    assert {each.outcome for each in found} == {outcome}
    assert all(("NVIDIA runtime" in each.remedy) is (outcome is Outcome.UNREADABLE) for each in found)


async def test_sources_of_ranks_say_where_nobody_is_registered(tmp_path: Path) -> None:
    found = {each.source: each for each in await dry_run(settings(tmp_path))}
    for source in (Source.PROCESS, Source.FLIGHT_RECORDER, Source.JOB_LOG):
        assert found[source].outcome is Outcome.NOTHING
        assert f"no training process is registered in {tmp_path}" in found[source].reason


def test_settings_that_do_not_stop_the_start_but_are_odd_are_told(tmp_path: Path) -> None:
    given = settings(tmp_path, proc_root=tmp_path / "no-proc")
    environ = {"GOODPUT_RDMA_INTERVALL_S": "1", "GOODPUT_TOKEN": "t", "GOODPUT_KERNEL_LOG": "", "GOODPUT_HOST_FILE": "x"}
    assert notes(given, environ) == (
        f"GOODPUT_PROC_ROOT: there is no directory {tmp_path / 'no-proc'}; what is read below it will look absent",
        "GOODPUT_RDMA_INTERVALL_S is no setting: did you mean GOODPUT_RDMA_INTERVAL_S?",
    )


def test_every_source_has_the_settings_that_say_where_it_looks() -> None:
    assert set(TOLD_BY) == set(Source) - NOT_READ
    assert {name for names in TOLD_BY.values() for name in names} <= set(Settings.model_fields)
    assert all(
        told.partition("=")[0].removeprefix("GOODPUT_").lower() in Settings.model_fields for told in SWITCHED_ON_BY.values()
    )


def made(*sources: SourceCheck, notes: tuple[str, ...] = (), told_by: dict[Source, str] | None = None) -> Report:
    return Report(host="h0", uid=10001, run_dir="/run/goodput", notes=notes, told_by=told_by or {}, sources=sources)


def test_the_text_tells_what_is_fine_broken_unseen_and_switched_off_apart() -> None:
    found = made(
        SourceCheck(
            source=Source.NETLINK, outcome=Outcome.OK, covered=("nic:h0/a/1",), interval_s=10, read_us=5, cpu_percent=0.1
        ),
        SourceCheck(source=Source.KERNEL_LOG, outcome=Outcome.UNREADABLE, reason="refused", remedy="give it CAP_SYSLOG"),
        SourceCheck(source=Source.PROCESS, outcome=Outcome.NOTHING, reason="nobody is registered"),
        SourceCheck(source=Source.RDMA, outcome=Outcome.ABSENT, reason="no RDMA devices"),
        SourceCheck(source=Source.DCGM, outcome=Outcome.OFF, remedy="set GOODPUT_DCGM_URL=x"),
        notes=("odd",),
        told_by={Source.KERNEL_LOG: "GOODPUT_KERNEL_LOG=/dev/kmsg"},
    )
    text = [line for _, line in lines(found)]
    assert text[:2] == ["host h0, read as user 10001; jobs register in /run/goodput", "note: odd"]
    for heading, below in (
        (
            "unreadable: there, and cannot be read",
            "  kernel_log: refused; give it CAP_SYSLOG [GOODPUT_KERNEL_LOG=/dev/kmsg]",
        ),
        ("nothing: readable, nothing to watch now", "  process: nobody is registered"),
        ("absent: this host has no such thing", "  rdma: no RDMA devices"),
        ("off: not read, by the settings", "  dcgm: set GOODPUT_DCGM_URL=x"),
    ):
        assert text[text.index(heading) + 1] == below
    assert text[-1].startswith(
        "not seen on this host: kernel_log; nothing to watch yet by process (1 ok, 1 nothing, 1 unreadable,"
    )
    assert broken(found)
    assert not broken(made(*found.sources[2:]))


def test_all_that_is_covered_is_named_when_asked() -> None:
    covered = tuple(f"nic:h0/mlx5_{number}/1" for number in range(9))
    found = made(SourceCheck(source=Source.RDMA, outcome=Outcome.OK, covered=covered))
    assert any("and 6 more (--covered)" in line for _, line in lines(found))
    assert any(line.endswith(", ".join(covered)) for _, line in lines(found, all_covered=True))


async def test_a_report_names_the_variables_that_were_set(tmp_path: Path) -> None:
    found = await report(settings(tmp_path, lldp="/x.json"), environ={})
    assert "GOODPUT_LLDP=/x.json" in found.told_by[Source.DISCOVERY]
    assert Source.DCGM not in found.told_by
