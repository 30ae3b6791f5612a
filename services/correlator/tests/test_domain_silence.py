"""Several ranks that fall silent together: just those of one host are that host's; others take no turns in being blamed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest

from goodput_common.contracts.verdict import FaultClass, Verdict

Script = Callable[..., Any]
STALL_S = 25.0


def running(script: Script, *, without: tuple[str, ...] = ()) -> Any:
    log = script()
    log.register()
    log.beats(60, without=without)
    log.step = log.run(1, STALL_S)
    return log


def window(log: Any, rank: int, at_s: float, cpu_ms: int) -> None:
    attrs = {"pid": str(1000 + rank), "cpu": "used", "cpu_ms": str(cpu_ms), "window_ms": "1000"}
    log.state(log.host(rank), f"rank:j/{rank}", "process", "running", at_s, "process", **attrs)


def said(found: list[Verdict]) -> list[tuple[FaultClass, tuple[str, ...]]]:
    return [(v.fault_class, tuple(str(c.component) for c in v.culprits)) for v in found]


def test_ranks_of_one_host_that_fall_silent_together_are_named_as_that_host(script: Script) -> None:
    log = running(script)
    log.stand(STALL_S, 45, step=log.step, silent=(4, 5))
    last = log.verdicts(45)[-1]
    assert said([last]) == [(FaultClass.PROCESS_STALL, ("host:h2",))]
    assert last.culprit.ranks == (4, 5)
    assert last.confidence >= 0.7
    assert not last.alternatives


def test_a_host_without_a_collector_whose_ranks_are_all_silent_is_called_down(script: Script) -> None:
    log = running(script, without=("h2",))
    log.stand(STALL_S, 45, step=log.step, silent=(4, 5))
    last = log.verdicts(45)[-1]
    assert said([last]) == [(FaultClass.HOST_DOWN, ("host:h2",))]
    assert last.confidence >= 0.7


@pytest.mark.parametrize("silent", [(4, 5, 6), (3, 4)])
def test_silent_ranks_of_several_hosts_name_no_host(script: Script, silent: tuple[int, ...]) -> None:
    log = running(script)
    log.stand(STALL_S, 45, step=log.step, silent=silent)
    found = log.verdicts(45)
    assert not [where for _, named in said(found) for where in named if where.startswith("host:")]
    assert all(v.confidence < 0.7 for v in found if v.culprits)


def test_two_silent_ranks_whose_share_of_the_cpu_wavers_take_no_turns(script: Script) -> None:
    log = running(script)
    for second in range(26, 60):
        window(log, 3, second, 990 if second % 4 < 2 else 500)
        window(log, 6, second, 990 if second % 4 >= 2 else 500)
    log.stand(STALL_S, 60, step=log.step, silent=(3, 6))
    named = [where for _, where in said(log.verdicts(60)) if where]
    assert len(set(named)) <= 1


def test_of_two_silent_ranks_the_one_that_has_the_cpu_all_the_time_stays_the_likelier(script: Script) -> None:
    log = running(script)
    for second in range(26, 60):
        window(log, 3, second, 990)
        window(log, 6, second, 990 if second % 3 == 0 else 200)
    log.stand(STALL_S, 60, step=log.step, silent=(3, 6))
    named = [where for _, where in said(log.verdicts(60)) if where]
    assert set(named) == {("rank:j/3",)}


def test_reports_that_get_lost_make_nobodys_place_unknown(script: Script) -> None:
    log = running(script)
    log.stand(STALL_S, 60, step=log.step)  # all of them say that they are inside the same collective
    reports = [each for each in log.log if each.id.startswith("prog/")]
    lost = {each.id for each in reports if crc32(each.id.encode()) % 10 == 0}
    lost |= {f"prog/0/3/{second + 0.65:.2f}" for second in (37, 38, 39)}  # and of one rank three in a row
    log.log = [each for each in log.log if each.id not in lost]
    found = log.verdicts(60)
    assert said(found) == [(FaultClass.UNDETERMINED, ())]


def test_a_rank_that_says_nothing_for_longer_than_loss_explains_is_named(script: Script) -> None:
    log = running(script)
    log.stand(STALL_S, 60, step=log.step, silent=(3,))
    lost = {each.id for each in log.log if each.id.startswith("prog/") and crc32(each.id.encode()) % 10 == 0}
    log.log = [each for each in log.log if each.id not in lost]
    assert said(log.verdicts(60))[-1] == (FaultClass.PROCESS_STALL, ("rank:j/3",))
