"""Measurements are told when they move beyond their noise, and now and then."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.domain.gauges import Gauges
from goodput_common.contracts.telemetry import Gauge

AT = datetime(2026, 3, 1, tzinfo=UTC)


def gauge(value: float, name: str = "temperature_c", **attrs: str) -> Gauge:
    return Gauge(component="gpu:h0/0", name=name, observed_at=AT, value=value, attrs=attrs)


def test_a_measurement_within_its_noise_is_told_once() -> None:
    gauges = Gauges(full_every_s=60.0)
    told = [len(gauges.of([gauge(value)], second, noise=2.0)) for second, value in enumerate([50, 51, 52, 49, 48])]
    assert told == [1, 0, 0, 0, 0]


def test_a_slow_drift_is_told_once_it_adds_up_to_more_than_the_noise() -> None:
    gauges = Gauges(full_every_s=600.0)
    told = [each.value for second in range(10) for each in gauges.of([gauge(50 + second)], second, noise=2.0)]
    assert told == [50, 53, 56, 59]


def test_each_is_told_again_at_the_full_interval() -> None:
    gauges = Gauges(full_every_s=60.0)
    assert [bool(gauges.of([gauge(50)], second, noise=2.0)) for second in (0, 59, 60, 61, 120)] == [
        True,
        False,
        True,
        False,
        True,
    ]


def test_noise_may_differ_by_name_and_is_nothing_where_none_is_given() -> None:
    gauges = Gauges(full_every_s=60.0)
    gauges.of([gauge(50), gauge(400, "power_w"), gauge(0.0, "share")], 0, noise={"power_w": 10})
    told = gauges.of([gauge(51), gauge(405, "power_w"), gauge(0.0, "share")], 1, noise={"power_w": 10})
    assert [each.name for each in told] == ["temperature_c"]


def test_gauges_that_differ_in_an_attribute_are_two() -> None:
    gauges = Gauges(full_every_s=60.0)
    assert len(gauges.of([gauge(1, lane="0"), gauge(1, lane="1")], 0)) == 2
    assert [each.attrs for each in gauges.of([gauge(1, lane="0"), gauge(2, lane="1")], 1)] == [{"lane": "1"}]


def test_what_is_not_a_number_is_not_told_and_changes_nothing() -> None:
    gauges = Gauges(full_every_s=60.0)
    gauges.of([gauge(50)], 0)
    assert gauges.of([gauge(math.nan), gauge(math.inf)], 1) == []
    assert gauges.of([gauge(50)], 2) == []


def test_what_is_no_longer_reported_is_forgotten() -> None:
    gauges = Gauges(full_every_s=10.0)
    for second in range(100):
        gauges.of([gauge(1, lane=str(second))], second)
    assert len(gauges._told) <= 60


@given(st.lists(st.floats(allow_nan=True, width=32), max_size=50), st.floats(0, 100))
def test_what_was_told_last_is_never_further_from_the_truth_than_the_noise(values: list[float], noise: float) -> None:
    gauges = Gauges(full_every_s=1e9)
    told: float | None = None
    for second, value in enumerate(values):
        for each in gauges.of([gauge(value)], second, noise=noise):
            told = each.value
        if math.isfinite(value):
            assert told is not None
            assert abs(told - value) <= noise
