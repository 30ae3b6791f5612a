"""Every class of the contract can be simulated, in several flavours, from blatant to marginal, with symptoms of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from goodput_common.contracts.job import RankProgress, StallSuspected
from goodput_common.contracts.telemetry import Counter, Event, EventName, Gauge, Sample, Source, TelemetryBatch
from goodput_common.contracts.verdict import FaultClass
from goodput_faultlab.simulate import FaultSpec, Outgoing, Simulation, SimulationSpec, scenario
from goodput_faultlab.simulate.faults import MAKERS
from goodput_faultlab.testing import HOSTS, small_job, structs

EACH = [(fault_class, flavour) for fault_class in MAKERS for flavour in sorted(MAKERS[fault_class])]
WHOLE_NETWORK = (FaultClass.PFC_STORM, FaultClass.SWITCH_FAULT)
C = FaultClass


def job(fault: FaultSpec) -> SimulationSpec:
    fabric = "nvl72" if fault.flavour == "xid_149" else "h100"
    return replace(scenario("healthy", **HOSTS, fabric=fabric), faults=(fault,), switches=True, noise=small_job().noise)


def run(fault: FaultSpec, seconds: float = 40.0, seed: int = 3) -> tuple[Simulation, list[Outgoing]]:
    simulation = Simulation(job(fault), seed)
    return simulation, simulation.advance(simulation.spec.start + timedelta(seconds=seconds))


def samples(out: list[Outgoing], source: Source | None = None) -> Iterator[Sample]:
    for batch in structs(out, TelemetryBatch):
        if source is None or batch.source is source:
            yield from batch.samples


def test_every_class_has_two_flavours_or_more() -> None:
    assert set(MAKERS) == set(FaultClass)
    assert all(len(flavours) >= 2 for flavours in MAKERS.values())


@pytest.mark.parametrize(("fault_class", "flavour"), EACH)
@pytest.mark.parametrize("severity", [0.0, 1.0])
def test_a_fault_of_any_class_hurts_the_job_and_its_truth_is_of_this_fabric(
    fault_class: FaultClass, flavour: str, severity: float
) -> None:
    simulation = Simulation(job(FaultSpec(fault_class=fault_class, flavour=flavour, severity=severity, at_s=6)), 3)
    (entry,) = simulation.ledger
    fabric = simulation.spec.fabric
    simulation.advance(entry.injected_at)
    before = simulation.step
    simulation.advance(entry.injected_at + timedelta(seconds=22))
    usual = 22 / simulation.spec.step_s
    assert simulation.step - before < 0.97 * usual, "as many steps as if nothing had happened"
    assert (entry.flavour, entry.severity, entry.fault_class) == (flavour, severity, fault_class)
    named = [each for each in (entry.component, *entry.also_right) if each is not None]
    assert all(each in fabric or each.startswith(("rank:", "job:", "nvlink:")) for each in named)
    assert (entry.component is None) == (fault_class in (C.NO_HARDWARE_FAULT, C.UNDETERMINED))
    assert all(0 <= rank < 32 for rank in entry.ranks)
    assert not {each.component for each in entry.explains} & set(named), "the root is no consequence of itself"


@pytest.mark.parametrize(("fault_class", "flavour"), EACH)
def test_a_fault_is_the_same_for_the_same_seed(fault_class: FaultClass, flavour: str) -> None:
    fault = FaultSpec(fault_class=fault_class, flavour=flavour, severity=0.5, at_s=4)
    said = [
        [msgspec.json.encode((each.id, each.at, each.struct)) for each in run(fault, 9.0)[1]] for _ in range(2)
    ]  # fmt: skip
    assert said[0] == said[1]


@pytest.mark.parametrize("fault_class", sorted(FaultClass))
def test_a_severity_beyond_its_bounds_is_refused(fault_class: FaultClass) -> None:
    with pytest.raises(ValueError, match=r"0 \(marginal\) to 1 \(blatant\)"):
        job(FaultSpec(fault_class=fault_class, severity=1.2))


def test_the_blatant_straggler_costs_more_than_the_marginal_one() -> None:
    lost = [
        run(FaultSpec(fault_class=C.STRAGGLER, flavour="thermal", severity=each))[0].idle.slowed_s for each in (0.0, 1.0)
    ]
    assert 0 < lost[0] * 3 < lost[1]


@pytest.mark.parametrize(
    ("fault_class", "flavour", "source", "name"),
    [
        (C.STRAGGLER, "thermal", Source.NVML, "throttled"),
        (C.STRAGGLER, "power_brake", Source.NVML, "throttled_power_brake_us"),
        (C.STRAGGLER, "power_cap", Source.NVML, "power_limit_w"),
        (C.STRAGGLER, "slow_nic_width", Source.RDMA, "port_state"),
        (C.STRAGGLER, "slow_host_cpu", Source.HOST, "pressure_cpu_some_share"),
        (C.STRAGGLER, "slow_host_memory", Source.HOST, "swap_out_pages"),
        (C.PCIE, "gpu_width", Source.NVML, "pcie_link"),
        (C.PCIE, "nic_width", Source.DISCOVERY, "pcie_link"),
        (C.PCIE, "replay_storm", Source.NVML, "pcie_replays"),
        (C.PCIE, "uncorrected", Source.KERNEL_LOG, "aer"),
        (C.GPU_DRIVER, "gsp_timeout", Source.KERNEL_LOG, "xid"),
        (C.GPU_DRIVER, "rm_init", Source.KERNEL_LOG, "gpu_lost"),
        (C.NIC_HANG, "commands", Source.KERNEL_LOG, "nic_hang"),
        (C.NIC_HANG, "firmware", Source.DEVLINK, "device_health"),
        (C.STORAGE_STALL, "nfs", Source.HOST, "storage_stall"),
        (C.STORAGE_STALL, "nfs_slow", Source.HOST, "nfs_rtt_ms"),
        (C.STORAGE_STALL, "disk", Source.HOST, "disk_busy_share"),
        (C.LINK_FLAP, "bad_optic", Source.ETHTOOL, "rx_fec_uncorrectable_blocks"),
        (C.NO_HARDWARE_FAULT, "xid_13", Source.KERNEL_LOG, "xid"),
    ],
)
def test_a_fault_leaves_the_symptom_that_names_it(fault_class: FaultClass, flavour: str, source: Source, name: str) -> None:
    def told(faults: bool) -> int:
        fault = FaultSpec(fault_class=fault_class, flavour=flavour, at_s=10 if faults else 500)
        _, out = run(fault, 42.0)
        return len({msgspec.json.encode(each) for each in samples(out, source) if getattr(each, "name", "") == name})

    assert told(True) > told(False)


def test_a_slow_rank_works_longest_and_waits_least() -> None:
    simulation, out = run(FaultSpec(fault_class=C.STRAGGLER, flavour="slow_data", at_s=10))
    (victim,) = simulation.ledger[0].ranks
    last = {each.rank: each for each in structs(out, RankProgress)}
    assert min(last, key=lambda rank: last[rank].waiting_ms) == victim
    assert max(last, key=lambda rank: last[rank].phases_ms.get("data", 0.0)) == victim


def test_a_slow_job_is_suspected_of_a_stall_by_hardly_anybody() -> None:
    _, out = run(FaultSpec(fault_class=C.STRAGGLER, flavour="thermal", severity=0.3, at_s=10))
    assert not structs(out, StallSuspected)


@pytest.mark.parametrize("flavour", ["power", "panic", "lockup"])
def test_nothing_comes_from_a_host_that_is_down(flavour: str) -> None:
    simulation, out = run(FaultSpec(fault_class=C.HOST_DOWN, flavour=flavour, at_s=10))
    truth = simulation.ledger[0]
    said = [each.at for each in out if getattr(each.struct, "host", "") == truth.host]
    assert said and max(said) < truth.injected_at + timedelta(seconds=1.5)


def test_a_hung_adapter_keeps_its_link() -> None:
    simulation, out = run(FaultSpec(fault_class=C.NIC_HANG, flavour="commands", at_s=10))
    host = simulation.ledger[0].host
    mine = [each for each in samples(out) if isinstance(each, Event) and f":{host}/" in each.component]
    assert any(each.name is EventName.NIC_HANG for each in mine)
    assert not any(each.name is EventName.LINK_DOWN for each in mine)


def test_a_repeated_gsp_timeout_ends_in_a_count_that_is_a_lower_bound() -> None:
    _, out = run(FaultSpec(fault_class=C.GPU_DRIVER, flavour="gsp_timeout", at_s=5), 60.0)
    repeats = [each for each in samples(out) if isinstance(each, Event) and each.attrs.get("xid") == "119"]
    assert len(repeats) > 5 and any(each.attrs.get("lower_bound") == "true" for each in repeats)


def test_what_an_application_does_wrong_hits_other_units_each_time() -> None:
    _, out = run(FaultSpec(fault_class=C.NO_HARDWARE_FAULT, flavour="xid_13", at_s=10))
    hit = [each for each in samples(out) if isinstance(each, Event) and each.attrs.get("xid") == "13"]
    assert len({each.component for each in hit}) > 2
    assert len({(each.attrs["gpc"], each.attrs["tpc"]) for each in hit}) > 2


def test_the_marginal_case_leaves_less() -> None:
    def told(severity: float) -> int:
        _, out = run(FaultSpec(fault_class=C.GPU_DRIVER, flavour="gsp_timeout", at_s=5, severity=severity), 60.0)
        return sum(1 for each in samples(out) if isinstance(each, Event) and each.name is EventName.XID)

    assert told(0.0) < told(0.5) < told(1.0)


def test_clocks_of_a_throttled_gpu_fall_and_those_of_others_do_not() -> None:
    simulation, out = run(FaultSpec(fault_class=C.STRAGGLER, flavour="thermal", at_s=10))
    truth, fabric = simulation.ledger[0], simulation.spec.fabric
    clocks: dict[str, float] = {}
    for each in samples(out, Source.NVML):
        if isinstance(each, Gauge) and each.name == "clock_sm_mhz":
            clocks[fabric.canonical(each.component)] = each.value
    assert min(clocks, key=lambda gpu: clocks[gpu]) == truth.component
    assert sum(1 for value in clocks.values() if value < 1500) == 1


def test_counters_of_a_fault_add_up() -> None:
    """Whoever moves them: what is told of a counter sums to how far it has come."""
    _, out = run(FaultSpec(fault_class=C.PCIE, flavour="replay_storm", at_s=10))
    of: dict[tuple[str, str], list[Counter]] = {}
    for each in samples(out):
        if isinstance(each, Counter):
            of.setdefault((each.component, each.name), []).append(each)
    assert any(name == "pcie_replays" for _, name in of)
    for told in of.values():
        assert sum(one.delta for one in told[1:]) == told[-1].value - told[0].value
