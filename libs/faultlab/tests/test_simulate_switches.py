"""A switch that fails: what its neighbours see of it, and what nobody sees."""

from __future__ import annotations

from datetime import timedelta

import pytest

from goodput_common.contracts.telemetry import CollectorHeartbeat, Counter, EventName, Source, TelemetryBatch
from goodput_common.contracts.verdict import FaultClass
from goodput_faultlab.ledger import LedgerEntry
from goodput_faultlab.simulate import FaultSpec, NoiseSpec, Outgoing, Simulation, SimulationSpec
from goodput_faultlab.testing import events, structs
from goodput_topology.generate import fat_tree, h100_pod, two_nic_pod
from goodput_topology.graph import Fabric

TWO_PODS = h100_pod(hosts=3, pods=2, spines=3)


def failing(flavour: str, fabric: Fabric = TWO_PODS, **more: object) -> tuple[LedgerEntry, Simulation, list[Outgoing]]:
    fault = FaultSpec(fault_class=FaultClass.SWITCH_FAULT, flavour=flavour, at_s=10.0, **more)  # type: ignore[arg-type]
    spec = SimulationSpec(
        fabric=fabric, hosts=fabric.hosts(), step_s=0.4, faults=(fault,), noise=NoiseSpec.none(), switches=True
    )
    simulation = Simulation(spec, 2)
    return simulation.ledger[0], simulation, simulation.advance(spec.start + timedelta(seconds=45))


def names_by_source(out: list[Outgoing]) -> dict[Source, set[str]]:
    found: dict[Source, set[str]] = {}
    for batch in structs(out, TelemetryBatch):
        found.setdefault(batch.source, set()).update(each.name for each in batch.samples if isinstance(each, Counter))
    return found


@pytest.mark.parametrize("fabric", [TWO_PODS, fat_tree(4, nics=1), two_nic_pod(6, hosts_per_leaf=3)])
def test_a_dead_leaf_takes_every_port_beneath_it_down_at_once_and_falls_silent(fabric: Fabric) -> None:
    truth, simulation, out = failing("dead", fabric)
    beneath = set(fabric.nics_behind(truth.component or ""))
    down = {fabric.canonical(each.component): each for each in events(out) if each.name is EventName.LINK_DOWN}
    assert beneath <= down.keys()
    above = {fabric.peer_of(port) for port in fabric.ports_of_switch(truth.component or "")} - beneath - {None}
    assert above <= down.keys()
    assert simulation.stalled_since is not None
    name = (truth.component or "").partition(":")[2]
    last = max(each.at for each in structs(out, CollectorHeartbeat) if each.host == name)
    assert last < truth.injected_at + timedelta(seconds=3)


def test_a_line_card_takes_half_of_the_ports_and_the_switch_tells_of_it() -> None:
    truth, _, out = failing("line_card")
    ports = TWO_PODS.ports_of_switch(truth.component or "")
    told = {each.component for each in events(out) if each.name is EventName.LINK_DOWN and each.component in ports}
    assert len(told) == len(ports) // 2
    assert not {EventName.LINK_UP} & {each.name for each in events(out)}


def test_a_bad_port_counts_what_it_cannot_decode_and_its_cables_other_end_is_clean() -> None:
    truth, simulation, out = failing("bad_port")
    port = truth.component or ""
    counted: dict[str, set[str]] = {}
    for batch in structs(out, TelemetryBatch):
        for each in batch.samples:
            if isinstance(each, Counter) and each.name.startswith("in_"):
                counted.setdefault(each.component, set()).add(each.name)
    assert set(counted) == {port}
    assert {"in_crc_errors", "in_errors", "in_fec_uncorrected_frames"} <= counted[port]
    assert names_by_source(out)[Source.RDMA] >= {"packet_seq_err", "roce_adp_retrans", "out_of_sequence"}
    assert simulation.stalled_since is None and simulation.idle.slowed_s > 5


def test_a_silent_switch_leaves_nothing_but_packets_sent_again() -> None:
    truth, _, out = failing("silent")
    names = names_by_source(out)
    assert Source.SWITCH not in names and Source.ETHTOOL not in names
    assert names[Source.RDMA] == {
        "packet_seq_err", "roce_adp_retrans", "local_ack_timeout_err", "out_of_sequence", "duplicate_request",
    }  # fmt: skip
    assert events(out) == []
    assert TWO_PODS.attr(truth.component or "", "tier") == "spine"


@pytest.mark.parametrize("flavour", ["bad_port", "silent"])
def test_the_job_is_slower_the_more_is_lost(flavour: str) -> None:
    slowed = [failing(flavour, severity=severity)[1].idle.slowed_s for severity in (0.0, 0.5, 1.0)]
    assert 0 < slowed[0] < slowed[1] < slowed[2]
