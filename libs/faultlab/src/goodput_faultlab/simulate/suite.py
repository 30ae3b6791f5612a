"""Incidents by the thousand, drawn by seed: where, what, how plain, how much of it is lost, and what else goes on.

    for incident in incidents("held_out", 2000):
        simulation = incident.simulation()
        for message in simulation.records(incident.until): ...
        truth = simulation.ledger

Two splits. Whatever is learned (calibration, thresholds, priorities) may look at `fit` and never at `held_out`: that one has
other topologies, other kinds of cascade and other seeds. The classes of fault are the same in both, for a class that was
never seen cannot be calibrated. An incident is a function of (split, number) and of the options given; nothing is kept, so
asking for the thousandth alone costs one draw.

A twelfth of all incidents are none: hours in which only look-alikes happen, and any blame is wrong.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from goodput_common.contracts.verdict import FaultClass
from goodput_faultlab.simulate.benign import BENIGN
from goodput_faultlab.simulate.cascades import CASCADES, cascade_faults
from goodput_faultlab.simulate.engine import Simulation
from goodput_faultlab.simulate.faults import MAKERS
from goodput_faultlab.simulate.spec import BenignSpec, FaultSpec, NoiseSpec, SimulationSpec, TransportSpec
from goodput_topology.generate import fat_tree, h100_pod, nvl72, nvl576, two_nic_pod
from goodput_topology.graph import Fabric

Split = Literal["fit", "held_out"]
SEEDS_A_SPLIT = 1_000_000
TRIES = 50
LOSS_MAX, SKEW_S_MAX = 0.20, 2.0
HEALTHY_SHARE, CASCADE_SHARE = 1 / 12, 0.25
OBSERVED_S = 34.0  # from the onset to the end of a run: the slowest evidence (a mount that hangs) takes 24 s to be told
AFTER_WATCHDOG_S = 10.0
AFTER_SECOND_S = 30.0  # from the second of two faults to the end of a run
SWITCHES_SHARE, PROBES_SHARE = 0.75, 0.5  # of the fabrics, those whose switches are asked, whose ways are probed
PAUSES = frozenset({"checkpoint_pause", "evaluation_pause"})  # every rank stands: told apart from a fault only before it
LONGEST_PAUSE_S = 10.0
AT_THE_END = "job_end"


@dataclass(frozen=True, slots=True)
class Topology:
    """A fabric of which a job of `hosts` (drawn among these sizes) takes a part."""

    make: Callable[[], Fabric]
    hosts: tuple[int, ...]
    grace: bool = False  # GB200: NVLink 5, whose Xids are 144 to 150


TOPOLOGIES: dict[Split, dict[str, Topology]] = {
    "fit": {
        "rails_8": Topology(lambda: h100_pod(hosts=20, spines=4), (8,) * 7 + (12, 16)),
        "rails_4_two_pods": Topology(lambda: h100_pod(hosts=12, pods=2, rails=4, spines=2), (8,) * 5 + (12,)),
        "nvl72": Topology(lambda: nvl72(racks=2, racks_per_pod=1), (16,) * 5 + (24,), grace=True),
        "fat_tree_two_tiers": Topology(lambda: fat_tree(12, hosts=24, tiers=2), (8,) * 5 + (12,)),
    },
    "held_out": {
        "rails_8_two_pods": Topology(lambda: h100_pod(hosts=12, pods=2, spines=4), (8,) * 7 + (12, 16)),
        "fat_tree": Topology(lambda: fat_tree(8, hosts=40), (8,) * 5 + (12,)),
        "nvl576": Topology(lambda: nvl576(), (16,) * 5 + (24,), grace=True),
        "two_nics": Topology(lambda: two_nic_pod(24, hosts_per_leaf=8, spines=2), (8,) * 7 + (12, 16)),
        "two_nics_dual_homed": Topology(
            lambda: two_nic_pod(24, hosts_per_leaf=12, spines=2, dual_homed=True), (8,) * 5 + (12,)
        ),
    },
}
CASCADES_OF: dict[Split, tuple[str, ...]] = {
    "fit": (
        "gpu_off_bus_kills_all",
        "link_kills_all",
        "oom_kills_all",
        "pcie_pauses_fabric",
        "storage_checkpoint_timeout",
        "desync_timeout",
        "straggler_and_dead_rank",
    ),
    "held_out": (
        "nvlink_crash",
        "nic_hang_drops_link",
        "ecc_restart_elsewhere",
        "thermal_timeout",
        "panic_drops_ports",
        "gsp_hangs_host",
        "link_returns",
        "optic_congests",
        "input_stall_timeout",
        "driver_reload_kills_all",
        "switch_dies",
        "pause_storm_timeout",
        "two_at_once",
    ),
}
FIRST_SEED: dict[Split, int] = {"fit": 0, "held_out": SEEDS_A_SPLIT}


@functools.lru_cache(maxsize=16)
def _fabric(split: Split, topology: str) -> Fabric:
    return TOPOLOGIES[split][topology].make()


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One of the suite. `kind`: fault, cascade or healthy. The truth is in `simulation().ledger`."""

    split: Split
    number: int
    seed: int
    topology: str
    kind: str
    spec: SimulationSpec
    seconds: float

    @property
    def name(self) -> str:
        return f"{self.split}-{self.number}"

    @property
    def until(self) -> datetime:
        return self.spec.start + timedelta(seconds=self.seconds)

    def simulation(self) -> Simulation:
        return Simulation(self.spec, self.seed)


