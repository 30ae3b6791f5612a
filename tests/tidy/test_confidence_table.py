"""The correlator's table of confidence is what the rows beside the benchmarks' results give, and the fit keeps its word."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import fit_confidence  # noqa: E402
from _attribution import Said, reliability  # noqa: E402
from _confidence import COLUMNS, Row, curve, fitted, isotonic, rows_of, under  # noqa: E402

from goodput_correlator.domain.calibration import SUREST, interpolated, rising  # noqa: E402


def row(raw: float, right: bool, way: str = "decisive") -> Row:
    return Row(
        incident=1, topology="t", kind="k", way=way, trouble="stalled", raw=raw, bound=1.0, silent=0.0, unseen=0, share=1.0,
        right=right,
    )  # fmt: skip


def test_the_table_is_what_its_rows_give() -> None:
    lines = fit_confidence.ROWS.read_text().splitlines()
    rows = rows_of(lines, str(fit_confidence.ROWS))
    table = fit_confidence.table(fitted(rows), lines[0].lstrip("# "), len(rows))
    assert table == fit_confidence.TABLE.read_text(), "run python bench/fit_confidence.py"


def test_what_falls_is_pooled_into_one_knot() -> None:
    assert isotonic([(0.2, 0.1, 1.0), (0.4, 0.9, 1.0), (0.6, 0.5, 1.0)]) == ((0.2, 0.1), (0.5, 0.7))


def test_a_handful_of_right_verdicts_is_no_law_and_a_thousand_are_not_certain() -> None:
    few, many = curve([row(0.5, True)] * 3), curve([row(0.9, True)] * 1000)
    assert rising(few) and 0.5 < interpolated(few, 0.5) < 0.8
    assert rising(many) and 0.95 < interpolated(many, 0.9) <= SUREST


def test_the_lower_of_two_curves_that_cross_is_below_both() -> None:
    one, other = ((0.0, 0.0), (1.0, 0.5)), ((0.0, 0.2), (1.0, 0.3))
    lower = under(one, other)
    for raw in (0.0, 0.25, 0.5, 0.75, 1.0):
        assert interpolated(lower, raw) == pytest.approx(min(interpolated(one, raw), interpolated(other, raw)), abs=1e-3)


def test_rows_come_back_as_they_were_written_and_a_bad_one_is_named() -> None:
    written = [",".join(COLUMNS), row(0.5, True).text(), row(0.7, False, "nobody").text()]
    assert rows_of(written, "f") == [row(0.5, True), row(0.7, False, "nobody")]
    with pytest.raises(SystemExit, match="f:2"):
        rows_of([written[0], "1,t,k,decisive"], "f")


def test_reliability_tells_how_far_what_was_said_is_from_what_was_true() -> None:
    found = reliability([Said(0.9, True), Said(0.9, False), Said(0.2, False)])
    assert found["n"] == 3 and found["bins"]["0.9"] == {"n": 2, "said": 0.9, "right": 0.5}
    assert found["ece"] == pytest.approx((2 * 0.4 + 0.2) / 3, abs=1e-3)
    assert found["brier"] == pytest.approx((0.01 + 0.81 + 0.04) / 3, abs=1e-3)
    assert reliability([])["n"] == 0
