"""Series are looked up by the topology's names, and stay bounded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from goodput_common.contracts.telemetry import Counter, CounterDoubt, Gauge
from goodput_correlator.domain import measurements
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.measurements import COUNTED_MAX, MEASURED_MAX, Measurements, measured
from goodput_topology.generate import h100_pod

START = datetime(2026, 3, 2, tzinfo=UTC)
POD = h100_pod(hosts=2, spines=1)
HOST = POD.hosts()[0]
NIC = POD.nics_of_host(HOST)[0]


def rose(second: int, delta: int, name: str = "rx_prio3_pause_duration", component: str = NIC, **more: object) -> Observed:
    at = START + timedelta(seconds=second)
    fact = Counter(component=component, name=name, observed_at=at, delta=delta, interval_s=5.0, value=delta, **more)  # type: ignore[arg-type]
    return Observed(f"{component}/{name}/{second}", HOST, "ethtool", at, at, fact)


def test_a_rise_sums_the_intervals_since_a_moment() -> None:
    found = measured([rose(5, 10), rose(10, 20), rose(15, 30)], POD)
    rise = found.rise(NIC, "rx_prio3_pause_duration", START + timedelta(seconds=5))
    assert (rise.delta, rise.interval_s, rise.per_s) == (50, 10.0, 5.0)
    assert [seen.id[-2:] for seen in rise.facts] == ["10", "15"]
    assert found.rise(NIC, "no such counter", START) == measurements.Rise()


def test_a_counter_at_its_ceiling_counts_at_least() -> None:
    found = measured([rose(5, 1, "link_downed", doubt=CounterDoubt.SATURATED)], POD)
    assert found.rise(NIC, "link_downed", START).at_least


def test_series_are_found_under_the_topologys_name_whatever_the_collector_calls_a_component() -> None:
    gpu = POD.gpus_of_host(HOST)[0]
    pci = POD.attr(gpu, "pci")
    told = f"gpu:{HOST}/{pci}"
    assert POD.canonical(told) == gpu
    found = measured([rose(5, 3, "pcie_replays", told), rose(6, 4, "pcie_replays", gpu)], POD)
    assert found.rise(gpu, "pcie_replays", START).delta == 7
    assert list(found.components()) == [gpu]


def test_only_the_newest_facts_are_kept() -> None:
    found = measured([rose(n, n) for n in range(100)], POD)
    assert len(found.of(NIC, "rx_prio3_pause_duration")) == COUNTED_MAX
    for second in range(9):
        at = START + timedelta(seconds=second)
        gauge = Gauge(component=NIC, name="temperature_c", observed_at=at, value=second)
        found.fold(Observed(f"g{second}", HOST, "ethtool", at, at, gauge))
    assert len(found.of(NIC, "temperature_c")) == MEASURED_MAX
    newest = found.newest(NIC, "temperature_c")
    assert newest is not None
    assert newest.id == "g8"


def test_what_is_not_told_of_any_more_is_forgotten() -> None:
    found = measured([rose(5, 1), rose(900, 1, component="port:leaf0/Ethernet0")], POD)
    found.forget(START + timedelta(seconds=600))
    assert list(found.components()) == ["port:leaf0/Ethernet0"]


def test_names_without_end_are_dropped_and_counted() -> None:
    found = Measurements(POD)
    for number in range(measurements.SERIES_PER_COMPONENT_MAX + 7):
        found.fold(rose(1, 1, f"counter_{number}"))
    assert (len(found), found.dropped) == (measurements.SERIES_PER_COMPONENT_MAX, 7)


def test_a_new_topology_gives_new_names() -> None:
    found = Measurements(measurements.Fabric.empty("f"))
    found.fold(rose(5, 2, "pcie_replays", f"gpu:{HOST}/{POD.attr(POD.gpus_of_host(HOST)[0], 'pci')}"))
    gpu = POD.gpus_of_host(HOST)[0]
    assert found.rise(gpu, "pcie_replays", START).delta == 0
    found.use(POD)
    assert found.rise(gpu, "pcie_replays", START).delta == 2
