"""What a simulated run consists of: a fabric, one job on it, faults with their times, and how noisy and lossy the world is.

A specification is plain immutable data. Together with a seed it determines every byte that the simulation puts out;
whatever it leaves open (which GPU, which rail, when exactly) is drawn from the seed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from goodput_common.contracts.verdict import FaultClass
from goodput_topology.graph import Fabric

START = datetime(2026, 3, 2, 8, 0, 0, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpec:
    """One fault. `flavour` chooses among the forms of its class (see `faults.FLAVOURS`); "" draws one from the seed.

    `at_s` is counted from the start of the run. `rank` or `host` and `rail` pin the victim, None draws it.
    `clears_after_s` takes the fault away again by itself (a link that comes back); None leaves it until something cures
    it. `severity` goes from 1 (blatant: much evidence, soon, a large effect) to 0 (marginal: little of it, late, an effect
    just above the usual spread). `cascade` names the kind of `cascades.CASCADES` that this fault sets going; class and
    flavour are then those of its root.
    """

    fault_class: FaultClass
    flavour: str = ""
    severity: float = 1.0
    cascade: str = ""
    at_s: float = 20.0
    rank: int | None = None
    host: str | None = None
    rail: int | None = None
    clears_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSpec:
    """Healthy noise: what a diagnosis must not fall for. Rates are events an hour and host; a real host sees fewer."""

    corrected_aer: float = 20.0
    management_flaps: float = 10.0
    application_xids: float = 6.0  # 13, 31, 43, 45 of other processes on the job's hosts
    kernel_chatter: float = 60.0
    counters: bool = True
    unprovisioned_ports: bool = True
    other_jobs: bool = True  # real faults on hosts that do not carry the job
    checkpoint_every: int = 0  # steps; 0 never. A checkpoint stops every rank for `checkpoint_s`
    checkpoint_s: float = 2.5

    @classmethod
    def none(cls) -> NoiseSpec:
        return cls(
            corrected_aer=0, management_flaps=0, application_xids=0, kernel_chatter=0, counters=False,
            unprovisioned_ports=False, other_jobs=False,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BenignSpec:
    """One look-alike (see `benign.BENIGN`): something that is seen, is true, and is no fault of anything under the job.
    `host` pins where, None draws it."""

    kind: str
    at_s: float = 10.0
    host: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSpec:
    """What happens to messages between a host and the broker, and to the hosts' clocks."""

    clock_offset_s_max: float = 2.0
    delay_s_max: float = 0.05
    lost: float = 0.0  # share of messages
    doubled: float = 0.0
    late: float = 0.0  # share that is held back by up to `late_s_max`
    late_s_max: float = 1.5
    lost_dumps: int = 0  # flight recorders, of ranks that could have given one, that never arrive
    dead_collectors: int = 0  # hosts of the job whose collector dies in mid-incident, within `dead_after_s` of a fault
    dead_after_s: float = 15.0
    dead_on_culprit: bool = False  # one of them is the culprit's own host


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySpec:
    """How long the job takes to come back after each kind of action, in seconds. Real clusters take several times as long;
    the differences between the kinds are what matters here."""

    reinit_s: float = 4.0
    restart_rank_s: float = 8.0
    restart_job_s: float = 20.0
    swap_node_s: float = 12.0
    drain_s: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSpec:
    """`hosts` carry the job in rank order, all their GPUs; `spares` stand by for a swap. Hosts of the fabric in neither
    belong to other jobs. `fresh_hosts`: the kernel log of each host of the job and of each spare begins with its boot, so
    that what an earlier run on the same fabric broke there is history."""

    fabric: Fabric
    hosts: tuple[str, ...]
    spares: tuple[str, ...] = ()
    job: str = "train-1"
    start: datetime = START
    step_s: float = 0.8
    faults: tuple[FaultSpec, ...] = ()
    benign: tuple[BenignSpec, ...] = ()
    noise: NoiseSpec = field(default_factory=NoiseSpec)
    transport: TransportSpec = field(default_factory=TransportSpec)
    recovery: RecoverySpec = field(default_factory=RecoverySpec)
    watchdog_s: float = 600.0  # the collective timeout: long after any useful verdict
    exits_after_watchdog: bool = True
    fresh_hosts: bool = False
    switches: bool = False  # whether anybody collects what switches say of their ports
    probes: bool = False  # whether hosts probe the ways that the job's traffic takes
    reports_together: bool = False  # whether a host's collector sends the reports of its ranks on, in one message
    scenario: str = ""

    def __post_init__(self) -> None:
        known = set(self.fabric.hosts())
        missing = [host for host in (*self.hosts, *self.spares) if host not in known]
        if missing:
            raise ValueError(f"fabric {self.fabric.name!r} has no host {', '.join(missing[:5])}; it has {len(known)} hosts")
        if len(self.hosts) < 2 or len(set(self.hosts) | set(self.spares)) != len(self.hosts) + len(self.spares):
            raise ValueError("a job needs two hosts or more, each named once among hosts and spares")
        sizes = {len(self.fabric.gpus_of_host(host)) for host in (*self.hosts, *self.spares)}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(f"hosts of one job need the same number of GPUs, at least one; found {sorted(sizes)}")
        for fault in self.faults:
            if not 0.0 <= fault.severity <= 1.0:
                raise ValueError(
                    f"severity {fault.severity} of a {fault.fault_class.value} fault: 0 (marginal) to 1 (blatant)"
                )
        if self.step_s < 0.05:
            raise ValueError(f"step_s {self.step_s} is too short to simulate; at least 0.05")
