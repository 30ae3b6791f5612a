"""The spool: nothing lost or numbered twice over kill -9, bounded on disk, usable when the disk is not."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goodput_collector.adapters.spool import DiskSpool
from goodput_collector.adapters.spool_files import numbering
from goodput_collector.application.ports import Outgoing
from goodput_common.contracts.telemetry import CollectorHeartbeat
from goodput_common.runtime.lifecycle import StartError

AT = datetime(2026, 3, 1, tzinfo=UTC)


def message(seq: int, padding: int = 0) -> Outgoing:
    data = CollectorHeartbeat(fabric="f" * (padding + 1), host="h", boot_id="b", seq=seq, at=AT, interval_s=5.0)
    return Outgoing(subject="goodput.telemetry.f.h.heartbeat", id=f"id/{seq}", source="collector/h", time=AT, data=data)


def put(spool: DiskSpool, source: str = "a", padding: int = 0) -> int:
    seq = spool.next_seq(source)
    spool.append(message(seq, padding), source=source, seq=seq)
    return seq


def put_safely(spool: DiskSpool) -> bool:
    seq = spool.next_seq("a")
    return spool.append(message(seq), source="a", seq=seq)


def whole_body(segment: bytes) -> bytes:
    """The first record's."""
    return segment[8 : 8 + int.from_bytes(segment[:4], "little")]


def whole_record(body: bytes) -> bytes:
    return struct.pack("<II", len(body), zlib.crc32(body)) + body


def waiting(spool: DiskSpool, count: int = 10_000) -> list[str]:
    return [each.id for _, each in spool.peek(count)]


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[DiskSpool]:
    made = DiskSpool(tmp_path / "spool", boot_id="b1")
    yield made
    made.close()


def test_messages_come_out_in_the_order_in_which_they_went_in(spool: DiskSpool) -> None:
    for _ in range(5):
        put(spool)
    assert waiting(spool) == [f"id/{seq}" for seq in range(1, 6)]
    assert waiting(spool, 2) == ["id/1", "id/2"]
    assert spool.state().waiting == 5


def test_what_is_acknowledged_does_not_come_again(spool: DiskSpool) -> None:
    for _ in range(5):
        put(spool)
    positions = [position for position, _ in spool.peek(3)]
    for position in positions:
        spool.acknowledge(position)
    assert waiting(spool) == ["id/4", "id/5"]
    assert spool.state().waiting == 2


def test_a_message_comes_back_as_it_was(spool: DiskSpool) -> None:
    put(spool)
    ((_, back),) = spool.peek(1)
    assert back == message(1)


def test_after_a_restart_it_goes_on_with_messages_and_numbers(tmp_path: Path) -> None:
    first = DiskSpool(tmp_path, boot_id="b1")
    for _ in range(4):
        put(first)
    first.acknowledge(next(position for position, _ in first.peek(1)))
    first.close()
    again = DiskSpool(tmp_path, boot_id="b1")
    assert waiting(again) == ["id/2", "id/3", "id/4"]
    assert again.state().waiting == 3
    assert again.next_seq("a") == 5
    again.close()


def test_numbers_are_remembered_when_everything_has_been_sent_and_deleted(tmp_path: Path) -> None:
    first = DiskSpool(tmp_path, boot_id="b1", segment_bytes=500)
    put(first, "rare")
    for _ in range(50):
        put(first)
        for position, _ in list(first.peek(10)):
            first.acknowledge(position)
    first.close()
    again = DiskSpool(tmp_path, boot_id="b1")
    assert (again.next_seq("rare"), again.next_seq("a")) == (2, 51)
    again.close()


def test_another_boot_counts_anew_and_still_sends_what_the_last_one_left(tmp_path: Path) -> None:
    first = DiskSpool(tmp_path, boot_id="b1")
    put(first)
    first.close()
    again = DiskSpool(tmp_path, boot_id="b2")
    assert waiting(again) == ["id/1"]
    assert again.next_seq("a") == 1
    again.close()


