"""From how often verdicts of a score were right to a curve that says how likely one is to be (`fit_confidence.py`).

Isotonic regression: of all curves that never fall, the one nearest to what was counted (pool adjacent violators). Its steps
become knots at their middles, with straight lines between, so that the curve rises wherever there is anything to tell. A
prior of `PRIOR` verdicts at every `PRIOR_EVERY` of the score, right as often as the score says, keeps a handful of verdicts
from being taken for a law: three right ones of three at 0.5 make 0.7 and not 1. What was counted is put together by steps of
`STEP` of the score first: nothing hangs on its third decimal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from _attribution import Said, reliability

from goodput_correlator.domain.calibration import SUREST, Calibration, Grounds, Knots, Way, interpolated

PRIOR = 4.0
PRIOR_EVERY = 0.05
STEP = 0.02
Point = tuple[float, float, float]  # score, share right, weight
COLUMNS = ("incident", "topology", "kind", "way", "trouble", "raw", "bound", "silent", "unseen", "share", "right")


@dataclass(frozen=True, slots=True)
class Row:
    """One version of one verdict. `share`: of its incident's versions, so that each incident counts as one."""

    incident: int
    topology: str
    kind: str
    way: str
    trouble: str
    raw: float
    bound: float
    silent: float
    unseen: int
    share: float
    right: bool

    def text(self) -> str:
        return ",".join(str(int(v) if isinstance(v := getattr(self, name), bool) else v) for name in COLUMNS)

    @property
    def grounds(self) -> Grounds:
        return Grounds(way=Way(self.way), raw=self.raw, bound=self.bound)


def rows_of(lines: Iterable[str], where: str) -> list[Row]:
    """Rows as `Row.text` wrote them, with a line of columns first. Raises SystemExit with the line that is none."""
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(("#", COLUMNS[0])):
            continue
        try:
            i, topology, kind, way, trouble, raw, bound, silent, unseen, share, right = line.strip().split(",")
            rows.append(
                Row(int(i), topology, kind, Way(way), trouble, float(raw), float(bound), float(silent), int(unseen),
                    float(share), right == "1")
            )  # fmt: skip
        except ValueError as error:
            raise SystemExit(f"{where}:{number}: {error}; write it anew with --count") from error
    return rows


# ------------------------------------------------------------------------------------------------------------ curves


def isotonic(points: Iterable[Point]) -> Knots:
    """Knots from points of which no two have one score: the middles of the steps that pooling leaves."""
    blocks: list[list[float]] = []  # weight, weight * score, weight * right
    for x, y, w in sorted(points):
        blocks.append([w, w * x, w * y])
        while len(blocks) > 1 and blocks[-2][2] * blocks[-1][0] >= blocks[-1][2] * blocks[-2][0]:
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    knots: list[tuple[float, float]] = []
    for weight, x, y in blocks:
        knot = (round(x / weight, 4), round(min(SUREST, y / weight), 4))
        if not knots or knot[0] > knots[-1][0]:
            knots.append(knot)
    return tuple(knots)


def curve(rows: Iterable[Row]) -> Knots:
    prior = [(PRIOR_EVERY * n, PRIOR_EVERY * n, PRIOR) for n in range(1, round(1 / PRIOR_EVERY))]
    steps: dict[int, list[Point]] = defaultdict(list)
    for point in (*prior, *((row.raw, float(row.right), row.share) for row in rows)):
        steps[round(point[0] / STEP)].append(point)
    return isotonic(_mean(some) for some in steps.values())


def _mean(points: Sequence[Point]) -> Point:
    total = sum(weight for _, _, weight in points)
    return sum(x * w for x, _, w in points) / total, sum(y * w for _, y, w in points) / total, total


def under(lower: Knots, upper: Knots) -> Knots:
    """`lower` where it lies below `upper`, else that."""
    scores = sorted({x for x, _ in (*lower, *upper)} | set(crossings(lower, upper)))
    return tuple((x, round(min(interpolated(lower, x), interpolated(upper, x)), 4)) for x in scores)


def crossings(one: Knots, other: Knots) -> Iterable[float]:
    """Where two curves meet between their knots."""
    scores = sorted({x for x, _ in (*one, *other)})
    for left, right in pairwise(scores):
        before = interpolated(one, left) - interpolated(other, left)
        after = interpolated(one, right) - interpolated(other, right)
        if before * after < 0 and left < (x := round(left + (right - left) * before / (before - after), 4)) < right:
            yield x


def fitted(rows: Sequence[Row]) -> dict[str, Knots]:
    """A curve for each way to be sure. Rows whose first suspect had an equal tell nothing of the strength of evidence."""
    curves = {way.value: curve(row for row in rows if row.way == way and row.raw <= row.bound) for way in Way}
    curves[Way.INDIRECT] = under(curves[Way.INDIRECT], curves[Way.DECISIVE])
    return curves


# ------------------------------------------------------------------------------------------------- how well it holds


def said(rows: Iterable[Row], calibration: Calibration) -> list[Said]:
    return [Said(calibration.probability(row.grounds), row.right, row.share) for row in rows]


def held_out(rows: Sequence[Row], fold_of: Callable[[Row], Any]) -> list[tuple[Row, Said]]:
    """What is said of each row by curves that were fitted without its fold."""
    folds: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        folds[fold_of(row)].append(row)
    found = []
    for name, inside in sorted(folds.items(), key=lambda each: str(each[0])):
        outside = Calibration(fitted([row for other, some in folds.items() if other != name for row in some]))
        found += list(zip(inside, said(inside, outside), strict=True))
    return found


def by(held: Iterable[tuple[Row, Said]], of: Callable[[Row], Any]) -> dict[str, dict[str, Any]]:
    """Said and true for each value of a feature that the curves do not know: where they differ, it ought to be one."""
    groups: dict[str, list[Said]] = defaultdict(list)
    for row, each in held:
        groups[str(of(row))].append(each)
    return {
        name: {key: value for key, value in reliability(some).items() if key != "bins"}
        for name, some in sorted(groups.items())
    }
