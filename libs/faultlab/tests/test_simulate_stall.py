"""Where ranks come to rest: the culprit behind, or nobody behind, or one out of step, as in real recorders."""

from __future__ import annotations

import pytest

from goodput_faultlab.simulate.layout import OPS, PER_STEP, SCHEDULE, Layout
from goodput_faultlab.simulate.recorder import recorded
from goodput_faultlab.simulate.spec import START
from goodput_faultlab.simulate.stall import Obstacle, Position, counts, settle
from goodput_topology.generate import h100_pod

FABRIC = h100_pod(hosts=4)
LAYOUT = Layout(FABRIC, "j", ("h0", "h1", "h2", "h3"), 0)
FIRST_DATA = next(n for n, op in enumerate(SCHEDULE) if op.scope == "data")


def test_without_an_obstacle_every_rank_finishes_the_step() -> None:
    assert settle(LAYOUT, Obstacle()) == [Position(OPS, OPS)] * 32


def test_groups_partition_the_job_by_host_and_by_rail() -> None:
    assert LAYOUT.group(11, "tensor").ranks == tuple(range(8, 16))
    assert LAYOUT.group(11, "data").ranks == (3, 11, 19, 27)
    assert LAYOUT.group(11, "world").ranks == tuple(range(32))
    names = {group.name for group in (LAYOUT.world, *LAYOUT.tensor, *LAYOUT.data)}
    assert len(names) == 1 + 4 + 8


@pytest.mark.parametrize("op", range(OPS))
def test_a_stuck_rank_is_the_only_one_that_has_enqueued_less(op: int) -> None:
    positions = settle(LAYOUT, Obstacle(stops_at={13: op}))
    assert {rank for rank, position in enumerate(positions) if position.enqueued < OPS} == {13}
    assert positions[13].enqueued == op
    assert all(position.completed < OPS for position in positions)


def test_a_stuck_rank_holds_its_host_before_the_others() -> None:
    positions = settle(LAYOUT, Obstacle(stops_at={13: 2}))
    assert {rank for rank, position in enumerate(positions) if position.completed == 2} == set(range(8, 16))
    assert {position.completed for rank, position in enumerate(positions) if rank not in range(8, 16)} == {FIRST_DATA}


def test_a_halted_device_leaves_all_counts_of_enqueued_work_equal() -> None:
    positions = settle(LAYOUT, Obstacle(halts_at={13: 2}))
    assert {position.enqueued for position in positions} == {OPS}
    assert positions[13].completed == 2


def test_over_a_dead_cable_one_group_never_completes_and_the_other_rails_do() -> None:
    group = LAYOUT.group(13, "data")
    positions = settle(LAYOUT, Obstacle(broken=frozenset({group.name}), broken_from=FIRST_DATA))
    assert {position.enqueued for position in positions} == {OPS}
    behind = {rank for rank, position in enumerate(positions) if position.completed == FIRST_DATA}
    assert behind == set(group.ranks)
    assert {position.completed for rank, position in enumerate(positions) if rank not in behind} == {OPS - 1}


def test_a_fault_after_the_last_collective_spares_this_step() -> None:
    assert settle(LAYOUT, Obstacle(stops_at={13: OPS})) == [Position(OPS, OPS)] * 32


def test_a_skipped_collective_shows_as_one_fewer_in_that_group_only() -> None:
    skip = FIRST_DATA + 1
    positions = settle(LAYOUT, Obstacle(skips={13: skip}))
    usual = {g.group: g.last_enqueued for g in counts(LAYOUT, 5, 10, positions[5])}
    odd = {g.group: g.last_enqueued for g in counts(LAYOUT, 13, 10, positions[13], skipped=skip)}
    group = LAYOUT.group(13, "data").name
    assert usual[group] - odd[group] == 1
    assert usual["0"] == odd["0"]


def test_counts_are_those_of_the_recorder() -> None:
    position = Position(enqueued=OPS, completed=FIRST_DATA)
    groups = {g.desc: g for g in counts(LAYOUT, 0, 7, position)}
    data = groups["DATA_PARALLEL_GROUP"]
    base = 7 * PER_STEP["data"]
    assert (data.last_completed, data.last_started, data.last_enqueued) == (base, base + 1, base + 2)
    never = {g.desc: g for g in counts(LAYOUT, 0, 0, Position(0, 0))}
    assert never["default_pg"].last_enqueued == -1


def test_a_dump_agrees_with_the_counts() -> None:
    position = Position(enqueued=OPS, completed=FIRST_DATA)
    entries = recorded(LAYOUT, 0, 7, position, at=START, step_s=0.4, skipped=None, mismatch=None, timeout_ms=600_000)
    for group in counts(LAYOUT, 0, 7, position):
        mine = [entry for entry in entries if entry.group == group.group]
        assert max(entry.seq for entry in mine) == group.last_enqueued
        assert max(entry.seq for entry in mine if entry.state.value == "completed") == group.last_completed
    assert [entry.op_id for entry in entries] == sorted(entry.op_id for entry in entries)