def test_numbers_that_were_lost_within_a_boot_begin_anew_under_another_name(tmp_path: Path) -> None:
    first = numbering(tmp_path, boot_id="b1")
    spool = DiskSpool(tmp_path, boot_id=first)
    put(spool)
    spool.close()
    assert first.startswith("b1.")
    assert numbering(tmp_path, boot_id="b1") == first, "the numbers are there: they go on"
    assert numbering(tmp_path, boot_id="b2").startswith("b2."), "of an earlier boot"
    (tmp_path / "numbers").unlink()
    assert numbering(tmp_path, boot_id="b1") not in (first, "b1")


@pytest.mark.parametrize("text", ["", "{", '{"boot_id": 3}', '{"boot_id":"b10","last":{}}'])
def test_numbers_that_cannot_be_read_begin_anew_under_another_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "numbers").write_text(text)
    assert numbering(tmp_path, boot_id="b1").startswith("b1.")


def test_numbers_given_out_before_they_had_a_name_go_on(tmp_path: Path) -> None:
    spool = DiskSpool(tmp_path, boot_id="b1")
    put(spool)
    spool.close()
    assert numbering(tmp_path, boot_id="b1") == "b1"


def test_a_record_cut_short_is_cut_off_and_the_ones_before_it_stay(tmp_path: Path) -> None:
    first = DiskSpool(tmp_path, boot_id="b1")
    put(first)
    put(first)
    first.close()
    (segment,) = tmp_path.glob("*.spool")
    os.truncate(segment, segment.stat().st_size - 3)
    again = DiskSpool(tmp_path, boot_id="b1")
    assert waiting(again) == ["id/1"]
    put(again)
    assert waiting(again) == ["id/1", "id/3"]
    again.close()


def test_at_the_bound_the_oldest_go_and_are_counted(tmp_path: Path) -> None:
    spool = DiskSpool(tmp_path, boot_id="b1", bytes_max=20_000, segment_bytes=2_000)
    for _ in range(100):
        put(spool, padding=400)
    left = waiting(spool)
    assert sum(path.stat().st_size for path in tmp_path.glob("*.spool")) <= 22_000
    assert left == [f"id/{seq}" for seq in range(101 - len(left), 101)]
    assert spool.state().dropped == 100 - len(left) > 0
    assert spool.state().waiting == len(left)
    spool.close()


def test_an_acknowledgement_of_what_was_dropped_meanwhile_is_harmless(tmp_path: Path) -> None:
    spool = DiskSpool(tmp_path, boot_id="b1", bytes_max=20_000, segment_bytes=2_000)
    put(spool, padding=400)
    on_its_way = next(position for position, _ in spool.peek(1))
    for _ in range(100):
        put(spool, padding=400)
    before = waiting(spool)
    spool.acknowledge(on_its_way)
    assert waiting(spool) == before
    spool.close()


