"""How one fault becomes many symptoms: what follows from a root, where, and after how long.

The root is often not the loudest. One hung adapter makes its peers name two healthy ends, a minute later every rank says the
same time-out, every driver cleans up after a killed process (Xid 45), and by then the one line that counts is old. The
ledger's entry stays that of the root; `explains` lists what is nobody else's fault.

A cascade is a root (class and flavour, made as always) and a function that adds the consequences to it. Delays are those of
the software in between: NCCL gives up a queue pair after some 7 to 13 s (7 retries, time-out 20), torch's launcher kills
the other ranks of a host within a second, of other hosts within some seconds, the collective watchdog barks after its
time-out. That one is 10 minutes by default and is shortened here so that a run takes a minute.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Source
from goodput_common.contracts.verdict import FaultClass
from goodput_faultlab.ledger import Symptom
from goodput_faultlab.simulate import fault_lines, lines, readings
from goodput_faultlab.simulate.faults import traces
from goodput_faultlab.simulate.faults.model import Act, Deed, Emission, Exit, Fault, between, first_of, stops
from goodput_faultlab.simulate.layout import Layout, Place
from goodput_faultlab.simulate.spec import FaultSpec
from goodput_faultlab.simulate.stall import Obstacle
from goodput_topology.graph import Fabric

PEER_LOST = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
Spread = Callable[[Fault, Fabric, Layout, random.Random], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cascade:
    """`watchdog_s` is the job's collective time-out where the cascade ends in it. `with_`: another fault, on another host,
    that has nothing to do with the root, begins so many seconds later (`apart_s`, a range to draw from)."""

    root: FaultClass
    flavour: str
    what: str
    spread: Spread | None = None
    watchdog_s: float | None = None
    with_: tuple[FaultClass, str] | None = None
    apart_s: tuple[float, float] = (0.5, 4.0)


def spread(fault: Fault, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
    """The root with all that follows from it. Raises ValueError naming the kind that is not there, or the root that it
    has."""
    kind = CASCADES.get(fault.spec.cascade)
    if kind is None:
        raise ValueError(f"no cascade {fault.spec.cascade!r}; choose among {', '.join(CASCADES)}")
    if (kind.root, kind.flavour) != (fault.fault_class, fault.flavour):
        raise ValueError(f"the root of {fault.spec.cascade} is {kind.root.value} {kind.flavour}, not {fault.flavour}")
    if kind.spread is not None:
        kind.spread(fault, fabric, layout, rng)
    if kind.watchdog_s is not None:
        _told_by_all(fault, layout)
    return fault


def cascade_faults(
    name: str, hosts: Sequence[str], *, at_s: float, severity: float = 1.0, apart_s: float = 1.5
) -> tuple[FaultSpec, ...]:
    """The faults of a cascade: its root, and the independent one where there is such, on another of these hosts."""
    kind = CASCADES[name]
    root = FaultSpec(
        fault_class=kind.root, flavour=kind.flavour, cascade=name, at_s=at_s, severity=severity,
        host=hosts[len(hosts) // 3] if kind.with_ is not None else None,
    )  # fmt: skip
    if kind.with_ is None:
        return (root,)
    second, flavour = kind.with_
    other = FaultSpec(
        fault_class=second, flavour=flavour, at_s=at_s + apart_s, severity=severity, host=hosts[2 * len(hosts) // 3]
    )
    return (root, other)


# ------------------------------------------------------------------------------------------------------------ what follows


def _add(fault: Fault, fabric: Fabric, found: Iterable[traces.Trace]) -> None:
    """Traces that are consequences: they show, and the root explains them."""
    left = traces.left(found)
    fault.emissions += left.emissions
    fault.rises += left.rises
    fault.levels += left.levels
    own = (fault.component, *fault.also_right)
    fault.symptoms += traces.symptoms_of(found, [each for each in own if each is not None], fabric)


def _told_by_all(fault: Fault, layout: Layout) -> None:
    """The watchdog of every rank will bark, and the driver clean up behind each."""
    places = [place for place in layout.places if place.rank not in fault.silent]
    told = [Symptom(component=ids.rank_id(layout.job, each.rank), what="nccl_watchdog") for each in places]
    told += [Symptom(component=each.gpu, what="xid") for each in places]
    own = (fault.component, *fault.also_right)
    fault.symptoms += tuple(each for each in told if each.component not in own)


def _others(fault: Fault, layout: Layout) -> list[Place]:
    ends = {each.rank for each in fault.exits}
    return [place for place in layout.places if place.rank not in ends and place.rank not in fault.ranks]


def _kills_all(fault: Fault, fabric: Fabric, layout: Layout, rng: random.Random, first_s: float, last_s: float) -> None:
    """Ranks hear that their peer is gone and end; the launcher kills whoever is left."""
    found: list[traces.Trace] = []
    exits = []
    root = layout.places[fault.ranks[0]] if fault.ranks else layout.places[0]
    near = next(iter(fabric.nics_of_gpu(root.gpu)), None)
    address = fabric.attr(near, "addr") if near is not None else root.host
    for place in _others(fault, layout):
        at_s = rng.uniform(first_s, last_s)
        hears = rng.random() < 0.6  # the others are killed before they notice
        if hears:
            closed = fault_lines.connection_closed(layout.job, place, address)
            found.append(Emission(at_s, place.host, Source.JOB_LOG, closed))
        exits.append(Exit(at_s + rng.uniform(0.2, 1.2), place.rank, reason=PEER_LOST if hears else ""))
        if rng.random() < 0.8:
            found += traces.victims(fabric, [place], at_s + 1.2, rng)
    fault.exits += tuple(exits)
    _add(fault, fabric, found)


def _dies_with_all(first_s: float, last_s: float) -> Spread:
    """The root's own rank ends, and with it all."""

    def then(fault: Fault, fabric: Fabric, layout: Layout, rng: random.Random) -> None:
        dies_s = max((each.after_s for each in fault.exits), default=rng.uniform(1.0, 4.0))
        if not fault.exits:
            fault.exits = tuple(Exit(dies_s, rank, reason=PEER_LOST) for rank in fault.ranks)
        _kills_all(fault, fabric, layout, rng, dies_s + first_s, dies_s + last_s)

    return then


