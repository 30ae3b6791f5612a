"""Dumps of any version and backend come out as one thing; what is no dump ends in one error that names the file."""

from __future__ import annotations

import datetime
import io
import json
import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_common.contracts.job import CollectiveState, FlightRecorderDump, GroupProgress
from goodput_common.flight_recorder import (
    NamedRank,
    UnreadableDump,
    looks_like_dump,
    normalise,
    own_ranks,
    parse,
    plain_pickle,  # both of its ways are compared
    rank_from_name,
    read_dump,
)
from goodput_common.flight_recorder.many import read_many
from goodput_common.flight_recorder.plain_pickle import NotPlainData, loads

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
WORLD = list(range(4))


def entry(group: str, local: int, seq: int, **more: Any) -> dict[str, Any]:
    fields = {
        "record_id": seq,
        "pg_id": local,
        "process_group": (group, "undefined"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_700_000_000_000_000_000 + seq,
        "input_sizes": [[8, 2]],
        "input_dtypes": ["Float"],
        "output_sizes": [[8, 2]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }
    return fields | more


def status(enqueued: int, completed: int) -> dict[str, int]:
    return {
        "last_enqueued_collective": enqueued,
        "last_started_collective": -1,
        "last_completed_collective": completed,
    }


def recorder(
    entries: list[dict[str, Any]], pg_status: dict[str, Any], groups: dict[str, list[int]], version: str = "2.9"
) -> dict[str, Any]:
    config = {name: {"name": name, "desc": f"desc {name}", "ranks": str(ranks)} for name, ranks in groups.items()}
    return {"version": version, "nccl_version": "2.27", "pg_config": config, "pg_status": pg_status, "entries": entries}


def read(raw: Any, rank: int = 1, **more: Any) -> FlightRecorderDump:
    return read_dump(pickle.dumps(raw, protocol=2), fabric="f", job="j", rank=rank, host="h", **more)


def group(dump: FlightRecorderDump, name: str) -> GroupProgress:
    return next(each for each in dump.groups if each.group == name)


# -- foreign bytes ---------------------------------------------------------------------------------------------------

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**100), 2**100) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@given(PLAIN, st.integers(2, pickle.HIGHEST_PROTOCOL))
def test_plain_data_comes_back_as_it_was(value: Any, protocol: int) -> None:
    assert loads(pickle.dumps(value, protocol=protocol), max_depth=100) == value


@given(st.binary(max_size=300))
def test_arbitrary_bytes_end_in_one_kind_of_error(data: bytes) -> None:
    for candidate in (data, b"\x80\x02" + data, b"\x80\x04}" + data):
        read: Any = None
        try:
            read = loads(candidate)
        except NotPlainData as refused:
            assert str(refused)
        assert only_plain(read), f"{candidate!r} became {read!r}"


def only_plain(value: Any) -> bool:
    """Whether no other types came out than data is made of."""
    if isinstance(value, dict):
        return all(only_plain(each) for pair in value.items() for each in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return all(only_plain(each) for each in value)
    return value is None or type(value) in (bool, int, float, str, bytes, bytearray)


@pytest.mark.parametrize("cut", range(0, 400, 7))
def test_a_truncated_dump_is_an_error_that_names_file_and_reason(cut: int) -> None:
    data = pickle.dumps(recorder([entry("0", 0, 1)], {"0": status(1, 0)}, {"0": WORLD}), protocol=2)[:cut]
    with pytest.raises(UnreadableDump) as raised:
        parse(data, origin="/dumps/rank_3")
    assert "/dumps/rank_3" in str(raised.value)
    assert raised.value.reason


class _Evil:
    def __reduce__(self) -> Any:
        return os.system, ("true",)


@pytest.mark.parametrize("value", [_Evil(), datetime.datetime(2026, 1, 1), {1, 2}, io.BytesIO, {"entries": [_Evil()]}])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_anything_but_plain_data_is_refused_before_it_is_made(value: Any, protocol: int) -> None:
    with pytest.raises(NotPlainData):
        loads(pickle.dumps(value, protocol=protocol))


def test_a_memo_of_two_billion_slots_costs_nothing() -> None:
    assert loads(b"\x80\x02]r\xff\xff\xff\x7f.") == []


def test_more_values_and_deeper_nesting_than_allowed_are_refused() -> None:
    with pytest.raises(NotPlainData, match="more values"):
        loads(pickle.dumps(list(range(5000))), max_values=1000)
    deep: list[Any] = []
    for _ in range(50):
        deep = [deep]
    with pytest.raises(NotPlainData, match="deep"):
        loads(pickle.dumps(deep), max_depth=16)


def test_a_list_that_holds_itself_does_not_hang() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert len(loads(pickle.dumps(loop))) == 1


def test_a_length_that_the_file_does_not_have_is_an_error_and_not_an_allocation() -> None:
    with pytest.raises(NotPlainData, match="truncated"):
        loads(b"\x80\x04\x8d" + (2**40).to_bytes(8, "little") + b"x.")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"[1, 2]", "only plain data"),
        (b'{"a": 1}', "none of the keys"),
        (b'{"entries": 7}', "not a list"),
        (b'{"entries": [1]}', "entries\\[0\\]"),
        (pickle.dumps([1]), "holds a list"),
        (b"{" * 3000, "."),
    ],
)
def test_what_is_no_recorder_says_what_is_wrong(data: bytes, why: str) -> None:
    with pytest.raises(UnreadableDump, match=why):
        read_dump(data, fabric="f", job="j", rank=0, host="h", origin="x")


