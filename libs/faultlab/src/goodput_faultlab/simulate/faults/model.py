"""What a fault is to the simulator: where it hits, what it leaves in the logs, what stops because of it, and what cures
it."""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Source
from goodput_common.contracts.verdict import ActionKind, FaultClass
from goodput_faultlab.ledger import Symptom
from goodput_faultlab.simulate.collectors import MakeSample
from goodput_faultlab.simulate.layout import SCHEDULE, Layout, Place
from goodput_faultlab.simulate.spec import FaultSpec
from goodput_faultlab.simulate.stall import Obstacle
from goodput_topology.graph import Fabric

RESTARTS_PROCESSES = frozenset({ActionKind.RESTART_JOB, ActionKind.SWAP_NODE, ActionKind.DRAIN_AND_RESUME})
MOVES_AWAY = frozenset({ActionKind.SWAP_NODE, ActionKind.DRAIN_AND_RESUME, ActionKind.CORDON_AT_CHECKPOINT})


@dataclass(frozen=True, slots=True)
class Emission:
    """Something that a host's collector sees `after_s` seconds after the fault began (negative: a forewarning)."""

    after_s: float
    host: str
    source: Source
    make: MakeSample


@dataclass(frozen=True, slots=True)
class Exit:
    """A rank's process ends `after_s` seconds after the fault. `reason` is the exception that its agent tells of, "" for a
    kill, which leaves no word. `clean`: it has come to the end of its program."""

    after_s: float
    rank: int
    reason: str = ""
    clean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """What an active fault costs each step while steps go on. `factor`: the step lasts so many times as long as usual.

    `late[rank]`: by how much of a usual step this rank comes later to its collectives than its peers (0.3: by 30 %), time
    that it spends itself, in `phase`, while everybody else waits for it. Empty where nobody is late: the network is slow,
    and all wait alike. `after_s`: it begins so long after the fault, and is there in full after another `ramp_s`.
    """

    factor: float
    late: Mapping[int, float] = field(default_factory=dict)
    phase: str = "forward"
    after_s: float = 0.0
    ramp_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """A counter that rises while a fault is active: `per_s` a second from `from_s` to `until_s` after it began, on top of
    what it counts anyway. Told at the host's next readings, so that increases and readings always add up."""

    host: str  # whose collector reads it; the switch's name for a switch
    source: Source
    component: ComponentId
    name: str
    per_s: float
    from_s: float = 0.0
    until_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A measurement that stands at `value` instead of where it usually does, while a fault is active; it gets there from
    `from_value` over `ramp_s`. `wavers`: by how much it goes up and down about that (one standard deviation)."""

    host: str
    source: Source
    component: ComponentId
    name: str
    value: float
    wavers: float = 0.0
    attrs: Mapping[str, str] = field(default_factory=dict)
    from_s: float = 0.0
    until_s: float = math.inf
    ramp_s: float = 0.0
    from_value: float | None = None  # None: from where it usually stands


class Deed(enum.StrEnum):
    """What happens to a host or the job besides what its sources see: the engine carries it out."""

    COLLECTOR_STOPS = "collector_stops"
    COLLECTOR_STARTS = "collector_starts"  # the same boot: its numbering goes on
    HOST_BOOTS = "host_boots"  # another boot: numbering, counters and boot id begin anew
    CLOCK_JUMPS = "clock_jumps"  # by `value` seconds
    COUNTERS_RESET = "counters_reset"  # of all that the host counts, without a boot
    JOB_RESTARTS = "job_restarts"  # somebody starts the job again, with a spare in place of `host`
    TURN = "turn"  # the fault enters its next stage: from now on it also blocks


@dataclass(frozen=True, slots=True)
class Act:
    after_s: float
    deed: Deed
    host: str = ""
    value: float = 0.0


@dataclass(slots=True, kw_only=True)
class Fault:
    """A planned fault. `obstacle(op)` says what stands in the way when the step had come to collective `op`.

    `silent`: ranks whose process gives no sign any more, from inside. `outages`: for a link, [down, up) times after the
    start; an open end is infinity. `cured_by` decides whether an action at a target removes the cause.
    `slowdown`: steps go on, but slower; such a fault's obstacle is empty unless it blocks later (an `Act` TURN, before which
    `blocks` is False). `symptoms`: what follows from it elsewhere and is nobody else's fault.
    """

    spec: FaultSpec
    flavour: str
    component: ComponentId | None
    also_right: tuple[ComponentId, ...] = ()
    ranks: tuple[int, ...] = ()
    host: str | None = None
    note: str = ""
    obstacle: Callable[[int], Obstacle]
    emissions: tuple[Emission, ...] = ()
    exits: tuple[Exit, ...] = ()
    silent: frozenset[int] = frozenset()
    outages: tuple[tuple[float, float], ...] = ()
    phase: str = ""  # where the culprit's main thread stands, when that differs from its peers
    frames: tuple[str, ...] = ()
    cured_by: Callable[[ActionKind, ComponentId | None], bool]
    mismatch: tuple[str, tuple[int, ...]] | None = None  # (op, sizes) that a desynchronised rank issued instead
    stopped: bool = False
    slowdown: Slowdown | None = None
    acts: tuple[Act, ...] = ()
    symptoms: tuple[Symptom, ...] = ()
    rises: tuple[Rise, ...] = ()
    levels: tuple[Level, ...] = ()
    drops: Mapping[ComponentId, float] = field(default_factory=dict)  # share of the packets that a component drops
    waits_us: Mapping[ComponentId, float] = field(default_factory=dict)  # of a probe: where it is sent out, or in a host
    blocks: bool = True
    active: bool = field(default=False)

    @property
    def fault_class(self) -> FaultClass:
        return self.spec.fault_class

    @property
    def stands_in_the_way(self) -> bool:
        """Whether steps stop because of it, and not only last longer."""
        return self.blocks and self.obstacle(0) != Obstacle()

    @property
    def forewarning_s(self) -> float:
        return min([0.0, *(each.after_s for each in self.emissions)])


Maker = Callable[[FaultSpec, Fabric, Layout, random.Random], Fault]


def victim_place(spec: FaultSpec, layout: Layout, rng: random.Random) -> Place:
    """The rank that the specification pins, by number or by host, or one drawn."""
    if spec.rank is not None:
        if not 0 <= spec.rank < layout.world_size:
            raise ValueError(f"no rank {spec.rank} in a job of {layout.world_size}")
        return layout.places[spec.rank]
    candidates = layout.on_host(spec.host) if spec.host is not None else range(layout.world_size)
    if not candidates:
        raise ValueError(f"host {spec.host!r} carries no rank of the job")
    return layout.places[rng.choice(candidates)]


def on_host(target: ComponentId | None, host: str) -> bool:
    """Whether an action's target lies on `host`."""
    if target is None:
        return False
    try:
        return ids.host_of(target) == host
    except ids.InvalidComponentId:
        return False


