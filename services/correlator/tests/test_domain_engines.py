"""Each fault class on a small live job of 4 hosts x 2 ranks: who is named, how sure, how fast; and what must stay quiet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from goodput_common.contracts.job import GroupProgress
from goodput_common.contracts.telemetry import EventName, Severity
from goodput_common.contracts.verdict import ActionKind, FaultClass, Verdict, VerdictState

Script = Callable[..., Any]
STALL_S = 30.0
LINK = "link:nic:h1/rail0/1--port:leaf0/h1"


def running(script: Script) -> Any:
    """A job that has moved for 30 s and stands still from then on, once the test says how."""
    log = script()
    log.register()
    log.beats(60)
    log.last_step = log.run(1, STALL_S)
    return log


def delay_s(verdict: Verdict, log: Any) -> float:
    start = log.log[0].received_at
    return float((verdict.published_at - start).total_seconds()) - STALL_S


def the(verdicts: list[Verdict]) -> Verdict:
    assert verdicts, "no verdict"
    assert {v.id for v in verdicts} == {verdicts[0].id}, "more than one chain"
    return verdicts[-1]


def test_gpu_off_the_bus_is_named_within_seconds_and_its_rank_with_it(script: Script) -> None:
    log = running(script)
    log.xid("h1", "0000:1b:00", 79, STALL_S + 0.1, impact="reboot")
    log.stand(STALL_S, 45, step=log.last_step, joined={2: log.last_step * 4 + 2})
    found = log.verdicts(45)
    verdict = the(found)
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.GPU_OFF_BUS, "gpu:h1/0")
    assert verdict.culprit.ranks == (2,)
    assert verdict.confidence > 0.9
    assert delay_s(found[0], log) <= 3
    assert verdict.action.kind is ActionKind.SWAP_NODE
    assert any("Xid 79" in each.why for each in verdict.evidence)


def test_an_xid_79_contradicted_by_the_recorder_gives_no_sure_verdict_on_that_gpu(script: Script) -> None:
    """Everybody waits for rank 6; the GPU of rank 2 has logged an Xid two minutes before and went on working."""
    log = running(script)
    log.xid("h1", "0000:1b:00", 79, 5.0, impact="reboot")
    log.stand(STALL_S, 45, step=log.last_step, joined={6: log.last_step * 4 + 2})
    job = [v for v in log.verdicts(45) if v.job]
    assert the(job).culprit.component == "rank:j/6"


@pytest.mark.parametrize(("number", "impact"), [(48, "workflow"), (64, "reset"), (95, "reset"), (94, "app")])
def test_memory_errors_name_the_gpu(script: Script, number: int, impact: str) -> None:
    log = running(script)
    log.xid("h2", "0000:43:00", number, STALL_S + 0.2, impact=impact)
    log.stand(STALL_S, 42, step=log.last_step, joined={5: log.last_step * 4 + 2})
    verdict = the([v for v in log.verdicts(42) if v.job])
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.GPU_MEMORY, "gpu:h2/1")
    assert verdict.action.kind is ActionKind.DRAIN_AND_RESUME


def test_a_row_remap_counts_only_with_the_process_that_died_of_it(script: Script) -> None:
    log = running(script)
    log.xid("h2", "0000:43:00", 63, STALL_S + 0.1, impact="ignore")
    log.exited(5, STALL_S + 0.6, clean=False, reason="CUDA error: uncorrectable ECC error encountered")
    log.stand(STALL_S, 40, step=log.last_step, silent=(5,))
    verdict = the(log.verdicts(40))
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.GPU_MEMORY, "gpu:h2/1")
    assert any(each.component == "rank:j/5" for each in verdict.explained)


def test_nvlink_errors_name_the_gpu_that_failed_and_not_its_partner(script: Script) -> None:
    log = running(script)
    log.xid("h0", "0000:1b:00", 149, STALL_S + 0.1, unit="NETIR_LINK_EVT", fatal="true", link="8", side="local")
    log.xid("h0", "0000:43:00", 149, STALL_S + 0.1, unit="NETIR_LINK_EVT", fatal="true", link="3", side="peer")
    log.stand(STALL_S, 42, step=log.last_step)
    verdict = the([v for v in log.verdicts(42) if v.job])
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.NVLINK, "gpu:h0/0")
    assert any(each.component == "gpu:h0/1" for each in verdict.explained)


def test_gsp_time_outs_are_the_driver(script: Script) -> None:
    log = running(script)
    log.xid("h3", "0000:1b:00", 119, STALL_S + 0.5)
    log.stand(STALL_S, 42, step=log.last_step, joined={6: log.last_step * 4 + 2})
    verdict = the([v for v in log.verdicts(42) if v.job])
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.GPU_DRIVER, "gpu:h3/0")


def link(log: Any, name: EventName, at_s: float, *, host: str = "h1", netdev: str = "rail0") -> None:
    log.event(f"nic:{host}/{netdev}/1", name, at_s, host=host, source="netlink", by="netlink", netdev=netdev)


def test_a_link_that_is_down_names_the_cable_and_all_ranks_behind_it(script: Script) -> None:
    log = running(script)
    link(log, EventName.LINK_DOWN, STALL_S)
    log.stand(STALL_S, 42, step=log.last_step)
    found = log.verdicts(42)
    verdict = the(found)
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.LINK_FLAP, LINK)
    assert verdict.culprit.ranks == (2, 3)
    assert verdict.culprit.host == "h1"
    assert verdict.confidence > 0.9
    assert delay_s(found[0], log) <= 3
    assert verdict.action.kind is ActionKind.SWAP_NODE


def test_a_link_that_came_back_asks_for_new_connections_only(script: Script) -> None:
    log = running(script)
    for at_s in (30.0, 31.5, 33.0):
        link(log, EventName.LINK_DOWN, at_s)
        link(log, EventName.LINK_UP, at_s + 1.0)
    log.stand(STALL_S, 45, step=log.last_step)
    verdict = the(log.verdicts(45))
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.LINK_FLAP, LINK)
    assert verdict.action.kind is ActionKind.REINIT_COMMUNICATORS
    assert "not to be trusted before" in verdict.action.reason, "three losses in three seconds"


def test_a_link_that_was_lost_once_and_came_back_is_trusted(script: Script) -> None:
    log = running(script)
    link(log, EventName.LINK_DOWN, 30.0)
    link(log, EventName.LINK_UP, 31.0)
    log.stand(STALL_S, 45, step=log.last_step)
    verdict = the(log.verdicts(45))
    assert verdict.action.kind is ActionKind.REINIT_COMMUNICATORS
    assert "trusted" not in verdict.action.reason


@pytest.mark.parametrize("through", [(0, 7), (0, 1, 4, 5, 6, 7), (1, 4, 5, 6, 7)])
def test_ranks_left_behind_on_either_side_of_a_dead_link_do_not_clear_it(script: Script, through: tuple[int, ...]) -> None:
    """Some got all data of the last collective before the link was lost and wait in the next."""
    log = running(script)
    link(log, EventName.LINK_DOWN, STALL_S)
    usual = log.last_step * 4 + 3
    ahead = dict.fromkeys(through, usual + 1)
    log.stand(STALL_S, 42, step=log.last_step, joined=ahead, finished=dict.fromkeys(through, usual))
    verdict = the(log.verdicts(42))
    assert verdict.culprit.component == LINK
    assert verdict.culprit.ranks == (2, 3)


def test_a_hung_adapter_is_named_although_its_link_reads_up(script: Script) -> None:
    log = running(script)
    for at_s in (30.1, 31.0):
        log.event(
            "nic:h2/rail0/1",
            EventName.NIC_HANG,
            at_s,
            host="h2",
            severity=Severity.FATAL,
            what="unrecoverable hardware error",
        )
    log.stand(STALL_S, 45, step=log.last_step)
    verdict = the([v for v in log.verdicts(45) if v.job])
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.NIC_HANG, "nic:h2/rail0/1")
    assert verdict.culprit.ranks == (4, 5)


def test_a_killed_rank_is_dead_within_seconds(script: Script) -> None:
    log = running(script)
    log.event("rank:j/3", EventName.PROCESS_EXITED, STALL_S + 0.1, host="h1", source="process", pid="1003", clean="false")
    log.stand(STALL_S, 40, step=log.last_step, silent=(3,))
    found = log.verdicts(40)
    verdict = the(found)
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.PROCESS_DEAD, "rank:j/3")
    assert verdict.confidence > 0.85
    assert delay_s(found[0], log) <= 3


def test_a_killed_rank_is_known_by_its_pid_alone(script: Script) -> None:
    log = running(script)
    log.event("host:h1", EventName.PROCESS_EXITED, STALL_S + 0.1, host="h1", source="process", pid="1003", signal="SIGKILL")
    log.stand(STALL_S, 40, step=log.last_step, silent=(3,))
    assert the(log.verdicts(40)).culprit.component == "rank:j/3"


def test_peers_that_die_of_lost_connections_are_explained_by_the_first_death(script: Script) -> None:
    log = running(script)
    log.exited(6, STALL_S + 0.1, clean=False, reason="ValueError: expected a batch of 4 samples, got 3")
    for rank in (0, 1, 2):
        log.exited(rank, STALL_S + 0.4, clean=False, reason="RuntimeError: Connection closed by peer [10.0.0.4]:4711")
    log.stand(STALL_S, 40, step=log.last_step, silent=(0, 1, 2, 6))
    verdict = the(log.verdicts(40))
    assert [c.component for c in verdict.culprits] == ["rank:j/6"]
    assert {"rank:j/0", "rank:j/1", "rank:j/2"} <= {each.component for each in verdict.explained}


def test_one_killed_rank_that_takes_all_the_others_with_it_at_once_is_still_named(script: Script) -> None:
    """Over gloo the survivors lose their connections, raise and leave within a second: nobody is left to wait."""
    log = running(script)
    log.event("rank:j/2", EventName.PROCESS_EXITED, STALL_S + 0.2, host="h1", source="process", pid="1002", clean="false")
    for rank in (0, 1, 3, 4, 5, 6, 7):
        reason = "RuntimeError: Connection closed by peer [10.20.0.2]:5"
        log.exited(rank, STALL_S + 0.1 + 0.1 * rank, clean=False, reason=reason)
        log.event(
            f"rank:j/{rank}",
            EventName.PROCESS_EXITED,
            STALL_S + 0.5 + 0.1 * rank,
            host=f"h{rank // 2}",
            source="process",
            pid=str(1000 + rank),
            clean="false",
        )
    verdict = the(log.verdicts(45))
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.PROCESS_DEAD, "rank:j/2")
    assert verdict.confidence > 0.8


def test_ranks_that_a_launcher_kills_to_restart_a_stalled_job_are_not_the_cause_of_the_stall(script: Script) -> None:
    log = running(script)
    log.stand(STALL_S, 40.8, step=log.last_step, joined={5: log.last_step * 4 + 2})
    for rank in range(8):
        log.event(
            f"rank:j/{rank}",
            EventName.PROCESS_EXITED,
            40.9 + 0.4 * rank,  # one is seen before the others are
            host=f"h{rank // 2}",
            source="process",
            pid=str(1000 + rank),
            clean="false",
        )
    found = log.verdicts(50)
    assert {verdict.culprit.component for verdict in found} == {"rank:j/5"}
    assert FaultClass.PROCESS_DEAD not in {verdict.fault_class for verdict in found}


def test_a_frozen_process_is_named_as_soon_as_the_collector_sees_it_stopped(script: Script) -> None:
    log = running(script)
    log.event("rank:j/4", EventName.PROCESS_STOPPED, STALL_S + 0.4, host="h2", source="process", pid="1004", state="T")
    log.stand(STALL_S, 42, step=log.last_step, silent=(4,))
    found = log.verdicts(42)
    verdict = the(found)
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.PROCESS_STALL, "rank:j/4")
    assert delay_s(found[0], log) <= 3
    assert verdict.action.kind is ActionKind.RESTART_RANK


def test_a_silent_agent_in_a_living_process_is_a_stall_of_that_rank(script: Script) -> None:
    log = running(script)
    log.state("h3", "rank:j/7", "process", "running", STALL_S + 1.0, "process")
    log.stand(STALL_S, 42, step=log.last_step, silent=(7,))
    found = log.verdicts(42)
    verdict = the(found)
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.PROCESS_STALL, "rank:j/7")
    assert verdict.confidence > 0.7
    assert delay_s(found[0], log) <= 6


def test_a_rank_stuck_in_its_own_code_is_named_by_the_collective_it_has_not_joined(script: Script) -> None:
    log = running(script)
    log.stand(STALL_S, 42, step=log.last_step, joined={5: log.last_step * 4 + 2}, phases={5: "data"})
    found = log.verdicts(42)
    verdict = the(found)
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.PROCESS_STALL, "rank:j/5")
    assert delay_s(found[0], log) <= 6


@pytest.mark.parametrize(("ago_steps", "cited"), [(0, True), (20, False)])
def test_a_stop_that_a_rank_got_over_is_not_cited_for_the_one_that_lasts(
    script: Script, ago_steps: int, cited: bool
) -> None:
    log = running(script)
    log.suspected(5, STALL_S - 2.0 if ago_steps else STALL_S + 2.0, log.last_step - ago_steps)
    log.stand(STALL_S, 42, step=log.last_step, joined={5: log.last_step * 4 + 2}, phases={5: "data"})
    verdict = the(log.verdicts(42))
    assert verdict.culprit.component == "rank:j/5"
    assert any(each.event_id == "stall/5" for each in verdict.evidence) is cited


def test_a_rank_that_left_a_collective_out_and_waits_elsewhere_is_out_of_step(script: Script) -> None:
    log = running(script)
    usual = log.last_step * 4 + 3
    mine = GroupProgress(group="1", ranks=(4, 5), last_enqueued=50, last_completed=49)
    other = GroupProgress(group="1", ranks=(4, 5), last_enqueued=49, last_completed=49)
    log.stand(STALL_S, 42, step=log.last_step, joined={5: usual - 1}, extra={5: (mine,), 4: (other,)})
    verdict = the(log.verdicts(42))
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.COLLECTIVE_DESYNC, "rank:j/5")
    assert verdict.action.kind is ActionKind.RESTART_JOB


def test_a_whole_host_that_falls_silent_is_down(script: Script) -> None:
    log = script()
    log.register()
    log.beats(60, without=("h2",))
    for number in range(6):
        log.beat("h2", number * 5.0 + 0.3, number + 1)
    last = log.run(1, STALL_S)
    log.stand(STALL_S, 55, step=last, silent=(4, 5))
    verdict = the(log.verdicts(55))
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.HOST_DOWN, "host:h2")
    assert verdict.culprit.ranks == (4, 5)


def test_a_host_that_went_down_stays_named_when_watchdogs_have_ended_all_others(script: Script) -> None:
    log = script()
    log.register()
    log.beats(70, without=("h1",))
    for number in range(6):
        log.beat("h1", number * 5.0 + 0.3, number + 1)
    last = log.run(1, STALL_S)
    log.event("port:leaf0/h1", EventName.LINK_DOWN, STALL_S + 0.4, host="h0", source="switch")
    log.stand(STALL_S, 52, step=last, silent=(2, 3))
    for rank in (0, 1, 4, 5, 6, 7):
        log.exited(rank, 52.0 + rank * 0.1, clean=False)
    found = log.verdicts(70)
    assert {(v.fault_class, v.culprit.component) for v in found[1:]} <= {
        (FaultClass.HOST_DOWN, "host:h1"),
        (FaultClass.UNDETERMINED, None),
    }
    verdict = [v for v in found if v.culprits][-1]
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.HOST_DOWN, "host:h1")


def test_a_stall_without_any_trace_is_undetermined_and_blames_nobody(script: Script) -> None:
    log = running(script)
    log.stand(STALL_S, 45, step=log.last_step)
    verdict = the(log.verdicts(45))
    assert verdict.fault_class is FaultClass.UNDETERMINED
    assert verdict.culprit.component is None
    assert verdict.action.kind is ActionKind.HAND_TO_PERSON


# ------------------------------------------------------------------------------------------------- what must stay quiet


def test_a_link_down_on_a_port_without_traffic_says_nothing(script: Script) -> None:
    log = running(script)
    link(log, EventName.LINK_DOWN, 20.0, netdev="mgmt")
    log.run(STALL_S, 45, first_step=log.last_step)
    assert log.verdicts(45) == []


def test_errors_that_a_moving_job_survives_say_nothing(script: Script) -> None:
    log = running(script)
    for number, impact in ((13, "app"), (31, "app"), (43, "ignore"), (45, "victim"), (63, "ignore")):
        log.xid("h0", "0000:1b:00", number, 20.0, impact=impact)
    log.event("gpu:h0/0000:1b:00", EventName.AER, 21.0, host="h0", severity=Severity.INFO, severity_word="corrected")
    log.run(STALL_S, 45, first_step=log.last_step)
    assert log.verdicts(45) == []


def test_a_clean_end_says_nothing(script: Script) -> None:
    log = running(script)
    for rank in range(8):
        log.exited(rank, STALL_S + rank * 0.3, clean=True)
    assert log.verdicts(60) == []


def test_a_job_that_is_stopped_as_a_whole_says_nothing(script: Script) -> None:
    log = running(script)
    for rank in range(8):
        host = f"h{rank // 2}"
        log.event(
            f"rank:j/{rank}",
            EventName.PROCESS_EXITED,
            30.1,
            host=host,
            source="process",
            pid=str(1000 + rank),
            signal="SIGTERM",
        )
    assert log.verdicts(60) == []


def test_silent_collectors_alone_say_nothing(script: Script) -> None:
    log = script()
    log.register()
    log.beats(10)
    last = log.run(1, STALL_S)
    log.run(STALL_S, 50, first_step=last)
    assert log.verdicts(50) == []


def test_when_everybody_falls_silent_at_once_nobody_is_blamed(script: Script) -> None:
    log = running(script)
    assert log.verdicts(90) == []


def test_slow_first_steps_say_nothing(script: Script) -> None:
    log = script(step_s=30.0)
    log.register()
    for second in range(1, 80):
        for rank in range(8):
            log.progress(rank, second + rank * 0.05, step=-1, age_s=0, joined=1, finished=0, phase="compile")
    assert log.verdicts(80) == []


def test_a_checkpoint_of_one_rank_says_nothing_while_it_lasts(script: Script) -> None:
    log = running(script)
    log.stand(STALL_S, 42, step=log.last_step, joined={0: log.last_step * 4 + 2}, phases={0: "checkpoint"}, waiting=True)
    log.run(42, 50, first_step=log.last_step)
    assert log.verdicts(50) == []


def test_pauses_that_the_job_has_shown_twice_are_a_habit(script: Script) -> None:
    log = script()
    log.register()
    step = log.run(1, 20)
    for begin in (20, 40):
        log.stand(begin, begin + 2, step=step)  # shorter than any stall
        step = log.run(begin + 2, begin + 20, first_step=step)
    log.stand(60, 63, step=step, joined={1: step * 4 + 2})
    log.run(63, 70, first_step=step)
    assert log.verdicts(70) == []


def test_a_pause_that_was_asked_for_says_nothing(script: Script) -> None:
    log = running(script)
    log.stand(STALL_S, 60, step=log.last_step, paused=True)
    assert log.verdicts(60) == []


# ------------------------------------------------------------------------------------------------- idle hardware


def test_a_gpu_lost_on_a_host_without_a_job_opens_a_verdict_without_a_job(script: Script) -> None:
    log = script(hosts=3)
    log.register()
    log.run(1, STALL_S)
    log.xid("h3", "0000:1b:00", 79, 20.0, impact="reboot")
    verdict = the(log.verdicts(STALL_S))
    assert (verdict.job, verdict.culprit.component, verdict.culprit.ranks) == (None, "gpu:h3/0", ())
    assert verdict.state is VerdictState.OPEN


def test_old_lines_of_a_kernel_log_open_nothing(script: Script) -> None:
    log = script(hosts=3)
    log.register()
    log.run(1, STALL_S)
    log.event("gpu:h3/0000:1b:00", EventName.XID, -4000.0, host="h3", late_s=4020.0, xid="79", impact="reboot")
    assert log.verdicts(STALL_S) == []
