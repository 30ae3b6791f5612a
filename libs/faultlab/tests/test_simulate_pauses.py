"""Pauses rise hop by hop from their origin, so that whoever follows durations against them ends at it."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import timedelta

import pytest

from goodput_common.contracts.telemetry import Counter, EventName, Gauge, TelemetryBatch
from goodput_common.contracts.verdict import FaultClass
from goodput_faultlab.ledger import LedgerEntry
from goodput_faultlab.simulate import FaultSpec, NoiseSpec, Outgoing, Simulation, SimulationSpec
from goodput_faultlab.simulate.faults.pausing import slows_by, spread
from goodput_faultlab.simulate.flows import Flows, Hop
from goodput_faultlab.simulate.layout import Layout
from goodput_faultlab.testing import events, structs
from goodput_topology.generate import fat_tree, h100_pod, nvl72, two_nic_pod
from goodput_topology.graph import Fabric

FABRICS = {
    "one pod": h100_pod(hosts=6, spines=2),
    "two pods": h100_pod(hosts=3, pods=2, spines=3),
    "fat tree": fat_tree(4, nics=1, hosts=10),
    "two tiers": fat_tree(8, nics=2, tiers=2, hosts=8),
    "two NICs": two_nic_pod(6, hosts_per_leaf=3),
    "racks": nvl72(racks=1),
}
ORIGINS = ("slow_receiver", "incast", "stuck_port", "deadlock")


def storm(fabric: Fabric, flavour: str, seed: int = 1, **more: object) -> tuple[LedgerEntry, Simulation, list[Outgoing]]:
    fault = FaultSpec(fault_class=FaultClass.PFC_STORM, flavour=flavour, at_s=5.0, **more)  # type: ignore[arg-type]
    spec = SimulationSpec(
        fabric=fabric, hosts=fabric.hosts(), step_s=0.4, faults=(fault,), noise=NoiseSpec.none(), switches=True
    )
    simulation = Simulation(spec, seed)
    out = simulation.advance(spec.start + timedelta(seconds=40))
    return simulation.ledger[0], simulation, out


def paused_us(out: list[Outgoing], suffix: str, way: str = "rx") -> dict[str, float]:
    """How much a counter of the pauses grew by a second, by port in the fabric's own names."""
    found: dict[str, float] = defaultdict(float)
    for batch in structs(out, TelemetryBatch):
        for each in batch.samples:
            if isinstance(each, Counter) and each.name == f"{way}_prio3_pause{suffix}":
                found[each.component] += each.delta
    return dict(found)


def trace(fabric: Fabric, stopped: dict[str, float], start: str) -> str:
    """From a port that is told to stop, cross the cable to who tells it; go on from the port of that switch which is itself
    told to stop for longest, until there is none."""
    at, seen = start, set[str]()
    while True:
        far = fabric.peer_of(at)
        assert far is not None
        switch = fabric.switch_of(far) if far.startswith("port:") else None
        onward = [port for port in fabric.ports_of_switch(switch or "") if port in stopped and port not in (far, *seen)]
        longer = [port for port in onward if stopped[port] > stopped[at]]
        if not longer:
            return far
        seen.add(at)
        at = max(longer, key=lambda port: stopped[port])


@pytest.mark.parametrize("name", FABRICS)
@pytest.mark.parametrize("flavour", ["slow_receiver", "stuck_port"])
def test_whoever_follows_longer_pauses_ends_at_the_origin(name: str, flavour: str) -> None:
    fabric = FABRICS[name]
    truth, _, out = storm(fabric, flavour)
    stopped = paused_us(out, "_duration")
    assert stopped
    for start in stopped:
        assert trace(fabric, stopped, start) == truth.component


@pytest.mark.parametrize("name", FABRICS)
def test_an_incast_ends_at_a_switch_that_nobody_pauses(name: str) -> None:
    fabric = FABRICS[name]
    truth, _, out = storm(fabric, "incast")
    stopped = paused_us(out, "_duration")
    assert stopped
    for start in stopped:
        assert fabric.switch_of(trace(fabric, stopped, start)) == truth.component


