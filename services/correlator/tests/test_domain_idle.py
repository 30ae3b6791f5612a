"""Hardware that fails without a job on it: one fault is one incident, however often it is told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from goodput_common.contracts.telemetry import EventName
from goodput_common.contracts.verdict import VerdictState
from goodput_correlator.domain.idle import FORGET_S
from goodput_correlator.domain.incidents import Incidents

Script = Callable[..., Any]
HOSTS = {0: "h0", 1: "h4", 2: "h2", 3: "h3"}


def test_an_idle_gpu_that_repeats_its_error_is_one_incident(script: Script) -> None:
    log = script()
    for minute in range(6):
        log.xid("h1", "0000:1b:00", 119, 10 + 60 * minute)
    assert len({v.incident for v in log.verdicts(400)}) == 1


def test_a_gpu_that_stopped_a_job_is_not_named_again_once_the_job_runs_elsewhere(script: Script) -> None:
    log = script()
    log.register()
    step = log.run(1, 25)
    log.xid("h1", "0000:1b:00", 79, 25.2, impact="reboot")
    log.stand(25, 40, step=step, joined={2: step * 4 + 2})
    log.host = lambda rank: HOSTS[rank // 2]
    log.register(at_s=41, generation=1)
    log.run(42, 60, first_step=step - 5, generation=1)
    log.xid("h1", "0000:1b:00", 79, 61, impact="reboot")
    found = log.verdicts(75)
    assert {v.job for v in found} == {"j"}
    assert found[-1].state is VerdictState.RESOLVED


@pytest.mark.parametrize(("again_s", "incidents"), [(120, 1), (700, 2)])
def test_the_same_error_after_a_reboot_is_a_fault_that_came_back_or_long_after_a_new_one(
    script: Script, again_s: float, incidents: int
) -> None:
    log = script()
    log.xid("h1", "0000:1b:00", 119, 10)
    log.event("host:h1", EventName.BOOT, 60, host="h1")
    log.xid("h1", "0000:1b:00", 119, again_s)
    found = log.verdicts(again_s + 20)
    assert [v.state for v in found] == [VerdictState.OPEN, VerdictState.RESOLVED, VerdictState.OPEN]
    assert len({v.incident for v in found}) == incidents
    assert len({(v.id, v.version) for v in found}) == 3


def test_a_boot_line_read_again_from_an_old_log_resolves_nothing(script: Script) -> None:
    log = script()
    log.xid("h1", "0000:1b:00", 119, 100)
    log.event("host:h1", EventName.BOOT, 5, host="h1", late_s=150.0)
    assert [v.state for v in log.verdicts(200)] == [VerdictState.OPEN]


def test_an_error_that_is_told_for_longer_than_a_day_stays_one_incident_until_it_is_quiet_for_a_day(
    script: Script, start: Any
) -> None:
    log = script()
    incidents = Incidents(log.fabric)
    hours = [0, 10, 20, 30]
    for hour in hours:
        log.xid("h1", "0000:1b:00", 119, 10 + hour * 3600)
    found = []
    for each in log.log:
        incidents.observe(each)
        incidents._judged = each.received_at.replace(microsecond=0)  # skip the quiet hours
        found += incidents.tick(each.received_at + timedelta(seconds=10))
    incidents._judged = start + timedelta(seconds=30 * 3600 + FORGET_S - 60)
    found += incidents.tick(start + timedelta(seconds=30 * 3600 + FORGET_S + 60))
    assert [v.state for v in found] == [VerdictState.OPEN, VerdictState.RESOLVED]
    assert found[-1].published_at > start + timedelta(seconds=30 * 3600 + FORGET_S)
