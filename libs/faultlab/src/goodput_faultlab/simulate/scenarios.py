"""Scenarios by name: what is broken, on which fabric, and what the right answer is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from goodput_common.contracts.verdict import FaultClass
from goodput_faultlab.simulate.benign import BENIGN
from goodput_faultlab.simulate.cascades import CASCADES, Cascade, cascade_faults
from goodput_faultlab.simulate.faults import MAKERS
from goodput_faultlab.simulate.spec import BenignSpec, FaultSpec, NoiseSpec, SimulationSpec, TransportSpec
from goodput_topology.generate import h100_pod, nvl72
from goodput_topology.graph import Fabric

FAULT_AT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`truth` says in words what a verdict should say. The victim is drawn from the seed."""

    name: str
    description: str
    truth: str
    faults: tuple[FaultSpec, ...] = ()
    cascade: str = ""  # the kind, whose faults come instead
    benign: tuple[BenignSpec, ...] = ()
    noise: NoiseSpec = field(default_factory=NoiseSpec)
    transport: TransportSpec = field(default_factory=TransportSpec)
    fabric: str = "h100"  # h100 | nvl72
    watchdog_s: float = 600.0


def _one(
    name: str,
    fault_class: FaultClass,
    flavour: str,
    description: str,
    truth: str,
    *,
    fabric: str = "h100",
    transport: TransportSpec = TransportSpec(),  # noqa: B008 - immutable
    watchdog_s: float = 600.0,
) -> Scenario:
    fault = FaultSpec(fault_class=fault_class, flavour=flavour, at_s=FAULT_AT_S)
    return Scenario(
        name=name,
        description=description,
        truth=truth,
        faults=(fault,),
        fabric=fabric,
        transport=transport,
        watchdog_s=watchdog_s,
    )


ROUGH = TransportSpec(lost=0.03, doubled=0.05, late=0.10, late_s_max=1.5)
LINK, GPU, MEMORY = "the link, class link_flap", "the GPU, class gpu_off_bus", "the GPU, class gpu_memory"
NVLINK, DEAD, STALL = "the GPU or its NVLink, class nvlink", "the rank, class process_dead", "the rank, class process_stall"
NOBODY = "no verdict"
DESYNC = "the rank, class collective_desync"
C = FaultClass
_LIST = (
    _one("dead-link", C.LINK_FLAP, "dead", "one cable goes dead for good", LINK),
    _one("flapping-link", C.LINK_FLAP, "flapping", "one link comes and goes for half a minute", LINK),
    _one("link-blip", C.LINK_FLAP, "blip", "an outage that the NIC's retries outlast", "the link, or nothing: it heals"),
    _one("gpu-off-bus", C.GPU_OFF_BUS, "xid", "a GPU falls off the bus, Xid 79", GPU),
    _one("gpu-off-bus-quiet", C.GPU_OFF_BUS, "no_xid", "the same without any Xid", GPU),
    _one("gpu-off-bus-raises", C.GPU_OFF_BUS, "raises", "the same, and its rank raises and ends", GPU),
    *(
        _one(f"gpu-memory-{n}", C.GPU_MEMORY, n, f"uncorrectable memory error, Xid {n}", MEMORY)
        for n in ("48", "63", "64", "94", "95")
    ),
    _one("nvlink", C.NVLINK, "xid_74", "an NVLink fails, Xid 74", NVLINK),
    _one("nvlink-gb200", C.NVLINK, "xid_149", "Xid 149, partners log 145 and 45", NVLINK, fabric="nvl72"),
    _one("rank-killed", C.PROCESS_DEAD, "killed", "a rank's process is killed", DEAD),
    _one("rank-segfault", C.PROCESS_DEAD, "segfault", "a rank's process crashes", DEAD),
    _one("rank-oom", C.PROCESS_DEAD, "oom", "the kernel kills a rank for its memory", DEAD),
    _one("rank-raised", C.PROCESS_DEAD, "raised", "a rank ends with an exception", DEAD),
    _one("rank-frozen", C.PROCESS_STALL, "frozen", "a rank is stopped by SIGSTOP", STALL),
    _one("gil-held", C.PROCESS_STALL, "gil", "a rank holds the interpreter lock", STALL),
    _one("data-stall", C.PROCESS_STALL, "data", "a rank waits for input for ever", STALL),
    _one("collective-skipped", C.COLLECTIVE_DESYNC, "skips", "a rank leaves out a collective", DESYNC),
    _one("collective-other-op", C.COLLECTIVE_DESYNC, "other_op", "a rank calls another operation", DESYNC),
    _one("collective-other-size", C.COLLECTIVE_DESYNC, "other_size", "a rank calls it with another size", DESYNC),
    _one("no-trace", C.UNDETERMINED, "no_trace", "all ranks wait and nothing says why", "nobody: undetermined"),
    _one("dead-link-rough", C.LINK_FLAP, "dead", "a dead cable; messages lost, late, doubled", LINK, transport=ROUGH),
    _one("rank-killed-rough", C.PROCESS_DEAD, "killed", "a killed rank; the same", DEAD, transport=ROUGH),
    _one("dead-link-late", C.LINK_FLAP, "dead", "a dead cable, then the watchdog kills all ranks", LINK, watchdog_s=30.0),
    Scenario(name="healthy", description="nothing but noise", truth=NOBODY),
    Scenario(
        name="healthy-checkpoints",
        description="noise, and a checkpoint that stops every rank now and then",
        truth=NOBODY,
        noise=NoiseSpec(checkpoint_every=60),
    ),
    Scenario(
        name="healthy-rough",
        description="noise, and a tenth of the messages lost, doubled or late",
        truth=NOBODY,
        transport=TransportSpec(lost=0.1, doubled=0.1, late=0.1),
    ),
)
SCENARIOS: dict[str, Scenario] = {each.name: each for each in _LIST}
"""Those whose verdict the tests hold to the truth, run by run."""