def _nvlink_crash(fault: Fault, fabric: Fabric, layout: Layout, rng: random.Random) -> None:
    """Every process of the job is torn down: Xid 45 on healthy hosts, long before anybody asks where it began."""
    fault.exits = tuple(Exit(rng.uniform(1.5, 3.0), rank, reason=PEER_LOST) for rank in fault.ranks)
    _kills_all(fault, fabric, layout, rng, 3.0, 9.0)


def _link_drops(fault: Fault, fabric: Fabric, layout: Layout, rng: random.Random) -> None:
    """The hung adapter's driver gives up and resets it: the link goes down, as if it had been the cable all along."""
    place = layout.places[fault.ranks[0]]
    nic, at_s = traces.nic_of(fabric, layout, place.rank), between(16.0, 7.0, fault.spec.severity)
    found: list[traces.Trace] = [
        Emission(at_s, place.host, Source.KERNEL_LOG, lines.kernel_link(fabric, nic, False)),
        *(Emission(at_s + 0.01, place.host, Source.NETLINK, each) for each in lines.netlink_link(fabric, nic, False)),
        Emission(at_s + 2.0, place.host, Source.RDMA, lines.port_state(fabric, nic, False)),
        *traces.far_port(fabric, nic, at_s + rng.uniform(0.05, 0.3), up=False),
    ]
    _add(fault, fabric, found)


def _pauses_upstream(fault: Fault, fabric: Fabric, layout: Layout, rng: random.Random) -> None:
    """The starved adapter pauses its leaf, the leaf pauses whoever sends there: innocent hosts are told to stop."""
    place = layout.places[fault.ranks[0]]
    nic = traces.nic_of(fabric, layout, place.rank)
    leaf = fabric.switch_of(nic)
    paused = [other for other in fabric.nics_behind(leaf) if other != nic] if leaf is not None else []
    mine = set(layout.hosts)
    paused = [other for other in paused if (ids.host_of(other) or "") in mine]
    found: list[traces.Trace] = []
    for other in rng.sample(paused, min(len(paused), round(between(1, 6, fault.spec.severity)))):
        host, port = ids.host_of(other) or "", lines.rdma_port(fabric, other)
        frames = between(15.0, 4_000.0, fault.spec.severity) * rng.uniform(0.5, 1.0)
        rise = {"rx_prio3_pause": frames, "rx_prio3_pause_duration": frames * 25.0, "rx_prio3_pause_transition": frames}
        found += traces.rises(Source.ETHTOOL, host, port, rise, rng.uniform(1.0, 3.0))
        far = fabric.peer_of(other)
        if far is not None and far.startswith("port:"):
            sent = {"tx_prio3_pause": frames}
            found += traces.rises(Source.SWITCH, readings.switch_name(far), far, sent, rng.uniform(1.0, 3.0))
    _add(fault, fabric, found)


