"""Reading the flight recorder: what a status costs, whose group is whose, what is missing."""

from __future__ import annotations

import json
import sys
import types
from datetime import UTC, datetime
from typing import Any

import pytest

from goodput_agent.identity import identify
from goodput_agent.recorder import RECOUNT_AFTER_S, FlightRecorder, NoFlightRecorder, where_is

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ME = identify({"RANK": "2", "WORLD_SIZE": "4"}, job="j")


def entry(pg_id: int, group: str, seq: int, *, retired: bool = True) -> dict[str, Any]:
    return {
        "record_id": seq * 10 + pg_id,
        "pg_id": pg_id,
        "process_group": [group, "undefined"],
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "op_id": seq,
        "profiling_name": "gloo:all_reduce",
        "state": "scheduled",
        "retired": retired,
        "input_sizes": [[4]],
        "output_sizes": [[4]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "time_created_ns": 1_700_000_000_000_000_000 + seq,
        "timeout_ms": 1000,
    }


class Torch:
    """The few names of torch that the recorder looks at, over a recorder that the test fills."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.status: dict[str, dict[str, str]] = {}
        self.asked: list[bool] = []
        world = types.SimpleNamespace(pg_map={"g": ()}, pg_group_ranks={}, pg_names={})
        self.world = world
        bindings = types.SimpleNamespace(_dump_fr_trace_json=self._dump)
        self.modules: dict[str, Any] = {
            "torch": types.SimpleNamespace(_C=types.SimpleNamespace(_distributed_c10d=bindings)),
            "torch.distributed.distributed_c10d": types.SimpleNamespace(_world=world),
        }

    def group(self, name: str, ranks: tuple[int, ...], *, member: bool = True) -> None:
        handle = types.SimpleNamespace(group_desc="undefined") if member else object()
        key = _Key(handle)
        self.world.pg_group_ranks[key] = {rank: index for index, rank in enumerate(ranks)}
        if member:
            self.world.pg_names[key] = name

    def _dump(self, *, includeCollectives: bool) -> bytes:  # noqa: N803 - torch's name
        self.asked.append(includeCollectives)
        raw: dict[str, Any] = {"pg_config": {"": {"ranks": "[]"}}, "pg_status": self.status, "version": "2.10"}
        if includeCollectives:
            raw["entries"] = self.entries
        return json.dumps(raw).encode()


class _Key:
    def __init__(self, handle: Any) -> None:
        self.group_desc = getattr(handle, "group_desc", "")


def counts(enqueued: int, completed: int) -> dict[str, str]:
    return {
        "last_enqueued_collective": str(enqueued),
        "last_started_collective": "-1",
        "last_completed_collective": str(completed),
    }


@pytest.fixture
def torch() -> Torch:
    torch = Torch()
    torch.group("0", (0, 1, 2, 3))
    torch.group("1", (0, 1), member=False)
    torch.group("2", (2, 3))
    torch.status = {"0": counts(7, 6), "1": counts(3, 3)}
    torch.entries = [entry(0, "0", 6), entry(1, "2", 3), entry(0, "0", 7, retired=False)]
    return torch


def test_status_names_groups_as_all_members_do_and_lists_their_ranks(torch: Torch) -> None:
    groups = FlightRecorder(torch.modules).status()
    assert [(each.group, each.ranks, each.last_enqueued, each.last_completed) for each in groups] == [
        ("0", (0, 1, 2, 3), 7, 6),
        ("2", (2, 3), 3, 3),
    ]


def test_the_whole_recorder_is_read_once_a_group_and_not_every_second(torch: Torch) -> None:
    recorder = FlightRecorder(torch.modules)
    for _ in range(5):
        recorder.status()
    assert torch.asked.count(True) == 1
    torch.status["5"] = counts(1, 1)
    torch.entries.append(entry(5, "9", 1))
    assert [each.group for each in recorder.status()] == ["0", "2", "9"]
    assert torch.asked.count(True) == 2


def test_a_group_that_no_entry_names_is_left_out_and_asked_for_now_and_then(torch: Torch) -> None:
    now = [0.0]
    recorder = FlightRecorder(torch.modules, lambda: now[0])
    torch.status["8"] = counts(1, 1)
    assert [each.group for each in recorder.status()] == ["0", "2"]
    recorder.status()
    assert torch.asked.count(True) == 1
    now[0] = 60.0
    recorder.status()
    assert torch.asked.count(True) == 2


def test_sends_that_gloo_counts_as_collectives_are_left_out_as_in_a_dump(torch: Torch) -> None:
    torch.status["0"] = counts(12, 11)  # five sends among them, which leave no entry
    recorder = FlightRecorder(torch.modules)
    for _ in range(2):
        status = {each.group: (each.last_enqueued, each.last_completed) for each in recorder.status()}
        dump = recorder.record(ME, at=NOW, reason="asked", origin="").dump
        assert status == {each.group: (each.last_enqueued, each.last_completed) for each in dump.groups}
        assert status == {"0": (7, 6), "2": (3, 3)}
    torch.entries.append(entry(0, "0", 8, retired=False))
    torch.status["0"] = counts(13, 11)
    assert recorder.status()[0].last_enqueued == 8, "the counts go on"


def test_the_whole_recorder_is_read_each_time_only_while_sends_are_counted(torch: Torch) -> None:
    now = [0.0]
    recorder = FlightRecorder(torch.modules, lambda: now[0])
    recorder.status()
    torch.status["0"] = counts(12, 11)
    assert recorder.status()[0].last_enqueued == 12, "not noticed yet"
    now[0] = RECOUNT_AFTER_S
    torch.asked.clear()
    assert [recorder.status()[0].last_enqueued for _ in range(3)] == [7, 7, 7]
    assert torch.asked.count(True) == 3
    torch.status["0"] = counts(7, 6)
    recorder.status()
    torch.asked.clear()
    recorder.status()
    assert torch.asked.count(True) == 0


def test_nccls_status_is_taken_as_it_is(torch: Torch) -> None:
    torch.status["0"] = counts(12, 11)
    for each in torch.entries:
        each["profiling_name"] = "nccl:all_reduce"
    recorder = FlightRecorder(torch.modules, lambda: RECOUNT_AFTER_S * 9)
    assert recorder.status()[0].last_enqueued == 12
    recorder.status()
    assert torch.asked.count(True) == 1


def test_a_dump_that_leaves_the_process_has_the_members_that_gloo_forgot(torch: Torch) -> None:
    recording = FlightRecorder(torch.modules).record(ME, at=NOW, reason="stall", origin="here")
    assert {each.group: each.ranks for each in recording.dump.groups} == {"0": (0, 1, 2, 3), "2": (2, 3)}
    assert recording.dump.reason == "stall"
    assert set(json.loads(recording.data)["pg_config"]) == {"0", "2"}
    still_open = [each for each in recording.dump.collectives if each.state.value != "completed"]
    assert [(each.group, each.seq, each.op) for each in still_open] == [("0", 7, "all_reduce")]


def test_without_torch_there_is_no_status_and_a_reason() -> None:
    recorder = FlightRecorder({})
    assert recorder.status() == ()
    with pytest.raises(NoFlightRecorder, match="not in use"):
        recorder.record(ME, at=NOW, reason="asked", origin="")


def test_a_recorder_that_records_nothing_says_what_to_set(torch: Torch) -> None:
    torch.entries = []
    with pytest.raises(NoFlightRecorder, match="TORCH_FR_BUFFER_SIZE"):
        FlightRecorder(torch.modules).record(ME, at=NOW, reason="asked", origin="")


def test_the_agent_never_loads_torch_by_itself() -> None:
    import subprocess

    code = (
        "import goodput_agent, sys; agent = goodput_agent.attach(job='j'); agent.step_end(); print('torch' in sys.modules)"
    )
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_where_a_thread_is_is_told_by_its_own_frames() -> None:
    import threading

    collective, frames = where_is(threading.get_ident())
    assert collective == ""
    assert any(frame.endswith("in test_where_a_thread_is_is_told_by_its_own_frames") for frame in frames)
    assert where_is(0) == ("", ())


def test_the_real_recorder_of_a_real_group_is_understood(tmp_path: Any) -> None:
    pytest.importorskip("torch")
    import subprocess

    code = f"""
import os, json
os.environ.update(RANK="0", WORLD_SIZE="1", GOODPUT_HOST="h0", GOODPUT_RUN_DIR={str(tmp_path)!r})
import goodput_agent
agent = goodput_agent.attach(job="real")
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
pair = dist.new_group([0])
for step in range(5):
    with agent.step():
        dist.all_reduce(torch.ones(4))
        dist.all_reduce(torch.ones(4), group=pair)
        dist.all_reduce(torch.ones(4))
from goodput_agent.recorder import FlightRecorder
from goodput_agent.identity import identify
from datetime import datetime, UTC
recorder = FlightRecorder()
print(json.dumps([[g.group, list(g.ranks), g.last_enqueued, g.last_completed] for g in recorder.status()]))
dump = recorder.record(identify(os.environ), at=datetime.now(UTC), reason="asked", origin="x").dump
print(json.dumps([[g.group, list(g.ranks), g.last_enqueued, g.last_completed] for g in dump.groups]))
print(len(dump.collectives), dump.backend)
os._exit(0)
"""
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    status, dump, last = done.stdout.strip().splitlines()[-3:]
    assert json.loads(status) == json.loads(dump) == [["0", [0], 10, 10], ["1", [0], 5, 5]]
    assert last == "15 gloo"