# -- NCCL ------------------------------------------------------------------------------------------------------------


def test_local_ids_are_named_by_position_where_no_entry_names_them() -> None:
    raw = recorder(
        [entry("33", 4, 9)],
        {"0": status(5, 5), "1": status(7, 6), "4": status(9, 8), "6": status(3, 3)},
        {"0": WORLD, "112": [1, 3], "2": [1, 2], "33": [0, 1]},  # keys sorted as text, as NCCL writes them
    )
    found = {each.group: (each.last_enqueued, each.last_completed, each.ranks) for each in read(raw).groups}
    assert found == {
        "0": (5, 5, (0, 1, 2, 3)),
        "2": (7, 6, (1, 2)),
        "33": (9, 8, (0, 1)),
        "112": (3, 3, (1, 3)),
    }


def test_a_gap_that_position_cannot_fill_is_left_nameless_and_unlike_any_other_rank() -> None:
    raw = recorder([entry("33", 4, 9)], {"1": status(7, 6), "4": status(9, 8)}, {"0": WORLD, "2": [1, 2], "33": [0, 1]})
    mine, other = read(raw, rank=1), read(raw, rank=2)
    nameless = [each.group for each in mine.groups if each.last_enqueued == 7]
    assert nameless == ["local:1/1"]
    assert nameless[0] not in {each.group for each in other.groups}


def test_entries_that_contradict_the_order_are_all_that_is_trusted() -> None:
    raw = recorder(
        [entry("33", 1, 9), entry("2", 4, 3)],
        {"0": status(1, 1), "1": status(9, 8), "4": status(3, 2)},
        {"0": WORLD, "2": [1, 2], "33": [0, 1]},
    )
    dump = read(raw)
    assert group(dump, "33").last_enqueued == 9
    assert group(dump, "2").last_enqueued == 3
    assert group(dump, "0").last_enqueued == -1


def test_a_dump_without_entries_still_tells_how_far_each_group_is() -> None:
    dump = read(recorder([], {"0": status(12, 11), "3": status(4, 4)}, {"0": WORLD, "7": [0, 1]}))
    assert [(each.group, each.last_enqueued, each.last_completed) for each in dump.groups] == [("0", 12, 11), ("7", 4, 4)]
    assert dump.collectives == ()


def test_without_timing_retired_is_the_sign_of_completion() -> None:
    dump = read(recorder([entry("0", 0, 1, retired=True), entry("0", 0, 2)], {"0": status(2, 1)}, {"0": WORLD}))
    assert [each.state for each in dump.collectives] == [CollectiveState.COMPLETED, CollectiveState.SCHEDULED]


def test_point_to_point_names_the_peer_by_its_global_rank_and_marks_the_counts() -> None:
    raw = recorder(
        [entry("5", 2, 26, is_p2p=True, p2p_seq_id=7, op_id=33, profiling_name="nccl:send 1->2")],
        {"2": status(7, 6)},
        {"5": [3, 5, 8]},
    )
    dump = read(raw, rank=5)
    (sent,) = dump.collectives
    assert (sent.op, sent.p2p, sent.p2p_seq, sent.peer) == ("send", True, 7, 8)
    assert group(dump, "5").p2p
    assert own_ranks(parse(pickle.dumps(raw))) == (5,)


