"""Finding the ranks that everybody waits for: in simulated hangs of random layouts, and in real dumps where at hand."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from goodput_common.contracts.job import Collective, CollectiveState, FlightRecorderDump, GroupProgress
from goodput_common.flight_recorder import normalise, rank_from_name, read_dump
from goodput_correlator.domain.blame import analysis
from goodput_correlator.domain.case import Case, Observed, ordered
from goodput_correlator.domain.collectives import Blame, RootKind
from goodput_faultlab.hangs import Break, Fault, Hang, Layout, random_hang, simulate
from goodput_topology.graph import Fabric

NOW = datetime(2026, 3, 2, tzinfo=UTC)
SHARED = Path(__file__).parents[4] / "shared" / "data"
GLOO = SHARED / "flight-recorder" / "gloo-4ranks-rank2-never-joins"
GPU_ERROR = SHARED / "public" / "nvrx-flight-recorder" / "gpu_error_1st"
LOCK_GIL = SHARED / "public" / "nvrx-flight-recorder" / "lock_gil_1st"
needs_shared = pytest.mark.skipif(not GLOO.exists(), reason="the captures in ../shared are not here")


def blame(dumps: Iterable[FlightRecorderDump]) -> Blame:
    seen = [Observed(f"dump-{d.rank}", d.host, "flight_recorder", d.at, d.at, d) for d in dumps]
    case = Case(now=NOW, fabric="f", job="j", observed=ordered(seen), topology=Fabric.empty("f"), offline=True)
    return analysis(case).blame


def dumps_of(hang: Hang, without: Iterable[int] = ()) -> list[FlightRecorderDump]:
    return [
        normalise(hang.raw(rank), fabric="f", job="j", rank=rank, host="", origin=f"rank_{rank}")
        for rank in range(hang.layout.world)
        if rank not in set(without)
    ]


@pytest.mark.parametrize("seed", range(30))
def test_dumps_reduced_to_their_heads_lead_to_the_same_roots(seed: int) -> None:
    rng = random.Random(3000 + seed)
    hang = random_hang(rng, kind=rng.choice(list(Break)), culprits=rng.choice((1, 2)))
    whole = dumps_of(hang)
    reduced = [
        normalise(hang.raw(rank), fabric="f", job="j", rank=rank, host="", origin=f"rank_{rank}", heads=True)
        for rank in range(hang.layout.world)
    ]
    assert sum(len(each.collectives) for each in reduced) <= sum(len(each.collectives) for each in whole)
    assert blame(reduced) == blame(whole)


def named(found: Blame, above: float = 0.5) -> set[int]:
    return {root.rank for root in found.roots if root.certainty > above}


@pytest.mark.parametrize("seed", range(60))
def test_ranks_that_stop_issuing_are_found_and_nobody_else(seed: int) -> None:
    rng = random.Random(seed)
    hang = random_hang(rng, kind=Break.HOST, culprits=rng.choice((1, 1, 2, 3)))
    found = named(blame(dumps_of(hang)))
    assert hang.culprits <= found
    assert found <= hang.culprits | hang.hidden


@pytest.mark.parametrize("seed", range(60))
def test_devices_that_stop_are_found_where_their_lag_shows_and_nobody_else_is_named(seed: int) -> None:
    rng = random.Random(1000 + seed)
    hang = random_hang(rng, kind=Break.DEVICE, culprits=rng.choice((1, 1, 2)))
    found = named(blame(dumps_of(hang)))
    assert found <= hang.culprits
    assert sum(1 for rank in hang.visible_lag if rank not in found) == 0 or _alone_in_small_groups(hang)


def _alone_in_small_groups(hang: Hang) -> bool:
    """Where all members of the one lagging collective broke, no peer is left to show the lag."""
    return len(hang.culprits) > 1 or all(len(group) <= 2 for group in hang.groups[1:])


@pytest.mark.parametrize("seed", range(60))
def test_with_a_dump_missing_culprits_stay_named_and_no_bystander_comes_above_half(seed: int) -> None:
    rng = random.Random(2000 + seed)
    hang = random_hang(rng, kind=Break.HOST, culprits=rng.choice((1, 2)))
    missing = rng.randrange(hang.layout.world)
    found = blame(dumps_of(hang, without=[missing]))
    assert named(found) <= hang.culprits | hang.hidden
    suspects = named(found, above=0.35)
    for rank in hang.culprits:
        assert rank in suspects or not _somebody_visible_waits_for(hang, rank, missing)


def _somebody_visible_waits_for(hang: Hang, rank: int, missing: int) -> bool:
    op = hang.programs[rank][hang.issued[rank]]
    partners = hang.groups[op.group] if op.peer is None else (op.peer,)
    for partner in partners:
        if partner in (rank, missing) or hang.issued[partner] == hang.done[partner]:
            continue
        head = hang.programs[partner][hang.done[partner]]
        if head.group == op.group and head.peer in (None, rank):
            return True
    return False


def test_a_missing_dump_is_the_reason_where_nothing_else_can_be() -> None:
    hang = simulate(Layout(tensor=2, pipeline=1, data=4), [Fault(rank=5, kind=Break.HOST, at=9)])
    found = blame(dumps_of(hang, without=[5]))
    assert [(root.rank, root.kind) for root in found.roots if root.certainty > 0.7] == [(5, RootKind.ABSENT)]


def test_a_dead_device_seen_at_once_leaves_its_group_held_inside_and_names_nobody() -> None:
    hang = simulate(Layout(tensor=4, pipeline=1, data=2), [Fault(rank=2, kind=Break.DEVICE, at=5, lag=0)], ahead=8)
    found = blame(dumps_of(hang))
    assert named(found) == set()
    assert [each.ranks for each in found.inside] == [(0, 1, 2, 3)]


def test_everybody_else_is_explained_by_the_rank_that_it_waits_for() -> None:
    hang = simulate(Layout(tensor=2, pipeline=2, data=2), [Fault(rank=0, kind=Break.HOST, at=12)])
    found = blame(dumps_of(hang))
    assert named(found) == {0}
    assert set(found.waits_for) == set(range(1, 8))
    assert not found.unexplained


def entry(seq: int, *, op: str = "all_reduce", size: int = 64, state: str = "scheduled", group: str = "0") -> Collective:
    return Collective(group=group, seq=seq, op=op, state=CollectiveState(state), input_sizes=((size,),), dtypes=("Float",))


def dump(
    rank: int, *, joined: int, finished: int, entries: tuple[Collective, ...] = (), started: int = -1, world: int = 4
) -> FlightRecorderDump:
    progress = GroupProgress(
        group="0", ranks=tuple(range(world)), last_enqueued=joined, last_started=started, last_completed=finished
    )
    return FlightRecorderDump(
        fabric="f", job="j", rank=rank, host="", at=NOW, backend="nccl", groups=(progress,), collectives=entries
    )


def test_the_rank_with_another_operation_at_the_same_place_is_a_mismatch() -> None:
    found = blame(
        dump(rank, joined=7, finished=6, entries=(entry(7, op="broadcast" if rank == 3 else "all_reduce"),))
        for rank in range(4)
    )
    assert [(root.rank, root.kind) for root in found.roots] == [(3, RootKind.MISMATCH)]


def test_the_rank_with_another_size_is_a_mismatch_but_ragged_operations_are_not() -> None:
    sizes = {rank: 65 if rank == 1 else 64 for rank in range(4)}
    found = blame(dump(rank, joined=7, finished=6, entries=(entry(7, size=sizes[rank]),)) for rank in range(4))
    assert named(found) == {1}
    ragged = blame(
        dump(rank, joined=7, finished=6, entries=(entry(7, op="all_to_all", size=sizes[rank]),)) for rank in range(4)
    )
    assert named(ragged) == set()


def test_two_ranks_that_disagree_are_suspects_both_and_neither_is_named() -> None:
    found = blame(dump(rank, joined=3, finished=2, entries=(entry(3, size=64 + rank),), world=2) for rank in range(2))
    assert {root.rank for root in found.roots} == {0, 1}
    assert named(found) == set()


def test_members_that_gave_up_waiting_do_not_make_the_others_look_behind() -> None:
    """gloo marks an operation that timed out as finished: with a member missing from it, it cannot have been."""
    gave_up = [dump(rank, joined=6, finished=6) for rank in (0, 1)]
    waiting = dump(3, joined=6, finished=5, entries=(entry(6),))
    never_came = dump(2, joined=5, finished=5)
    assert named(blame([*gave_up, waiting, never_came])) == {2}


def test_the_device_that_has_not_started_what_all_others_run_is_behind() -> None:
    running = [dump(rank, joined=9, finished=8, started=9, entries=(entry(9, state="started"),)) for rank in (0, 1, 3)]
    idle = dump(2, joined=9, finished=8, started=8, entries=(entry(9),))
    found = blame([*running, idle])
    assert [(root.rank, root.kind) for root in found.roots] == [(2, RootKind.BEHIND)]


def test_recorders_without_timing_say_nothing_about_started_devices() -> None:
    found = blame(dump(rank, joined=9, finished=8, entries=(entry(9),)) for rank in range(4))
    assert found.roots == ()
    assert [each.ranks for each in found.inside] == [(0, 1, 2, 3)]


def test_a_broadcast_that_its_root_has_finished_leaves_nobody_behind() -> None:
    sender = dump(0, joined=5, finished=5)
    others = [dump(rank, joined=5, finished=4, entries=(entry(5, op="broadcast"),)) for rank in (1, 2, 3)]
    assert named(blame([sender, *others])) == set()


def test_the_answer_does_not_depend_on_the_order_of_the_dumps() -> None:
    hang = random_hang(random.Random(7), kind=Break.HOST, culprits=2)
    dumps = dumps_of(hang)
    shuffled = dumps[::-1]
    assert blame(dumps) == blame(shuffled)


def folder(path: Path, without: Iterable[int] = ()) -> list[FlightRecorderDump]:
    found = []
    for file in sorted(path.iterdir()):
        name = rank_from_name(file.name)
        if name is not None and file.suffix != ".log" and name.rank not in set(without):
            found.append(read_dump(file.read_bytes(), fabric="f", job="j", rank=name.rank, host="", origin=file.name))
    return found


@needs_shared
def test_real_gloo_dumps_name_the_rank_that_never_joined() -> None:
    assert named(blame(folder(GLOO))) == {2}
    assert named(blame(folder(GLOO, without=[2]))) == {2}


@needs_shared
@pytest.mark.parametrize(("path", "truth"), [(GPU_ERROR, {12, 14}), (LOCK_GIL, {9, 14})], ids=["gpu_error", "lock_gil"])
def test_real_megatron_dumps_name_both_culprits_and_nobody_else(path: Path, truth: set[int]) -> None:
    assert named(blame(folder(path))) == truth


@needs_shared
@pytest.mark.parametrize("missing", range(16))
@pytest.mark.parametrize(("path", "truth"), [(GPU_ERROR, {12, 14}), (LOCK_GIL, {9, 14})], ids=["gpu_error", "lock_gil"])
def test_real_megatron_dumps_with_one_missing_keep_both_culprits(path: Path, truth: set[int], missing: int) -> None:
    found = blame(folder(path, without=[missing]))
    assert named(found, above=0.49) >= truth
    assert named(found) <= truth
