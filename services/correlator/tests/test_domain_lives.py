"""Jobs live several lives: what was said of an earlier process is not held against the one in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from goodput_common.contracts.telemetry import EventName

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