def test_the_ranks_that_are_in_every_group_are_those_who_could_have_written_it() -> None:
    raw = recorder([], {}, {"0": WORLD, "2": [1, 2], "3": [1, 3]})
    assert own_ranks(raw) == (1,)
    assert own_ranks(recorder([], {}, {})) == ()


def test_older_formats_without_status_are_counted_from_their_entries() -> None:
    raw = recorder([entry("0", 0, 4, state="completed"), entry("0", 0, 5, state="started")], {}, {"0": WORLD}, "2.4")
    del raw["pg_status"]
    progress = group(read(raw), "0")
    assert (progress.last_enqueued, progress.last_started, progress.last_completed) == (5, 5, 4)


def test_the_newest_entries_are_kept_and_unfinished_ones_before_all() -> None:
    entries = [entry("0", 0, seq, retired=seq != 2) for seq in range(1, 101)]
    dump = read(recorder(entries, {"0": status(100, 99)}, {"0": WORLD}), keep=10)
    assert [each.seq for each in dump.collectives] == [2, *range(92, 101)]
    assert dump.truncated


def test_frames_are_the_users_own() -> None:
    frames = [
        {"name": "all_reduce", "filename": "/x/site-packages/torch/distributed/distributed_c10d.py", "line": 1},
        {"name": "step", "filename": "/home/me/train.py", "line": 41},
        {"name": "<module>", "filename": "<string>", "line": 1},
    ]
    dump = read(recorder([entry("0", 0, 1, frames=frames)], {}, {"0": WORLD}))
    assert dump.collectives[0].frames == ("train.py:41 in step",)


# -- gloo ------------------------------------------------------------------------------------------------------------


def gloo(entries: list[dict[str, Any]], pg_status: dict[str, Any], ranks: str) -> dict[str, Any]:
    for each in entries:
        each["profiling_name"] = "gloo:all_reduce"
    return {
        "version": "2.10",
        "comm_lib_version": "",
        "pg_config": {"": {"name": "", "desc": "", "ranks": ranks}},
        "pg_status": pg_status,
        "entries": entries,
    }


def test_gloo_members_are_believed_only_when_the_default_group_is_the_only_one() -> None:
    one = read(gloo([entry("0", 0, 1)], {"0": status(1, 0)}, "[0, 1, 2, 3]"))
    assert group(one, "0").ranks == (0, 1, 2, 3)
    two = read(gloo([entry("0", 0, 1), entry("7", 1, 1)], {"0": status(1, 0), "1": status(1, 0)}, "[0, 1, 2, 3]"))
    assert [each.ranks for each in two.groups] == [(), ()]
    subgroup = read(gloo([entry("0", 0, 1)], {"0": status(1, 0)}, "[2, 3]"))
    assert group(subgroup, "0").ranks == ()


def test_gloo_counts_leave_out_sends_that_only_the_status_counts() -> None:
    entries = [entry("0", 0, 1, retired=True), entry("0", 0, 2, op_id=5)]
    progress = group(read(gloo(entries, {"0": status(5, 4)}, "[0, 1]")), "0")
    assert (progress.last_enqueued, progress.last_completed) == (2, 1)


def test_json_and_pickle_give_the_same_dump() -> None:
    raw = gloo([entry("0", 0, 1, retired=True), entry("0", 0, 2)], {"0": status(2, 1)}, "[0, 1]")
    as_json = json.loads(json.dumps(raw))
    for each in as_json["entries"]:  # JSON has 0 for "not discovered" ...
        each["time_discovered_started_ns"] = each["time_discovered_completed_ns"] = 0
    for counts in as_json["pg_status"].values():  # ... and counts as text
        counts.update({key: str(value) for key, value in counts.items()})
    data = json.dumps(as_json).encode()
    assert looks_like_dump(data[:200])
    assert looks_like_dump(pickle.dumps(raw, protocol=2)[:200])
    assert read_dump(data, fabric="f", job="j", rank=1, host="h") == read(raw)


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rank_3", NamedRank(3)),
        ("_dump_3", NamedRank(3)),
        ("/some/where/rank_12.json", NamedRank(12)),
        ("nccl_trace_rank_3", NamedRank(3)),
        ("comm_lib_trace_rank_17", NamedRank(17)),
        ("nccl_trace_rank_container-node02_5", NamedRank(5, "container-node02")),
        ("node17.pci3_rank_2", NamedRank(2, "node17", True)),
        ("node17.cluster.pci3_rank_2", NamedRank(2, "node17.cluster", True)),
        ("my-prefix-8", NamedRank(8)),
        ("fault_injection.log", None),
        ("rank_x", None),
        ("rank_99999999999", None),
    ],
)
def test_the_file_name_tells_rank_and_host(name: str, expected: NamedRank | None) -> None:
    assert rank_from_name(name) == expected


