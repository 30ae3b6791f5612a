"""Look-alikes: things that are seen, are true, and are no fault of anything under the job.

Whoever raises an alarm at any of these loses the trust of those who are called at night: a port that somebody took down
for maintenance under another job, bits that the link corrects by itself, a debugger's Xid 13, a checkpoint, counters that
begin anew or stand at their end, clocks that are set, collectors that are upgraded. `NoiseSpec` is the everyday background;
these are single occasions, planned like faults, but with no entry in the ledger.

Where a figure is not a width or a limit of the hardware (signals.md), it is set so that it stands out from the usual
readings (`baseline`) by as much as a fault's would.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Counter, CounterDoubt, Source
from goodput_common.contracts.verdict import FaultClass
from goodput_faultlab.simulate import baseline, fault_lines, lines, readings
from goodput_faultlab.simulate.collectors import MakeSample
from goodput_faultlab.simulate.faults import traces
from goodput_faultlab.simulate.faults.model import Act, Deed, Emission, Exit, Fault, Rise, Slowdown, nothing_blocks
from goodput_faultlab.simulate.layout import Layout
from goodput_faultlab.simulate.spec import BenignSpec, FaultSpec, SimulationSpec
from goodput_faultlab.simulate.stall import Obstacle


@dataclass(frozen=True, slots=True)
class Scene:
    """Where a look-alike happens. `host` carries the job, `spare` stands by, `elsewhere` belongs to other jobs (None where
    there is none)."""

    spec: SimulationSpec
    layout: Layout
    rng: random.Random
    host: str
    spare: str | None
    elsewhere: str | None

    def nics(self, host: str) -> list[ComponentId]:
        """The adapters of a host that carry traffic."""
        return [nic for nic in self.spec.fabric.nics_of_host(host) if self.spec.fabric.carries_traffic(nic)]

    def a_nic(self) -> ComponentId:
        return self.rng.choice(self.nics(self.host))

    def a_gpu(self) -> ComponentId:
        return self.rng.choice(self.spec.fabric.gpus_of_host(self.host))


@dataclass(slots=True, kw_only=True)
class Plan:
    """What a look-alike does, for `lasts_s`."""

    lasts_s: float
    found: Sequence[traces.Trace] = ()
    acts: tuple[Act, ...] = ()
    slowdown: Slowdown | None = None
    obstacle: Callable[[int], Obstacle] = nothing_blocks
    ranks: tuple[int, ...] = ()
    phase: str = ""
    frames: tuple[str, ...] = ()
    exits: tuple[Exit, ...] = ()


Kind = Callable[[Scene], Plan]


def plan(benign: BenignSpec, spec: SimulationSpec, layout: Layout, rng: random.Random) -> Fault:
    """Settle what the specification leaves open. Raises ValueError naming the kind or host that is not there."""
    kind = BENIGN.get(benign.kind)
    if kind is None:
        raise ValueError(f"no look-alike {benign.kind!r}; choose among {', '.join(BENIGN)}")
    if benign.host is not None and benign.host not in spec.fabric.hosts():
        raise ValueError(f"host {benign.host!r} of look-alike {benign.kind} is not in fabric {spec.fabric.name!r}")
    mine = {*spec.hosts, *spec.spares}
    others = [host for host in spec.fabric.hosts() if host not in mine]
    scene = Scene(
        spec=spec,
        layout=layout,
        rng=rng,
        host=benign.host or rng.choice(spec.hosts),
        spare=rng.choice(spec.spares) if spec.spares else None,
        elsewhere=rng.choice(others[:16]) if others else None,
    )
    made = kind(scene)
    left = traces.left(_until(made.found, made.lasts_s))
    return Fault(
        spec=FaultSpec(
            fault_class=FaultClass.NO_HARDWARE_FAULT, flavour=benign.kind, at_s=benign.at_s, clears_after_s=made.lasts_s
        ),
        flavour=benign.kind,
        component=None,
        ranks=made.ranks,
        note=f"look-alike: {benign.kind}",
        obstacle=made.obstacle,
        emissions=left.emissions,
        rises=left.rises,
        levels=left.levels,
        exits=made.exits,
        slowdown=made.slowdown,
        acts=made.acts,
        phase=made.phase,
        frames=made.frames,
        cured_by=lambda kind, target: True,
    )


def _until(found: Iterable[traces.Trace], lasts_s: float) -> list[traces.Trace]:
    return [each if isinstance(each, Emission) else replace(each, until_s=min(each.until_s, lasts_s)) for each in found]


# ------------------------------------------------------------------------------------------------------------ ports


def _changes(scene: Scene, host: str, nic: ComponentId, at_s: float, up: bool, *, admin: bool = False) -> list[traces.Trace]:
    fabric = scene.spec.fabric
    found = [Emission(at_s, host, Source.KERNEL_LOG, lines.kernel_link(fabric, nic, up))]
    if admin:
        state = lines.operstate_of(fabric, nic, up, admin_up=up)
        found.append(Emission(at_s + 0.01, host, Source.NETLINK, state))
    else:
        found += [Emission(at_s + 0.01, host, Source.NETLINK, each) for each in lines.netlink_link(fabric, nic, up)]
    if fabric.attr(nic, "rdma"):
        state = lines.port_state(fabric, nic, up, disabled=not up and admin)
        found.append(Emission(at_s + scene.rng.uniform(0.2, 4.0), host, Source.RDMA, state))
    return [*found]


def _maintenance(scene: Scene) -> Plan:
    """Somebody takes a port of another job's host down, and up again."""
    if scene.elsewhere is None:
        return Plan(lasts_s=1.0)
    nic, back_s = scene.rng.choice(scene.nics(scene.elsewhere)), scene.rng.uniform(20.0, 60.0)
    found = _changes(scene, scene.elsewhere, nic, 0.0, up=False, admin=True)
    found += _changes(scene, scene.elsewhere, nic, back_s, up=True, admin=True)
    port = scene.spec.fabric.peer_of(nic)
    if port is not None and port.startswith("port:"):
        switch = readings.switch_name(port)
        for at_s, up in ((0.1, False), (back_s + 0.1, True)):
            told = readings.switch_port(port, up, admin="up" if up else "down")
            found += [Emission(at_s, switch, Source.SWITCH, each) for each in told]
    return Plan(lasts_s=back_s + 5.0, found=found)


