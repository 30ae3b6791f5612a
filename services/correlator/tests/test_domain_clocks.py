"""When something happened, by the broker's clock: the error of a host's clock is in all its words alike."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from goodput_common.contracts.job import RankProgress
from goodput_common.contracts.telemetry import Event, EventName
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import CLOCK_DOUBT_S, happened_at
from goodput_topology.graph import Fabric

DELAY_S, TOLD_LATE_S = 0.1, 7.0


def told(start: datetime, fact_id: str, source: str, skew_s: float, happened_s: float, delay_s: float) -> Observed:
    at = start + timedelta(seconds=happened_s + skew_s)
    fact: RankProgress | Event
    if source == "agent":
        fact = RankProgress(fabric="f", job="j", rank=0, host="h0", seq=1, at=at)
    else:
        fact = Event(component="rank:j/0", name=EventName.PROCESS_EXITED, observed_at=at)
    return Observed(fact_id, "h0", source, at, start + timedelta(seconds=happened_s + delay_s), fact)


def case(start: datetime, *observed: Observed) -> Case:
    now = start + timedelta(seconds=60)
    return Case(now=now, fabric="f", job="j", observed=observed, topology=Fabric.empty("f"))


@pytest.mark.parametrize("skew_s", [-2.0, -0.7, 0.0, 1.9])
def test_the_error_of_a_hosts_clock_cancels_out_against_its_promptest_word(start: datetime, skew_s: float) -> None:
    word = told(start, "a", "agent", skew_s, 5.0, DELAY_S)
    end = told(start, "b", "kernel_log", skew_s, 20.0, TOLD_LATE_S)
    assert happened_at(case(start, word, end), end) == start + timedelta(seconds=20.0 + DELAY_S)


@pytest.mark.parametrize("skew_s", [-2.0, 1.9])
def test_without_another_word_of_that_host_its_clock_may_be_slow_and_nothing_happens_after_it_was_heard(
    start: datetime, skew_s: float
) -> None:
    end = told(start, "b", "kernel_log", skew_s, 20.0, TOLD_LATE_S)
    assert happened_at(case(start, end), end) == end.observed_at + timedelta(seconds=CLOCK_DOUBT_S)
    prompt = told(start, "c", "kernel_log", 1.9, 20.0, DELAY_S)
    assert happened_at(case(start, prompt), prompt) == prompt.received_at