def incidents(
    split: Split, count: int | None = None, *, first: int = 0, loss: float | None = None, skew_s: float | None = None
) -> Iterator[Incident]:
    """Incidents `first` and following, one at a time; without `count` without an end (of the split's seeds). `loss` and
    `skew_s` settle the share of lost messages and the largest error of a clock, which are drawn otherwise."""
    last = SEEDS_A_SPLIT if count is None else min(first + count, SEEDS_A_SPLIT)
    return (
        incident(split, number, loss=loss, skew_s=skew_s)
        for number in itertools.islice(itertools.count(first), last - first)
    )


def incident(split: Split, number: int, *, loss: float | None = None, skew_s: float | None = None) -> Incident:
    """The one of that number. What a topology does not have (a flavour of NVLink 5 on an H100) is drawn anew."""
    if not 0 <= number < SEEDS_A_SPLIT:
        raise ValueError(f"no incident {number} in {split}: it has those from 0 to {SEEDS_A_SPLIT - 1}")
    seed = FIRST_SEED[split] + number
    for again in range(TRIES):
        drawn = _draw(split, number, seed, random.Random(f"suite/{split}/{seed}/{again}"), loss, skew_s)
        try:
            drawn.simulation()
        except ValueError:
            continue  # this fault cannot be on this fabric
        return drawn
    raise RuntimeError(f"none of {TRIES} draws of incident {split} {number} fits its topology: check TOPOLOGIES and MAKERS")


# ------------------------------------------------------------------------------------------------------------ draws


def _draw(split: Split, number: int, seed: int, rng: random.Random, loss: float | None, skew_s: float | None) -> Incident:
    name = rng.choice(sorted(TOPOLOGIES[split]))
    topology, fabric = TOPOLOGIES[split][name], _fabric(split, name)
    hosts, spares = _hosts(fabric, rng.choice(topology.hosts), rng)
    onset_s, drawn = round(rng.uniform(14.0, 26.0), 2), rng.random()
    faults: tuple[FaultSpec, ...] = ()
    watchdog_s, kind = 600.0, "healthy"
    observed_s = OBSERVED_S
    if drawn < HEALTHY_SHARE:
        observed_s = 30.0
    elif drawn < HEALTHY_SHARE + CASCADE_SHARE:
        kind, cascade = "cascade", rng.choice(_possible(CASCADES_OF[split], topology))
        severity, apart_s = _severity(rng), rng.uniform(*CASCADES[cascade].apart_s)
        faults = cascade_faults(cascade, hosts, at_s=onset_s, severity=severity, apart_s=apart_s)
        observed_s = max(OBSERVED_S, apart_s + AFTER_SECOND_S)
        if (own := CASCADES[cascade].watchdog_s) is not None:
            watchdog_s = own
            turns_s = 36.0 if cascade.endswith("_timeout") and CASCADES[cascade].spread is not None else 4.0
            observed_s = max(OBSERVED_S, own + turns_s + AFTER_WATCHDOG_S)
        elif cascade in ("link_returns", "ecc_restart_elsewhere"):
            observed_s = 62.0
    else:
        kind, faults = "fault", (_fault(topology, onset_s, rng),)
    seconds = onset_s + observed_s
    return Incident(
        split=split,
        number=number,
        seed=seed,
        topology=name,
        kind=kind,
        seconds=seconds,
        spec=SimulationSpec(
            fabric=fabric,
            hosts=hosts,
            spares=spares,
            step_s=rng.choice((0.4, 0.6, 0.8)),
            faults=faults,
            benign=_benign(kind, onset_s, seconds, rng),
            noise=_noise(rng),
            transport=_transport(rng, loss, skew_s),
            watchdog_s=watchdog_s,
            switches=_tells(faults) or rng.random() < SWITCHES_SHARE,
            probes=_shows_to_probes_alone(faults) or rng.random() < PROBES_SHARE,
            scenario=f"{split}-{number}",
        ),
    )