def _unprovisioned(scene: Scene) -> Plan:
    """The adapter that nobody has cabled polls for a partner, sees noise, and gives up."""
    fabric = scene.spec.fabric
    idle = [nic for nic in fabric.nics_of_host(scene.host) if not fabric.carries_traffic(nic) and fabric.attr(nic, "rdma")]
    found: list[traces.Trace] = []
    for nic in idle[:1]:
        for n in range(scene.rng.randrange(2, 6)):
            found.append(Emission(n * 3.0, scene.host, Source.KERNEL_LOG, lines.kernel_link(fabric, nic, False)))
            found.append(Emission(n * 3.0 + 0.5, scene.host, Source.RDMA, lines.port_state(fabric, nic, False)))
        found += traces.rises(Source.RDMA, scene.host, lines.rdma_port(fabric, nic), {"symbol_error": 300.0})
    return Plan(lasts_s=18.0, found=found)


def _management(scene: Scene) -> Plan:
    """The management port comes and goes: a bad patch cable in the office network."""
    nic = ids.nic_id(scene.host, "eth0")
    if nic not in scene.spec.fabric:
        return Plan(lasts_s=1.0)
    found: list[traces.Trace] = []
    for n in range(scene.rng.randrange(3, 9)):
        found += _changes(scene, scene.host, nic, n * 4.0, up=False)
        found += _changes(scene, scene.host, nic, n * 4.0 + scene.rng.uniform(0.5, 3.0), up=True)
    return Plan(lasts_s=40.0, found=found)


