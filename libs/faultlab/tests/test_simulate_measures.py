"""What simulated hosts and switches measure adds up, follows the job, and is the same for the same seed."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from goodput_common.contracts.job import RankProgress
from goodput_common.contracts.telemetry import (
    CollectorHeartbeat,
    Counter,
    CounterDoubt,
    Gauge,
    Probe,
    Source,
    State,
    TelemetryBatch,
)
from goodput_common.contracts.verdict import FaultClass
from goodput_faultlab.simulate import FaultSpec, NoiseSpec, Outgoing, Simulation, SimulationSpec, TransportSpec
from goodput_faultlab.simulate.baseline import NOISE, SHARE_NOISE
from goodput_faultlab.simulate.counts import SATURATES, WRAPS_32, Counts
from goodput_faultlab.testing import structs
from goodput_topology.generate import h100_pod

MEASURES = replace(NoiseSpec.none(), counters=True)
FABRIC = h100_pod(hosts=2, pods=2, spines=3)


def measuring(*faults: FaultSpec, **more: object) -> SimulationSpec:
    given: dict[str, object] = {
        "fabric": FABRIC, "hosts": FABRIC.hosts(), "step_s": 0.4, "faults": faults, "noise": MEASURES, "switches": True,
        "probes": True,
    }  # fmt: skip
    return SimulationSpec(**(given | more))  # type: ignore[arg-type]


def run(spec: SimulationSpec, seconds: float = 70.0, seed: int = 3) -> tuple[Simulation, list[Outgoing]]:
    simulation = Simulation(spec, seed)
    return simulation, simulation.advance(spec.start + timedelta(seconds=seconds))


def counters(out: Iterable[Outgoing]) -> Iterator[tuple[str, Counter]]:
    for batch in sorted(structs(out, TelemetryBatch), key=lambda each: (each.host, each.source, each.boot_id, each.seq)):
        for sample in batch.samples:
            if isinstance(sample, Counter):
                yield batch.host, sample


def gauges(out: Iterable[Outgoing], name: str) -> list[Gauge]:
    batches = structs(out, TelemetryBatch)
    return [s for batch in batches for s in batch.samples if isinstance(s, Gauge) and s.name == name]


SLOW_RECEIVER = FaultSpec(fault_class=FaultClass.PFC_STORM, flavour="slow_receiver", host="h2", rail=3)
FAULTS = {
    "none": (),
    "slow receiver": (SLOW_RECEIVER,),
    "dead link": (FaultSpec(fault_class=FaultClass.LINK_FLAP, flavour="dead"),),
    "silent switch": (FaultSpec(fault_class=FaultClass.SWITCH_FAULT, flavour="silent"),),
    "two at once": (SLOW_RECEIVER, FaultSpec(fault_class=FaultClass.SWITCH_FAULT, flavour="bad_port")),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_increases_add_up_to_what_counters_stand_at(kind: str) -> None:
    _, out = run(measuring(*FAULTS[kind], transport=TransportSpec(delay_s_max=0.01)))
    stands: dict[tuple[str, str], int] = {}
    checked = 0
    for _, each in counters(out):
        key = (each.component, each.name)
        assert each.delta > 0
        if key in stands and not (each.doubt is CounterDoubt.SATURATED and each.value == stands[key]):
            modulus = 1 << 32 if each.name in WRAPS_32 else 1 << 64
            assert (stands[key] + each.delta) % modulus == each.value, key
            checked += 1
        stands[key] = each.value
    assert checked > 1000


@pytest.mark.parametrize("kind", FAULTS)
def test_the_same_seed_gives_the_same_readings(kind: str) -> None:
    def digest(seed: int) -> str:
        found = hashlib.sha256()
        for each in run(measuring(*FAULTS[kind]), 32.0, seed)[1]:
            found.update(msgspec.json.encode((each.id, each.at, each.time, each.struct)))
        return found.hexdigest()

    assert digest(3) == digest(3) != digest(4)


def test_a_counter_is_told_once_a_reading_and_only_when_it_moved() -> None:
    _, out = run(measuring(SLOW_RECEIVER))
    for batch in structs(out, TelemetryBatch):
        told = [(each.component, each.name) for each in batch.samples if isinstance(each, Counter)]
        assert len(told) == len(set(told))


def test_traffic_stops_with_the_job_and_slows_with_its_steps() -> None:
    def words_s(fault: FaultSpec | None) -> list[float]:
        spec = measuring(*([fault] if fault else []))
        begins = spec.start + timedelta(seconds=32)
        return [
            each.delta / each.interval_s
            for batch in structs(run(spec)[1], TelemetryBatch)
            for each in batch.samples
            if isinstance(each, Counter) and each.name == "port_xmit_data" and batch.observed_from > begins
        ]

    usual = words_s(None)
    assert len(usual) > 100 and max(usual) < 1.2 * min(usual)
    assert words_s(FAULTS["dead link"][0]) == []
    slow = words_s(SLOW_RECEIVER)
    assert 0.1 < (sum(slow) / len(slow)) / (sum(usual) / len(usual)) < 0.6


def test_a_measurement_is_told_again_when_it_has_moved_by_more_than_its_noise_or_after_a_minute() -> None:
    _, out = run(measuring(), 200.0)
    last: dict[tuple[str, str, str], Gauge] = {}
    again = 0
    for batch in sorted(structs(out, TelemetryBatch), key=lambda each: (each.host, each.source, each.seq)):
        for each in batch.samples:
            if not isinstance(each, Gauge):
                continue
            key = (each.component, each.name, str(sorted(each.attrs.items())))
            before = last.get(key)
            if before is not None:
                moved = abs(each.value - before.value) > NOISE.get(each.name, SHARE_NOISE) * 0.97
                assert moved or each.observed_at - before.observed_at > timedelta(seconds=59), key
                again += 1
            last[key] = each
    assert again > 200


def test_a_gpu_that_waits_draws_less_and_cools_down() -> None:
    _, out = run(measuring(FAULTS["dead link"][0]), 90.0)
    by_gpu: dict[str, list[float]] = defaultdict(list)
    for each in gauges(out, "power_w"):
        by_gpu[each.component].append(each.value)
    assert len(by_gpu) == 32
    assert all(max(watts) > 600 and watts[-1] < 300 for watts in by_gpu.values())
    cooled = {each.component: each.value for each in gauges(out, "temperature_c")}
    assert max(cooled.values()) < 60


def test_spares_are_idle() -> None:
    spec = measuring(hosts=FABRIC.hosts()[:3], spares=FABRIC.hosts()[3:])
    _, out = run(spec)
    assert all(each.value < 100 for each in gauges(out, "power_w") if each.component.startswith("gpu:h3/"))
    assert not [each for host, each in counters(out) if host == "h3" and each.name == "port_xmit_data"]


def test_what_a_fault_says_by_itself_is_not_told_over() -> None:
    throttled = FaultSpec(fault_class=FaultClass.STRAGGLER, flavour="thermal", rank=5)
    _, out = run(measuring(throttled), 150.0)
    said = [
        (batch.observed_to, each.value)
        for batch in structs(out, TelemetryBatch)
        for each in batch.samples
        if isinstance(each, State) and each.name == "clocks_held_down_by" and each.component == "gpu:h0/0000:c3:00"
    ]
    begun = next(n for n, (_, value) in enumerate(said) if value != "nothing")
    assert len(said) > begun + 1, "told again in full"
    assert {value for _, value in said[begun:]} == {said[begun][1]}


def test_a_straggler_works_longest_and_waits_least_and_a_slow_network_makes_all_wait_alike() -> None:
    def last(fault: FaultSpec) -> dict[int, RankProgress]:
        return {each.rank: each for each in structs(run(measuring(fault), 60.0)[1], RankProgress) if each.steps}

    late = last(FaultSpec(fault_class=FaultClass.STRAGGLER, flavour="thermal", rank=5, severity=0.3))
    assert min(late, key=lambda rank: late[rank].waiting_ms) == 5
    assert max(late, key=lambda rank: sum(late[rank].phases_ms.values())) == 5
    assert all(
        each.waiting_ms + sum(each.phases_ms.values()) == pytest.approx(each.step_ms_mean, abs=1) for each in late.values()
    )
    alike = last(replace(SLOW_RECEIVER, severity=0.5))
    waits = [each.waiting_ms for each in alike.values()]
    assert max(waits) < 1.2 * min(waits) and min(waits) > 100


def test_heartbeats_name_what_each_source_looks_at() -> None:
    simulation, out = run(measuring(), 20.0)
    last = {each.host: each for each in structs(out, CollectorHeartbeat)}
    host = {each.source: each for each in last["h1"].sources}
    assert len(host[Source.RDMA].covered) == len(host[Source.NVML].covered) == 8
    assert host[Source.HOST].covered == ("host:h1",)
    (switch,) = last["leaf-p0-r0"].sources
    assert switch.source is Source.SWITCH
    assert set(switch.covered) == set(simulation.spec.fabric.ports_of_switch("switch:leaf-p0-r0"))


def test_switches_and_probes_are_told_only_where_they_are_asked_for() -> None:
    _, out = run(measuring(SLOW_RECEIVER, switches=False, probes=False))
    batches = structs(out, TelemetryBatch)
    assert not {Source.SWITCH, Source.PROBES} & {each.source for each in batches}
    assert {each.host for each in batches} == set(FABRIC.hosts())


def test_a_reading_is_lost_with_its_collector_and_comes_back_without_the_gap() -> None:
    simulation = Simulation(measuring(), 3)
    start = simulation.spec.start
    simulation.advance(start + timedelta(seconds=30))
    simulation._collectors.silence("h1")
    during = simulation.advance(start + timedelta(seconds=60))
    assert "h1" not in {each.struct.host for each in during if isinstance(each.struct, TelemetryBatch)}
    simulation._collectors.speak("h1")
    after = simulation.advance(start + timedelta(seconds=90))
    mine = [each for host, each in counters(after) if host == "h1"]
    assert mine and max(each.interval_s for each in mine) <= 5.1


def test_after_a_reboot_numbers_and_counters_begin_anew() -> None:
    simulation = Simulation(measuring(), 3)
    start = simulation.spec.start
    before = {
        each.boot_id
        for each in structs(simulation.advance(start + timedelta(seconds=30)), TelemetryBatch)
        if each.host == "h1"
    }
    simulation._collectors.boot("h1")
    simulation._measures.reboot("h1")
    after = structs(simulation.advance(start + timedelta(seconds=60)), TelemetryBatch)
    mine = [each for each in after if each.host == "h1" and each.boot_id not in before]
    assert min(each.seq for each in mine if each.source is Source.RDMA) == 1
    words = [s for batch in mine for s in batch.samples if isinstance(s, Counter) and s.name == "port_xmit_data"]
    assert words and max(each.value for each in words) < 30 * 2_000_000_000


def test_probes_are_lost_on_ways_through_a_silent_switch_and_no_others() -> None:
    simulation, out = run(measuring(FAULTS["silent switch"][0]))
    truth = simulation.ledger[0]
    lost: dict[bool, int] = {True: 0, False: 0}
    sent: dict[bool, int] = {True: 0, False: 0}
    for batch in structs(out, TelemetryBatch):
        for each in batch.samples:
            if isinstance(each, Probe) and batch.observed_from > truth.injected_at + timedelta(seconds=3):
                through = truth.component in (*each.path, *each.answer_path)
                lost[through] += each.lost
                sent[through] += each.sent
    assert lost[True] > 0.05 * sent[True] > 0
    assert lost[False] < 0.001 * sent[False]


def probes_of(fault: FaultSpec) -> tuple[Simulation, list[Probe]]:
    """Those sent some seconds after it set in, or later."""
    simulation, out = run(measuring(fault))
    since = simulation.ledger[0].injected_at + timedelta(seconds=13)
    batches = structs(out, TelemetryBatch)
    return simulation, [s for b in batches for s in b.samples if isinstance(s, Probe) and b.observed_from > since]


@pytest.mark.parametrize(
    ("fault_class", "flavour"),
    [(FaultClass.NIC_HANG, "firmware"), (FaultClass.LINK_FLAP, "dead"), (FaultClass.HOST_DOWN, "power")],
)
def test_no_probe_comes_through_what_is_dead_and_all_others_do(fault_class: FaultClass, flavour: str) -> None:
    simulation, told = probes_of(FaultSpec(fault_class=fault_class, flavour=flavour, host="h2"))
    truth = simulation.ledger[0].component or ""
    dead = set(FABRIC.nics_of_host("h2")) if truth.startswith("host:") else {truth}
    through = [each for each in told if dead & {each.component, each.target, *each.path, *each.answer_path}]
    assert through and all(each.lost == each.sent and each.network_us_p50 == -1.0 for each in through)
    assert sum(each.lost for each in told if each not in through) < 0.001 * sum(each.sent for each in told)


def test_a_busy_host_is_slow_to_answer_and_the_network_is_not() -> None:
    _, told = probes_of(FaultSpec(fault_class=FaultClass.STRAGGLER, flavour="slow_host_cpu", host="h2"))
    busy = [each.responder_us_p50 for each in told if each.target.startswith("nic:h2/")]
    others = [each.responder_us_p50 for each in told if not each.target.startswith("nic:h2/")]
    assert min(busy) > 50 * max(others)
    assert max(each.network_us_p50 for each in told) < 3 * min(each.network_us_p50 for each in told)


def test_probes_wait_where_ports_are_paused_and_are_not_lost() -> None:
    _, told = probes_of(SLOW_RECEIVER)
    (nic,) = [each for each in FABRIC.nics_of_host("h2") if FABRIC.attr(each, "rail") == "3"]
    into = [each.network_us_p50 for each in told if each.target == nic]
    others = [each.network_us_p50 for each in told if FABRIC.attr(each.target, "rail") != "3"]
    assert min(into) > 10 * max(others)
    assert sum(each.lost for each in told) < 0.001 * sum(each.sent for each in told)


@pytest.mark.parametrize("name", ["rx_write_requests", "link_downed", "port_xmit_data"])
def test_counters_end_as_the_real_ones_do(name: str) -> None:
    counts = Counts()
    told = [counts.add("nic:h0/mlx5_0/1", name, 1 << 28) for _ in range(40)]
    values = [each.value for each in told if each is not None]
    if name in WRAPS_32:
        assert any(each is not None and each.doubt is CounterDoubt.WRAPPED for each in told)
        assert max(values) < 1 << 32
    elif name in SATURATES:
        assert values == [SATURATES[name]] and told[1:] == [None] * 39
    else:
        assert values == sorted(values) and values[-1] - values[0] == 39 << 28