def test_a_disk_that_refuses_sends_the_newest_through_memory(spool: DiskSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    put(spool)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("goodput_collector.adapters.spool.os.write", full)
        for _ in range(300):
            put(spool)
    assert "No space left" in spool.state().trouble
    left = waiting(spool)
    assert left[0] == "id/1"
    assert left[-1] == "id/301"
    assert spool.state().dropped == 300 - (len(left) - 1)
    for position, _ in list(spool.peek(1000)):
        spool.acknowledge(position)
    assert waiting(spool) == []
    put(spool)
    assert waiting(spool) == ["id/302"]
    assert spool.state().trouble == ""


def refuse(*_: object, **__: object) -> int:
    raise OSError(24, "Too many open files")


def test_what_waited_in_memory_is_written_before_what_comes_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = DiskSpool(tmp_path, boot_id="b1")
    put(spool)
    with monkeypatch.context() as patched:
        patched.setattr("goodput_collector.adapters.spool.os.write", refuse)
        assert not put_safely(spool)
        assert not put_safely(spool)
    on_its_way = list(spool.peek(2))
    assert put_safely(spool)
    assert waiting(spool) == [f"id/{seq}" for seq in (1, 2, 3, 4)]
    for position, _ in on_its_way:  # one of them was peeked in memory and is on the disk by now
        spool.acknowledge(position)
    assert waiting(spool) == ["id/3", "id/4"]
    spool.close()
    again = DiskSpool(tmp_path, boot_id="b1")
    assert waiting(again) == ["id/3", "id/4"]
    again.close()


def test_a_segment_that_cannot_be_begun_sends_the_newest_through_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = DiskSpool(tmp_path, boot_id="b1", segment_bytes=600)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", refuse)
        for _ in range(6):
            put(spool)
        assert "Too many open files" in spool.state().trouble
        assert spool.state().waiting == 6
        assert waiting(spool, 1) == ["id/1"]
    put(spool)
    assert spool.state().trouble == ""
    assert waiting(spool) == [f"id/{seq}" for seq in range(1, 8)]
    spool.close()


def test_half_a_record_that_cannot_be_cut_off_hides_nothing_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = DiskSpool(tmp_path, boot_id="b1")
    put(spool)
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr("goodput_collector.adapters.spool.os.write", lambda fd, data: write(fd, data[:20]))
        patched.setattr("goodput_collector.adapters.spool.os.ftruncate", refuse)
        put(spool)
    put(spool)
    spool.close()
    again = DiskSpool(tmp_path, boot_id="b1")
    assert waiting(again) == ["id/1", "id/2", "id/3"]
    again.close()


def test_records_that_say_nothing_any_more_are_counted_and_passed_over(tmp_path: Path) -> None:
    spool = DiskSpool(tmp_path, boot_id="b1", segment_bytes=2000)
    for _ in range(3):
        put(spool)
    spool.close()
    (segment,) = tmp_path.glob("*.spool")
    whole = segment.read_bytes()
    strange = (
        whole_record(b"no JSON"),
        whole_record(whole_body(whole).replace(b"heartbeat.v1", b"heartbeat.v9")),
        whole_record(whole_body(whole).replace(b'"interval_s":5.0', b'"interval_s":"five"')),
        whole_record(whole_body(whole).replace(b'"time":"2026', b'"time":"when')),
    )
    segment.write_bytes(strange[0] + whole + b"".join(strange[1:]))
    again = DiskSpool(tmp_path, boot_id="b1", segment_bytes=2000)
    put(again)
    assert again.state().waiting == 8
    seen: list[str] = []
    while batch := list(again.peek(3)):
        for position, each in batch:
            seen.append(each.id)
            again.acknowledge(position)
    assert seen == ["id/1", "id/2", "id/3", "id/4"]
    assert (again.state().dropped, again.state().waiting) == (len(strange), 0)
    again.close()


def places(segment: bytes | bytearray) -> list[int]:
    """Where each record begins, and the end."""
    found = [0]
    while found[-1] < len(segment):
        found.append(found[-1] + 8 + int.from_bytes(segment[found[-1] : found[-1] + 4], "little"))
    return found


def all_of(spool: DiskSpool) -> list[str]:
    """What it sends until it has nothing more."""
    seen: list[str] = []
    while batch := list(spool.peek(3)):
        for position, each in batch:
            seen.append(each.id)
            spool.acknowledge(position)
    return seen


@pytest.mark.parametrize("byte", [0, 3, 5, 8, 20, -1], ids=["length", "huge", "checksum", "mark", "body", "end"])
@pytest.mark.parametrize("number", [1, 3, 5])
def test_one_damaged_record_costs_that_record_and_is_counted(tmp_path: Path, number: int, byte: int) -> None:
    spool = DiskSpool(tmp_path, boot_id="b1")
    for _ in range(5):
        put(spool)
    (segment,) = tmp_path.glob("*.spool")
    whole = bytearray(segment.read_bytes())
    at = places(whole)
    whole[at[number - 1] + byte if byte >= 0 else at[number] - 1] ^= 0x41
    segment.write_bytes(whole)
    spool.close()
    spool = DiskSpool(tmp_path, boot_id="b1")
    is_end = number == 5 and byte == 0  # looks as if a process had ended in mid-write: that was never said to be safe
    put(spool)
    assert all_of(spool) == [f"id/{seq}" for seq in range(1, 7) if seq != number]
    assert (spool.state().dropped, spool.state().waiting) == (0 if is_end else 1, 0)
    spool.close()


def test_a_segment_damaged_while_it_is_in_use_loses_what_was_damaged(tmp_path: Path) -> None:
    spool = DiskSpool(tmp_path, boot_id="b1")
    for _ in range(70):  # more than are in hand
        put(spool)
    (segment,) = tmp_path.glob("*.spool")
    whole = bytearray(segment.read_bytes())
    at = places(whole)
    whole[at[65] + 30 : at[67] + 30] = os.urandom(at[67] - at[65])
    segment.write_bytes(whole)
    put(spool)
    assert all_of(spool) == [f"id/{seq}" for seq in range(1, 72) if seq not in (66, 67, 68)]
    assert (spool.state().dropped, spool.state().waiting) == (3, 0)
    spool.close()


def test_a_segment_cut_short_while_it_is_in_use_loses_what_was_cut_off_and_nothing_that_comes(tmp_path: Path) -> None:
    spool = DiskSpool(tmp_path, boot_id="b1")
    for _ in range(70):
        put(spool)
    (segment,) = tmp_path.glob("*.spool")
    os.truncate(segment, places(segment.read_bytes())[66] + 11)
    assert all_of(spool) == [f"id/{seq}" for seq in range(1, 67)]
    assert (spool.state().dropped, spool.state().waiting) == (4, 0)
    put(spool)
    assert all_of(spool) == ["id/71"]
    spool.close()


@pytest.mark.parametrize("left", [0, 1, 4])
def test_a_segment_cut_short_before_the_place_that_was_sent_goes_on_with_what_comes(tmp_path: Path, left: int) -> None:
    spool = DiskSpool(tmp_path, boot_id="b1")
    for _ in range(8):
        put(spool)
    for position, _ in list(spool.peek(6)):
        spool.acknowledge(position)
    spool.close()
    (segment,) = tmp_path.glob("*.spool")
    os.truncate(segment, places(segment.read_bytes())[left])
    again = DiskSpool(tmp_path, boot_id="b1")
    put(again)
    assert 0 <= again.state().filled <= 1
    again.close()
    again = DiskSpool(tmp_path, boot_id="b1")
    assert all_of(again) == ["id/9"]
    again.close()


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_whatever_is_damaged_what_is_whole_comes_in_order_and_the_spool_goes_on(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    spool = DiskSpool(folder, boot_id="b1")
    for _ in range(8):
        put(spool)
    spool.close()
    (segment,) = folder.glob("*.spool")
    whole = segment.read_bytes()
    at = places(whole)
    begin = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.integers(begin + 1, len(whole)))
    garbage = data.draw(st.binary(max_size=80))
    segment.write_bytes(whole[:begin] + garbage + whole[end:])
    again = DiskSpool(folder, boot_id="b1")
    put(again)
    untouched = {f"id/{n}" for n in range(1, 9) if at[n] <= begin or at[n - 1] >= end} | {"id/9"}
    seen = all_of(again)
    assert seen == sorted(set(seen))
    assert untouched <= set(seen)
    assert again.state().waiting == 0
    again.close()


def test_a_place_of_sending_that_is_damaged_sends_again_and_drops_nothing(tmp_path: Path) -> None:
    spool = DiskSpool(tmp_path, boot_id="b1")
    for _ in range(3):
        put(spool)
    spool.acknowledge(next(position for position, _ in spool.peek(1)))
    spool.close()
    sent = tmp_path / "sent"
    whole = sent.read_bytes()
    for damaged in (b"\xff" * len(whole), whole[:7], b"", bytes([whole[0] ^ 2]) + whole[1:]):
        sent.write_bytes(damaged)
        again = DiskSpool(tmp_path, boot_id="b1")
        assert waiting(again) == ["id/1", "id/2", "id/3"]
        again.close()


def test_what_is_no_segment_of_it_does_not_keep_it_from_starting(tmp_path: Path) -> None:
    (tmp_path / "²²²²²²²².spool").write_bytes(b"x")
    (tmp_path / "7.spool").write_bytes(b"x")
    (tmp_path / f"{10**30}.spool").write_bytes(b"x")
    (tmp_path / "00000003.spool").mkdir()
    os.mkfifo(tmp_path / "00000009.spool")
    (tmp_path / "00000005.spool").touch()
    spool = DiskSpool(tmp_path, boot_id="b1")
    put(spool)
    assert waiting(spool) == ["id/1"]
    spool.close()
    again = DiskSpool(tmp_path, boot_id="b1")
    assert all_of(again) == ["id/1"]
    again.close()


@pytest.mark.parametrize("only", ["", "numbers", "lock", "sent", "*.spool"])
def test_a_directory_taken_away_while_it_is_in_use_is_made_again_with_its_numbers(tmp_path: Path, only: str) -> None:
    spool = DiskSpool(tmp_path / "spool", boot_id="b1")
    for _ in range(70):
        put(spool)
    if only:
        for path in (tmp_path / "spool").glob(only):
            path.unlink()
    else:
        shutil.rmtree(tmp_path / "spool")
    assert put_safely(spool)
    with pytest.raises(StartError):
        DiskSpool(tmp_path / "spool", boot_id="b1")
    spool.close()
    again = DiskSpool(tmp_path / "spool", boot_id="b1")
    assert waiting(again)[-1] == "id/71"
    assert again.next_seq("a") == 72
    again.close()


def test_a_segment_that_is_gone_is_counted_and_holds_up_nothing(tmp_path: Path) -> None:
    spool = DiskSpool(tmp_path, boot_id="b1", segment_bytes=600)
    for _ in range(100):
        put(spool)
    segments = sorted(tmp_path.glob("*.spool"))
    segments[-2].unlink()
    seen: list[str] = []
    while batch := list(spool.peek(64)):
        for position, each in batch:
            seen.append(each.id)
            spool.acknowledge(position)
    assert seen[-1] == "id/100"
    assert spool.state().dropped == 100 - len(seen) > 0
    assert spool.state().waiting == 0
    spool.close()


def test_text_that_cannot_be_encoded_is_escaped(tmp_path: Path) -> None:
    spool = DiskSpool(tmp_path, boot_id="b1")
    heartbeat = msgspec.structs.replace(message(1).data, host="log\udcff")
    odd = msgspec.structs.replace(message(1), data=heartbeat, marks={"file/\udcfe": "1:2:3"})
    assert spool.append(odd, source="a", seq=1)
    (_, now), *_ = spool.peek(1)
    spool.close()
    again = DiskSpool(tmp_path, boot_id="b1")
    ((_, later),) = again.peek(1)
    assert now.data == later.data
    assert msgspec.to_builtins(later.data)["host"] == "log%FF"
    assert again.marks == {"file/%FE": ("1:2:3", 1)}
    again.close()


def test_the_state_is_a_picture_that_another_thread_may_look_at(spool: DiskSpool) -> None:
    put(spool)
    before = spool.state()
    put(spool)
    assert (before.waiting, spool.state().waiting) == (1, 2)


def test_two_collectors_cannot_share_a_directory(tmp_path: Path) -> None:
    first = DiskSpool(tmp_path, boot_id="b1")
    with pytest.raises(StartError) as raised:
        DiskSpool(tmp_path, boot_id="b1")
    assert "GOODPUT_SPOOL_DIR" in raised.value.do_next
    first.close()
    DiskSpool(tmp_path, boot_id="b1").close()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["put", "send", "restart", "tear"]), max_size=40))
