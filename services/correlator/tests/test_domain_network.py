"""Faults of the network that a rail-optimised fabric of 8 hosts meets: one switch behind many lost links, pauses that begin
elsewhere, links that damage what they carry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from goodput_common.contracts.telemetry import Counter, EventName
from goodput_common.contracts.verdict import ActionKind, FaultClass, Trouble, Verdict, VerdictState
from goodput_topology.generate import h100_pod

Script = Callable[..., Any]
POD = h100_pod(hosts=8, spines=2)
LEAF = "switch:leaf-p0-r0"
SLOW_AT_S, END_S = 80.0, 150.0


def nic(host: int, rail: int = 0) -> str:
    return f"nic:h{host}/mlx5_{rail}/1"


def port(end: str) -> str:
    found = POD.peer_of(end)
    assert found is not None
    return found


def running(script: Script, until_s: float = 30.0) -> Any:
    log = script(hosts=8, fabric=POD)
    log.register()
    log.beats(160)
    log.last_step = log.run(1, until_s)
    return log


def slow(script: Script, factor: float = 1.5) -> Any:
    """A job whose steps take longer from `SLOW_AT_S` on."""
    log = running(script, SLOW_AT_S)
    log.step_s *= factor
    log.last_step = log.run(SLOW_AT_S, END_S, first_step=log.last_step)
    return log


def counted(log: Any, end: str, name: str, per_s: float, *, source: str = "ethtool", from_s: float = SLOW_AT_S) -> None:
    """A counter that rises, told every 5 s."""
    host = end.partition(":")[2].partition("/")[0] if end.startswith("nic:") else "h0"
    value = 0
    for at_s in range(int(from_s), int(END_S), 5):
        value += int(per_s * 5)
        fact = Counter(
            component=end, name=name, observed_at=log.clock(host, at_s), delta=int(per_s * 5), interval_s=5.0, value=value
        )
        log.sample(host, at_s, fact, source)


def paused(log: Any, end: str, share: float, direction: str = "rx") -> None:
    counted(log, end, f"{direction}_prio3_pause_duration", share * 1e6)


def first_of(verdicts: list[Verdict]) -> Verdict:
    assert verdicts, "no verdict"
    assert {v.id for v in verdicts} == {verdicts[0].id}, [(v.fault_class, v.culprit.component) for v in verdicts]
    return verdicts[0]


def lose(log: Any, host: int, rail: int, at_s: float) -> None:
    log.event(nic(host, rail), EventName.LINK_DOWN, at_s, host=f"h{host}", source="netlink")


def test_a_switch_is_named_when_all_its_links_are_lost_and_each_link_is_explained(script: Script) -> None:
    log = running(script)
    for host in range(8):
        lose(log, host, 0, 30.1 + host * 0.1)
    log.stand(30, 45, step=log.last_step)
    verdict = log.verdicts(45)[-1]
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.SWITCH_FAULT, LEAF)
    assert verdict.confidence > 0.9
    assert {each.component for each in verdict.explained} >= {POD.link_of(nic(host)) for host in range(8)}
    assert verdict.action.kind is ActionKind.HAND_TO_PERSON


def test_a_host_that_loses_all_its_links_is_no_switch(script: Script) -> None:
    log = running(script)
    for rail in range(8):
        lose(log, 3, rail, 30.1)
    log.stand(30, 45, step=log.last_step, silent=(6, 7))
    assert all(v.fault_class is not FaultClass.SWITCH_FAULT for v in log.verdicts(45))


def test_two_links_of_one_switch_are_two_links(script: Script) -> None:
    log = running(script)
    for host in (1, 2):
        lose(log, host, 0, 30.1)
    log.stand(30, 45, step=log.last_step)
    assert all(v.fault_class is not FaultClass.SWITCH_FAULT for v in log.verdicts(45))


def test_a_slow_job_is_blamed_on_the_adapter_that_paused_first(script: Script) -> None:
    log = slow(script)
    paused(log, nic(5), 0.6, "tx")
    paused(log, port(nic(5)), 0.6)
    for host in (0, 1, 2, 3, 4, 6, 7):
        paused(log, nic(host), 0.3 + host * 0.05)
    verdict = first_of(log.verdicts(END_S))
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.PFC_STORM, nic(5))
    assert verdict.trouble is Trouble.SLOW
    assert verdict.confidence > 0.85
    assert any(each.component == port(nic(5)) and "relays" in each.because for each in verdict.explained)
    assert verdict.action.kind is ActionKind.ISOLATE_LINK


def test_a_slow_job_without_evidence_has_no_verdict(script: Script) -> None:
    assert slow(script).verdicts(END_S) == []


def test_the_give_and_take_of_pauses_on_a_busy_fabric_is_no_storm(script: Script) -> None:
    log = slow(script)
    for host in range(8):
        paused(log, nic(host), 0.005)
    assert log.verdicts(END_S) == []


def test_an_incident_of_a_slow_job_is_over_when_steps_are_as_fast_as_usual(script: Script) -> None:
    log = slow(script)
    paused(log, nic(5), 0.6, "tx")
    paused(log, port(nic(5)), 0.6)
    paused(log, nic(1), 0.4)
    log.step_s /= 1.5
    log.run(END_S, END_S + 60, first_step=log.last_step)
    last = log.verdicts(END_S + 60)[-1]
    assert last.state is VerdictState.RESOLVED
    assert "as usual" in last.resolution or "than usual" in last.resolution


def test_damage_at_both_ends_is_the_link_and_at_one_end_that_end(script: Script) -> None:
    link = POD.link_of(nic(2))
    log = slow(script, 1.2)
    counted(log, nic(2), "rx_pcs_symbol_err_phy", 40)
    counted(log, port(nic(2)), "in_crc_errors", 40, source="switch")
    verdict = first_of(log.verdicts(END_S))
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.LINK_FLAP, link)

    log = slow(script, 1.2)
    counted(log, nic(2), "rx_pcs_symbol_err_phy", 40)
    counted(log, port(nic(2)), "in_octets", 1e9, source="switch")
    assert first_of(log.verdicts(END_S)).culprit.component == nic(2)


def test_a_switch_port_that_alone_receives_damage_is_the_switchs_fault(script: Script) -> None:
    log = slow(script, 1.2)
    counted(log, nic(2), "rx_packets_phy", 1e6)
    counted(log, port(nic(2)), "in_fec_uncorrected_frames", 40, source="switch")
    verdict = first_of(log.verdicts(END_S))
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.SWITCH_FAULT, port(nic(2)))


def test_a_few_symbol_errors_everywhere_are_nobodys_fault(script: Script) -> None:
    log = slow(script, 1.2)
    for host in range(8):
        counted(log, nic(host), "rx_pcs_symbol_err_phy", 0.4)
    assert log.verdicts(END_S) == []


def test_a_switch_that_drops_without_counting_shows_by_who_resends(script: Script) -> None:
    log = slow(script, 1.3)
    for host in range(8):
        counted(log, nic(host, 0), "packet_seq_err", 30, source="rdma")
        counted(log, nic(host, 1), "packet_seq_err", 0.4, source="rdma")
    verdict = first_of(log.verdicts(END_S))
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.SWITCH_FAULT, LEAF)


def test_damage_that_was_counted_once_is_no_bad_link(script: Script) -> None:
    log = slow(script, 1.2)
    at = log.clock("h2", 90.0)
    burst = Counter(component=nic(2), name="rx_pcs_symbol_err_phy", observed_at=at, delta=5, interval_s=5.0, value=5)
    log.sample("h2", 90.0, burst, "ethtool")
    assert log.verdicts(END_S) == []


def uplink(rail: int, spine: int) -> str:
    """The port of a leaf to a spine."""
    leaf, above = f"switch:leaf-p0-r{rail}", f"switch:spine-{spine}"
    return next(each for each in POD.ports_of_switch(leaf) if POD.switch_of(POD.peer_of(each) or "") == above)


def test_a_ring_of_switches_that_wait_for_each_other_is_found_without_a_paused_adapter(script: Script) -> None:
    log = slow(script)
    ring = (uplink(0, 0), port(uplink(1, 0)), uplink(1, 1), port(uplink(0, 1)))
    for end in ring:
        paused(log, end, 0.9)
    verdict = first_of(log.verdicts(END_S))
    assert verdict.fault_class is FaultClass.PFC_STORM
    assert verdict.culprit.component in ring
    assert verdict.confidence > 0.85


def test_pauses_between_switches_under_which_the_job_has_nothing_are_not_its_trouble(script: Script) -> None:
    log = script(hosts=1, fabric=POD)
    log.register()
    log.beats(160)
    last = log.run(1, SLOW_AT_S)
    log.step_s *= 1.5
    log.run(SLOW_AT_S, END_S, first_step=last)
    for end in (uplink(4, 0), port(uplink(5, 0)), uplink(5, 1), port(uplink(4, 1))):
        paused(log, end, 0.9)
    assert log.verdicts(END_S) == []


def test_a_link_that_comes_and_goes_slows_a_job_down_and_explains_who_resends(script: Script) -> None:
    log = slow(script, 1.3)
    for at_s in range(int(SLOW_AT_S), int(END_S), 8):
        lose(log, 2, 0, at_s + 0.1)
        log.event(nic(2), EventName.LINK_UP, at_s + 2.0, host="h2", source="netlink")
    counted(log, nic(3), "local_ack_timeout_err", 12, source="rdma")
    verdict = first_of(log.verdicts(END_S))
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.LINK_FLAP, POD.link_of(nic(2)))
    assert verdict.trouble is Trouble.SLOW


def test_a_link_that_was_lost_long_before_steps_became_slow_does_not_slow_them(script: Script) -> None:
    log = slow(script, 1.3)
    lose(log, 2, 0, 40.0)
    log.event(nic(2), EventName.LINK_UP, 42.0, host="h2", source="netlink")
    assert log.verdicts(END_S) == []


def test_a_silent_host_whose_links_all_went_is_down_although_its_collector_speaks(
    script: Script,
) -> None:
    log = running(script)
    for rail in (0, 1):  # those that its ranks use
        log.event(port(nic(3, rail)), EventName.LINK_DOWN, 30.3, host="h0", source="switch")
    log.stand(30, 60, step=log.last_step, silent=(6, 7))
    verdict = [each for each in log.verdicts(60) if each.job][-1]
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.HOST_DOWN, "host:h3")
    assert {POD.link_of(nic(3, 0)), POD.link_of(nic(3, 1))} <= {each.component for each in verdict.explained}


def test_one_lost_link_of_a_host_whose_collector_speaks_is_no_host_that_is_down(script: Script) -> None:
    log = running(script)
    log.event(port(nic(3, 0)), EventName.LINK_DOWN, 30.3, host="h0", source="switch")
    log.stand(30, 60, step=log.last_step, silent=(6, 7))
    assert all(each.fault_class is not FaultClass.HOST_DOWN for each in log.verdicts(60))
