"""The case: everything a diagnosis may look at, as one immutable value.

Whatever arrives becomes `Observed`: one fact with the id it is cited by, the host it speaks of, when that host saw it and
when the broker got it. Times of different hosts are comparable only by `received_at` (one clock, the broker's);
`observed_at` is a host's own clock and may be 2 s off.

A case is built for one job (or for none, when hardware fails without a job on it) at one moment `now` and holds exactly the
evidence that the broker had by then. Engines read it and nothing else, so the same evidence gives the same diagnosis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from goodput_common.contracts.ids import ComponentId, rank_id
from goodput_common.contracts.job import (
    FlightRecorderDump,
    HostProgress,
    RankExited,
    RankProgress,
    RankRegistered,
    StallSuspected,
)
from goodput_common.contracts.telemetry import CollectorHeartbeat, Counter, Event, Gauge, Probe, State, TelemetryBatch
from goodput_correlator.domain.measurements import Measurements, measured
from goodput_correlator.domain.pace import RankPace, Slow
from goodput_topology.graph import Fabric

if TYPE_CHECKING:
    from goodput_correlator.domain.localise.memory import ProbeMemory  # which keeps `Observed`

JobFact = RankRegistered | RankProgress | StallSuspected | RankExited | FlightRecorderDump
Fact = Event | Counter | State | Gauge | Probe | CollectorHeartbeat | JobFact


class MessageLike(Protocol):
    """What `unpack` needs of a bus message or of a record in a replay log."""

    @property
    def id(self) -> str: ...
    @property
    def received_at(self) -> datetime: ...
    @property
    def data(self) -> Any: ...


class Observed(msgspec.Struct, frozen=True, gc=False):
    """One fact. `source` is the collector's source (`kernel_log`), or `agent` for what the training process says.

    A struct, because some ten thousand are made a second, and a frozen dataclass costs several times as much to make."""

    id: str
    host: str
    source: str
    observed_at: datetime
    received_at: datetime
    fact: Fact

    @property
    def order(self) -> tuple[datetime, str]:
        """The one order in which evidence is read, whatever order it was delivered in."""
        return (self.received_at, self.id)

    @property
    def fabric(self) -> str:
        """The fabric named by the fact itself; samples of a batch carry none (the batch did)."""
        return getattr(self.fact, "fabric", "")

    @property
    def job(self) -> str | None:
        return getattr(self.fact, "job", None)


def unpack(message: MessageLike) -> tuple[Observed, ...]:
    """The facts of one message; part n of a batch is `<message id>#<n>`. Messages that are no evidence give ()."""
    data = message.data
    if type(data) is RankProgress:  # three in four messages
        return (Observed(message.id, data.host, "agent", data.at, message.received_at, data),)
    if isinstance(data, TelemetryBatch):
        return tuple(
            Observed(f"{message.id}#{n}", data.host, data.source.value, sample.observed_at, message.received_at, sample)
            for n, sample in enumerate(data.samples)
        )
    if isinstance(data, HostProgress):
        return tuple(
            Observed(f"{message.id}#{n}", data.host, "agent", report.at, message.received_at, report)
            for n, report in enumerate(data.reports)
        )
    if isinstance(data, CollectorHeartbeat):
        return (Observed(message.id, data.host, "heartbeat", data.at, message.received_at, data),)
    if isinstance(data, RankRegistered | RankProgress | StallSuspected | RankExited | FlightRecorderDump):
        source = "flight_recorder" if isinstance(data, FlightRecorderDump) else "agent"
        return (Observed(message.id, data.host, source, data.at, message.received_at, data),)
    return ()


def fabric_of(message: MessageLike) -> str | None:
    """The fabric a message speaks of, None where it carries none."""
    return getattr(message.data, "fabric", None)


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where one rank runs."""

    rank: int
    host: str
    pid: int = 0
    gpu: int | None = None
    gpu_uuid: str | None = None
    local_rank: int | None = None
    registered_at: datetime | None = None  # the broker's time

    @property
    def device(self) -> int | None:
        """Index of the GPU it drives: as reported, else its local rank (one process a GPU is the convention)."""
        return self.gpu if self.gpu is not None else self.local_rank


@dataclass(frozen=True, slots=True)
class Placement:
    """Which rank of a job runs where, in its newest generation."""

    job: str
    world_size: int
    generation: int
    ranks: Mapping[int, RankPlace] = field(default_factory=dict)

    def on_host(self, host: str) -> tuple[int, ...]:
        return tuple(sorted(rank for rank, place in self.ranks.items() if place.host == host))

    def on_gpu(self, host: str, index: int) -> tuple[int, ...]:
        return tuple(sorted(r for r, place in self.ranks.items() if place.host == host and place.device == index))

    def by_pid(self, host: str, pid: int) -> int | None:
        for rank, place in self.ranks.items():
            if place.host == host and place.pid == pid:
                return rank
        return None

    def host_of(self, rank: int) -> str | None:
        place = self.ranks.get(rank)
        return place.host if place else None

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted({place.host for place in self.ranks.values()}))

    def component(self, rank: int) -> ComponentId:
        return rank_id(self.job, rank)