def _fec_burst(scene: Scene) -> Plan:
    """A link corrects a hundred times as many bits as usual, and loses nothing."""
    more = scene.rng.uniform(20, 400) * baseline.PRE_FEC_BITS_S[1]
    port = lines.rdma_port(scene.spec.fabric, scene.a_nic())
    found = traces.rises(
        Source.ETHTOOL, scene.host, port, {"rx_corrected_bits_phy": more, "rx_fec_corrected_blocks": more / 3}
    )
    return Plan(lasts_s=scene.rng.uniform(10.0, 60.0), found=found)


def _cnp_burst(scene: Scene) -> Plan:
    """Normal congestion: everybody is told to slow down, and does, within microseconds."""
    found: list[traces.Trace] = []
    for host in scene.spec.hosts:
        for nic in scene.nics(host)[:2]:
            a_second = scene.rng.uniform(200, 8_000)
            more = {"np_ecn_marked_roce_packets": a_second, "np_cnp_sent": a_second * 0.7, "rp_cnp_handled": a_second * 0.7}
            found += traces.rises(Source.RDMA, host, lines.rdma_port(scene.spec.fabric, nic), more)
    return Plan(lasts_s=scene.rng.uniform(5.0, 20.0), found=found)


def _pauses(scene: Scene) -> Plan:
    """A short burst of pause frames at one adapter: some permille of the time."""
    port, frames = lines.rdma_port(scene.spec.fabric, scene.a_nic()), scene.rng.uniform(40, 300)
    more = {"rx_prio3_pause": frames, "rx_prio3_pause_duration": frames * 20, "rx_prio3_pause_transition": frames}
    return Plan(lasts_s=scene.rng.uniform(5.0, 15.0), found=traces.rises(Source.ETHTOOL, scene.host, port, more))


# ------------------------------------------------------------------------------------------------------------ GPUs


def _application_xids(scene: Scene) -> Plan:
    """A health check, a notebook, somebody's test: processes that are no ranks of the job hit Xid 13, 31, 43."""
    found: list[traces.Trace] = []
    for n in range(scene.rng.randrange(1, 5)):
        number, pid = scene.rng.choice((13, 31, 43)), scene.rng.randrange(1_000_000, 4_000_000)
        made = fault_lines.application_xid(scene.spec.fabric, scene.a_gpu(), pid, number, scene.rng.randrange(1, 64))
        found.append(Emission(n * scene.rng.uniform(0.5, 6.0), scene.host, Source.KERNEL_LOG, made))
    return Plan(lasts_s=30.0, found=found)


def _warm(scene: Scene) -> Plan:
    """A hot afternoon: GPUs are warmer than usual, and not throttled."""
    found: list[traces.Trace] = []
    for gpu in scene.spec.fabric.gpus_of_host(scene.host):
        named = readings.gpu_by_pci(scene.spec.fabric, gpu)
        found += traces.stands(
            Source.NVML, scene.host, named, {"temperature_c": scene.rng.uniform(74, 80)}, wavers=0.01, ramp_s=20.0
        )
    return Plan(lasts_s=60.0, found=found)


def _idle_pcie(scene: Scene) -> Plan:
    """An idle GPU lowers its PCIe generation to save power; its width stays."""
    if scene.spare is None:
        return Plan(lasts_s=1.0)
    fabric = scene.spec.fabric
    links = [readings.pcie_link(readings.gpu_by_pci(fabric, gpu), 1, 16) for gpu in fabric.gpus_of_host(scene.spare)]
    return Plan(lasts_s=80.0, found=[Emission(0.5, scene.spare, Source.NVML, each) for each in links])


def _corrected_memory(scene: Scene) -> Plan:
    """Bits that ECC has corrected, on a GPU and in the host's memory."""
    gpu = readings.gpu_by_pci(scene.spec.fabric, scene.a_gpu())
    a_second = scene.rng.uniform(0.1, 2.0)
    counts = {"ecc_corrected_volatile_dram": a_second, "ecc_corrected_volatile_total": a_second}
    found = traces.rises(Source.NVML, scene.host, gpu, counts)
    told = fault_lines.memory_error(scene.host, corrected=True)
    found.append(Emission(scene.rng.uniform(1.0, 8.0), scene.host, Source.KERNEL_LOG, told))
    return Plan(lasts_s=30.0, found=found)


# ------------------------------------------------------------------------------------------------------------ the job


