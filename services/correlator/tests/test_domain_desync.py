"""Ranks out of step with their group: who is named, how they differ, and which line of user code is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_common.contracts.job import Collective, CollectiveState, FlightRecorderDump, GroupProgress, RankProgress
from goodput_common.contracts.verdict import FaultClass
from goodput_correlator.domain.blame import analysis, cite_root
from goodput_correlator.domain.case import Case, Observed, ordered
from goodput_correlator.domain.collectives import Blame, RootKind
from goodput_correlator.domain.diagnosis import collective_desync, process_stall
from goodput_correlator.domain.roots import Odd
from goodput_topology.graph import Fabric

NOW = datetime(2026, 3, 2, tzinfo=UTC)


def call(
    seq: int,
    *,
    op: str = "all_reduce",
    size: int = 64,
    dtype: str = "Float",
    line: int = 0,
    done: bool = False,
    group: str = "0",
    peer: int | None = None,
) -> Collective:
    return Collective(
        group=group,
        seq=seq,
        op=op,
        state=CollectiveState.COMPLETED if done else CollectiveState.SCHEDULED,
        p2p=peer is not None,
        peer=peer,
        input_sizes=((size,),),
        output_sizes=((size,),),
        dtypes=(dtype,),
        frames=(f"train.py:{line} in step",) if line else (),
    )


def dump(
    rank: int, calls: Sequence[Collective], *, groups: Mapping[str, tuple[int, ...]] | None = None
) -> FlightRecorderDump:
    members = groups or {"0": (0, 1, 2, 3)}
    progress = []
    for name, ranks in members.items():
        mine = [each for each in calls if each.group == name and not each.p2p]
        finished = [each.seq for each in mine if each.state is CollectiveState.COMPLETED]
        joined = max((each.seq for each in mine), default=0)
        progress.append(
            GroupProgress(group=name, ranks=ranks, last_enqueued=joined, last_completed=max(finished, default=0))
        )
    return FlightRecorderDump(
        fabric="f", job="j", rank=rank, host="", at=NOW, backend="nccl", groups=tuple(progress), collectives=tuple(calls)
    )


def case(dumps: Iterable[FlightRecorderDump]) -> Case:
    seen = [Observed(f"dump-{d.rank}", d.host, "flight_recorder", d.at, d.at, d) for d in dumps]
    return Case(now=NOW, fabric="f", job="j", observed=ordered(seen), topology=Fabric.empty("f"), offline=True)


def blame(dumps: Iterable[FlightRecorderDump]) -> Blame:
    return analysis(case(dumps)).blame


def odd_ones(found: Blame) -> list[tuple[int, Odd | None]]:
    return sorted((root.rank, root.odd) for root in found.roots if root.kind is RootKind.MISMATCH)


@pytest.mark.parametrize(
    ("other", "how", "words"),
    [
        (call(5, op="broadcast", line=9), Odd.TYPE, "another operation"),
        (call(5, size=65, line=9), Odd.SHAPE, "another shape"),
        (call(5, dtype="Half", line=9), Odd.DTYPE, "another type of data"),
    ],
)
def test_the_odd_one_of_four_is_named_with_its_line_and_that_of_the_others(other: Collective, how: Odd, words: str) -> None:
    dumps = [dump(rank, [other if rank == 2 else call(5, line=7)]) for rank in range(4)]
    assert odd_ones(blame(dumps)) == [(2, how)]
    (finding,) = collective_desync.diagnose(case(dumps))
    assert finding.fault_class is FaultClass.COLLECTIVE_DESYNC
    assert finding.ranks == (2,)
    assert finding.score > 0.85
    assert words in finding.because
    assert "train.py:9 in step" in finding.because
    assert "train.py:7 in step" in finding.because


def test_the_rank_that_still_waits_with_another_size_where_the_others_are_through_is_a_mismatch_and_no_dead_device() -> None:
    through = [dump(rank, [call(5, done=True), call(6)]) for rank in (0, 1, 3)]
    found = blame([*through, dump(2, [call(5, size=4096), call(6)])])
    assert odd_ones(found) == [(2, Odd.SHAPE)]
    assert not [root for root in found.roots if root.kind is RootKind.BEHIND]


def test_of_two_that_differ_both_are_suspects_and_neither_is_named() -> None:
    pair = {"0": (0, 1)}
    dumps = [dump(rank, [call(5, size=64 + rank, line=7 + rank)], groups=pair) for rank in (0, 1)]
    assert odd_ones(blame(dumps)) == [(0, Odd.SHAPE), (1, Odd.SHAPE)]
    found = collective_desync.diagnose(case(dumps))
    assert {each.ranks for each in found} == {(0,), (1,)}
    assert all(each.score <= 0.5 and not each.settled for each in found)


def test_members_of_an_uneven_gather_may_bring_different_sizes_those_of_a_coalesced_one_may_not() -> None:
    def gathers(op: str, rank: int) -> Collective:
        sizes = ((2,), (4,))
        return Collective(
            group="0",
            seq=5,
            op=op,
            state=CollectiveState.SCHEDULED,
            input_sizes=((2 + 2 * (rank == 3),), (8,)) if op == "allreduce_coalesced" else (sizes[rank % 2],),
            output_sizes=sizes,
            dtypes=("Float",),
        )

    assert odd_ones(blame(dump(rank, [gathers("all_gather", rank)]) for rank in range(4))) == []
    assert odd_ones(blame(dump(rank, [gathers("allreduce_coalesced", rank)]) for rank in range(4))) == [(3, Odd.SHAPE)]


def program(
    first_line: int, count: int, *, over: int, skip: int | None = None, twice: int | None = None
) -> list[Collective]:
    """`count` calls from successive lines, one of them left out or made twice; the first `over` are finished."""
    lines = [line for line in range(first_line, first_line + count) if line != skip]
    if twice is not None:
        lines.insert(lines.index(twice), twice)
    return [call(seq, line=line, done=seq <= over) for seq, line in enumerate(lines, 1)]


def test_a_call_left_out_is_told_by_the_lines_behind_it_although_all_operations_look_alike() -> None:
    dumps = [dump(rank, program(10, 8, over=7)) for rank in (0, 1, 2)] + [dump(3, program(10, 8, over=7, skip=13))]
    found = blame(dumps)
    assert odd_ones(found) == [(3, Odd.MISSING)]
    (root,) = found.roots
    assert "left out all_reduce at train.py:13 in step" in root.detail


def test_a_call_made_twice_is_told_by_the_lines_behind_it() -> None:
    dumps = [dump(rank, program(10, 8, over=8)) for rank in (0, 1, 2)] + [dump(3, program(10, 8, over=8, twice=13))]
    found = blame(dumps)
    assert odd_ones(found) == [(3, Odd.EXTRA)]
    (root,) = found.roots  # what it asks the others to join is its own mistake
    assert "train.py:13" in root.detail


def test_of_two_one_place_apart_neither_can_be_told() -> None:
    pair = {"0": (0, 1)}
    missing = dump(1, program(10, 8, over=7, skip=13), groups=pair)
    found = blame([dump(0, program(10, 8, over=7), groups=pair), missing])
    assert {rank for rank, _ in odd_ones(found)} == {0, 1}
    assert all(root.certainty <= 0.5 for root in found.roots)


@given(st.lists(st.integers(1, 3), min_size=2, max_size=12), st.integers(0, 3))
def test_ranks_that_called_the_same_are_never_out_of_step(lines: list[int], slow: int) -> None:
    """Whatever the program, and wherever one of them has stopped issuing."""
    whole = [call(seq, line=line, done=seq < len(lines)) for seq, line in enumerate(lines, 1)]
    dumps = [dump(rank, whole[: len(lines) - 1] if rank == slow else whole) for rank in range(4)]
    assert odd_ones(blame(dumps)) == []


def test_a_rank_with_a_line_of_its_own_for_the_same_call_is_not_out_of_step() -> None:
    own = [call(seq, line=90 + seq, done=seq < 6) for seq in range(1, 7)]
    theirs = [call(seq, line=10 + seq, done=seq < 6) for seq in range(1, 7)]
    assert odd_ones(blame([dump(0, own), *(dump(rank, theirs) for rank in (1, 2, 3))])) == []


TWO = {"0": (0, 1, 2, 3), "1": (0, 1, 2, 3)}


def test_the_rank_that_calls_two_groups_in_another_order_is_named() -> None:
    usual = [call(3, line=5), call(8, group="1", line=6)]
    crossed = [call(8, group="1", line=6), call(3, line=5)]
    for behind in (usual[:1], usual):
        for own in (crossed[:1], crossed):
            found = blame([*(dump(rank, behind, groups=TWO) for rank in (0, 1, 2)), dump(3, own, groups=TWO)])
            assert odd_ones(found) == [(3, Odd.ORDER)]
            assert not found.unexplained
            (root,) = found.roots
            assert (root.frames, root.theirs) == (("train.py:6 in step",), ("train.py:5 in step",))


def test_of_two_that_wait_for_each_other_the_one_that_the_world_waits_for_left_a_call_out() -> None:
    pairs = {"0": (0, 1, 2, 3), "1": (0, 1), "2": (2, 3)}
    dumps = [dump(rank, [call(8, group="2" if rank > 1 else "1", done=True), call(3)], groups=pairs) for rank in (0, 1, 3)]
    skips = dump(2, [call(8, group="2", done=True), call(9, group="2")], groups=pairs)
    assert odd_ones(blame([*dumps, skips])) == [(2, Odd.ORDER)]


def test_two_that_send_to_each_other_first_are_suspects_both() -> None:
    pair = {"0": (0, 1)}
    found = blame(dump(rank, [call(0, op="send", peer=1 - rank)], groups=pair) for rank in (0, 1))
    assert odd_ones(found) == [(0, Odd.ORDER), (1, Odd.ORDER)]
    assert all(root.certainty <= 0.5 for root in found.roots)


def test_pipeline_waits_lead_through_the_stages_to_the_one_that_does_not_send() -> None:
    """Stage 3 waits to receive from 2, 2 from 1, 1 from 0; 0 is outside of any exchange."""
    stages = {"5": (0, 1, 2, 3)}
    dumps = [dump(0, [call(0, op="send", peer=1, group="5", done=True, line=4)], groups=stages)]
    dumps += [dump(stage, [call(0, op="recv", peer=stage - 1, group="5", line=8)], groups=stages) for stage in (1, 2, 3)]
    found = blame(dumps)
    assert [(root.rank, root.kind) for root in found.roots] == [(0, RootKind.NOT_JOINED)]
    assert {rank: whom for rank, (whom, _, _) in found.waits_for.items()} == {1: 0, 2: 1, 3: 2}
    (finding,) = process_stall.diagnose(case(dumps))
    assert "its last call was send at train.py:4 in step" in finding.because
    assert "rank 1 waits for it at train.py:8 in step" in finding.because


def test_a_dump_older_than_what_the_others_have_finished_is_no_position() -> None:
    """Of a run before, or taken long before the others': taken at its word, rank 3 would be what everybody waits for."""
    newer = [call(seq, done=seq < 9) for seq in range(1, 10)]
    dumps = [dump(rank, newer) for rank in (0, 1, 2)] + [dump(3, [call(seq, done=True) for seq in range(1, 4)])]
    view = analysis(case(dumps))
    assert view.standings.stale == {3}
    assert [(root.rank, root.kind) for root in view.blame.roots] == [(3, RootKind.ABSENT)]
    assert "older dump" in view.blame.roots[0].detail