@pytest.mark.parametrize("name", ["one pod", "two pods", "fat tree", "two tiers", "two NICs", "racks"])
def test_a_deadlock_is_a_circle_of_ports_that_all_stand_still(name: str) -> None:
    fabric = FABRICS[name]
    truth, _, out = storm(fabric, "deadlock")
    stopped = paused_us(out, "_duration")
    own = {truth.component, *truth.also_right}
    most = max(stopped.values())
    circle = {port for port, us in stopped.items() if us > 0.95 * most}
    assert len(circle) == 4 and circle <= own
    switches = {fabric.switch_of(port) for port in circle}
    assert switches == {fabric.switch_of(fabric.peer_of(port) or "") for port in circle} and len(switches) == 4
    stormed = {each.component for each in events(out) if each.name is EventName.PAUSE_STORM}
    assert stormed == circle


@pytest.mark.parametrize("name", FABRICS)
def test_each_hop_away_from_the_origin_stands_still_for_less_and_sends_more_frames_for_it(name: str) -> None:
    fabric = FABRICS[name]
    layout = Layout(fabric, "job", fabric.hosts(), 0)
    flows = Flows(fabric, layout)
    flow = next(flow for flow in flows.all if flow.share > 0.5)
    nic = flow.ways[0][-1].into
    origin = Hop(fabric.peer_of(nic) or "", nic)
    paused = spread(flows, [origin], 0.9, random.Random(1))
    by_hop = {each.hop: each for each in paused}
    assert paused[0] == (origin, 0.9, 0) and len(paused) > 1
    assert [each.depth for each in paused] == sorted(each.depth for each in paused)
    for each in paused[1:]:
        nearer = [by_hop[hop] for hop in by_hop if each.hop in flows.before.get(hop.out, {})]
        assert min(one.depth for one in nearer) == each.depth - 1
        assert each.share < max(one.share for one in nearer)


def test_victims_are_louder_in_frames_for_the_time_that_they_stand_still() -> None:
    truth, _, out = storm(FABRICS["two pods"], "slow_receiver")
    frames, stopped = paused_us(out, ""), paused_us(out, "_duration")
    nearest = max(stopped, key=lambda port: stopped[port])
    assert FABRICS["two pods"].peer_of(nearest) == truth.component
    per_us = {port: frames[port] / stopped[port] for port in stopped}
    assert min(per_us, key=lambda port: per_us[port]) == nearest


def test_a_host_that_does_not_take_what_it_is_sent_says_why() -> None:
    names: set[str] = set()
    for seed in range(1, 6):
        truth, _, out = storm(FABRICS["one pod"], "slow_receiver", seed)
        mine = {
            each.name
            for batch in structs(out, TelemetryBatch)
            for each in batch.samples
            if isinstance(each, Counter | Gauge) and each.component == truth.component
        }
        assert {"tx_prio3_pause", "tx_prio3_pause_duration"} <= mine
        assert not any(name.startswith("rx_prio3") for name in mine)
        names |= mine
    assert {"outbound_pci_stalled_wr_percent", "rx_discards_phy"} <= names


@pytest.mark.parametrize("flavour", ORIGINS)
def test_the_job_is_slower_the_worse_the_storm_and_never_stands_still(flavour: str) -> None:
    slowed = []
    for severity in (0.0, 0.5, 1.0):
        _, simulation, _ = storm(FABRICS["two pods"], flavour, severity=severity)
        assert simulation.stalled_since is None and simulation.idle.seconds == 0
        slowed.append(simulation.idle.slowed_s)
    assert 0 < slowed[0] < slowed[1] < slowed[2]


def test_a_cable_that_stands_still_for_half_of_the_time_takes_twice_as_long() -> None:
    assert slows_by(0.0) == 1.0
    assert slows_by(0.5) == pytest.approx(1.22)
    assert slows_by(1.0) < 13


def test_victims_are_entered_as_such() -> None:
    truth, _, out = storm(FABRICS["two pods"], "slow_receiver")
    victims = {each.component for each in truth.explains if each.what == "rx_prio3_pause_duration"}
    assert victims == set(paused_us(out, "_duration"))
    assert truth.component not in victims


def test_a_storm_needs_a_fabric_in_which_it_can_be() -> None:
    flat = h100_pod(hosts=4, spines=0)
    with pytest.raises(ValueError, match="no two leaves share two spines"):
        storm(flat, "deadlock")
    with pytest.raises(ValueError, match="an incast needs a job of three hosts or more"):
        storm(h100_pod(hosts=2, spines=0), "incast")


def test_a_pinned_victim_is_the_one() -> None:
    truth, _, _ = storm(FABRICS["one pod"], "slow_receiver", host="h4", rail=6)
    assert truth.component == "nic:h4/mlx5_6/1"
    assert truth.ranks == (38,)