def _pause_of(phase: str, frames: tuple[str, ...], shortest_s: float, longest_s: float) -> Kind:
    """Every rank does something else between two steps, together."""

    def make(scene: Scene) -> Plan:
        everybody = range(scene.layout.world_size)
        return Plan(
            lasts_s=scene.rng.uniform(shortest_s, longest_s),
            obstacle=lambda op: Obstacle() if op else Obstacle(stops_at=dict.fromkeys(everybody, 0)),
            ranks=tuple(everybody),
            phase=phase,
            frames=frames,
        )

    return make


def _uneven_data(scene: Scene) -> Plan:
    """Long sequences land on one rank for a few steps, then on others: someone is always last."""
    rank, late = scene.rng.randrange(scene.layout.world_size), scene.rng.uniform(0.1, 0.35)
    return Plan(
        lasts_s=scene.rng.uniform(2.0, 5.0),
        slowdown=Slowdown(factor=1.0 + late, late={rank: late}, phase="forward"),
    )


def _start_up(scene: Scene) -> Plan:
    """Kernels are compiled and caches filled: the first steps take several times as long, on all ranks alike."""
    late = scene.rng.uniform(0.5, 2.0)
    everybody = {rank: late * scene.rng.uniform(0.9, 1.0) for rank in range(scene.layout.world_size)}
    return Plan(lasts_s=scene.rng.uniform(4.0, 10.0), slowdown=Slowdown(factor=1.0 + late, late=everybody))


def _ends(scene: Scene) -> Plan:
    """The job has done what it was to do: every rank ends, cleanly, within a second or two."""
    everybody = range(scene.layout.world_size)
    return Plan(
        lasts_s=10_000.0,
        obstacle=lambda op: Obstacle() if op else Obstacle(stops_at=dict.fromkeys(everybody, 0)),
        exits=tuple(Exit(scene.rng.uniform(0.8, 1.9), rank, clean=True) for rank in everybody),
    )


def _busy_storage(scene: Scene) -> Plan:
    """Somebody else writes a checkpoint: the mount is slow for a moment, nobody waits for it."""
    slow = {"nfs_rtt_ms": scene.rng.uniform(15.0, 60.0), "nfs_backlog": scene.rng.uniform(2.0, 8.0)}
    found = traces.stands(Source.HOST, scene.host, ids.host_id(scene.host), slow, wavers=0.1, attrs=baseline.MOUNT_ATTRS)
    return Plan(lasts_s=scene.rng.uniform(5.0, 15.0), found=found)


# --------------------------------------------------------------------------------------------- counters, clocks


def _doubtful(component: ComponentId, name: str, value: int, delta: int, doubt: CounterDoubt) -> MakeSample:
    return lambda at: Counter(
        component=component, name=name, observed_at=at, delta=delta, interval_s=5.0, value=value, doubt=doubt
    )


def _reset(scene: Scene) -> Plan:
    """All counters of a host begin anew: somebody has cleared them."""
    port = lines.rdma_port(scene.spec.fabric, scene.a_nic())
    names = ("out_of_sequence", "local_ack_timeout_err", "roce_adp_retrans", "np_cnp_sent")
    found = [
        Emission(3.0, scene.host, Source.RDMA, _doubtful(port, name, n + 1, n + 1, CounterDoubt.RESET))
        for n, name in enumerate(names)
    ]
    return Plan(lasts_s=10.0, found=found, acts=(Act(0.0, Deed.COUNTERS_RESET, scene.host),))


def _wrap(scene: Scene) -> Plan:
    """A counter of 32 bits passes its end: it falls by four billion and nothing has happened."""
    port = lines.rdma_port(scene.spec.fabric, scene.a_nic())
    value = scene.rng.randrange(1, 50_000)
    made = _doubtful(port, "rx_read_requests", value, value + scene.rng.randrange(1, 50_000), CounterDoubt.WRAPPED)
    return Plan(lasts_s=10.0, found=[Emission(1.0, scene.host, Source.RDMA, made)])