def test_a_rank_that_says_nothing_of_where_it_stands_is_shown_by_its_last_word() -> None:
    waits = case([dump(rank, [call(seq, done=seq < 9) for seq in range(1, 10)]) for rank in (0, 1, 2)])
    fact = RankProgress(fabric="f", job=waits.job or "", rank=3, host="h3", seq=1, at=waits.now, step=4)
    word = Observed("word", "h3", "agent", waits.now, waits.now, fact)
    told = replace(waits, observed=ordered([*waits.observed, word]), memo={})
    (root,) = [each for each in analysis(told).blame.roots if each.rank == 3]
    assert root.kind is RootKind.ABSENT
    assert [each.component for each in cite_root(told, root) if each.event_id == "word"] == [told.rank_component(3)]
    assert all(each.event_id != "word" for each in cite_root(waits, root))


def test_where_all_have_joined_and_nothing_more_is_known_the_innermost_group_is_left_to_the_hardware() -> None:
    groups = {"0": (0, 1, 2, 3), "1": (0, 1)}
    inner = [dump(rank, [call(4, group="1"), call(2)], groups=groups) for rank in (0, 1)]
    outer = [dump(rank, [call(2)], groups={"0": (0, 1, 2, 3)}) for rank in (2, 3)]
    found = blame([*inner, *outer])
    assert found.roots == ()
    assert [each.ranks for each in found.innermost] == [(0, 1)]
    assert found.left_to_hardware == {0, 1}
    assert set(found.waits_for) == {2, 3}