def _times_out_later(marginal_s: float, blatant_s: float) -> Spread:
    """Slow for a while, then one step does not end at all and the watchdog barks."""

    def then(fault: Fault, fabric: Fabric, layout: Layout, rng: random.Random) -> None:
        fault.blocks = False
        if fault.slowdown is not None and fault.slowdown.late:
            fault.obstacle = stops(fault.ranks[0])
        else:  # nobody is late: the network no longer moves for a group
            ring = layout.group(fault.ranks[0] if fault.ranks else 0, "data").name
            begins = first_of("data")
            fault.obstacle = lambda op: Obstacle(broken=frozenset((ring,)), broken_from=max(op, begins))
        turns_s = between(marginal_s, blatant_s, fault.spec.severity) * rng.uniform(0.9, 1.1)
        fault.acts += (Act(turns_s, Deed.TURN),)

    return then


def _nvml_hangs(fault: Fault, fabric: Fabric, layout: Layout, rng: random.Random) -> None:
    """The driver holds a lock for its hung GPU: readings of the others of the host time out too, in turn."""
    place = layout.places[fault.ranks[0]]
    found: list[traces.Trace] = []
    for rank in layout.on_host(place.host):
        other = layout.places[rank]
        if other.gpu != fault.component:
            waits = readings.gpu_presence(fabric, other.gpu, "unreadable", "no answer from the driver for 10 s")
            at_s = rng.uniform(9.0, 15.0)
            found.append(Emission(at_s, place.host, Source.NVML, waits))
            back = readings.gpu_presence(fabric, other.gpu, "present")
            found.append(Emission(at_s + rng.uniform(4.0, 12.0), place.host, Source.NVML, back))
    _add(fault, fabric, found)


def _congested(fault: Fault, fabric: Fabric, layout: Layout, rng: random.Random) -> None:
    """What is sent again comes on top of what is sent: congestion notifications at everybody on that leaf."""
    place = layout.places[fault.ranks[0]]
    leaf = fabric.switch_of(traces.nic_of(fabric, layout, place.rank))
    behind = fabric.nics_behind(leaf) if leaf is not None else ()
    found: list[traces.Trace] = []
    for other in behind:
        host = ids.host_of(other) or ""
        if host in layout.hosts and host != place.host:
            more: dict[str, float] = {"np_cnp_sent": rng.uniform(20, 400), "rp_cnp_handled": rng.uniform(20, 400)}
            found += traces.rises(Source.RDMA, host, lines.rdma_port(fabric, other), more)
    _add(fault, fabric, found)


def _restarts_elsewhere(fault: Fault, fabric: Fabric, layout: Layout, rng: random.Random) -> None:
    """The application ends as it should after a contained error; somebody's script starts the job again by itself."""
    dies_s = max((each.after_s for each in fault.exits), default=1.0)
    _kills_all(fault, fabric, layout, rng, dies_s + 0.5, dies_s + 5.0)
    fault.acts += (Act(dies_s + 20.0, Deed.JOB_RESTARTS, fault.host or ""),)


