"""Flight-recorder files as they appear: once each content, when complete, attributed to the right job and rank."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from collector_fixtures import START, TurnedClock, kept, register

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.adapters.dumps import DumpReader
from goodput_common.contracts.telemetry import State


def recorder(ranks: str = "[0, 1, 2]", enqueued: int = 5) -> dict[str, Any]:
    return {
        "version": "2.9",
        "nccl_version": "2.27",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": enqueued,
                "last_started_collective": -1,
                "last_completed_collective": enqueued - 1,
            }
        },
        "entries": [],
    }


def write(path: Path, data: bytes, clock: TurnedClock) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    at_s = clock.now().timestamp()
    os.utime(path, (at_s, at_s))


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


def make(tmp_path: Path, clock: TurnedClock, *patterns: str) -> DumpReader:
    reader = DumpReader(
        run_dir=tmp_path / "run",
        patterns=patterns,
        fabric="f",
        host="h0",
        clock=clock,
        bookmarks=Bookmarks(tmp_path / "bookmarks", monotonic_s=clock.monotonic_s),
    )
    reader.open()
    return reader


def test_a_dump_renamed_into_the_run_directory_is_told_at_once_and_once(tmp_path: Path, clock: TurnedClock) -> None:
    register(tmp_path / "run", 2, 1, job="team/train.1")
    write(tmp_path / "run" / "dumps" / "team-train-1" / "rank_2", pickle.dumps(recorder()), clock)
    reader = make(tmp_path, clock)
    (dump,) = reader.read().dumps
    assert (dump.job, dump.rank, dump.host, dump.at, dump.reason) == ("team/train.1", 2, "h0", START, "file")
    assert dump.groups[0].last_enqueued == 5
    assert reader.read().dumps == []


def test_the_same_content_again_is_not_told_and_another_is(tmp_path: Path, clock: TurnedClock) -> None:
    path = tmp_path / "run" / "dumps" / "j" / "rank_0"
    write(path, pickle.dumps(recorder()), clock)
    reader = make(tmp_path, clock)
    assert len(reader.read().dumps) == 1
    clock.seconds = 5
    write(path, pickle.dumps(recorder()), clock)
    assert reader.read().dumps == []
    clock.seconds = 9
    write(path, pickle.dumps(recorder(enqueued=6)), clock)
    assert [dump.groups[0].last_enqueued for dump in reader.read().dumps] == [6]


def test_equal_contents_of_two_ranks_are_two_dumps(tmp_path: Path, clock: TurnedClock) -> None:
    for rank in (0, 1):
        write(tmp_path / "run" / "dumps" / "j" / f"rank_{rank}", pickle.dumps(recorder()), clock)
    assert [dump.rank for dump in make(tmp_path, clock).read().dumps] == [0, 1]


def test_a_file_elsewhere_is_read_only_when_it_has_stopped_growing(tmp_path: Path, clock: TurnedClock) -> None:
    data = pickle.dumps(recorder())
    path = tmp_path / "tmp" / "nccl_trace_rank_2"
    reader = make(tmp_path, clock, str(tmp_path / "tmp" / "nccl_trace_rank_*"))
    write(path, data[:20], clock)
    for _ in range(3):
        reading = reader.read()
        assert (list(reading.samples), list(reading.dumps)) == ([], [])
        clock.seconds += 1
        write(path, data[: 20 + int(clock.seconds)], clock)
    write(path, data, clock)
    assert reader.read().dumps == []
    clock.seconds += 2
    assert [dump.rank for dump in reader.read().dumps] == [2]


def test_an_unreadable_file_is_told_once_as_unknown_with_the_reason(tmp_path: Path, clock: TurnedClock) -> None:
    path = tmp_path / "run" / "dumps" / "j" / "rank_3"
    write(path, pickle.dumps(recorder())[:30], clock)
    reader = make(tmp_path, clock)
    reading = reader.read()
    (state,) = reading.samples
    assert isinstance(state, State)
    assert (state.component, state.name, state.value) == ("rank:j/3", "flight_recorder", "unreadable")
    assert "truncated" in state.attrs["reason"]
    assert state.attrs["path"] == str(path)
    assert reader.read().samples == []


def test_groups_that_prove_another_rank_win_over_the_name(tmp_path: Path, clock: TurnedClock) -> None:
    raw = recorder()
    raw["pg_config"]["7"] = {"name": "7", "desc": "", "ranks": "[2]"}
    write(tmp_path / "run" / "dumps" / "j" / "h0.pci3_rank_0", json.dumps(raw).encode(), clock)
    assert [dump.rank for dump in make(tmp_path, clock).read().dumps] == [2]


def test_a_dump_without_a_rank_anywhere_is_unreadable(tmp_path: Path, clock: TurnedClock) -> None:
    write(tmp_path / "run" / "dumps" / "j" / "dump", pickle.dumps(recorder()), clock)
    (state,) = make(tmp_path, clock).read().samples
    assert state.component == "host:h0"


def test_old_files_and_those_told_before_a_restart_are_left_alone(tmp_path: Path, clock: TurnedClock) -> None:
    write(tmp_path / "run" / "dumps" / "j" / "rank_0", pickle.dumps(recorder()), clock)
    clock.seconds = 7200
    assert make(tmp_path, clock).read().dumps == []
    write(tmp_path / "run" / "dumps" / "j" / "rank_1", pickle.dumps(recorder()), clock)
    assert len(kept(make(tmp_path, clock).read()).dumps) == 1  # and killed: nothing is closed
    assert make(tmp_path, clock).read().dumps == []


def test_a_dump_that_never_reached_the_spool_is_told_again(tmp_path: Path, clock: TurnedClock) -> None:
    write(tmp_path / "run" / "dumps" / "j" / "rank_1", pickle.dumps(recorder()), clock)
    reader = make(tmp_path, clock)
    assert len(reader.read().dumps) == 1  # came after its deadline
    reader.close()
    reader.open()
    assert len(kept(reader.read()).dumps) == 1
    reader.close()
    reader.open()
    assert reader.read().dumps == []


def test_a_file_whose_name_is_no_text_is_read_like_the_others(tmp_path: Path, clock: TurnedClock) -> None:
    folder = os.fsencode(tmp_path / "run" / "dumps") + b"/j\xff"
    os.makedirs(folder)  # noqa: PTH103 - of bytes
    for name in (b"/rank_0", b"/rank_1\xfe"):
        write(Path(os.fsdecode(folder + name)), pickle.dumps(recorder()), clock)
    reading = make(tmp_path, clock).read()
    assert len(reading.dumps) + len(reading.samples) == 2
    assert 0 in [dump.rank for dump in reading.dumps]
