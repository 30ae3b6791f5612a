"""Ranks as /proc shows them: gone, stopped, frozen, reused, idle - and never called dead when merely not visible."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest
from collector_fixtures import Proc, TurnedClock, register

from goodput_collector.adapters.process import ProcessReader, registered_ranks
from goodput_common.contracts.telemetry import Event, EventName, Sample, State

PID = 4_190_000  # above what a test machine hands out, so that no pidfd is had of it


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path / "proc")


@pytest.fixture
def reader(tmp_path: Path, clock: TurnedClock, proc: Proc) -> ProcessReader:
    made = ProcessReader(
        run_dir=tmp_path / "run",
        clock=clock,
        host="h0",
        boot_id="b1",
        proc_root=proc.root,
        cgroup_root=tmp_path / "cgroup",
    )
    made.open()
    return made


def events(samples: list[Sample]) -> list[tuple[str, dict[str, str]]]:
    return [(each.name, each.attrs) for each in samples if isinstance(each, Event)]


def states(samples: list[Sample]) -> list[tuple[str, str]]:
    return [(each.component, each.value) for each in samples if isinstance(each, State)]


def read(reader: ProcessReader, clock: TurnedClock, after_s: float = 0.5) -> list[Sample]:
    clock.seconds += after_s
    return list(reader.read().samples)


def test_a_rank_that_vanishes_while_registered_did_not_leave_by_itself(
    reader: ProcessReader, clock: TurnedClock, proc: Proc, tmp_path: Path
) -> None:
    register(tmp_path / "run", 3, PID)
    proc.put(PID)
    assert states(read(reader, clock)) == [("rank:j1/3", "running")]
    proc.remove(PID)
    told = read(reader, clock)
    ((name, attrs),) = events(told)
    assert (name, attrs["pid"], attrs["clean"]) == (EventName.PROCESS_EXITED, str(PID), "false")
    assert states(told) == [("rank:j1/3", "gone")]
    assert read(reader, clock) == []


def test_a_rank_that_took_its_registration_away_is_watched_no_more(
    reader: ProcessReader, clock: TurnedClock, proc: Proc, tmp_path: Path
) -> None:
    path = register(tmp_path / "run", 3, PID)
    proc.put(PID)
    read(reader, clock)
    path.unlink()
    proc.remove(PID)
    assert read(reader, clock) == []


@pytest.mark.parametrize("letter", ["Z", "X"])
def test_a_process_that_only_waits_to_be_reaped_has_exited(
    reader: ProcessReader, clock: TurnedClock, proc: Proc, tmp_path: Path, letter: str
) -> None:
    register(tmp_path / "run", 3, PID)
    proc.put(PID)
    read(reader, clock)
    proc.put(PID, letter)
    assert [name for name, _ in events(read(reader, clock))] == [EventName.PROCESS_EXITED]


def test_a_reused_pid_is_another_process(reader: ProcessReader, clock: TurnedClock, proc: Proc, tmp_path: Path) -> None:
    register(tmp_path / "run", 3, PID, start=1000)
    proc.put(PID, start=1000)
    read(reader, clock)
    proc.put(PID, start=9999)
    assert [name for name, _ in events(read(reader, clock))] == [EventName.PROCESS_EXITED]


def test_a_pid_that_was_never_seen_is_unknown_and_not_dead(
    reader: ProcessReader, clock: TurnedClock, tmp_path: Path
) -> None:
    register(tmp_path / "run", 3, PID)
    told = read(reader, clock)
    assert events(told) == []
    assert states(told) == [("rank:j1/3", "unknown")]


def test_once_a_rank_of_the_job_is_seen_under_its_pid_a_missing_one_is_gone(
    reader: ProcessReader, clock: TurnedClock, proc: Proc, tmp_path: Path
) -> None:
    register(tmp_path / "run", 0, PID)
    register(tmp_path / "run", 1, PID + 1)
    proc.put(PID)
    told = read(reader, clock)
    assert [(name, attrs["pid"]) for name, attrs in events(told)] == [(EventName.PROCESS_EXITED, str(PID + 1))]


def test_a_registration_from_before_the_reboot_is_nobody(reader: ProcessReader, clock: TurnedClock, tmp_path: Path) -> None:
    register(tmp_path / "run", 3, PID, boot_id="an earlier one")
    assert read(reader, clock) == []


@pytest.mark.parametrize("letter", ["T", "t"])
def test_a_stopped_process_is_told_and_so_is_that_it_runs_again(
    reader: ProcessReader, clock: TurnedClock, proc: Proc, tmp_path: Path, letter: str
) -> None:
    register(tmp_path / "run", 3, PID)
    proc.put(PID)
    read(reader, clock)
    proc.put(PID, letter)
    told = read(reader, clock)
    assert [(name, attrs["state"]) for name, attrs in events(told)] == [(EventName.PROCESS_STOPPED, letter)]
    assert states(told) == [("rank:j1/3", letter)]
    assert events(read(reader, clock)) == []
    proc.put(PID, "R")
    assert [name for name, _ in events(read(reader, clock))] == [EventName.PROCESS_CONTINUED]


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        ("job/cgroup.events", "populated 1\nfrozen 1\n", "0::/job\n"),
        ("freezer/job/freezer.state", "FROZEN\n", "7:freezer:/job\n"),
    ],
)
def test_a_frozen_control_group_is_a_stop(
    reader: ProcessReader, clock: TurnedClock, proc: Proc, tmp_path: Path, path: str, text: str, line: str
) -> None:
    register(tmp_path / "run", 3, PID)
    proc.put(PID)
    (proc.root / str(PID) / "cgroup").write_text(line)
    read(reader, clock)
    file = tmp_path / "cgroup" / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    told = read(reader, clock)
    assert [(name, attrs["state"]) for name, attrs in events(told)] == [(EventName.PROCESS_STOPPED, "frozen")]
    assert states(told) == [("rank:j1/3", "frozen")]


def test_whether_cpu_time_moves_is_told_when_it_changes(
    reader: ProcessReader, clock: TurnedClock, proc: Proc, tmp_path: Path
) -> None:
    register(tmp_path / "run", 3, PID)
    proc.put(PID, ticks=0)
    read(reader, clock)
    proc.put(PID, "R", ticks=50)
    (used,) = read(reader, clock, 1.0)
    assert isinstance(used, State)
    tick_ms = 1000 / os.sysconf("SC_CLK_TCK")
    assert (used.attrs["cpu"], used.attrs["cpu_ms"], used.attrs["window_ms"]) == ("used", str(round(50 * tick_ms)), "1000")
    (idle,) = read(reader, clock, 1.0)
    assert isinstance(idle, State)
    assert (idle.value, idle.attrs["cpu"], idle.attrs["wchan"]) == ("running", "idle", "do_poll")


def test_running_and_sleeping_in_turns_is_no_news_and_a_moment_uninterruptible_neither(
    reader: ProcessReader, clock: TurnedClock, proc: Proc, tmp_path: Path
) -> None:
    register(tmp_path / "run", 3, PID)
    proc.put(PID, "S")
    read(reader, clock, 0.1)
    for letter in ("R", "S", "D", "R"):
        proc.put(PID, letter)
        assert read(reader, clock, 0.1) == []
    proc.put(PID, "D")
    read(reader, clock, 0.1)
    assert states(read(reader, clock, 0.1)) == [("rank:j1/3", "D")]


def test_a_registration_that_is_no_registration_is_trouble_and_stops_nobody(
    reader: ProcessReader, clock: TurnedClock, proc: Proc, tmp_path: Path
) -> None:
    register(tmp_path / "run", 3, PID)
    proc.put(PID)
    (tmp_path / "run" / "ranks" / "j1.9.json").write_text("{")
    reading = reader.read()
    assert "j1.9.json" in reading.trouble
    assert len(reading.samples) == 1


def test_an_exit_wakes_the_reader(tmp_path: Path, clock: TurnedClock) -> None:
    """On a real process, with the kernel's pidfd."""
    if not hasattr(os, "pidfd_open"):
        pytest.skip("no pidfd here")
    child = subprocess.Popen(["sleep", "60"])
    real = ProcessReader(run_dir=tmp_path, clock=clock, host="h0", boot_id="b1")
    real.open()
    try:
        start = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
        register(tmp_path, 0, child.pid, start=start)
        assert states(read(real, clock)) == [("rank:j1/0", "running")]
        child.send_signal(signal.SIGKILL)
        fd = real.wake_fd()
        assert fd is not None
        import select

        assert select.select([fd], [], [], 10)[0] == [fd]
        assert [name for name, _ in events(read(real, clock))] == [EventName.PROCESS_EXITED]
        assert select.select([fd], [], [], 0)[0] == []
    finally:
        child.kill()
        child.wait()
        real.close()


