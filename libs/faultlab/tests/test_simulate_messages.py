"""What a simulated fabric says on the bus: whole, numbered, from clocks that differ, over a transport that loses."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

from goodput_common.contracts import subjects
from goodput_common.contracts.job import FlightRecorderDump, HostProgress, RankProgress, RankRegistered
from goodput_common.contracts.registry import BY_STRUCT
from goodput_common.contracts.telemetry import TelemetryBatch
from goodput_common.contracts.topology import TopologySnapshot
from goodput_common.contracts.verdict import FaultClass
from goodput_faultlab.simulate import FaultSpec, Simulation, TransportSpec, scenario
from goodput_faultlab.simulate.clockwork import Outgoing
from goodput_faultlab.testing import HOSTS, simulated, small_job, structs
from goodput_topology.graph import Fabric


def test_every_message_is_one_that_the_bus_knows_and_has_an_id_of_its_own() -> None:
    simulation, out = simulated("gpu-off-bus")
    for each in out:
        assert type(each.struct) in BY_STRUCT
        subjects.stream_of(each.subject)
    assert max(Counter(each.id for each in out).values()) == 1
    assert [each.at for each in out] == sorted(each.at for each in out)
    assert all(simulation.spec.start <= each.at <= simulation.now for each in out)


def test_the_topology_comes_first_and_is_the_fabric() -> None:
    simulation, out = simulated("healthy", 2.0)
    fabric = Fabric.from_snapshots(simulation.spec.fabric.name, structs(out, TopologySnapshot))
    assert dict(fabric.components) == dict(simulation.spec.fabric.components)


def test_every_rank_registers_where_it_runs() -> None:
    simulation, out = simulated("healthy", 3.0)
    registered = {each.rank: each for each in structs(out, RankRegistered)}
    assert sorted(registered) == list(range(32))
    assert registered[13].host == "h1" and registered[13].gpu == 5 and registered[13].world_size == 32
    assert registered[13].gpu_uuid == simulation.spec.fabric.attr("gpu:h1/5", "uuid")


def test_batches_of_a_source_are_numbered_without_gaps() -> None:
    _, out = simulated("flapping-link", 60.0)
    seqs: dict[tuple[str, str], list[int]] = {}
    for batch in structs(out, TelemetryBatch):
        seqs.setdefault((batch.host, batch.source.value), []).append(batch.seq)
    assert seqs
    for numbers in seqs.values():
        assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_reports_come_once_a_second_and_tell_steps_that_add_up() -> None:
    _, out = simulated("healthy", 30.0)
    mine = [each for each in structs(out, RankProgress) if each.rank == 5]
    assert 25 <= len(mine) <= 30
    assert [each.seq for each in mine] == list(range(1, len(mine) + 1))
    assert sum(each.steps for each in mine) == mine[-1].step + 1
    assert all(each.groups == () for each in mine), "group progress is for stalls"


def test_clocks_of_hosts_differ_by_up_to_two_seconds() -> None:
    _, out = simulated("healthy", 20.0)
    offsets = {
        each.struct.host: (each.time - each.at).total_seconds() for each in out if isinstance(each.struct, RankProgress)
    }
    assert all(-2.1 < offset < 2.1 for offset in offsets.values())
    assert max(offsets.values()) - min(offsets.values()) > 0.5


def test_transport_loses_doubles_and_delays_what_it_was_told_to() -> None:
    end = timedelta(seconds=60)
    clean = Simulation(small_job(), 1).advance(small_job().start + end)
    rough = Simulation(small_job(transport=TransportSpec(lost=0.2, doubled=0.3, late=0.5, late_s_max=3.0)), 1).advance(
        small_job().start + end
    )
    ids = Counter(each.id for each in rough)
    assert 0.7 < len(ids) / len(clean) < 0.9
    assert 0.2 < sum(1 for count in ids.values() if count == 2) / len(ids) < 0.4
    registered = {each.struct.rank for each in rough if isinstance(each.struct, RankRegistered)}
    assert registered == set(range(32)), "registrations are sent until they arrive"


def test_chosen_dumps_never_arrive() -> None:
    fault = FaultSpec(fault_class=FaultClass.UNDETERMINED, at_s=15)
    out = Simulation(small_job(fault, transport=TransportSpec(lost_dumps=5)), 1).advance(
        small_job().start + timedelta(seconds=30)
    )
    assert len({each.rank for each in structs(out, FlightRecorderDump)}) == 27


def _together(**transport: Any) -> tuple[Simulation, list[Outgoing]]:
    spec = scenario("straggler-thermal", **HOSTS)
    simulation = Simulation(replace(spec, reports_together=True, transport=replace(spec.transport, **transport)), 1)
    return simulation, simulation.advance(simulation.spec.start + timedelta(seconds=40))


def test_reports_of_a_host_travel_in_one_message_a_second() -> None:
    _, out = _together()
    by_host: dict[str, list[HostProgress]] = {}
    for each in structs(out, HostProgress):
        by_host.setdefault(each.host, []).append(each)
    assert not structs(out, RankProgress)
    for host, sent in by_host.items():
        assert 36 <= len(sent) <= 41
        assert all({each.host for each in message.reports} == {host} for message in sent)
        assert all(
            timedelta(0) <= message.at - each.at <= timedelta(seconds=0.25) for message in sent for each in message.reports
        )
    seqs = sorted(each.seq for message in by_host["h1"] for each in message.reports if each.rank == 8)
    assert seqs == list(range(1, len(seqs) + 1))


def test_ranks_report_by_themselves_while_their_collector_is_dead() -> None:
    simulation, out = _together(dead_collectors=1, dead_after_s=1.0)
    alone = structs(out, RankProgress)
    (host,) = {each.host for each in alone}
    told = [*alone, *(each for message in structs(out, HostProgress) for each in message.reports)]
    for rank in {each.rank for each in alone}:
        seqs = sorted(each.seq for each in told if each.rank == rank)
        assert seqs == list(range(1, len(seqs) + 1)), "none is lost, none told twice"
    assert host in simulation.spec.hosts
