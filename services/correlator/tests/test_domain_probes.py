"""What probes say to the engines of the network: the only word on a component, or one more."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from goodput_common.contracts.telemetry import EventName, Probe
from goodput_common.contracts.verdict import FaultClass, Verdict
from goodput_correlator.domain.case import Case, ordered
from goodput_correlator.domain.diagnosis import nic_hang
from goodput_topology.generate import h100_pod

Script = Callable[..., Any]
POD = h100_pod(hosts=8, spines=2)
LEAF = "switch:leaf-p0-r0"
NIC = "nic:h3/mlx5_0/1"
STALL_S, END_S = 40.0, 75.0


def stalled(script: Script) -> Any:
    log = script(hosts=8, fabric=POD)
    log.register()
    log.beats(END_S)
    log.last_step = log.run(1, STALL_S)
    log.stand(STALL_S, END_S, step=log.last_step)
    return log


def slow(script: Script) -> Any:
    log = script(hosts=8, fabric=POD)
    log.register()
    log.beats(END_S)
    last = log.run(1, STALL_S)
    log.step_s *= 1.5
    log.run(STALL_S, END_S, first_step=last)
    return log


def probed(log: Any, loses: Callable[[tuple[str, ...]], float], from_s: float = STALL_S) -> None:
    """Each adapter of two rails probes three others, of its own rail and of the next, in two flows."""
    for at_s in range(int(from_s) + 5, int(END_S), 5):
        for host in range(8):
            for rail in (0, 1):
                for reach in (1, 2, 3):
                    a, b = f"nic:h{host}/mlx5_{rail}/1", f"nic:h{(host + reach) % 8}/mlx5_{(rail + reach) % 2}/1"
                    ways = POD.path(a, b).listed
                    for flow in (0, 1):
                        number = zlib.crc32(f"{a}{b}{flow}".encode())
                        out, back = ways[number % len(ways)], ways[(number >> 8) % len(ways)][::-1]
                        fact = Probe(
                            component=a,
                            target=b,
                            flow=49_152 + flow,
                            observed_at=log.clock(f"h{host}", at_s),
                            interval_s=5.0,
                            sent=50,
                            lost=round(50 * max(loses(out), loses(back))),
                            path=out[1:-1],
                            answer_path=back[1:-1],
                        )
                        log.sample(f"h{host}", at_s, fact, "probes")


def at(component: str, rate: float) -> Callable[[tuple[str, ...]], float]:
    return lambda way: rate if component in way else 0.0


def last(log: Any) -> Verdict:
    found: list[Verdict] = [verdict for verdict in log.verdicts(END_S) if verdict.job]
    assert found, "no verdict"
    return found[-1]


def test_an_adapter_that_no_probe_comes_through_is_named_in_doubt(script: Script) -> None:
    log = stalled(script)
    probed(log, at(NIC, 1.0))
    verdict = last(log)
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.NIC_HANG, NIC)
    assert verdict.confidence < 0.9
    assert any("probes that cross it" in each.why for each in verdict.evidence)


def test_probes_make_what_the_driver_says_of_an_adapter_surer(script: Script, start: datetime) -> None:
    def score(probes: bool) -> float:
        log = script(hosts=8, fabric=POD)
        log.event(NIC, EventName.NIC_HANG, STALL_S + 0.5, host="h3", what="timeout. Will cause a leak")
        if probes:
            probed(log, at(NIC, 1.0))
        now, since = start + timedelta(seconds=END_S), start + timedelta(seconds=STALL_S)
        case = Case(now, POD.name, "j", ordered(log.log), POD, stalled_since=since)
        (finding,) = nic_hang.diagnose(case)
        return finding.score

    assert score(True) > score(False)


def test_a_lost_link_is_not_taken_for_a_hung_adapter_because_its_probes_are_lost_too(script: Script) -> None:
    log = stalled(script)
    log.event(NIC, EventName.LINK_DOWN, STALL_S + 0.2, host="h3", source="netlink", by="netlink")
    probed(log, at(NIC, 1.0))
    verdict = last(log)
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.LINK_FLAP, POD.link_of(NIC))


def test_a_switch_that_drops_what_nobody_counts_shows_by_its_probes(script: Script) -> None:
    log = slow(script)
    probed(log, at(LEAF, 0.2))
    verdict = last(log)
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.SWITCH_FAULT, LEAF)
    assert verdict.confidence < 0.9


def test_a_link_that_drops_what_nobody_counts_shows_by_its_probes(script: Script) -> None:
    link = POD.link_of(NIC)
    assert link is not None
    log = slow(script)
    probed(log, at(link, 0.2))
    verdict = last(log)
    assert verdict.fault_class is FaultClass.LINK_FLAP
    assert verdict.culprit.component in (link, *(POD.ends_of(link) or ()))


def test_what_probes_cannot_tell_apart_is_named_by_none_of_its_names(script: Script) -> None:
    """Between two leaves a spine and its two cables lose the same probes."""
    spine, way = "switch:spine-0", POD.path("nic:h0/mlx5_0/1", "nic:h0/mlx5_1/1").listed
    cables = {each for path in way if spine in path for each in path if each.startswith("link:port:")}
    log = slow(script)
    probed(log, at(spine, 0.2))
    assert log.verdicts(END_S) == []
    log = stalled(script)
    probed(log, at(spine, 0.2))
    verdict = last(log)
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.UNDETERMINED, None)
    assert {each.component for each in verdict.alternatives} == {spine, *cables}


def test_probes_that_all_come_through_accuse_nobody(script: Script) -> None:
    log = slow(script)
    probed(log, lambda way: 0.0)
    assert log.verdicts(END_S) == []