# -- real dumps ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not SHARED.is_dir(), reason="the captures under ../shared are not here")
class TestRealDumps:
    def dumps(self, folder: str) -> list[tuple[int, dict[str, Any], FlightRecorderDump]]:
        found = []
        for path in sorted((SHARED / folder).glob("*")):
            named = rank_from_name(path.name)
            if named is None:
                continue
            raw = parse(path.read_bytes(), origin=str(path))
            found.append((named.rank, raw, normalise(raw, fabric="f", job="j", rank=named.rank, host="")))
        return found

    @pytest.mark.parametrize("folder", ["gpu_error_1st", "lock_gil_1st"])
    def test_every_groups_name_holds_against_the_entries_of_all_ranks(self, folder: str) -> None:
        dumps = self.dumps(f"public/nvrx-flight-recorder/{folder}")
        assert len(dumps) == 16
        for rank, raw, dump in dumps:
            assert own_ranks(raw) == (rank,)
            assert all(rank in each.ranks and not each.group.startswith("local:") for each in dump.groups)
            newest = {}
            for each in raw["entries"]:
                newest[each["process_group"][0]] = each["p2p_seq_id"] if each["is_p2p"] else each["collective_seq_id"]
            for name, seq in newest.items():
                assert group(dump, name).last_enqueued == seq

    def test_the_lagging_rank_of_an_expert_group_shows_by_its_completed_count(self) -> None:
        dumps = {rank: dump for rank, _, dump in self.dumps("public/nvrx-flight-recorder/gpu_error_1st")}
        assert group(dumps[14], "74").last_completed == 20529
        assert group(dumps[15], "74").last_completed == 20536

    def test_the_gloo_rank_that_never_joins_has_enqueued_one_less(self) -> None:
        dumps = {rank: dump for rank, _, dump in self.dumps("flight-recorder/gloo-4ranks-rank2-never-joins")}
        assert {rank: group(dump, "0").last_enqueued for rank, dump in dumps.items()} == {0: 6, 1: 6, 2: 5, 3: 6}
        assert {group(dump, "0").ranks for dump in dumps.values()} == {(0, 1, 2, 3)}


def test_the_refusal_covers_every_opcode_that_makes_an_object() -> None:
    """Only opcodes that make plain data have a step; this fails when a new Python adds one."""
    plain = {
        "MARK STOP POP POP_MARK BININT BININT1 BININT2 NONE BINFLOAT BINSTRING SHORT_BINSTRING BINUNICODE APPEND BINGET"
        " LONG_BINGET BINPUT LONG_BINPUT LIST EMPTY_LIST APPENDS DICT EMPTY_DICT SETITEM SETITEMS TUPLE EMPTY_TUPLE PROTO"
        " TUPLE1 TUPLE2 TUPLE3 NEWTRUE NEWFALSE LONG1 LONG4 BINBYTES SHORT_BINBYTES SHORT_BINUNICODE BINUNICODE8 BINBYTES8"
        " MEMOIZE FRAME"
    }
    names = set(" ".join(plain).split())
    for opcode in pickletools.opcodes:
        if opcode.name in names:
            continue
        with pytest.raises(NotPlainData):
            loads(b"\x80\x02]" + opcode.code.encode("latin-1") + b"\x01\x00\x00\x00\x00\x00\x00\x00\n\n.")


# -- the C loader sees only what is harmless ---------------------------------------------------------------------------


@given(PLAIN, st.integers(2, pickle.HIGHEST_PROTOCOL))
def test_both_ways_of_reading_give_the_same(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol=protocol)
    machine = plain_pickle._Machine(data, 10_000).run()
    at_once = plain_pickle._at_once(data, 10_000)
    assert machine == value
    assert at_once is plain_pickle._NOT_SURE or at_once == value


@pytest.mark.parametrize("size", [3, 70_000])
def test_a_recorder_as_torch_writes_it_is_read_at_once(size: int) -> None:
    raw = recorder([entry("0", 0, seq) for seq in range(50)], {"0": status(50, 49)}, {"0": list(range(size))})
    for protocol in (2, 4):
        assert plain_pickle._at_once(pickle.dumps(raw, protocol=protocol), 10_000_000) == raw


