"""Jobs live several lives: what was said of an earlier process is not held against the one in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from goodput_common.contracts.telemetry import EventName
from goodput_common.contracts.verdict import VerdictState

Script = Callable[..., Any]


@pytest.mark.parametrize("told_as", ["event", "state"])
def test_a_process_stopped_in_an_earlier_life_is_not_blamed_for_a_later_stall(script: Script, told_as: str) -> None:
    log = script()
    log.register()
    step = log.run(1, 25)
    if told_as == "event":
        log.event("rank:j/3", EventName.PROCESS_STOPPED, 25.1, host="h1", source="process", pid="1003", generation="0")
    else:
        log.state("h1", "rank:j/3", "process", "T", 25.1, "process", pid="1003", generation="0")
    log.stand(25, 35, step=step, silent=(3,))
    log.register(at_s=37, generation=1)
    step = log.run(38, 100, first_step=step - 5, generation=1)
    log.stand(100, 125, step=step, silent=(6,), generation=1)
    later = [v for v in log.verdicts(125) if v.generation == 1]
    assert later
    assert all([c.component for c in v.culprits] == ["rank:j/6"] for v in later)


def test_a_second_hang_at_the_same_step_is_an_incident_of_its_own(script: Script) -> None:
    """The job is started again in the same generation, from its checkpoint, and hangs where it hung before."""
    first, again = script(), script()
    first.register()
    step = first.run(1, 25)
    first.stand(25, 45, step=step, silent=(4,))
    again.register(at_s=47)
    again.log = [
        replace(each, id=f"again/{each.id}", fact=msgspec.structs.replace(each.fact, pid=each.fact.pid + 500))
        for each in again.log
    ]
    again.run(48, 72)
    again.stand(72, 92, step=step, silent=(4,))
    first.log += again.log
    found = first.verdicts(92)
    assert [v.version for v in found if v.state is VerdictState.OPEN] == [1, 1]
    assert len({v.incident for v in found}) == 2