def _saturated(scene: Scene) -> Plan:
    """Counters of eight and sixteen bits that have stood at their end for months."""
    port = lines.rdma_port(scene.spec.fabric, scene.a_nic())
    found: list[traces.Trace] = []
    for name in ("link_downed", "symbol_error"):
        found.append(Emission(1.0, scene.host, Source.RDMA, lines.state(port, f"counter:{name}", "saturated")))
        found.append(Rise(host=scene.host, source=Source.RDMA, component=port, name=name, per_s=1e5, until_s=0.0))
    return Plan(lasts_s=30.0, found=found)


def _clock_jump(scene: Scene) -> Plan:
    """The host's clock is set, forward or back."""
    seconds = scene.rng.uniform(0.3, 1.2) * scene.rng.choice((-1, 1))
    return Plan(lasts_s=5.0, acts=(Act(0.0, Deed.CLOCK_JUMPS, scene.host, seconds),))


def _collector_restart(scene: Scene) -> Plan:
    back_s = scene.rng.uniform(2.0, 12.0)
    acts = (Act(0.0, Deed.COLLECTOR_STOPS, scene.host), Act(back_s, Deed.COLLECTOR_STARTS, scene.host))
    return Plan(lasts_s=back_s + 5.0, acts=acts)


def _collector_upgrade(scene: Scene) -> Plan:
    """A new version is rolled out: the collectors of all hosts stop and start, one after the other."""
    acts: list[Act] = []
    for number, host in enumerate(scene.spec.hosts):
        begins_s = number * 1.5 + scene.rng.uniform(0.0, 1.0)
        acts += [Act(begins_s, Deed.COLLECTOR_STOPS, host)]
        acts += [Act(begins_s + scene.rng.uniform(2.0, 5.0), Deed.COLLECTOR_STARTS, host)]
    return Plan(lasts_s=max(act.after_s for act in acts) + 5.0, acts=tuple(acts))


def _idle_reboot(scene: Scene) -> Plan:
    """A host that carries nothing is booted anew: links go down and up, counters and numbering begin at zero."""
    host = scene.spare or scene.elsewhere
    if host is None:
        return Plan(lasts_s=1.0)
    back_s = scene.rng.uniform(25.0, 45.0)
    found: list[traces.Trace] = []
    for nic in scene.nics(host):
        found += traces.far_port(scene.spec.fabric, nic, scene.rng.uniform(0.2, 0.9), up=False)
        found += traces.far_port(scene.spec.fabric, nic, back_s - scene.rng.uniform(1.0, 3.0), up=True)
    found.append(Emission(back_s + 0.2, host, Source.KERNEL_LOG, lines.boot(host)))
    acts = (
        Act(0.1, Deed.COLLECTOR_STOPS, host),
        Act(back_s, Deed.HOST_BOOTS, host),
        Act(back_s + 0.1, Deed.COLLECTOR_STARTS, host),
    )
    return Plan(lasts_s=back_s + 5.0, found=found, acts=acts)


BENIGN: dict[str, Kind] = {
    "maintenance_port": _maintenance,
    "unprovisioned_port": _unprovisioned,
    "management_flaps": _management,
    "fec_burst": _fec_burst,
    "cnp_burst": _cnp_burst,
    "short_pauses": _pauses,
    "application_xids": _application_xids,
    "warm_gpus": _warm,
    "idle_pcie": _idle_pcie,
    "corrected_memory": _corrected_memory,
    "checkpoint_pause": _pause_of("checkpoint", ("checkpoint.py:64 in save", "train.py:233 in save"), 1.0, 6.0),
    "evaluation_pause": _pause_of("evaluation", ("evaluate.py:88 in score", "train.py:219 in validate"), 2.0, 9.0),
    "uneven_data": _uneven_data,
    "start_up": _start_up,
    "job_end": _ends,
    "busy_storage": _busy_storage,
    "counter_reset": _reset,
    "counter_wrap": _wrap,
    "counter_saturated": _saturated,
    "clock_jump": _clock_jump,
    "collector_restart": _collector_restart,
    "collector_upgrade": _collector_upgrade,
    "idle_reboot": _idle_reboot,
}