@given(st.binary(max_size=200), st.integers(0, 200))
def test_nothing_that_can_call_or_allocate_reaches_the_c_loader(noise: bytes, at: int) -> None:
    """An opcode that may make anything but data is never passed on, and neither is a pickle that ends too early."""
    for refused in plain_pickle._REFUSED:
        assert not plain_pickle._harmless(b"\x80\x02" + bytes([refused]) + noise)
    data = pickle.dumps([noise.decode("latin-1"), 1, None], protocol=2)
    cut = data[: min(at, len(data) - 1)]
    assert plain_pickle._at_once(cut, 10_000) is plain_pickle._NOT_SURE


def test_high_memo_slots_many_tuples_and_too_many_bytes_go_through_the_machine() -> None:
    assert not plain_pickle._harmless(b"\x80\x02]r\xff\xff\xff\x7f.")
    nested = b"\x80\x02)" + b"\x85" * 30_000 + b"."
    assert not plain_pickle._harmless(nested)
    assert plain_pickle._at_once(pickle.dumps(list(range(100)), protocol=2), 50) is plain_pickle._NOT_SURE
    with pytest.raises(NotPlainData):
        loads(b"\x80\x02}(" + b")" + b"\x85" * 15_000 + b"Nu.")  # a deep tuple as a key: hashed, and then refused


# -- many dumps --------------------------------------------------------------------------------------------------------


def a_long_history(rank: int) -> dict[str, Any]:
    finished = {"retired": True, "state": "completed"}
    entries = [entry("0", 0, seq, record_id=seq, **finished) for seq in range(1, 301)]
    entries += [entry("0", 0, 301 + n, record_id=301 + n) for n in range(3)]
    peer = {"is_p2p": True, "profiling_name": f"nccl:send {rank % 4}->3", "record_id": 400, "p2p_seq_id": 1}
    entries.append(entry("0", 0, 303, **peer))
    return recorder(entries, {"0": status(303, 300)}, {"0": WORLD})


def test_heads_are_the_first_open_entry_of_each_lane_and_the_last_finished_ones() -> None:
    dump = read(a_long_history(1), heads=True)
    assert [(each.seq, each.p2p, each.state.value) for each in dump.collectives] == [
        (299, False, "completed"),
        (300, False, "completed"),
        (301, False, "scheduled"),
        (303, True, "scheduled"),
    ]
    assert dump.truncated
    assert dump.groups == read(a_long_history(1)).groups


@pytest.mark.parametrize("processes", [1, 2])
def test_many_dumps_come_in_order_with_the_unreadable_one_in_its_place(processes: int, tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(a_long_history(rank), protocol=2))
    (tmp_path / "rank_2").write_bytes(b"nonsense")
    paths = [*sorted(tmp_path.iterdir()), tmp_path / "rank_9"]
    found = list(read_many(paths, fabric="f", job="j", processes=processes))
    assert [each.rank if isinstance(each, FlightRecorderDump) else str(Path(each.origin).name) for each in found] == [
        0,
        1,
        "rank_2",
        3,
        "rank_9",
    ]
    dumps = [each for each in found if isinstance(each, FlightRecorderDump)]
    assert all(each.groups[0].ranks is dumps[0].groups[0].ranks for each in dumps)
    alone = read_dump(
        paths[1].read_bytes(), fabric="f", job="j", rank=1, host="", origin=str(paths[1]), reason="file", heads=True
    )
    assert dumps[1] == msgspec.structs.replace(alone, host="")


@pytest.mark.parametrize("field", ["profiling_name", "process_group", "state", "input_dtypes", "frames", "pg_id"])
def test_values_nested_without_end_in_any_field_are_no_text_and_no_crash(field: str) -> None:
    nested = b"]" * 5_000 + b"a" * 4_999  # made by hand: the standard pickler cannot write so deep a list
    data = pickle.dumps(recorder([entry("0", 0, 1, **{field: "HERE"})], {"0": status(1, 0)}, {"0": WORLD}), protocol=2)
    text = b"X\x04\x00\x00\x00HERE"
    at = data.index(text)
    memo = data[at + len(text) : at + len(text) + 2]
    data = data.replace(text + memo, nested)
    dump = read_dump(data, fabric="f", job="j", rank=1, host="h")
    assert len(dump.collectives) == 1