def test_whatever_happens_numbers_only_grow_and_nothing_sent_comes_again(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    spool = DiskSpool(folder, boot_id="b1", segment_bytes=600)
    given_out: list[int] = []
    sent: list[str] = []
    for step in steps:
        if step == "put":
            given_out.append(put(spool))
        elif step == "send":
            for position, each in list(spool.peek(3)):
                sent.append(each.id)
                spool.acknowledge(position)
        else:
            spool.close()
            if step == "tear":
                with (folder / f"{max(int(path.stem) for path in folder.glob('*.spool')):08d}.spool").open("ab") as file:
                    file.write(b"\x10\x00\x00\x00half")
            spool = DiskSpool(folder, boot_id="b1", segment_bytes=600)
    assert given_out == list(range(1, len(given_out) + 1))
    assert sent + waiting(spool) == [f"id/{seq}" for seq in given_out]
    spool.close()


_KILLED = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from test_spool import put
from goodput_collector.adapters.spool import DiskSpool
from goodput_collector.adapters.spool_files import numbering
spool = DiskSpool(Path(sys.argv[1]), boot_id="b1", segment_bytes=3000)
while True:
    seq = put(spool, padding=200)
    for position, _ in list(spool.peek(1)) if seq % 3 else []:
        spool.acknowledge(position)
    print(seq, flush=True)
"""


def test_kill_9_at_any_moment_neither_loses_nor_repeats_a_number(tmp_path: Path) -> None:
    last_printed = 0
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", _KILLED, str(tmp_path), str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        first = int(child.stdout.readline())
        assert last_printed < first <= last_printed + 2  # the last one may have been spooled but not printed
        for _ in range(40):
            last_printed = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split()
        last_printed = int(rest[-1]) if rest else last_printed
        child.wait()
    spool = DiskSpool(tmp_path, boot_id="b1")
    left = [int(each.removeprefix("id/")) for each in waiting(spool)]
    assert left == list(range(left[0], left[-1] + 1))
    assert left[-1] >= last_printed
    assert spool.next_seq("a") == left[-1] + 1
    spool.close()


def test_bookmarks_are_in_the_same_write_as_the_message_that_they_stand_for(tmp_path: Path) -> None:
    spool = DiskSpool(tmp_path, boot_id="b1")
    for number in (1, 2):
        spool.append(
            msgspec.structs.replace(message(number), marks={"kmsg/b1": number, "journal": f"s={number}"}),
            source="rdma",
            seq=number,
        )
    spool.close()
    again = DiskSpool(tmp_path, boot_id="b1")
    assert again.marks == {"kmsg/b1": (2, 2), "journal": ("s=2", 2)}
    again.close()


def test_what_was_just_written_is_not_read_back_and_nothing_changes_its_place(spool: DiskSpool) -> None:
    for _ in range(200):
        put(spool)
    assert waiting(spool) == [f"id/{seq}" for seq in range(1, 201)]
    seen: list[str] = []
    while batch := list(spool.peek(7)):
        for position, each in batch:
            seen.append(each.id)
            spool.acknowledge(position)
        if len(seen) == 70:
            put(spool)  # behind those that wait on the disk alone
    assert seen == [f"id/{seq}" for seq in range(1, 202)]
    assert spool.state().waiting == 0


def test_an_evicted_message_is_not_sent_from_memory_either(tmp_path: Path) -> None:
    spool = DiskSpool(tmp_path, boot_id="b1", bytes_max=8192, segment_bytes=1024)
    for _ in range(100):
        put(spool)
    left = waiting(spool)
    assert left == [f"id/{seq}" for seq in range(101 - len(left), 101)]
    assert spool.state().dropped == 100 - len(left) > 0
    spool.close()
