"""The grid of quarters: who is judged between two seconds, and that the pace of a process shows nowhere."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from goodput_common.contracts.telemetry import EventName
from goodput_common.contracts.verdict import FaultClass, Verdict
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.grid import GRID, grid_floor
from goodput_correlator.domain.incidents import Incidents
from goodput_correlator.domain.judging import Judging
from goodput_correlator.domain.remembered import Remembered
from goodput_correlator.domain.timeline import JobTimeline

Script = Callable[..., Any]
ENDS_S = 40
BEFORE_S = 24.0  # nothing is wrong yet


@pytest.fixture
def log(script: Script) -> Any:
    """A job that stands still from 25 s on, and whose Xid is received at 27.13 s: it decides."""
    made = script()
    made.register()
    step = made.run(1, 25)
    made.xid("h1", "0000:1b:00", 79, 27.08, impact="reboot")
    made.stand(25, ENDS_S, step=step, joined={2: step * 4 + 2})
    return made


def encoded(verdicts: list[Verdict]) -> bytes:
    return msgspec.json.encode(verdicts)


def at_pace(
    incidents: Incidents, log: list[Observed], start: datetime, paces_s: list[float], *, from_s: float
) -> list[Verdict]:
    """As a process whose looks at its clock come at these distances, over and over: it has all that was received by then."""
    waiting, out, now_s, n = sorted(log, key=lambda each: each.order), [], from_s, 0
    while now_s < ENDS_S:
        now_s = min(ENDS_S, now_s + paces_s[n % len(paces_s)])
        n += 1
        now = start + timedelta(seconds=now_s)
        while waiting and waiting[0].received_at <= now:
            incidents.observe(waiting.pop(0))
        out += incidents.tick(now)
    return out


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    paces_s=st.lists(st.floats(0.01, 3.0), min_size=1, max_size=20),
    more_paces_s=st.lists(st.floats(0.01, 3.0), min_size=1, max_size=20),
    dies_at_quarter=st.integers(int(4 * BEFORE_S), 4 * ENDS_S - 1),
)
def test_neither_pace_nor_a_restart_at_any_quarter_changes_a_byte(
    log: Any, start: datetime, paces_s: list[float], more_paces_s: list[float], dies_at_quarter: int
) -> None:
    once = log.verdicts(ENDS_S)
    assert encoded(at_pace(Incidents(log.fabric), log.log, start, paces_s, from_s=0.0)) == encoded(once)

    died_at_s = dies_at_quarter / 4
    died_at = start + timedelta(seconds=died_at_s)
    had = [each for each in log.log if each.received_at <= died_at]
    first = Incidents(log.fabric)
    for each in had:
        first.observe(each)
    said = first.tick(died_at)
    second = Incidents(log.fabric)
    second.restore(said, had, judged=first.judged)
    later = at_pace(second, log.log, start, more_paces_s, from_s=died_at_s)
    assert encoded(said + later) == encoded(once)


def test_a_culprit_is_named_in_the_quarter_after_the_evidence_against_it(log: Any, start: datetime) -> None:
    first = log.verdicts(ENDS_S)[0]
    assert (first.fault_class, first.published_at) == (FaultClass.GPU_OFF_BUS, start + timedelta(seconds=27.25))


def test_idle_hardware_is_named_in_the_quarter_in_which_it_is_ripe(script: Script, start: datetime) -> None:
    log = script()
    log.xid("h1", "0000:1b:00", 79, 10.05, impact="reboot")  # received at 10.1 s, lines that follow are waited for 3 s
    assert [each.published_at for each in log.verdicts(20)] == [start + timedelta(seconds=13.25)]


def test_between_two_seconds_nobody_is_judged_without_need(
    log: Any, start: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[datetime] = []
    judge = Judging._job

    def counted(self: Judging, known: Remembered, job: JobTimeline, at: datetime) -> Verdict | None:
        if at.microsecond:
            looked_at.append(at)
        return judge(self, known, job, at)

    monkeypatch.setattr(Judging, "_job", counted)
    for second in range(1, 24):  # other hosts have news all the time, and it runs: none of it decides anything
        log.event("nic:h2/rail0/1", EventName.LINK_UP, second + 0.3, host="h2", source="netlink", by="netlink")
    log.verdicts(ENDS_S)
    named_at = start + timedelta(seconds=27.25)
    assert named_at in looked_at
    assert all(start + timedelta(seconds=25) < at <= named_at for at in looked_at)


def test_the_grid_is_told_in_utc_whatever_zone_a_time_is_written_in(start: datetime) -> None:
    there = (start + timedelta(seconds=7.9)).astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert grid_floor(there).isoformat() == (start + timedelta(seconds=7.75)).isoformat()
    assert grid_floor(start) == start
    assert grid_floor(start + GRID) == start + GRID
