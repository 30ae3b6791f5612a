"""A job that is slow: who is late, and which component carries the reason. Look-alikes name nobody."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goodput_common.contracts.ids import host_id, job_id, rank_id
from goodput_common.contracts.job import RankProgress
from goodput_common.contracts.telemetry import Counter, Event, EventName, Gauge, State
from goodput_common.contracts.verdict import ActionKind, FaultClass
from goodput_correlator.domain.case import Case, Observed, Placement, RankPlace, ordered
from goodput_correlator.domain.diagnosis import pcie, pfc_storm, storage_stall, straggler
from goodput_correlator.domain.finding import Finding
from goodput_correlator.domain.lateness import lateness
from goodput_correlator.domain.pace import RankPace, Slow
from goodput_correlator.domain.ranking import decide
from goodput_topology.generate import h100_pod

START = datetime(2026, 3, 2, tzinfo=UTC)
POD = h100_pod(hosts=4, spines=2)
HOSTS = POD.hosts()
GPUS = [gpu for host in HOSTS for gpu in POD.gpus_of_host(host)]
WORLD = len(GPUS)
USUAL = {"data": 12.0, "forward": 136.0, "backward": 132.0, "optimizer": 32.0}
STEP_MS = 400.0
VICTIM = 11  # on the second host
GPU, HOST = GPUS[VICTIM], HOSTS[1]
NIC = POD.nics_of_gpu(GPU)[0]
SPREAD = (1.0, 0.4, -0.8, 0.1, -0.3, 0.7, -1.0, 0.2)  # ms, rank by rank: no two ranks take equally long


@dataclass
class SlowJob:
    """32 ranks on 4 hosts whose step has become longer by `late_ms` of some ranks, or by `network_ms`."""

    late_ms: Mapping[int, float] = field(default_factory=dict)
    phase: str = "forward"
    network_ms: float = 0.0
    everybody_ms: float = 0.0
    tells_waiting: bool = True
    has_past: bool = True
    told: list[Observed] = field(default_factory=list)
    _number: itertools.count[int] = field(default_factory=itertools.count)

    def put(self, host: str, source: str, fact: Any) -> None:
        self.told.append(Observed(f"{host}/{source}/{next(self._number)}", host, source, fact.observed_at, at(30), fact))

    def gauge(self, component: str, name: str, value: float, host: str = HOST, **attrs: str) -> None:
        self.put(host, "nvml", Gauge(component=component, name=name, observed_at=at(30), value=value, attrs=attrs))

    def counter(self, component: str, name: str, delta: int, host: str = HOST) -> None:
        fact = Counter(component=component, name=name, observed_at=at(30), delta=delta, interval_s=5.0, value=delta + 7)
        self.put(host, "nvml", fact)

    def state(self, component: str, name: str, value: str, host: str = HOST, **attrs: str) -> None:
        self.put(host, "nvml", State(component=component, name=name, observed_at=at(30), value=value, attrs=attrs))

    def event(self, component: str, name: EventName, host: str = HOST, **attrs: str) -> None:
        self.put(
            host, "kernel_log", Event(component=component, name=name, observed_at=at(20), excerpt=name.value, attrs=attrs)
        )

    def throttle(self, gpu: str = GPU, reason: str = "hw_thermal_slowdown") -> None:
        host = gpu.partition(":")[2].partition("/")[0]
        self.event(gpu, EventName.THROTTLED, host, reason=reason, state="start")
        self.state(gpu, "clocks_held_down_by", reason, host)

    def pace(self, rank: int, step_ms: float) -> RankPace:
        own = {name: ms + (SPREAD[rank % 8] if name == "forward" else 0.0) for name, ms in USUAL.items()}
        usual = dict(own)
        own[self.phase] += self.late_ms.get(rank, 0.0)
        own["forward"] += self.everybody_ms
        waits_ms = step_ms - sum(own.values())
        phases = dict(own) if self.tells_waiting else own | {"backward": own["backward"] + waits_ms}
        usual_ms = sum(usual.values()) if self.tells_waiting else STEP_MS
        if not self.tells_waiting:
            usual["backward"] += STEP_MS - sum(usual.values())
        fact = RankProgress(
            fabric=POD.name, job="j", rank=rank, host=HOSTS[rank // 8], seq=1, at=at(30), steps=2, step=70,
            step_ms_mean=step_ms, phases_ms=phases, waiting_ms=waits_ms if self.tells_waiting else -1.0,
        )  # fmt: skip
        told = Observed(f"prog/{rank}", HOSTS[rank // 8], "agent", at(30), at(30), fact)
        return RankPace(
            rank, step_ms, sum(phases.values()), usual_ms if self.has_past else None, phases, (told,),
            usual if self.has_past else {},
        )  # fmt: skip

    def case(self, without: frozenset[str] = frozenset()) -> Case:
        step_ms = STEP_MS + max(self.late_ms.values(), default=0.0) + self.network_ms + self.everybody_ms
        paces = {rank: self.pace(rank, step_ms) for rank in range(WORLD)}
        places = {n: RankPlace(n, HOSTS[n // 8], 1000 + n, n % 8, None, n % 8, START) for n in range(WORLD)}
        reports = [pace.told[0] for pace in paces.values()]
        return Case(
            now=at(31),
            fabric=POD.name,
            job="j",
            observed=ordered([*reports, *(each for each in self.told if each.id not in without)]),
            topology=POD,
            placement=Placement("j", WORLD, 0, places),
            slow=Slow(at(10), STEP_MS, step_ms, 2),
            paces=paces,
        )


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def best(findings: tuple[Finding, ...]) -> Finding:
    return max(findings, key=lambda finding: finding.score)


# ------------------------------------------------------------------------------------------------------- who is late


def test_a_rank_whose_own_time_grew_by_what_the_step_grew_is_late() -> None:
    seen = lateness(SlowJob({VICTIM: 200.0}).case())
    assert list(seen.late) == [VICTIM]
    assert seen.late[VICTIM].phase == "forward"
    assert seen.late[VICTIM].ratio < 0.75


def test_those_who_wait_for_it_are_not_late() -> None:
    job = SlowJob({VICTIM: 200.0})
    assert {f.component for f in straggler.diagnose(job.case())} == {rank_id("j", VICTIM)}


def test_without_waiting_told_the_phase_that_grew_elsewhere_tells_the_late_rank() -> None:
    seen = lateness(SlowJob({VICTIM: 200.0}, tells_waiting=False).case())
    assert list(seen.late) == [VICTIM]
    assert seen.late[VICTIM].sure < lateness(SlowJob({VICTIM: 200.0}).case()).late[VICTIM].sure


def test_without_a_past_it_is_held_against_the_others_with_less_certainty() -> None:
    seen = lateness(SlowJob({VICTIM: 200.0}, has_past=False).case())
    assert list(seen.late) == [VICTIM]
    assert seen.late[VICTIM].sure < lateness(SlowJob({VICTIM: 200.0}).case()).late[VICTIM].sure


def test_work_that_has_become_more_for_everybody_makes_nobody_late() -> None:
    seen = lateness(SlowJob(everybody_ms=80.0).case())
    assert not seen.late and not seen.in_network
    assert straggler.diagnose(SlowJob(everybody_ms=80.0).case()) == ()


def test_time_that_passes_between_the_ranks_is_the_networks() -> None:
    assert lateness(SlowJob(network_ms=80.0).case()).in_network


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.integers(0, WORLD - 1), st.floats(0, 400), max_size=WORLD), st.booleans(), st.booleans())
def test_whatever_ranks_do_only_those_that_explain_the_slowdown_are_late(
    late_ms: dict[int, float], tells: bool, past: bool
) -> None:
    seen = lateness(SlowJob(late_ms, tells_waiting=tells, has_past=past).case())
    longest = max(late_ms.values(), default=0.0)
    for rank, late in seen.late.items():
        assert late_ms.get(rank, 0.0) >= 0.25 * longest
        assert 0.0 < late.sure <= 1.0 and 0.0 <= late.ratio <= 1.0


# ---------------------------------------------------------------------------------------------------------------- why


def test_a_hot_gpu_is_named_for_its_late_rank() -> None:
    job = SlowJob({VICTIM: 200.0})
    job.throttle()
    job.gauge(GPU, "temperature_c", 88.0)
    job.counter(GPU, "throttled_hw_thermal_us", 4_000_000)
    (finding,) = straggler.diagnose(job.case())
    assert (finding.component, finding.ranks) == (GPU, (VICTIM,))
    assert finding.score > 0.9
    assert finding.hardware and "hw_thermal_slowdown" in finding.because
    assert finding.action is not None and finding.action.kind is ActionKind.CORDON_AT_CHECKPOINT


def test_the_power_brake_is_told_from_heat() -> None:
    job = SlowJob({VICTIM: 200.0})
    job.throttle(reason="hw_power_brake")
    (finding,) = straggler.diagnose(job.case())
    assert finding.component == GPU and "hw_power_brake" in finding.because


def test_a_power_limit_below_that_of_the_peers_is_a_reason_and_the_cap_alone_is_none_where_all_are_at_it() -> None:
    lowered = SlowJob({VICTIM: 200.0})
    for gpu in GPUS:
        lowered.gauge(gpu, "power_limit_w", 350.0 if gpu == GPU else 700.0)
        lowered.counter(gpu, "throttled_power_us", 4_500_000)
    (finding,) = straggler.diagnose(lowered.case())
    assert finding.component == GPU and "350 W" in finding.because
    capped = SlowJob({VICTIM: 200.0})
    for gpu in GPUS:
        capped.counter(gpu, "throttled_power_us", 4_500_000)
    (finding,) = straggler.diagnose(capped.case())
    assert finding.component == rank_id("j", VICTIM)


def test_throttling_that_is_everywhere_is_not_why_one_rank_is_late() -> None:
    job = SlowJob({VICTIM: 200.0})
    for gpu in GPUS:
        job.throttle(gpu)
    (finding,) = straggler.diagnose(job.case())
    assert finding.component == rank_id("j", VICTIM)


def test_a_throttled_gpu_whose_rank_is_not_late_is_left_alone() -> None:
    job = SlowJob({VICTIM: 200.0})
    job.throttle(GPUS[3])
    (finding,) = straggler.diagnose(job.case())
    assert finding.component == rank_id("j", VICTIM)


def test_a_throttled_gpu_that_the_job_does_not_use_is_left_alone() -> None:
    other = h100_pod(hosts=6, spines=2)
    job = SlowJob(network_ms=60.0)
    job.throttle(other.gpus_of_host(other.hosts()[5])[0])
    assert straggler.diagnose(job.case()) == ()


def test_throttling_that_has_ended_is_no_reason() -> None:
    job = SlowJob({VICTIM: 200.0})
    job.event(GPU, EventName.THROTTLED, reason="hw_thermal_slowdown", state="start")
    job.event(GPU, EventName.THROTTLED, reason="hw_thermal_slowdown", state="end")
    job.state(GPU, "clocks_held_down_by", "nothing")
    (finding,) = straggler.diagnose(job.case())
    assert finding.component == rank_id("j", VICTIM)


def test_all_ranks_of_a_host_that_wants_cpus_name_the_host() -> None:
    job = SlowJob({rank: 150.0 + rank for rank in range(8, 16)})
    job.gauge(host_id(HOST), "pressure_cpu_some_share", 0.6)
    (finding,) = straggler.diagnose(job.case())
    assert finding.component == host_id(HOST)
    assert finding.ranks == tuple(range(8, 16))
    assert finding.score > 0.9 and not finding.hardware


def test_pressure_that_all_hosts_know_is_no_reason() -> None:
    job = SlowJob({rank: 150.0 + rank for rank in range(8, 16)})
    for host in HOSTS:
        job.gauge(host_id(host), "pressure_cpu_some_share", 0.6, host)
    (finding,) = straggler.diagnose(job.case())
    assert "nothing seen says why" in finding.because or finding.component != host_id(HOST)


def test_input_that_comes_late_names_the_rank() -> None:
    job = SlowJob({VICTIM: 200.0}, phase="data")
    (finding,) = straggler.diagnose(job.case())
    assert finding.component == rank_id("j", VICTIM)
    assert "input" in finding.because


def test_two_stragglers_on_two_hosts_are_two_culprits() -> None:
    job = SlowJob({VICTIM: 200.0, 25: 190.0})
    job.throttle()
    job.throttle(GPUS[25])
    diagnosis = decide(job.case())
    assert diagnosis is not None
    assert {culprit.component for culprit in diagnosis.culprits} == {GPU, GPUS[25]}


def test_a_slow_adapter_is_named_only_when_nobodys_own_work_takes_longer() -> None:
    job = SlowJob(network_ms=100.0)
    job.state(NIC, "port_state", "ACTIVE", degraded="true", rate="100 Gb/sec (1X NDR)")
    (finding,) = straggler.diagnose(job.case())
    assert (finding.component, finding.ranks) == (NIC, (VICTIM,))
    assert finding.score > 0.8
    late = SlowJob({3: 100.0})
    late.state(NIC, "port_state", "ACTIVE", degraded="true")
    assert [f.component for f in straggler.diagnose(late.case())] == [rank_id("j", 3)]


def test_links_that_are_all_as_fast_are_no_reason_and_one_that_is_slower_is() -> None:
    job = SlowJob(network_ms=100.0)
    for gpu in GPUS:
        nic = POD.nics_of_gpu(gpu)[0]
        host = nic.partition(":")[2].partition("/")[0]
        job.state(nic, "link", "up", host, speed_mbps="200000" if nic == NIC else "400000")
    (finding,) = straggler.diagnose(job.case())
    assert finding.component == NIC
    same = SlowJob(network_ms=100.0)
    for gpu in GPUS:
        nic = POD.nics_of_gpu(gpu)[0]
        same.state(nic, "link", "up", nic.partition(":")[2].partition("/")[0], speed_mbps="200000")
    assert straggler.diagnose(same.case()) == ()


def test_confidence_falls_as_evidence_is_taken_away_and_never_names_another_gpu() -> None:
    job = SlowJob({VICTIM: 60.0})
    job.throttle()
    job.counter(GPU, "throttled_hw_thermal_us", 2_000_000)
    job.gauge(GPU, "clock_sm_mhz", 1200.0)
    job.gauge(GPU, "clock_sm_max_mhz", 1980.0)
    scores, gone = [], set[str]()
    for each in ["", *(seen.id for seen in job.told)]:
        gone.add(each)
        finding = best(straggler.diagnose(job.case(frozenset(gone))))
        assert finding.component in (GPU, rank_id("j", VICTIM))
        scores.append(finding.score)
    assert scores == sorted(scores, reverse=True)
    assert scores[-1] < scores[0] - 0.15


def test_the_same_evidence_in_another_order_gives_the_same_findings() -> None:
    job = SlowJob({VICTIM: 200.0})
    job.throttle()
    job.gauge(host_id(HOST), "pressure_cpu_some_share", 0.3)
    first = straggler.diagnose(job.case())
    job.told.reverse()
    assert straggler.diagnose(job.case()) == first


# --------------------------------------------------------------------------------------------------------------- PCIe


def narrow(job: SlowJob, device: str = GPU, gen: str = "5", width: str = "4") -> None:
    job.state(device, "pcie_link", f"gen{gen} x{width}", gen=gen, width=width, gen_max="5", width_max="16")


def test_a_narrow_pcie_link_under_a_late_rank_is_named() -> None:
    job = SlowJob({VICTIM: 200.0})
    narrow(job)
    diagnosis = decide(job.case())
    assert diagnosis is not None
    assert diagnosis.fault_class is FaultClass.PCIE
    assert [culprit.component for culprit in diagnosis.culprits] == [GPU]
    assert diagnosis.confidence > 0.9


@pytest.mark.parametrize(("gen", "width"), [("5", "8"), ("1", "16")])
def test_a_narrow_link_whose_rank_is_not_late_is_not_why(gen: str, width: str) -> None:
    job = SlowJob({3: 200.0})
    narrow(job, gen=gen, width=width)
    diagnosis = decide(job.case())
    assert diagnosis is not None
    assert [culprit.component for culprit in diagnosis.culprits] == [rank_id("j", 3)]


def test_a_link_at_its_best_is_fine() -> None:
    job = SlowJob({VICTIM: 200.0})
    narrow(job, width="16")
    assert pcie.diagnose(job.case()) == ()


def test_a_few_replays_and_corrected_errors_are_noise_and_a_storm_is_not() -> None:
    quiet = SlowJob({VICTIM: 200.0})
    quiet.counter(GPU, "pcie_replays", 2)
    quiet.event(GPU, EventName.AER, severity="corrected")
    assert pcie.diagnose(quiet.case()) == ()
    storm = SlowJob({VICTIM: 200.0})
    storm.counter(GPU, "pcie_replays", 2000)
    (finding,) = pcie.diagnose(storm.case())
    assert finding.component == GPU and finding.score > 0.85


def test_an_adapter_that_its_pcie_link_starves_is_named_rather_than_its_pauses() -> None:
    job = SlowJob(network_ms=120.0)
    narrow(job, NIC)
    job.gauge(NIC, "outbound_pci_stalled_wr_percent", 60.0)
    job.counter(NIC, "tx_prio3_pause", 50_000)
    job.counter(NIC, "tx_prio3_pause_duration", 2_500_000)
    port = POD.peer_of(NIC)
    assert port is not None
    job.counter(port, "rx_prio3_pause_duration", 2_500_000, "leaf")
    for gpu in GPUS[:8]:
        job.counter(POD.nics_of_gpu(gpu)[0], "rx_prio3_pause_duration", 900_000, HOSTS[0])
    diagnosis = decide(job.case())
    assert diagnosis is not None
    assert (diagnosis.fault_class, diagnosis.culprits[0].component) == (FaultClass.PCIE, NIC)


def test_a_storm_that_begins_at_a_far_switch_is_shown_up_to_its_last_hop() -> None:
    job = SlowJob(network_ms=120.0)
    near = [POD.nics_of_gpu(gpu)[0] for gpu in GPUS[:8:2]]
    spine = "switch:spine-0"
    uplinks = [
        port
        for nic in near
        for port in POD.ports_of_switch(POD.switch_of(nic) or "")
        if (other := POD.peer_of(port)) is not None and POD.switch_of(other) == spine
    ]
    for nic in near:
        job.counter(nic, "rx_prio3_pause_duration", 900_000, HOSTS[0])
    for port in uplinks:
        job.counter(port, "rx_prio3_pause_duration", 600_000, "leaf")
    job.counter(POD.ports_of_switch(spine)[-1], "in_errors", 1, "spine-0")  # it speaks, and of no pause
    (finding,) = pfc_storm.diagnose(job.case())
    assert finding.component == spine
    assert set(uplinks) & {each.component for each in finding.evidence}
    assert {each.component for each in finding.victims} >= set(uplinks)  # and each is told to be a relay


# ------------------------------------------------------------------------------------------------------------ storage


def test_a_slow_server_makes_the_input_of_one_host_late() -> None:
    job = SlowJob({rank: 150.0 + rank for rank in range(8, 16)}, phase="data")
    job.gauge(host_id(HOST), "nfs_rtt_ms", 900.0, mount="/data")
    job.gauge(host_id(HOST), "pressure_io_some_share", 0.5)
    diagnosis = decide(job.case())
    assert diagnosis is not None
    assert (diagnosis.fault_class, diagnosis.culprits[0].component) == (FaultClass.STORAGE_STALL, host_id(HOST))


def test_a_server_that_is_slow_for_most_hosts_is_the_jobs_storage() -> None:
    job = SlowJob({rank: 150.0 + rank for rank in range(8)}, phase="data")
    for host in HOSTS:
        job.gauge(host_id(host), "nfs_rtt_ms", 900.0, host, mount="/data")
    (finding,) = storage_stall.diagnose(job.case())
    assert finding.component == job_id("j")
    assert "/data" in finding.because and not finding.hardware


def test_slow_storage_under_ranks_that_are_late_in_their_work_is_not_why() -> None:
    job = SlowJob({VICTIM: 200.0})
    job.throttle()
    job.gauge(host_id(HOST), "nfs_rtt_ms", 900.0, mount="/data")
    diagnosis = decide(job.case())
    assert diagnosis is not None
    assert [culprit.component for culprit in diagnosis.culprits] == [GPU]