def _hosts(fabric: Fabric, count: int, rng: random.Random) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The job's hosts, in a row or scattered over the fabric as a busy scheduler leaves them, and its spares."""
    names = list(fabric.hosts())
    if rng.random() < 0.5:
        names = sorted(rng.sample(names, count + 2), key=names.index)
        return tuple(names[:count]), tuple(names[count:])
    first = rng.randrange(len(names) - count - 1)
    return tuple(names[first : first + count]), tuple(names[first + count : first + count + 2])


def _severity(rng: random.Random) -> float:
    return round(rng.random(), 3)


def _possible(names: tuple[str, ...], topology: Topology) -> list[str]:
    return [name for name in names if not (topology.grace and CASCADES[name].flavour == "xid_74")]


def _fault(topology: Topology, onset_s: float, rng: random.Random) -> FaultSpec:
    fault_class = rng.choice(list(FaultClass))
    flavours = sorted(MAKERS[fault_class])
    if fault_class is FaultClass.NVLINK:
        flavours = ["xid_149" if topology.grace else "xid_74"]
    return FaultSpec(fault_class=fault_class, flavour=rng.choice(flavours), at_s=onset_s, severity=_severity(rng))


def _tells(faults: tuple[FaultSpec, ...]) -> bool:
    """Faults inside the network show to nobody where nobody asks the switches."""
    return any(fault.fault_class in (FaultClass.PFC_STORM, FaultClass.SWITCH_FAULT) for fault in faults)


def _shows_to_probes_alone(faults: tuple[FaultSpec, ...]) -> bool:
    """A switch that drops and counts nothing: where all traffic crosses its tier, every host sends again, and no counter
    tells one switch of the tier from the next."""
    return any((fault.fault_class, fault.flavour) == (FaultClass.SWITCH_FAULT, "silent") for fault in faults)


def _benign(kind: str, onset_s: float, seconds: float, rng: random.Random) -> tuple[BenignSpec, ...]:
    """What else goes on. The job's own pauses lie before a fault: in one that begins during them, the first to speak is the
    pause."""
    healthy = kind == "healthy"
    kinds = rng.sample(
        [each for each in sorted(BENIGN) if each != AT_THE_END], rng.randrange(2, 6) if healthy else rng.randrange(4)
    )
    found = []
    for each in kinds:
        latest_s = seconds - 5.0 if healthy or each not in PAUSES else onset_s - LONGEST_PAUSE_S
        at_s = 0.5 if each == "start_up" else rng.uniform(3.5, max(4.0, latest_s))
        found.append(BenignSpec(kind=each, at_s=round(at_s, 2)))
    if healthy and rng.random() < 0.25:
        found.append(BenignSpec(kind=AT_THE_END, at_s=round(seconds - 8.0, 2)))
    return tuple(found)


def _noise(rng: random.Random) -> NoiseSpec:
    """From a quiet night to a storm."""
    usual, loud = NoiseSpec(), rng.choice((0.3, 1.0, 1.0, 4.0, 12.0))
    return replace(
        usual,
        corrected_aer=usual.corrected_aer * loud,
        management_flaps=usual.management_flaps * loud,
        application_xids=usual.application_xids * loud,
        kernel_chatter=usual.kernel_chatter * loud,
        other_jobs=rng.random() < 0.6,
    )


def _transport(rng: random.Random, loss: float | None, skew_s: float | None) -> TransportSpec:
    drawn_loss, drawn_skew_s = rng.choice((0.0, 0.02, 0.05, 0.10, LOSS_MAX)), rng.uniform(0.0, SKEW_S_MAX)
    dies = rng.random() < 0.12
    return TransportSpec(
        clock_offset_s_max=round(drawn_skew_s if skew_s is None else skew_s, 2),
        lost=drawn_loss if loss is None else loss,
        doubled=rng.choice((0.0, 0.05)),
        late=rng.choice((0.0, 0.1)),
        lost_dumps=rng.choice((0, 0, 0, 2, 6)),
        dead_collectors=rng.randrange(1, 3) if dies else 0,
        dead_on_culprit=dies and rng.random() < 0.3,
    )
