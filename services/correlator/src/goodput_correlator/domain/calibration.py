"""From how strong the evidence is to how likely the verdict is right.

Engines score their findings on evidence alone, and their scores are ordered well (more evidence, higher score) without being
probabilities: of a hundred findings that score 0.85, more than 85 may be right. How many are, was counted on simulated
incidents of the fit split (`bench/fit_confidence.py`); `calibration_table` holds the result, one curve for each way to be
sure:

    decisive     somebody is named by evidence that tells a fault from a pause at once (an Xid 79, a link that is down)
    indirect     somebody is named by what ranks do and leave undone
    idle         hardware that failed where no job runs
    application  no hardware is at fault
    nobody       undetermined: no component can be named

A curve rises from (0, 0), straight from knot to knot, and ends below `SUREST`: nothing that was counted is certain. So with
less evidence, which scores lower, confidence is never higher. Where little was counted, the score itself stands for the
frequency (the prior of the fit), and `indirect` never lies above `decisive`: evidence that ceases to be decisive lowers
confidence, whatever was counted.

How far apart two suspects are is no matter of the curve. `against` bounds the probability by how much better the first is
than the others: two that are equally likely get a half each, however strong the evidence for both.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from goodput_common.contracts.verdict import Trouble
from goodput_correlator.domain.calibration_table import CURVES

SUREST = 0.99
LEAST_DOUBT = 0.02  # no finding is taken to be more certain than this leaves, when it is held against another

Knots = tuple[tuple[float, float], ...]


class Way(enum.StrEnum):
    """What a verdict's certainty is of, and what it rests on: each has a curve of its own."""

    DECISIVE = "decisive"
    INDIRECT = "indirect"
    IDLE = "idle"
    APPLICATION = "application"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounds:
    """What a verdict's confidence is made from. `raw` is the engine's score after its share of the odds, `bound` what the
    others leave (see `against`); the rest is recorded with it, so that the fit can show whether anything is left in it."""

    way: Way
    raw: float
    bound: float = 1.0
    trouble: Trouble = Trouble.STALLED
    silent_share: float = 0.0  # of the job's hosts: collectors that are not heard
    unseen: int = 0  # sources that could not be looked at


class Calibration:
    """Curves by `Way`; a way without one keeps its score, and one that leaves the unit square is refused."""

    def __init__(self, curves: Mapping[str, Knots]) -> None:
        for name, knots in curves.items():
            if not rising(knots):
                raise ValueError(f"calibration curve {name!r} does not rise within 0..1: run bench/fit_confidence.py")
        self._curves = {Way(name): _whole(knots) for name, knots in curves.items()}

    def probability(self, grounds: Grounds) -> float:
        """How likely it is that the verdict is right."""
        knots = self._curves.get(grounds.way)
        p = grounds.raw if knots is None else interpolated(knots, grounds.raw)
        return min(SUREST, p, grounds.bound)


def rising(knots: Knots) -> bool:
    """Whether scores rise from knot to knot and probabilities never fall, all within 0..1."""
    inside = all(0.0 <= x <= 1.0 and 0.0 <= y <= 1.0 for x, y in knots)
    return inside and all(x1 < x2 and y1 <= y2 for (x1, y1), (x2, y2) in pairwise(knots))


def _whole(knots: Knots) -> Knots:
    """From 0 to 1: nothing is known of a score of 0, and above the last knot nothing more was counted."""
    first = () if knots and knots[0][0] == 0.0 else ((0.0, 0.0),)
    last = () if knots and knots[-1][0] == 1.0 else ((1.0, knots[-1][1] if knots else SUREST),)
    return (*first, *knots, *last)


def interpolated(knots: Knots, raw: float) -> float:
    """The curve at `raw`, straight between its knots; beyond them, the first or the last."""
    at = bisect_right(knots, raw, key=lambda knot: knot[0])
    if at == 0:
        return knots[0][1]
    if at == len(knots):
        return knots[-1][1]
    (x1, y1), (x2, y2) = knots[at - 1], knots[at]
    return y1 + (y2 - y1) * (raw - x1) / (x2 - x1)


# ----------------------------------------------------------------------------------------------- one against the others


def odds(score: float) -> float:
    return score / max(LEAST_DOUBT, 1.0 - score)


def weight(score: float) -> float:
    """What a suspect weighs beside others: its odds squared. Scores are too modest, which is why there are curves; their
    differences are, too."""
    return odds(score) ** 2


def against(score: float, others: Iterable[float]) -> float:
    """At most this likely beside those others, if one of them is right: a half beside an equal."""
    mine = weight(score)
    return mine / (mine + sum(map(weight, others))) if mine else 0.0


def divided(left: float, scores: Iterable[float], unknown: float) -> tuple[float, ...]:
    """How likely the runners-up are: what the first leaves, by their weights, with a part for what no engine sees."""
    weights = [weight(score) for score in scores]
    total = sum(weights) + weight(unknown)
    return tuple(left * each / total for each in weights) if total else ()


CALIBRATION = Calibration(CURVES)
