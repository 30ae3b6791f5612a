"""What a straggler costs: on steps small enough to compute by hand, and on the published real traces where at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_correlator.domain.schedule import UnknownSchedule, Work
from goodput_correlator.domain.what_if import WhatIf, kinds, replica, side_by_side, stage, workers

TRACES = Path(__file__).parents[4] / "shared" / "data" / "public" / "bytedance-straggler"


def test_of_workers_side_by_side_the_slow_one_is_the_whole_reason() -> None:
    """Three take 1 s, one takes 3 s: T = 3, T_ideal = mean = 1.5, with the slow one ideal T_fixed = max(1, 1.5) = 1.5."""
    trace = side_by_side({0: [1.0], 1: [1.0], 2: [3.0], 3: [1.0]})
    assert trace.actual_s == pytest.approx(3.0)
    assert trace.ideal_s == pytest.approx(1.5)
    assert trace.slowdown == pytest.approx(2.0)
    assert trace.contribution(replica(2)) == pytest.approx(1.0)
    assert trace.contribution(replica(0)) == pytest.approx(0.0)
    assert trace.worst_workers() == ((2, 0),)


def pipeline(*, slow_stage_s: float = 2.0, step: int = 0) -> list[Work]:
    """Two stages, one replica, two microbatches, each exchange 0.5 s from the later arrival on; times made by hand.

    stage 0:  F0 0-1, send 1-1.5, F1 1-2, send 2-(4), ...       B takes 1 s
    stage 1:  recv, F0, B0, recv, F1, B1                          F and B take `slow_stage_s`
    """
    s = slow_stage_s
    f0, b0 = 1.5, 1.5 + s
    sent_back = b0 + s  # backward-send 0 begins
    f1 = max(2.5, b0 + s)
    b1 = f1 + s
    end1 = b1 + s
    back0 = max(sent_back, 1.0) + 0.5
    start_b0 = max(back0, 2.0)
    back1 = max(end1, start_b0 + 1.0) + 0.5
    return [
        Work(step, 0, 0, "forward-compute", 0, 0.0, 1.0, 0),
        Work(step, 0, 0, "forward-compute", 1, 1.0, 1.0, 0),
        Work(step, 0, 0, "forward-send", 0, 1.0, 0.5),
        Work(step, 0, 0, "forward-send", 1, 2.0, 0.5),
        Work(step, 0, 0, "backward-recv", 0, 1.0, back0 - 1.0),
        Work(step, 0, 0, "backward-compute", 0, start_b0, 1.0, 0),
        Work(step, 0, 0, "backward-recv", 1, start_b0 + 1.0, back1 - start_b0 - 1.0),
        Work(step, 0, 0, "backward-compute", 1, back1, 1.0, 0),
        Work(step, 0, 1, "forward-recv", 0, 0.0, 1.5),
        Work(step, 0, 1, "forward-compute", 0, f0, s, 0),
        Work(step, 0, 1, "backward-compute", 0, b0, s, 0),
        Work(step, 0, 1, "backward-send", 0, sent_back, 0.5),
        Work(step, 0, 1, "forward-recv", 1, 1.5, 1.0),
        Work(step, 0, 1, "forward-compute", 1, f1, s, 0),
        Work(step, 0, 1, "backward-compute", 1, b1, s, 0),
        Work(step, 0, 1, "backward-send", 1, end1, 0.5),
    ]


def test_a_slow_stage_of_a_pipeline_by_hand() -> None:
    """Stage 1 takes 2 s where stage 0 takes 1 s: F0 at 0, its exchange until 1.5, then 4 x 2 s, exchange 0.5 s, B1 1 s.

    T = 1.5 + 8 + 0.5 + 1 = 11. Ideal: each computation 1.5 s (mean of 1 and 2), so T_ideal = 1.5 + 0.5 + 6 + 0.5 + 1.5 = 10.
    Only stage 1 ideal: 1 + 0.5 + 6 + 0.5 + 1 = 9, so M = (11 - 9) / (11 - 10) = 2. Only stage 0 ideal: 1.5 + 0.5 + 8 + 0.5 +
    1.5 = 12, M = -1. Everything ideal but stage 1 is the same: S of it = 12 / 10.
    """
    trace = WhatIf(pipeline())
    assert trace.actual_s == pytest.approx(11.0)
    assert trace.ideal_s == pytest.approx(10.0)
    assert trace.slowdown == pytest.approx(1.1)
    assert trace.contribution(stage(1)) == pytest.approx(2.0)
    assert trace.contribution(stage(0)) == pytest.approx(-1.0)
    assert trace.slowdown_of(stage(1)) == pytest.approx(1.2)
    assert trace.contribution(workers((0, 1))) == trace.contribution(stage(1))
    assert trace.slowdown_of(kinds("forward-send", "forward-recv")) == pytest.approx(1.0)


def test_waiting_for_a_partner_is_not_a_stage_s_own_time() -> None:
    """The second receive of stage 1 lay open from 1.5 s on and took 0.5 s of its own, from the send at 2 s."""
    assert WhatIf(pipeline(slow_stage_s=2.0)).slowdown_of(kinds("forward-recv", "backward-recv")) == pytest.approx(1.0)


def test_a_step_that_lacks_an_operation_is_left_out() -> None:
    whole, torn = pipeline(step=0), pipeline(step=1)[:-1]
    trace = WhatIf([*whole, *torn])
    assert (trace.steps, trace.left_out) == ((0,), 1)
    assert trace.actual_s == pytest.approx(11.0)


@pytest.mark.parametrize(
    ("works", "words"),
    [
        ([], "empty"),
        ([Work(3, 0, 0, "fly", 0, 0.0, 1.0)], "'fly'"),
        ([Work(3, 0, 0, "forward-compute", 0, 0.0, 1.0, 1)], "model chunk 1"),
        ([Work(3, 0, 1, "forward-compute", 0, 0.0, 1.0)], "lacks some"),
        ([Work(3, 0, 0, "optimizer", 0, 0.0, 1.0)], "computes nothing"),
        (pipeline()[:-8], "no forward-recv"),
        ([each for each in pipeline() if each[2:5] != (0, "forward-send", 1)], "no sender"),
        ([each for each in pipeline() if each[2:5] != (0, "backward-compute", 1)], "belongs to no computation"),
    ],
)
def test_what_the_model_of_a_step_does_not_cover_is_refused_with_the_reason(works: list[Work], words: str) -> None:
    with pytest.raises(UnknownSchedule, match=words):
        WhatIf(works)


times = st.floats(0.01, 100.0)


@given(st.lists(st.lists(times, min_size=3, max_size=3), min_size=2, max_size=6))
def test_side_by_side_the_step_is_as_long_as_its_slowest_and_all_of_them_are_the_whole_reason(
    own: list[list[float]],
) -> None:
    trace = side_by_side(dict(enumerate(own)))
    assert trace.actual_s == pytest.approx(sum(max(step) for step in zip(*own, strict=True)) / 3)
    assert trace.fixed_s(lambda *_: True) == pytest.approx(trace.ideal_s)
    assert trace.fixed_s(lambda *_: False) == pytest.approx(trace.actual_s)


@pytest.mark.skipif(not TRACES.exists(), reason="the traces of ../shared are not here")
@pytest.mark.parametrize(
    ("name", "slowdown", "of_workers", "of_last_stage"),
    [("AR", 1.97305, 1.00170, -0.00121), ("ST", 1.17870, 0.03140, 1.21936)],
)
def test_published_answers_come_out(name: str, slowdown: float, of_workers: float, of_last_stage: float) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="reading the traces needs pyarrow")
    columns = ["step", "dp_rank", "stage", "optype", "seq_id", "start_ts", "duration", "mc"]
    table = parquet.read_table(TRACES / f"trace-{name}.parquet", columns=columns).to_pydict()
    trace = WhatIf(Work(*row) for row in zip(*(table[column] for column in columns), strict=True))
    assert trace.slowdown == pytest.approx(slowdown, rel=1e-4)
    assert trace.contribution(workers(*trace.worst_workers())) == pytest.approx(of_workers, rel=1e-2, abs=1e-4)
    assert trace.contribution(stage(trace.stages[-1])) == pytest.approx(of_last_stage, rel=1e-2, abs=1e-4)
