"""Confidence as a probability: it follows the evidence, and all that are suspected share what there is of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_common.contracts.telemetry import EventName
from goodput_common.contracts.verdict import FaultClass, Verdict
from goodput_correlator.domain.calibration import (
    SUREST,
    Calibration,
    Grounds,
    Way,
    against,
    divided,
    interpolated,
    rising,
)
from goodput_correlator.domain.calibration_table import CURVES
from goodput_correlator.domain.incidents import Incidents
from goodput_correlator.domain.ranking import NAMED_MIN

Script = Callable[..., Any]
STALL_S = 30.0
KNOTS = ((0.2, 0.1), (0.8, 0.7), (0.9, 0.95))
SCORES = st.floats(0.0, 1.0)


def grounds(raw: float, way: Way = Way.DECISIVE, bound: float = 1.0) -> Grounds:
    return Grounds(way=way, raw=raw, bound=bound)


@pytest.mark.parametrize("name", CURVES)
def test_the_table_rises_and_is_never_certain(name: str) -> None:
    assert rising(CURVES[name])
    assert CURVES[name][-1][1] <= SUREST


@given(st.sampled_from(list(Way)), SCORES, SCORES)
def test_with_less_evidence_confidence_is_never_higher(way: Way, one: float, other: float) -> None:
    less, more = sorted((one, other))
    calibration = Calibration(CURVES)
    assert calibration.probability(grounds(less, way)) <= calibration.probability(grounds(more, way)) <= SUREST


@given(SCORES)
def test_what_is_not_decisive_is_never_surer_than_what_is(raw: float) -> None:
    calibration = Calibration(CURVES)
    indirect, decisive = (calibration.probability(grounds(raw, way)) for way in (Way.INDIRECT, Way.DECISIVE))
    assert indirect <= decisive + 1e-3


@given(SCORES, st.floats(0.0, 1e-3))
def test_a_little_more_evidence_makes_a_little_difference(raw: float, more: float) -> None:
    steepest = max((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in pairwise(KNOTS))
    assert interpolated(KNOTS, min(1.0, raw + more)) - interpolated(KNOTS, raw) <= steepest * more + 1e-9


def test_a_way_on_which_nothing_was_counted_keeps_its_score() -> None:
    assert Calibration({}).probability(grounds(0.6)) == 0.6


@pytest.mark.parametrize("knots", [((0.5, 0.6), (0.6, 0.5)), ((0.5, 0.5), (0.5, 0.6)), ((0.5, 1.5),)])
def test_a_curve_that_falls_or_leaves_the_square_is_refused(knots: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ValueError, match="fit_confidence"):
        Calibration({"decisive": knots})


@given(st.floats(0.01, 1.0))
def test_of_two_that_are_equally_likely_each_gets_a_half_at_most(score: float) -> None:
    assert against(score, [score]) == pytest.approx(0.5)
    assert Calibration({}).probability(grounds(1.0, bound=against(score, [score]))) <= 0.5 + 1e-9


@given(SCORES, st.lists(SCORES, max_size=6))
def test_runners_up_share_no_more_than_what_is_left(left: float, scores: list[float]) -> None:
    shares = divided(left, scores, 0.2)
    assert len(shares) == len(scores) and sum(shares) <= left + 1e-9
    assert [b for _, b in sorted(zip(scores, shares, strict=True))] == sorted(shares)


def lost(script: Script, *gpus: tuple[str, str]) -> Any:
    """A job of 4 hosts that stands still, with GPUs off the bus."""
    log = script()
    log.register()
    log.beats(60)
    last = log.run(1, STALL_S)
    for host, pci in gpus:
        log.xid(host, pci, 79, STALL_S + 0.2, impact="reboot")
    log.stand(STALL_S, 45, step=last)
    return log


def undetermined_below(log: Any, named_min: float) -> Verdict:
    incidents = Incidents(log.fabric)
    incidents.name_from(named_min)
    for each in log.log:
        incidents.observe(each)
    return incidents.tick(log.log[0].received_at + timedelta(seconds=50))[-1]


def test_the_culprit_and_its_alternatives_are_at_most_one_together(script: Script) -> None:
    log = lost(script, ("h1", "0000:1b:00"))
    log.event("nic:h2/rail0/1", EventName.LINK_DOWN, STALL_S + 0.4, host="h2", source="netlink", by="netlink")
    verdict = log.verdicts(45)[-1]
    assert verdict.confidence + sum(each.confidence for each in verdict.alternatives) <= 1.0 + 1e-6
    assert all(each.confidence <= verdict.confidence for each in verdict.alternatives if verdict.culprits)


def test_what_is_too_unlikely_to_be_named_is_no_likelier_as_an_alternative(script: Script) -> None:
    log = lost(script, ("h1", "0000:1b:00"))
    named = log.verdicts(45)[-1]
    (rival,) = [each for each in undetermined_below(log, 1.0).alternatives if each.component == named.culprit.component]
    assert rival.confidence <= named.confidence


def test_a_verdict_below_the_threshold_of_the_service_is_undetermined_and_still_lists_who_it_may_be(script: Script) -> None:
    log = lost(script, ("h1", "0000:1b:00"))
    named = log.verdicts(45)[-1]
    assert named.culprits and named.confidence > NAMED_MIN
    strict = undetermined_below(log, 1.0)
    assert strict.fault_class is FaultClass.UNDETERMINED and not strict.culprits
    assert named.culprit.component in {each.component for each in strict.alternatives}
    assert strict.confidence <= 1.0 - max(each.confidence for each in strict.alternatives) + 1e-6
