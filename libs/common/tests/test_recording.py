"""Recordings: what is written is read, a cut-off end is tolerated, anything else bad is named by its line."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_common.bus.ports import Message
from goodput_common.bus.recording import Recorder, RecordingError, last_sequences, read_records, to_line, write_record
from goodput_common.contracts.job import RankExited

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def message(rank: int, *, stream: str = "JOB", sequence: int | None = None) -> Message:
    return Message(
        id=f"id/{rank}",
        type="goodput.job.rank_exited.v1",
        source="goodput://test",
        subject="goodput.job.f.j.rank_exited",
        time=NOW,
        data=RankExited(fabric="f", job="j", rank=rank, host="h\n", at=NOW),
        stream=stream,
        sequence=rank if sequence is None else sequence,
        received_at=NOW,
        component=f"rank:j/{rank}",
    )


def write(path: Path, *ranks: int, tail: bytes = b"") -> Path:
    with path.open("wb") as file:
        for rank in ranks:
            write_record(file, message(rank))
        file.write(tail)
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", 1, 2, 3)
    assert list(read_records(path)) == [message(1), message(2), message(3)]


def test_a_line_has_the_documented_fields(tmp_path: Path) -> None:
    line = msgspec.json.decode(to_line(message(1)))
    assert list(line) == [
        "stream",
        "sequence",
        "received_at",
        "subject",
        "id",
        "type",
        "source",
        "time",
        "component",
        "data",
    ]
    assert line["data"]["rank"] == 1


@given(cut=st.integers(1, 200))
def test_a_cut_off_last_line_is_left_out_and_reported(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    line = to_line(message(3))
    path = write(tmp_path_factory.mktemp("cut") / "log.jsonl", 1, 2, tail=line[: min(cut, len(line) - 2)])
    warnings: list[str] = []
    assert [each.data.rank for each in read_records(path, warn=warnings.append)] == [1, 2]
    assert len(warnings) == 1
    assert f"{path}:3" in warnings[0]


def test_a_last_line_that_lacks_only_its_line_feed_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", 1, tail=to_line(message(2))[:-1])
    warnings: list[str] = []
    assert [each.data.rank for each in read_records(path, warn=warnings.append)] == [1, 2]
    assert warnings == []


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"{]\n", "not JSON"),
        (b'{"stream":"JOB"}\n', "sequence"),
        (to_line(message(2)).replace(b"rank_exited.v1", b"rank_eaten.v1"), "rank_eaten"),
        (to_line(message(2)).replace(b'"rank":2', b'"rank":"two"'), "$.rank"),
        (to_line(message(2)).replace(b"678901Z", b"678901"), "time zone"),
    ],
)
def test_a_bad_line_is_an_error_that_names_its_number(tmp_path: Path, bad: bytes, why: str) -> None:
    path = write(tmp_path / "log.jsonl", 1, tail=bad + to_line(message(3)))
    reading = read_records(path)
    assert next(reading).data.rank == 1
    with pytest.raises(RecordingError) as caught:
        next(reading)
    assert (caught.value.path, caught.value.line) == (path, 2)
    assert why in str(caught.value)


def test_a_binary_file_is_an_error_of_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(bytes(range(256)) * 100)
    with pytest.raises(RecordingError, match=":1:"):
        list(read_records(path))


def test_an_empty_file_has_no_messages(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert list(read_records(tmp_path / "empty")) == []


async def test_appending_after_a_kill_begins_a_new_line(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", 1, tail=b'{"stream":"JO')
    recorder = Recorder(path)
    await recorder.append([message(2), message(3)])
    recorder.close()
    assert [each.data.rank for each in read_records(path)] == [1, 2, 3]
    assert recorder.written == 2


def test_the_last_sequence_of_each_stream_is_found(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with path.open("wb") as file:
        for each in (message(5), message(4), message(9, stream="VERDICT")):
            write_record(file, each)
    assert last_sequences(path) == {"JOB": 5, "VERDICT": 9}
