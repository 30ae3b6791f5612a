"""Log files as they grow: rotation in all its forms, half lines, restarts, kill -9, bounds."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from collector_fixtures import Rig, Ticking, TurnedClock, kept
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.adapters.file_reader import FileReader
from goodput_collector.adapters.files import LINE_BYTES, Mark, Tail
from goodput_collector.domain.kernel_log import KernelLogParser
from goodput_collector.domain.log_lines import KernelLines
from goodput_collector.domain.path_text import path_text
from goodput_collector.domain.timestamps import LineClock
from goodput_common.contracts.telemetry import Event, EventName, Source

XID = "NVRM: Xid (PCI:0000:05:00): 79, pid=1, name=x, GPU has fallen off the bus."


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def test_only_new_whole_lines_are_given(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, "old\n")
    tail = Tail(log, from_end=True)
    assert tail.read() == []
    append(log, "one\ntw")
    assert tail.read() == [b"one"]
    append(log, "o\n")
    assert tail.read() == [b"two"]


def test_a_rotated_file_is_read_to_its_end_before_its_successor(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, "")
    tail = Tail(log, from_end=True)
    tail.read()
    append(log, "last words\n")
    log.rename(tmp_path / "log.1")
    append(log, "first words\n")
    assert tail.read() == [b"last words"]
    assert tail.read() == [b"first words"]


def test_a_truncated_file_starts_anew(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, "some long line of text\n")
    tail = Tail(log)
    assert tail.read() == [b"some long line of text"]
    log.write_text("new\n")
    assert tail.read() == [b"new"]


def test_a_file_that_is_not_there_yet_is_read_from_its_start(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "log")
    assert tail.read() == []
    append(tmp_path / "log", "hello\n")
    assert tail.read() == [b"hello"]


def test_a_read_and_a_line_are_bounded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, "a\n" * 100)
    tail = Tail(log)
    assert len(tail.read(100)) == 50
    endless = tmp_path / "endless"
    append(endless, "x" * (3 * LINE_BYTES))
    assert [len(line) for line in Tail(endless).read()] == [LINE_BYTES]


@pytest.fixture
def make(tmp_path: Path) -> Callable[[], tuple[FileReader, TurnedClock]]:
    def made() -> tuple[FileReader, TurnedClock]:
        clock = TurnedClock()
        lines = LineClock(reference=clock.now(), live=True)
        reader = FileReader(
            Source.KERNEL_LOG,
            [str(tmp_path / "*.log")],
            host="h0",
            lines_of=lambda _: KernelLines(KernelLogParser(host="h0", clock=lines)),
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
    assert len(kept(reader.read()).samples) == 1  # and killed: nothing is closed
    append(tmp_path / "a.log", XID.replace("05:00", "06:00") + "\n")
    again, _ = make()
    assert [each.component for each in again.read().samples] == ["gpu:h0/0000:06:00"]


def lines_left(tail: Tail) -> list[bytes]:
    lines: list[bytes] = []
    while more := tail.read():
        lines += more
    return lines


def numbered(first: int, last: int) -> str:
    return "".join(f"line {number} of a log that goes on and on\n" for number in range(first, last))


@pytest.mark.parametrize("form", ["renamed", "copied", "packed", "packed twice", "dated"])
def test_what_was_rotated_away_while_nobody_looked_is_read_to_its_end(tmp_path: Path, form: str) -> None:
    log = tmp_path / "kern.log"
    append(log, numbered(0, 10))
    tail = Tail(log)
    assert len(lines_left(tail)) == 10
    mark = tail.mark()
    assert mark is not None
    tail.close()
    append(log, numbered(10, 20))
    expected = 25
    if form == "renamed":
        log.rename(tmp_path / "kern.log.1")
        append(log, numbered(20, 25))
    elif form == "copied":
        shutil.copy(log, tmp_path / "kern.log.1")
        log.write_text(numbered(20, 25))
    else:
        name = "kern.log-20260301.gz" if form == "dated" else "kern.log.2.gz"
        (tmp_path / name).write_bytes(gzip.compress(log.read_bytes()))
        os.utime(tmp_path / name, (100, 100))
        log.unlink()
        if form == "packed twice":
            append(tmp_path / "kern.log.1", numbered(20, 25))
            expected = 30
        append(log, numbered(expected - 5, expected))
    again = Tail(log, mark=Mark.of_text(mark.text()))
    assert b"\n".join(lines_left(again)).decode() + "\n" == numbered(10, expected)
    assert again.gaps == 0


def rotate(log: Path, rotations: int, *, pack: bool = False) -> None:
    for older in range(rotations, 0, -1):
        for suffix in ("", ".gz"):
            before = log.with_name(f"{log.name}.{older}{suffix}")
            if before.exists():
                before.rename(log.with_name(f"{log.name}.{older + 1}{suffix}"))
    log.rename(log.with_name(f"{log.name}.1"))
    if pack:
        first = log.with_name(f"{log.name}.1")
        log.with_name(f"{log.name}.1.gz").write_bytes(gzip.compress(first.read_bytes()))
        first.unlink()
    log.touch()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("rotated_on", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_what_was_rotated_away_is_caught_up_with_in_bounded_pieces(
    tmp_path: Path, restarted: bool, rotated_on: bool, packed: bool
) -> None:
    log = tmp_path / "kern.log"
    append(log, numbered(0, 10))
    tail = Tail(log)
    got = lines_left(tail)
    mark = tail.mark()
    tail.close()
    for number in range(3):
        append(log, numbered(10 + 100 * number, 110 + 100 * number))
        rotate(log, number, pack=packed and number == 0)
        age_s = 100 + number
        for suffix in ("", ".gz"):
            if (first := tmp_path / f"kern.log.1{suffix}").exists():
                os.utime(first, (age_s, age_s))
    append(log, numbered(310, 320))
    tail = Tail(log, mark=mark)
    reads = 0
    while more := tail.read(1000):
        assert sum(map(len, more)) <= 1000 + 64  # and a half line that the piece before ended with
        got += more
        reads += 1
        if restarted:
            mark = tail.mark()
            tail.close()
            tail = Tail(log, mark=mark)
        if rotated_on and reads == 5:
            rotate(log, 3)
            append(log, numbered(320, 330))
    assert b"\n".join(got).decode() + "\n" == numbered(0, 330 if rotated_on else 320)
    assert tail.gaps == 0
    assert reads > 10


def test_a_packed_file_that_is_damaged_costs_its_rest_and_nothing_else(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    append(log, numbered(0, 10))
    tail = Tail(log)
    lines_left(tail)
    mark = tail.mark()
    append(log, numbered(10, 2000))
    packed = gzip.compress(log.read_bytes())
    (tmp_path / "kern.log.1.gz").write_bytes(packed[: len(packed) // 2])
    log.write_text(numbered(2000, 2010))
    again = Tail(log, mark=mark)
    assert b"\n".join(lines_left(again)).decode().endswith(numbered(2000, 2010)[:-1])


def test_no_descriptor_left_is_trouble_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "kern.log"
    append(log, numbered(0, 10))
    tail = Tail(log)
    lines_left(tail)
    append(log, numbered(10, 20))
    again = Tail(log, mark=tail.mark())
    log.rename(tmp_path / "kern.log.1")
    append(log, numbered(20, 25))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", refuse)
        with pytest.raises(OSError, match="Too many"):
            again.read()
    assert b"\n".join(lines_left(again)).decode() + "\n" == numbered(10, 25)
    assert again.gaps == 0


def test_a_file_that_was_copied_cut_short_and_has_grown_again_is_read_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, numbered(0, 10) + "half")
    tail = Tail(log)
    assert len(lines_left(tail)) == 10
    append(log, " line\n" + numbered(10, 12))
    shutil.copy(log, tmp_path / "log.1")
    log.write_text(numbered(12, 60))  # beyond the place that was read to
    assert b"\n".join(lines_left(tail)).decode() + "\n" == "half line\n" + numbered(10, 60)
    assert tail.gaps == 0


def test_what_is_gone_for_good_is_told_as_a_gap(tmp_path: Path, make: Callable[[], tuple[FileReader, TurnedClock]]) -> None:
    append(tmp_path / "a.log", "x\n")
    reader, _ = make()
    kept(reader.read())
    append(tmp_path / "a.log", "some more\n")
    kept(reader.read())
    (tmp_path / "a.log").write_text("y\n")
    (event,) = reader.read().samples
    assert isinstance(event, Event)
    assert (event.name, event.attrs["missed"]) == (EventName.LOG_GAP, "unknown")


def test_rotated_forms_that_match_a_pattern_too_are_not_read_by_themselves(tmp_path: Path) -> None:
    clock = TurnedClock()
    lines = LineClock(reference=clock.now(), live=True)
    for name in ("syslog", "syslog.1", "syslog.2.gz", "syslog-20260301", "syslog.net"):
        append(tmp_path / name, "x\n")
    opened: list[str] = []

    def lines_of(path: Path) -> KernelLines:
        opened.append(path.name)
        return KernelLines(KernelLogParser(host="h0", clock=lines))

    reader = FileReader(
        Source.KERNEL_LOG,
        [str(tmp_path / "syslog*")],
        host="h0",
        lines_of=lines_of,
        before_read=lambda: None,
        clock=clock,
        bookmarks=Bookmarks(tmp_path / "bookmarks"),
    )
    reader.open()
    reader.read()
    assert opened == ["syslog", "syslog.net"]
    reader.close()


def test_a_reading_that_never_reached_the_spool_is_read_again(
    tmp_path: Path, make: Callable[[], tuple[FileReader, TurnedClock]]
) -> None:
    append(tmp_path / "a.log", "x\n")
    reader, _ = make()
    kept(reader.read())
    append(tmp_path / "a.log", (XID + "\n") * 20)
    told = reader.read().samples  # came after its deadline
    assert len(told) == 8
    reader.close()
    reader.open()
    assert [each.observed_at for each in reader.read().samples] == [each.observed_at for each in told]


def test_a_first_reading_that_never_reached_the_spool_does_not_bring_up_history(
    tmp_path: Path, make: Callable[[], tuple[FileReader, TurnedClock]]
) -> None:
    append(tmp_path / "a.log", XID + "\n")
    reader, _ = make()
    assert reader.read().samples == []  # and not kept
    append(tmp_path / "a.log", XID.replace("05:00", "06:00") + "\n")
    for _ in range(2):
        reader.close()
        reader.open()
        assert [each.component for each in reader.read().samples] == ["gpu:h0/0000:06:00"]
    reader.close()


def test_a_name_that_is_not_utf_8_is_a_name_like_any_other(
    tmp_path: Path, make: Callable[[], tuple[FileReader, TurnedClock]]
) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/job\xff.log"))
    append(path, "some text\n")
    reader, _ = make()
    kept(reader.read())
    path.write_text("y\n")
    reading = kept(reader.read())
    (event,) = reading.samples
    assert isinstance(event, Event)
    assert event.attrs["log"].endswith("/job%FF.log")
    assert [name for name in reading.marks if name.endswith("job%FF.log")]
    reader.close()
    append(path, XID + "\n")
    again, _ = make()
    assert len(again.read().samples) == 1
    again.close()


def test_no_two_paths_have_the_same_text() -> None:
    names = [b"a\xff", b"a%FF", b"a%25FF", "ä".encode()]
    assert [path_text(os.fsdecode(name)) for name in names] == ["a%FF", "a%25FF", "a%2525FF", "ä"]


def test_a_journals_export_through_a_pipe_is_read_as_it_comes(
    tmp_path: Path, make: Callable[[], tuple[FileReader, TurnedClock]]
) -> None:
    os.mkfifo(tmp_path / "journal.log")
    reader, _ = make()
    assert reader.read().samples == []
    writer = os.open(tmp_path / "journal.log", os.O_WRONLY | os.O_NONBLOCK)
    reader.read()
    entry = f"__CURSOR=s=1\n__REALTIME_TIMESTAMP=1767225600000000\n_HOSTNAME=n9\nMESSAGE={XID}\n"
    os.write(writer, entry.encode())
    assert reader.read().samples == []
    os.write(writer, b"\n")
    (event,) = reader.read().samples
    assert event.component == "gpu:n9/0000:05:00"
    os.close(writer)
    reader.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.data())
def test_whatever_is_done_to_a_log_each_line_is_read_once_and_in_order(tmp_path: Path, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        log, number, rotations = Path(folder) / "log", 0, 0
        log.touch()
        tail, got, written = Tail(log), list[bytes](), list[bytes]()
        for step in data.draw(
            st.lists(st.sampled_from(["write", "half", "read", "rename", "copy", "restart"]), max_size=25)
        ):
            if step in ("write", "half"):
                number += 1
                line = f"line {number} {'x' * data.draw(st.integers(0, 90))}"
                written.append(line.encode())
                with log.open("ab") as file:
                    file.write(line.encode())
                    if step == "half":
                        file.flush()
                        got += tail.read()
                    file.write(b"\n")
            elif step == "read":
                got += lines_left(tail)
            elif step == "restart":
                got += lines_left(tail)
                mark = tail.mark()
                tail.close()
                tail = Tail(log, mark=mark)
            else:
                if (mark := tail.mark()) is None or mark.position == 0:
                    got += lines_left(tail)  # of a file cut short before a byte of it was read, nobody can know
                for older in range(rotations, 0, -1):
                    (Path(folder) / f"log.{older}").rename(Path(folder) / f"log.{older + 1}")
                rotations += 1
                if step == "rename":
                    got += tail.read()
                    log.rename(Path(folder) / "log.1")
                    log.touch()
                    got += lines_left(tail)
                else:
                    shutil.copy(log, Path(folder) / "log.1")
                    os.truncate(log, 0)
                    got += lines_left(tail)
        got += lines_left(tail)
        tail.close()
        assert got == written


async def test_a_line_is_published_and_a_file_that_hangs_stops_nobody_else(
    tmp_path: Path, make: Callable[[], tuple[FileReader, TurnedClock]]
) -> None:
    append(tmp_path / "a.log", "x\n")
    reader, clock = make()
    reader.close()
    neighbour = Ticking()
    async with Rig(tmp_path, reader, neighbour) as rig:
        await rig.until(lambda: neighbour.reads > 5, "it runs")
        append(tmp_path / "a.log", XID + "\n")
        await rig.until(lambda: len(rig.samples(Source.KERNEL_LOG)) == 1, "the event")
        (tmp_path / "a.log").write_bytes(b"\x00\xff garbage\n")
        clock.seconds += 5
        await rig.until(lambda: len(rig.samples(Source.KERNEL_LOG)) == 2, "the gap")
        (tmp_path / "a.log").unlink()
        clock.seconds += 5
        await rig.until(lambda: "no file matches" in rig.condition(Source.KERNEL_LOG).reason, "it is gone")
        before = neighbour.reads
        await rig.until(lambda: neighbour.reads > before + 20, "the neighbour's reads")
        append(tmp_path / "a.log", XID.replace("05:00", "06:00") + "\n")
        clock.seconds += 5
        await rig.until(lambda: rig.samples(Source.KERNEL_LOG)[-1].component == "gpu:h0/0000:06:00", "it is back")


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


def test_a_tail_is_quiet_until_its_file_changes_in_any_way(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, "one\nha")
    tail = Tail(log)
    assert not tail.is_quiet()
    assert tail.read() == [b"one"]
    assert tail.is_quiet()
    append(log, "lf\n")
    assert not tail.is_quiet()
    assert tail.read(2) == []
    assert not tail.is_quiet()
    assert tail.read() == [b"half"]
    assert tail.is_quiet()
    log.write_text("new\n")  # cut short
    assert not tail.is_quiet()
    assert tail.read() == [b"new"]
    shutil.copy(log, tmp_path / "other")
    (tmp_path / "other").replace(log)  # another file, of the same size
    assert not tail.is_quiet()
    tail.read()
    log.unlink()
    assert not tail.is_quiet()


def test_a_mark_that_never_reached_the_spool_is_offered_until_it_does(
    tmp_path: Path, make: Callable[[], tuple[FileReader, TurnedClock]]
) -> None:
    append(tmp_path / "a.log", "x\n")
    reader, _ = make()
    kept(reader.read())
    append(tmp_path / "a.log", XID + "\n")
    first = reader.read()
    assert len(first.samples) == 1
    again = reader.read()  # nothing new, but the disk refused the first
    assert (again.samples, again.marks) == ([], first.marks)
    kept(again)
    assert reader.read().marks == {}
    reader.close()


def test_a_flood_is_read_in_bounded_pieces_and_the_other_files_get_their_turn(
    tmp_path: Path, make: Callable[[], tuple[FileReader, TurnedClock]]
) -> None:
    for name in ("a.log", "b.log"):
        append(tmp_path / name, "")
    reader, _ = make()
    kept(reader.read())
    append(tmp_path / "a.log", ("chatter " * 128 + "\n") * 20_000)
    append(tmp_path / "b.log", XID + "\n")
    reading = kept(reader.read())
    assert [each.component for each in reading.samples] == ["gpu:h0/0000:05:00"]
    assert reader.interval_s < 0.1
    reads = 1
    while kept(reader.read()).marks:
        reads += 1
    assert 15 < reads < 60
    assert reader.interval_s >= 0.2