def test_an_exit_between_a_close_and_the_next_open_is_told(
    reader: ProcessReader, clock: TurnedClock, proc: Proc, tmp_path: Path
) -> None:
    register(tmp_path / "run", 0, PID)
    proc.put(PID)
    read(reader, clock)
    reader.close()
    proc.remove(PID)
    reader.open()
    assert [name for name, _ in events(read(reader, clock))] == [EventName.PROCESS_EXITED]


@pytest.mark.parametrize(
    "registration",
    ["pipe", "endless", b"{", b'{"a":' * 50_000, b"[" * 60_000, b"x" * 100_000, {"pid": 2**62}, {"pid": 0}, {"pid": -5}],
    ids=["pipe", "endless", "cut", "nested", "nested lists", "large", "large pid", "no pid", "negative pid"],
)
def test_one_registration_that_is_none_is_named_and_the_others_are_watched(
    reader: ProcessReader, clock: TurnedClock, proc: Proc, tmp_path: Path, registration: str | bytes | dict[str, int]
) -> None:
    good = register(tmp_path / "run", 3, PID)
    proc.put(PID)
    bad = good.with_name("a.0.json")
    match registration:
        case "pipe":
            os.mkfifo(bad)
        case "endless":
            bad.symlink_to("/dev/zero")
        case bytes():
            bad.write_bytes(registration)
        case dict():
            bad.write_bytes(msgspec.json.encode(msgspec.json.decode(good.read_bytes()) | registration))
    reading = reader.read()
    assert "a.0.json: not a rank's registration" in reading.trouble
    assert states(list(reading.samples)) == [("rank:j1/3", "running")]
    assert [each.rank for each in registered_ranks(tmp_path / "run")] == [3]
