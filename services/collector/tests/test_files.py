"""Log files as they grow: rotation, truncation, half lines, restarts, bounds; and the kernel's record device."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from collector_fixtures import TurnedClock

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.adapters.files import LINE_BYTES, FileReader, Tail
from goodput_collector.adapters.kmsg import KmsgReader
from goodput_collector.application.ports import Absent, Unreadable
from goodput_collector.domain.kernel_log import KernelLogParser
from goodput_collector.domain.timestamps import LineClock
from goodput_common.contracts.telemetry import Source, State

XID = "NVRM: Xid (PCI:0000:05:00): 79, pid=1, name=x, GPU has fallen off the bus."


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def test_only_new_whole_lines_are_given(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, "old\n")
    tail = Tail(log, position=None)
    assert tail.read() == []
    append(log, "one\ntw")
    assert tail.read() == ["one"]
    append(log, "o\n")
    assert tail.read() == ["two"]


def test_a_rotated_file_is_read_to_its_end_before_its_successor(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, "")
    tail = Tail(log, position=None)
    tail.read()
    append(log, "last words\n")
    log.rename(tmp_path / "log.1")
    append(log, "first words\n")
    assert tail.read() == ["last words"]
    assert tail.read() == ["first words"]


def test_a_truncated_file_starts_anew(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, "some long line of text\n")
    tail = Tail(log, position=0)
    assert tail.read() == ["some long line of text"]
    log.write_text("new\n")
    assert tail.read() == ["new"]


def test_a_file_that_is_not_there_yet_is_read_from_its_start(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "log", position=0)
    assert tail.read() == []
    append(tmp_path / "log", "hello\n")
    assert tail.read() == ["hello"]


def test_a_read_and_a_line_are_bounded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, "a\n" * 100)
    tail = Tail(log, position=0)
    assert len(tail.read(100)) == 50
    endless = tmp_path / "endless"
    append(endless, "x" * (3 * LINE_BYTES))
    assert [len(line) for line in Tail(endless, position=0).read()] == [LINE_BYTES]


@pytest.fixture
def make(tmp_path: Path) -> Callable[[], tuple[FileReader, TurnedClock]]:
    def made() -> tuple[FileReader, TurnedClock]:
        clock = TurnedClock()
        lines = LineClock(reference=clock.now(), live=True)
        reader = FileReader(
            Source.KERNEL_LOG,
            [str(tmp_path / "*.log")],
            parser_of=lambda _: KernelLogParser(host="h0", clock=lines),
            before_read=lambda: lines.collected(clock.now()),
            clock=clock,
            bookmarks=Bookmarks(tmp_path / "bookmarks", monotonic_s=clock.monotonic_s),
        )
        reader.open()
        return reader, clock

    return made


def test_what_stood_in_a_file_before_is_not_told_and_what_comes_is(
    tmp_path: Path, make: Callable[[], tuple[FileReader, TurnedClock]]
) -> None:
    append(tmp_path / "a.log", XID + "\n")
    reader, clock = make()
    assert reader.read().samples == []
    clock.seconds = 7
    append(tmp_path / "a.log", XID + "\n")
    (event,) = reader.read().samples
    assert (event.component, event.observed_at) == ("gpu:h0/0000:05:00", clock.now())


def test_a_file_that_appears_later_is_told_from_its_start(
    tmp_path: Path, make: Callable[[], tuple[FileReader, TurnedClock]]
) -> None:
    reader, clock = make()
    reading = reader.read()
    assert "no file matches" in reading.trouble
    append(tmp_path / "b.log", XID + "\n")
    clock.seconds = 2
    assert len(reader.read().samples) == 1


def test_after_a_restart_reading_goes_on_where_it_stopped(
    tmp_path: Path, make: Callable[[], tuple[FileReader, TurnedClock]]
) -> None:
    append(tmp_path / "a.log", "x\n")
    reader, _ = make()
    reader.read()
    append(tmp_path / "a.log", XID + "\n")
    assert len(reader.read().samples) == 1
    reader.close()
    append(tmp_path / "a.log", XID.replace("05:00", "06:00") + "\n")
    again, _ = make()
    assert [each.component for each in again.read().samples] == ["gpu:h0/0000:06:00"]


def test_a_change_wakes_the_reader(tmp_path: Path, make: Callable[[], tuple[FileReader, TurnedClock]]) -> None:
    import select

    append(tmp_path / "a.log", "")
    reader, _ = make()
    reader.read()
    fd = reader.wake_fd()
    if fd is None:
        pytest.skip("no inotify here")
    reader.read()
    assert select.select([fd], [], [], 0)[0] == []
    append(tmp_path / "a.log", "x\n")
    assert select.select([fd], [], [], 10)[0] == [fd]


class Kernel:
    """Stands for /dev/kmsg: each read gives one record, or the error that the kernel gives."""

    def __init__(self, tmp_path: Path) -> None:
        self.records: list[bytes | OSError] = []
        self.now_s = 1000.0
        self.clock = TurnedClock()
        self.path = tmp_path / "kmsg"
        self.path.touch()
        self.bookmarks = tmp_path / "bookmarks"

    def _read(self, _: int, __: int) -> bytes:
        if not self.records:
            raise BlockingIOError
        record = self.records.pop(0)
        if isinstance(record, OSError):
            raise record
        return record

    def log(self, number: int, at_s: float, text: str) -> None:
        self.records.append(f"6,{number},{int(at_s * 1e6)},-;{text}\n SUBSYSTEM=pci\n".encode())

    def reader(self) -> KmsgReader:
        made = KmsgReader(
            str(self.path),
            host="h0",
            boot_id="b1",
            clock=self.clock,
            bookmarks=Bookmarks(self.bookmarks, monotonic_s=self.clock.monotonic_s),
            kernel_s=lambda: self.now_s,
            read_record=self._read,
        )
        made.open()
        return made


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def test_a_record_gets_its_moment_from_the_time_since_boot(kernel: Kernel) -> None:
    kernel.log(1, 990.0, XID)
    (event,) = kernel.reader().read().samples
    assert (kernel.clock.now() - event.observed_at).total_seconds() == 10.0


def test_what_is_older_than_the_history_is_not_told_at_the_first_start(kernel: Kernel) -> None:
    for number in range(1, 4):
        kernel.log(number, 100.0, XID)
    assert kernel.reader().read().samples == []


def test_a_record_just_written_takes_the_wall_clock_when_the_kernels_has_drifted(kernel: Kernel) -> None:
    reader = kernel.reader()
    reader.read()
    kernel.log(1, 950.0, XID)
    (event,) = reader.read().samples
    assert event.observed_at == kernel.clock.now()


def test_overwritten_records_are_counted(kernel: Kernel) -> None:
    kernel.log(1, 999.0, "x")
    kernel.records.append(OSError(errno.EPIPE, os.strerror(errno.EPIPE)))
    kernel.log(11, 999.5, XID)
    event, lost = kernel.reader().read().samples
    assert event.name == "xid"
    assert isinstance(lost, State)
    assert (lost.name, lost.value) == ("kernel_log_lost", "9")


def test_after_a_restart_no_record_is_told_twice(kernel: Kernel) -> None:
    kernel.log(1, 999.0, XID)
    reader = kernel.reader()
    assert len(reader.read().samples) == 1
    reader.close()
    kernel.log(1, 999.0, XID)
    kernel.log(2, 999.0, XID)
    assert len(kernel.reader().read().samples) == 1


def test_a_log_that_is_missing_or_forbidden_says_what_to_do(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel.path.unlink()
    with pytest.raises(Absent):
        kernel.reader()

    def forbidden(*_: object) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patched, pytest.raises(Unreadable, match="GOODPUT_KERNEL_LOG"):
        patched.setattr("os.open", forbidden)
        kernel.reader()