def hits(target: ComponentId | None, place: Place, job: str | None = None) -> bool:
    """Whether an action's target is the rank, its GPU or its host. A rank id is matched by its number."""
    if target is None:
        return False
    return on_host(target, place.host) or (target.startswith("rank:") and target.endswith(f"/{place.rank}"))


def nothing_blocks(op: int) -> Obstacle:
    """Of a fault that only slows down."""
    return Obstacle()


def between(marginal: float, blatant: float, severity: float) -> float:
    """A figure by severity: 0 gives the marginal one, 1 the blatant one."""
    return marginal + (blatant - marginal) * severity


def count_between(marginal: int, blatant: int, severity: float) -> int:
    return round(between(marginal, blatant, severity))


def stops(rank: int) -> Callable[[int], Obstacle]:
    """The process gets no further: it enqueues nothing more."""
    return lambda op: Obstacle(stops_at={rank: op})


def halts(rank: int) -> Callable[[int], Obstacle]:
    """The GPU executes nothing more while its process goes on enqueueing."""
    return lambda op: Obstacle(halts_at={rank: op})


def ring_neighbours(layout: Layout, rank: int) -> tuple[int, int]:
    """The ranks before and after `rank` in the ring of its data-parallel group."""
    ring = layout.group(rank, "data").ranks
    at = ring.index(rank)
    return ring[at - 1], ring[(at + 1) % len(ring)]


def first_of(scope: str) -> int:
    """The number of the first collective of a scope in a step."""
    return next(number for number, op in enumerate(SCHEDULE) if op.scope == scope)