@dataclass(frozen=True)
class Case:
    """`observed` is sorted by `Observed.order` and free of doubles. `stalled_since` is when the last step of the job ended
    (broker time), None when nothing is known of steps. `offline` marks a case built from files: there is no present, dumps
    stand for the stall and silence means nothing. `named_at` is when a culprit of this very stall was named: whatever ends
    after that may have been ended because of it. `slow` says how much slower than usual steps are that do not stand still;
    each rank's share is in `paces`. `measured` are the counters and gauges of the fabric, where `observed` does not hold
    them; `probes` the same of probe reports. `memo` keeps what engines share, once computed.
    """

    now: datetime
    fabric: str
    job: str | None
    observed: tuple[Observed, ...]
    topology: Fabric
    placement: Placement | None = None
    stalled_since: datetime | None = None
    offline: bool = False
    silent_hosts: tuple[str, ...] = ()  # collectors that used to report and do not
    named_at: datetime | None = None
    stalled_step: int = -1
    usual_step_s: float = 0.0
    patience_s: float = 0.0  # steps of this job may stand still for this long with nothing wrong
    reporting_since: Mapping[int, datetime] = field(default_factory=dict)  # each rank's reports have had no gap since
    counted_since: Mapping[int, datetime] = field(default_factory=dict)  # each rank has counted the same collectives since
    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of process groups, as earlier reports said
    cpu: Mapping[ComponentId, tuple[Observed, ...]] = field(default_factory=dict)  # of processes, window by window
    outer_pids: Mapping[ComponentId, tuple[int, datetime]] = field(default_factory=dict)  # of ranks, and when that was told
    slow: Slow | None = None
    paces: Mapping[int, RankPace] = field(default_factory=dict)
    measured: Measurements | None = None
    probes: ProbeMemory | None = None
    memo: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def stalled(self) -> bool:
        """Whether a job of this case stands still, as far as is known."""
        return self.stalled_since is not None or (self.offline and bool(self.dumps))

    @property
    def since(self) -> datetime | None:
        """Since when the job is in trouble (the broker's time), as far as is known."""
        if self.stalled_since is not None:
            return self.stalled_since
        return self.slow.since if self.slow is not None else None

    @cached_property
    def measurements(self) -> Measurements:
        return self.measured if self.measured is not None else measured(self.observed, self.topology)

    @cached_property
    def world(self) -> tuple[int, ...]:
        """The ranks of the job: as registered, else as dumps name them."""
        if self.placement is not None and self.placement.ranks:
            return tuple(self.placement.ranks)
        named = {rank for each in self.dumps.values() for group in getattr(each.fact, "groups", ()) for rank in group.ranks}
        return tuple(sorted(named | self.dumps.keys()))

    def rank_component(self, rank: int) -> ComponentId:
        return rank_id(self.job or "job", rank)

    def host_of_rank(self, rank: int) -> str | None:
        """Where a rank runs: as registered, else as its dump says."""
        if self.placement is not None and (host := self.placement.host_of(rank)):
            return host
        dump = self.dumps.get(rank)
        return (dump.host or None) if dump is not None else None

    @cached_property
    def events(self) -> tuple[Observed, ...]:
        return tuple(each for each in self.observed if isinstance(each.fact, Event))

    @cached_property
    def dumps(self) -> Mapping[int, Observed]:
        """The newest flight-recorder dump of each rank."""
        newest: dict[int, Observed] = {}
        for each in self.observed:
            if isinstance(each.fact, FlightRecorderDump) and each.fact.job == self.job:
                newest[each.fact.rank] = each
        return newest

    @cached_property
    def stalls(self) -> Mapping[int, Observed]:
        """The newest stall announced by each rank that has not gone on since: a shorter stop is over."""
        found = {e.fact.rank: e for e in self.observed if isinstance(e.fact, StallSuspected) and e.fact.job == self.job}
        return {rank: each for rank, each in found.items() if not self._went_on(rank, each)}

    def _went_on(self, rank: int, said: Observed) -> bool:
        moved = self.progress.get(rank)
        if moved is None or not isinstance(moved.fact, RankProgress) or not isinstance(said.fact, StallSuspected):
            return False
        return (moved.fact.generation, moved.fact.step) > (said.fact.generation, said.fact.step)

    @cached_property
    def exits(self) -> Mapping[int, Observed]:
        """The last words of each rank that left."""
        return {e.fact.rank: e for e in self.observed if isinstance(e.fact, RankExited) and e.fact.job == self.job}

    @cached_property
    def progress(self) -> Mapping[int, Observed]:
        """The newest progress report of each rank."""
        newest: dict[int, Observed] = {}
        for each in self.observed:
            if isinstance(each.fact, RankProgress) and each.fact.job == self.job:
                newest[each.fact.rank] = each
        return newest


def ordered(observed: Iterable[Observed]) -> tuple[Observed, ...]:
    """Sorted, one of each id: the earliest received stands."""
    kept: dict[str, Observed] = {}
    for each in sorted(observed, key=lambda o: o.order):
        kept.setdefault(each.id, each)
    return tuple(kept.values())
