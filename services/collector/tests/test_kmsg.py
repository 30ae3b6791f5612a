"""The kernel's record device: dating, gaps, restarts, floods, and what it takes to read it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from collector_fixtures import Rig, Ticking, TurnedClock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.adapters.kmsg import KmsgReader
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.domain.kernel_record import parse_record
from goodput_common.contracts.telemetry import Counter, Event, EventName, Source, SourceStatus

XID = "NVRM: Xid (PCI:0000:05:00): 79, pid=1, name=x, GPU has fallen off the bus."


class Kernel:
    """Stands for /dev/kmsg: each read gives one record, or the error that the kernel gives."""

    def __init__(self, tmp_path: Path) -> None:
        self.records: list[bytes | Exception] = []
        self.now_s = 1000.0
        self.clock = TurnedClock()
        self.path = tmp_path / "kmsg"
        self.path.touch()
        self.bookmarks = tmp_path / "bookmarks"

    def _read(self, _: int, __: int) -> bytes:
        if not self.records:
            raise BlockingIOError
        record = self.records.pop(0)
        if isinstance(record, Exception):
            raise record
        return record

    def log(self, number: int, at_s: float, text: str) -> None:
        self.records.append(f"6,{number},{int(at_s * 1e6)},-;{text}\n SUBSYSTEM=pci\n".encode())

    def reader(self) -> KmsgReader:
        made = self.closed()
        made.open()
        return made

    def closed(self) -> KmsgReader:
        return KmsgReader(
            str(self.path),
            host="h0",
            boot_id="b1",
            clock=self.clock,
            bookmarks=Bookmarks(self.bookmarks, monotonic_s=self.clock.monotonic_s),
            kernel_s=lambda: self.now_s,
            read_record=self._read,
        )


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def kept(reading: Reading) -> list[Event]:
    """The events, once they are in the spool."""
    if reading.kept is not None:
        reading.kept()
    return [each for each in reading.samples if isinstance(each, Event)]


def test_a_record_gets_its_moment_from_the_time_since_boot(kernel: Kernel) -> None:
    kernel.log(1, 990.0, XID)
    (event,) = kept(kernel.reader().read())
    assert (kernel.clock.now() - event.observed_at).total_seconds() == 10.0


def test_what_is_older_than_the_history_is_not_told_at_the_first_start(kernel: Kernel) -> None:
    for number in (1, 2, 30):  # nor is a gap in it
        kernel.log(number, 100.0, XID)
    assert kernel.reader().read().samples == []


def test_a_record_just_written_takes_the_wall_clock_when_the_kernels_has_drifted(kernel: Kernel) -> None:
    reader = kernel.reader()
    reader.read()
    kernel.log(1, 950.0, XID)
    (event,) = kept(reader.read())
    assert event.observed_at == kernel.clock.now()


def test_overwritten_records_are_an_event_with_their_number(kernel: Kernel) -> None:
    kernel.log(1, 999.0, "x")
    kernel.records.append(OSError(errno.EPIPE, os.strerror(errno.EPIPE)))
    kernel.log(11, 999.5, XID)
    gap, event = kept(kernel.reader().read())
    assert (gap.name, gap.attrs["missed"], gap.component) == (EventName.LOG_GAP, "9", "host:h0")
    assert event.name is EventName.XID


def test_records_overwritten_while_the_collector_was_away_are_counted_too(kernel: Kernel) -> None:
    kernel.log(5, 999.0, XID)
    kept(kernel.reader().read())
    kernel.log(9, 999.0, "x")
    (gap,) = kept(kernel.reader().read())
    assert (gap.name, gap.attrs["missed"]) == (EventName.LOG_GAP, "3")


def test_after_a_restart_no_record_is_told_twice(kernel: Kernel) -> None:
    kernel.log(1, 999.0, XID)
    assert len(kept(kernel.reader().read())) == 1  # and killed: nothing is closed
    kernel.log(1, 999.0, XID)
    kernel.log(2, 999.0, XID)
    assert len(kept(kernel.reader().read())) == 1


def test_a_reading_that_never_reached_the_spool_is_read_again(kernel: Kernel) -> None:
    reader = kernel.reader()
    for number in range(1, 30):
        kernel.log(number, 999.0, XID)
    told = reader.read().samples  # came after its deadline
    reader.close()
    reader.open()
    for number in range(1, 30):
        kernel.log(number, 999.0, XID)
    assert reader.read().samples == told


def test_a_message_of_several_lines_is_read_line_by_line(kernel: Kernel) -> None:
    kernel.log(1, 999.0, f"NVRM: a dump follows\\x0a{XID}\\x0a\\xc3\\xa9")
    (event,) = kept(kernel.reader().read())
    assert event.excerpt == XID


def test_a_log_that_is_missing_or_forbidden_says_what_to_do(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel.path.unlink()
    with pytest.raises(Absent):
        kernel.reader()

    def forbidden(*_: object) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patched, pytest.raises(Unreadable) as raised:
        patched.setattr("os.open", forbidden)
        kernel.reader()
    assert "CAP_SYSLOG" in raised.value.remedy


def test_a_flood_of_one_fault_is_told_at_once_and_counted_to_the_last(kernel: Kernel) -> None:
    reader, told = kernel.reader(), []
    reader.read()
    for number in range(1, 40_001):
        kernel.log(number, 999.0, XID)
        if number == 1:
            told += kept(reader.read())
            assert len(told) == 1
    while kernel.records:
        told += kept(reader.read())
    kernel.clock.seconds = 3600
    last = reader.read()
    told += kept(last)
    assert sum(event.count for event in told) == 40_000
    assert len(told) < 20
    counts = {each.name: each.value for each in last.samples if isinstance(each, Counter)}
    assert counts == {"kernel_log_lines_seen": 40_000, "kernel_log_lines_matched": 40_000}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.one_of(st.binary(max_size=60), st.sampled_from([f"6,7,5,-;{XID}".encode(), b"6,9,1,c;x\\x0g"])), max_size=12)
)
def test_no_record_crashes_the_reader_and_each_is_counted(tmp_path: Path, records: list[bytes]) -> None:
    kernel = Kernel(tmp_path)
    kernel.bookmarks.unlink(missing_ok=True)
    kernel.records = [record for record in records if record]
    reader = kernel.reader()
    reader.read()
    kernel.clock.seconds = 100
    told = [each for each in reader.read().samples if isinstance(each, Counter) and each.name.endswith("_seen")]
    first = {each.number for each in map(parse_record, kernel_records(records)) if each is not None}
    seen = sum(parse_record(record) is None for record in kernel_records(records))
    assert sum(each.value for each in told) >= seen + (1 if first else 0)


def kernel_records(records: list[bytes]) -> list[bytes]:
    return [record for record in records if record]


async def test_a_record_is_published_and_a_device_that_fails_stops_nobody_else(tmp_path: Path) -> None:
    kernel, neighbour = Kernel(tmp_path), Ticking()
    kernel.log(1, 999.0, XID)
    reader = kernel.closed()
    async with Rig(tmp_path, reader, neighbour) as rig:
        await rig.until(lambda: rig.samples(Source.KERNEL_LOG), "the event")
        kernel.path.rename(tmp_path / "gone")
        kernel.records += [b"garbage", OSError(errno.EIO, "Input/output error")]
        condition = rig.condition(Source.KERNEL_LOG)
        await rig.until(lambda: condition.status is SourceStatus.ABSENT, "the device is gone")
        before = neighbour.reads
        await rig.until(lambda: neighbour.reads > before + 20, "the neighbour's reads")
        (tmp_path / "gone").rename(kernel.path)
        kernel.log(2, 999.0, XID.replace("05:00", "06:00"))
        await rig.until(lambda: len(rig.samples(Source.KERNEL_LOG)) == 2, "the second event")