C = FaultClass
WATCHDOG_S = 22.0
CASCADES: dict[str, Cascade] = {
    "nvlink_crash": Cascade(
        root=C.NVLINK, flavour="xid_74", spread=_nvlink_crash,
        what="an NVLink fails, every rank ends, Xid 45 on healthy GPUs everywhere",
    ),
    "nic_hang_drops_link": Cascade(
        root=C.NIC_HANG, flavour="firmware", spread=_link_drops, watchdog_s=WATCHDOG_S,
        what="an adapter hangs, its reset drops the link, peers give up, watchdogs kill all",
    ),
    "gpu_off_bus_kills_all": Cascade(
        root=C.GPU_OFF_BUS, flavour="raises", spread=_dies_with_all(0.3, 6.0),
        what="a GPU is gone, its rank ends, peers lose their connections, the launcher kills all",
    ),
    "ecc_restart_elsewhere": Cascade(
        root=C.GPU_MEMORY, flavour="94", spread=_restarts_elsewhere,
        what="a contained memory error ends one rank, then all; the job starts again on other hosts",
    ),
    "storage_checkpoint_timeout": Cascade(
        root=C.STORAGE_STALL, flavour="nfs", watchdog_s=34.0,
        what="a mount hangs, one host stands in its checkpoint, all time out",
    ),
    "thermal_timeout": Cascade(
        root=C.STRAGGLER, flavour="thermal", spread=_times_out_later(34.0, 20.0), watchdog_s=16.0,
        what="a hot GPU gets slower until a collective times out on all ranks",
    ),
    "pcie_pauses_fabric": Cascade(
        root=C.PCIE, flavour="nic_width", spread=_pauses_upstream,
        what="an adapter at too few PCIe lanes pauses its leaf, which pauses innocent hosts",
    ),
    "oom_kills_all": Cascade(
        root=C.PROCESS_DEAD, flavour="oom", spread=_dies_with_all(0.5, 8.0),
        what="the kernel kills one rank for its memory, all others follow",
    ),
    "panic_drops_ports": Cascade(
        root=C.HOST_DOWN, flavour="panic", watchdog_s=WATCHDOG_S,
        what="a host panics, its ports go down at the leaves, peers give up, watchdogs kill all",
    ),
    "gsp_hangs_host": Cascade(
        root=C.GPU_DRIVER, flavour="gsp_timeout", spread=_nvml_hangs, watchdog_s=WATCHDOG_S,
        what="one GPU's GSP hangs, the driver blocks its neighbours' readings, the rank stalls, all time out",
    ),
    "link_kills_all": Cascade(
        root=C.LINK_FLAP, flavour="dead", watchdog_s=18.0,
        what="a cable dies, peers give up, watchdogs kill all, Xid 45 everywhere",
    ),
    "link_returns": Cascade(
        root=C.LINK_FLAP, flavour="returns",
        what="a link comes back, the job goes on, and half a minute later it is gone again",
    ),
    "optic_congests": Cascade(
        root=C.LINK_FLAP, flavour="bad_optic", spread=_congested,
        what="a module loses blocks; what is sent again congests everybody on the leaf",
    ),
    "input_stall_timeout": Cascade(
        root=C.PROCESS_STALL, flavour="data", watchdog_s=20.0,
        what="one rank waits for input, all others time out in a collective",
    ),
    "desync_timeout": Cascade(
        root=C.COLLECTIVE_DESYNC, flavour="skips", watchdog_s=20.0,
        what="one rank leaves out a collective, all time out, Xid 45 everywhere",
    ),
    "driver_reload_kills_all": Cascade(
        root=C.GPU_DRIVER, flavour="reload", spread=_dies_with_all(0.5, 6.0),
        what="a driver is reloaded under the job: eight GPUs seem lost, all ranks end",
    ),
    "switch_dies": Cascade(
        root=C.SWITCH_FAULT, flavour="dead", watchdog_s=WATCHDOG_S,
        what="a leaf dies: a link down at every host beneath it, watchdogs kill all",
    ),
    "pause_storm_timeout": Cascade(
        root=C.PFC_STORM, flavour="slow_receiver", spread=_times_out_later(34.0, 20.0), watchdog_s=16.0,
        what="a pause storm slows all down until a collective times out",
    ),
    "two_at_once": Cascade(
        root=C.GPU_OFF_BUS, flavour="xid", with_=(C.LINK_FLAP, "dead"),
        what="a GPU falls off the bus while a cable dies elsewhere: two faults, neither explains the other",
    ),
    "straggler_and_dead_rank": Cascade(
        root=C.STRAGGLER, flavour="power_brake", with_=(C.PROCESS_DEAD, "killed"),
        what="a GPU is held down by the power brake while a rank elsewhere is killed",
        # Nothing ties the second fault to the first: it may come at any moment of the minutes for which a braked GPU is
        # left in its job. Sooner than a quarter of a minute after it there is next to nothing to be seen of the first: its
        # work gets slower over 6 s, and agents report once a second. Of 16 incidents with 0.6 to 3.9 s between the faults,
        # ranks had told 0.2 to 3.3 times of steps, which were between a hundredth shorter and a quarter longer than before.
        apart_s=(15.0, 120.0),
    ),
}  # fmt: skip
"""By name; those whose root cannot be simulated are left out of every draw."""
