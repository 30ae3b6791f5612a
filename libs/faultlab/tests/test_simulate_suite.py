"""The suite draws incidents by number, and its two splits share nothing that could be learned by heart."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import msgspec
import pytest

from goodput_common.contracts.telemetry import CollectorHeartbeat
from goodput_common.contracts.verdict import FaultClass
from goodput_faultlab.simulate.benign import BENIGN
from goodput_faultlab.simulate.cascades import CASCADES
from goodput_faultlab.simulate.suite import (
    CASCADES_OF,
    SEEDS_A_SPLIT,
    TOPOLOGIES,
    Incident,
    Split,
    incident,
    incidents,
)

SPLITS: tuple[Split, ...] = ("fit", "held_out")
DRAWN: dict[Split, list[Incident]] = {}


def drawn(split: Split) -> list[Incident]:
    if split not in DRAWN:
        DRAWN[split] = list(incidents(split, 250))
    return DRAWN[split]


def test_the_splits_share_no_topology_no_cascade_and_no_seed() -> None:
    fit, held_out = (drawn(split) for split in SPLITS)
    assert not {each.topology for each in fit} & {each.topology for each in held_out}
    assert not {each.seed for each in fit} & {each.seed for each in held_out}
    kinds = [{fault.cascade for each in found for fault in each.spec.faults} - {""} for found in (fit, held_out)]
    assert all(kinds) and not kinds[0] & kinds[1]
    assert set(CASCADES_OF["fit"]) | set(CASCADES_OF["held_out"]) == set(CASCADES)
    graphs = [[topology.make() for topology in TOPOLOGIES[split].values()] for split in SPLITS]
    shapes = [{tuple(sorted(graph.components)) for graph in found} for found in graphs]
    assert not shapes[0] & shapes[1]


@pytest.mark.parametrize("split", SPLITS)
def test_every_class_topology_cascade_and_look_alike_is_drawn(split: Split) -> None:
    found = drawn(split)
    assert {fault.fault_class for each in found for fault in each.spec.faults} == set(FaultClass)
    assert {each.topology for each in found} == set(TOPOLOGIES[split])
    assert {fault.cascade for each in found for fault in each.spec.faults} - {""} == set(CASCADES_OF[split])
    assert {benign.kind for each in found for benign in each.spec.benign} == set(BENIGN)
    counts = Counter(each.kind for each in found)
    assert counts["fault"] > counts["cascade"] > counts["healthy"] > 5


@pytest.mark.parametrize("split", SPLITS)
def test_conditions_reach_from_easy_to_hard(split: Split) -> None:
    found = drawn(split)
    severities = [fault.severity for each in found for fault in each.spec.faults]
    assert min(severities) < 0.05 and max(severities) > 0.95
    transports = [each.spec.transport for each in found]
    assert {each.lost for each in transports} >= {0.0, 0.2} and max(each.clock_offset_s_max for each in transports) > 1.9
    assert any(each.dead_collectors for each in transports) and any(each.dead_on_culprit for each in transports)
    sizes = {len(each.spec.hosts) * len(each.spec.fabric.gpus_of_host(each.spec.hosts[0])) for each in found}
    assert min(sizes) == 64 and max(sizes) == 128


@pytest.mark.parametrize("split", SPLITS)
def test_half_of_the_fabrics_are_probed_and_all_in_which_a_switch_drops_silently(split: Split) -> None:
    found = drawn(split)
    silent = [each for each in found if "silent" in {fault.flavour for fault in each.spec.faults}]
    assert silent and all(each.spec.probes for each in silent)
    others = [each.spec.probes for each in found if each not in silent]
    assert 0.4 < sum(others) / len(others) < 0.6


def test_an_incident_is_a_function_of_its_number() -> None:
    (alone,) = incidents("held_out", 1, first=17)
    assert alone == incident("held_out", 17)
    until = alone.spec.start + timedelta(seconds=8)
    said = [[msgspec.json.encode((each.id, each.data)) for each in alone.simulation().records(until)] for _ in range(2)]
    assert said[0] == said[1]


def test_incidents_are_drawn_one_at_a_time() -> None:
    endless = incidents("fit")
    assert [next(endless).number for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="no incident 1000000 in fit"):
        incident("fit", SEEDS_A_SPLIT)


def test_loss_and_skew_can_be_settled() -> None:
    for each in incidents("held_out", 10, loss=0.1, skew_s=2.0):
        assert (each.spec.transport.lost, each.spec.transport.clock_offset_s_max) == (0.1, 2.0)


@pytest.mark.parametrize("split", SPLITS)
def test_the_truth_of_each_is_in_the_ledger_before_anything_happens(split: Split) -> None:
    for each in drawn(split)[:60]:
        simulation = each.simulation()
        assert len(simulation.ledger) == len(each.spec.faults)
        for entry, fault in zip(simulation.ledger, each.spec.faults, strict=True):
            assert entry.fault_class is fault.fault_class and entry.severity == fault.severity
            assert entry.injected_at < each.until - timedelta(seconds=25)
            named = [name for name in (entry.component, *entry.also_right) if name is not None]
            assert all(name in each.spec.fabric or name.startswith(("rank:", "job:", "nvlink:")) for name in named)


def test_collectors_die_in_mid_incident() -> None:
    each = next(one for one in drawn("held_out") if one.spec.transport.dead_collectors and one.kind == "fault")
    onset = each.spec.start + timedelta(seconds=each.spec.faults[0].at_s)
    last = {}
    for record in each.simulation().records(each.until):
        if isinstance(record.data, CollectorHeartbeat):
            last[record.data.host] = record.received_at
    died = [host for host in each.spec.hosts if last[host] < each.until - timedelta(seconds=14)]
    assert died and all(last[host] > onset - timedelta(seconds=11) for host in died)


def test_a_healthy_incident_ends_as_it_began() -> None:
    each = next(
        one for one in drawn("fit") if one.kind == "healthy" and not any(b.kind == "job_end" for b in one.spec.benign)
    )
    simulation = each.simulation()
    simulation.advance(each.until)
    assert simulation.ledger == () and simulation.generation == 0