TRUTHS = {
    C.GPU_OFF_BUS: GPU,
    C.GPU_MEMORY: MEMORY,
    C.NVLINK: NVLINK,
    C.LINK_FLAP: LINK,
    C.PFC_STORM: "the port that paused first, class pfc_storm",
    C.STRAGGLER: "what makes the rank late, class straggler",
    C.GPU_DRIVER: "the GPU, or the host whose driver was reloaded, class gpu_driver",
    C.PCIE: "the GPU or the adapter, class pcie",
    C.NIC_HANG: "the adapter, class nic_hang",
    C.SWITCH_FAULT: "the switch, class switch_fault",
    C.HOST_DOWN: "the host, class host_down",
    C.PROCESS_DEAD: DEAD,
    C.PROCESS_STALL: STALL,
    C.COLLECTIVE_DESYNC: DESYNC,
    C.STORAGE_STALL: "the host, or the job where the server is silent for all, class storage_stall",
    C.NO_HARDWARE_FAULT: "nobody: no_hardware_fault",
    C.UNDETERMINED: "nobody: undetermined",
}
CASCADE, LOOK_ALIKE = "cascade-", "look-alike-"


def _words(name: str) -> str:
    return name.replace("_", "-")


def _further() -> dict[str, Scenario]:
    """A scenario for every flavour that has none above, every kind of cascade, every look-alike."""
    told = {(fault.fault_class, fault.flavour) for each in _LIST for fault in each.faults}
    found = [
        _one(
            f"{_words(fault_class.value)}-{_words(flavour)}",
            fault_class,
            flavour,
            f"{fault_class.value.replace('_', ' ')}: {flavour.replace('_', ' ')}",
            TRUTHS[fault_class],
        )
        for fault_class, flavours in MAKERS.items()
        for flavour in flavours
        if (fault_class, flavour) not in told
    ]
    found += [_cascade(kind, cascade) for kind, cascade in CASCADES.items() if cascade.root in MAKERS]
    found += [
        Scenario(
            name=f"{LOOK_ALIKE}{_words(kind)}",
            description=f"nothing is broken: {kind.replace('_', ' ')}",
            truth=NOBODY,
            benign=(BenignSpec(kind=kind, at_s=FAULT_AT_S),),
        )
        for kind in BENIGN
    ]
    return {each.name: each for each in found}


def _cascade(kind: str, cascade: Cascade) -> Scenario:
    truth = TRUTHS[cascade.root]
    if cascade.with_ is not None:
        truth += f"; and {TRUTHS[cascade.with_[0]]}"
    return Scenario(
        name=f"{CASCADE}{_words(kind)}",
        description=cascade.what,
        truth=truth,
        cascade=kind,
        watchdog_s=cascade.watchdog_s or 600.0,
    )


FURTHER: dict[str, Scenario] = _further()
CATALOGUE: dict[str, Scenario] = SCENARIOS | FURTHER
"""All that `scenario` knows."""


class UnknownScenario(ValueError):
    """Says which there are."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no scenario {name!r}; choose among: {', '.join(CATALOGUE)}")


def _fabric(kind: str, hosts: int, spares: int, others: int) -> tuple[Fabric, tuple[str, ...], tuple[str, ...]]:
    total = hosts + spares + others
    make: dict[str, Callable[[], Fabric]] = {
        "h100": lambda: h100_pod(hosts=total, spines=4),
        "nvl72": lambda: nvl72(racks=-(-total // 18)),
    }
    fabric = make[kind]()
    names = fabric.hosts()
    return fabric, names[:hosts], names[hosts : hosts + spares]


def scenario(
    name: str, *, hosts: int = 64, spares: int = 2, others: int = 6, step_s: float = 0.4, fabric: str | None = None
) -> SimulationSpec:
    """The specification of a named scenario: by default 512 ranks on 64 hosts. Raises UnknownScenario."""
    if name not in CATALOGUE:
        raise UnknownScenario(name)
    chosen = CATALOGUE[name]
    graph, mine, standing_by = _fabric(fabric or chosen.fabric, hosts, spares, others)
    return SimulationSpec(
        fabric=graph,
        hosts=mine,
        spares=standing_by,
        faults=cascade_faults(chosen.cascade, mine, at_s=FAULT_AT_S) if chosen.cascade else chosen.faults,
        benign=chosen.benign,
        noise=chosen.noise,
        transport=chosen.transport,
        watchdog_s=chosen.watchdog_s,
        step_s=step_s,
        switches=name in FURTHER,
        scenario=name,
    )
