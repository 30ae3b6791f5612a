"""What is remembered of a job and of a host, in the broker's time.

Reports arrive about once a second; a decision needs to know when each rank last finished a step, how long steps usually
take, and who has gone quiet. `JobTimeline` and `HostTimeline` keep just that, bounded, by reading evidence in the one order
`(received_at, id)`. Host clocks may be 2 s apart, so a step's end is placed by its *age* on the host's own clock, counted
back from the moment the broker got the report: clock error cancels out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from goodput_common.contracts.job import FlightRecorderDump, RankExited, RankProgress, RankRegistered, StallSuspected
from goodput_common.contracts.telemetry import CollectorHeartbeat, Event, State
from goodput_correlator.domain.case import Observed, Placement, RankPlace

CLOCK_DOUBT_S = 2.0  # never order events of two hosts more tightly than this by their own clocks
STALL_S_MIN = 2.5  # steps that stand still for less are no stall, whatever the usual step
STALL_S_MAX = 180.0
STALL_DECISIVE_S_MIN = 1.0  # with hard evidence at hand, this much standing still is enough
START_UP_S = 120.0  # patience before the second step: compilation, data loading
PAUSE_S_MAX = 600.0  # a phase that says "checkpoint" is believed this long
HEARD_S = 3.5  # a rank heard within this is "reporting"
GAP_BUCKET_S = 10
GAP_BUCKETS_MAX = 180  # half an hour of the job's own pauses teach what is normal
LONG_PHASES = frozenset({"checkpoint", "save", "eval", "evaluation", "validation", "compile"})
EVENTS_PER_KEY_MAX = 20
EVENTS_PER_HOST_MAX = 2000
EVENT_KEEP_S = 900.0


@dataclass(slots=True)
class RankTrack:
    """One rank of one generation. `finished_at` is when its last step ended, by the broker's clock."""

    registered: Observed
    last: Observed | None = None  # newest progress report
    moved: Observed | None = None  # the report that first showed the last step
    step: int = -1
    finished_at: datetime | None = None
    seq: int = -1
    heard_at: datetime | None = None
    exited: Observed | None = None
    stall: Observed | None = None
    dump: Observed | None = None

    def facts(self) -> list[Observed]:
        return [each for each in (self.moved, self.last, self.exited, self.stall, self.dump) if each is not None]


@dataclass(slots=True)
class JobTimeline:
    """One job in its newest generation, and what is normal for it."""

    job: str
    fabric: str
    world_size: int = 0
    generation: int = -1
    ranks: dict[int, RankTrack] = field(default_factory=dict)
    heard_at: datetime | None = None
    started_at: datetime | None = None
    learning: bool = True  # off while an incident is open: its own gap is not normal
    _gaps: deque[tuple[int, float, float, int]] = field(default_factory=deque)  # bucket, longest s, sum s, steps

    def fold(self, seen: Observed) -> None:
        fact = seen.fact
        if isinstance(fact, RankRegistered):
            self._register(seen, fact)
            return
        if not isinstance(fact, RankProgress | RankExited | StallSuspected | FlightRecorderDump):
            return
        self.heard_at = seen.received_at
        track = self.ranks.get(fact.rank)
        if track is None or fact.generation != self.generation:
            return
        if isinstance(fact, RankProgress):
            self._progress(track, seen, fact)
        elif isinstance(fact, RankExited):
            track.exited = track.exited or seen
        elif isinstance(fact, StallSuspected):
            track.stall = seen
        else:
            track.dump = seen

    def _register(self, seen: Observed, fact: RankRegistered) -> None:
        if fact.generation < self.generation:
            return
        if fact.generation > self.generation:
            self.generation, self.ranks, self.started_at = fact.generation, {}, seen.received_at
            self.learning = True
        self.world_size = fact.world_size
        self.heard_at = seen.received_at
        known = self.ranks.get(fact.rank)
        if known is not None and isinstance(known.registered.fact, RankRegistered):
            before = known.registered.fact
            if (before.pid, before.host, before.process_start) == (fact.pid, fact.host, fact.process_start):
                return
        self.ranks[fact.rank] = RankTrack(registered=seen, heard_at=seen.received_at)

    def _progress(self, track: RankTrack, seen: Observed, fact: RankProgress) -> None:
        track.heard_at = seen.received_at
        if fact.seq < track.seq:
            return  # an older report that came late
        track.seq, track.last = fact.seq, seen
        age_s = max(0.0, (fact.at - fact.step_at).total_seconds()) if fact.step_at else 0.0
        finished_at = seen.received_at - timedelta(seconds=age_s)
        if fact.step != track.step or track.finished_at is None:
            self._learn(track, seen, fact, finished_at)
            track.step, track.finished_at, track.moved = fact.step, finished_at, seen
        else:
            track.finished_at = min(track.finished_at, finished_at)

    def _learn(self, track: RankTrack, seen: Observed, fact: RankProgress, finished_at: datetime) -> None:
        if not self.learning or fact.steps <= 0 or track.step < 0 or track.finished_at is None:
            return
        between_s = (finished_at - track.finished_at).total_seconds()
        longest_s = max(fact.step_ms_max / 1000, between_s / fact.steps)
        bucket = int(seen.received_at.timestamp()) // GAP_BUCKET_S
        total_s = max(fact.step_ms_mean / 1000 * fact.steps, between_s if fact.step_ms_mean == 0 else 0.0)
        if self._gaps and self._gaps[-1][0] == bucket:
            _, longest, total, steps = self._gaps[-1]
            self._gaps[-1] = (bucket, max(longest, longest_s), total + total_s, steps + fact.steps)
            return
        self._gaps.append((bucket, longest_s, total_s, fact.steps))
        if len(self._gaps) > GAP_BUCKETS_MAX:
            self._gaps.popleft()

    # what is normal, and what is now

    @property
    def usual_step_s(self) -> float:
        steps = sum(gap[3] for gap in self._gaps)
        return sum(gap[2] for gap in self._gaps) / steps if steps else 0.0

    @property
    def longest_gap_s(self) -> float:
        return max((gap[1] for gap in self._gaps), default=0.0)

    @property
    def step(self) -> int:
        """The furthest step that any rank has finished."""
        return max((track.step for track in self.ranks.values()), default=-1)

    @property
    def moved_at(self) -> datetime | None:
        """When any rank last finished a step."""
        return max((t.finished_at for t in self.ranks.values() if t.step >= 0 and t.finished_at), default=None)

    def reporting(self, now: datetime) -> list[int]:
        limit = now - timedelta(seconds=HEARD_S)
        return [rank for rank, t in self.ranks.items() if t.last is not None and t.last.received_at >= limit]

    def stall_after_s(self, now: datetime) -> float:
        """How long steps may stand still before that alone is a stall: learned from the job's own pauses."""
        steps = sum(gap[3] for gap in self._gaps)
        if steps < 2:
            return START_UP_S
        usual = max(STALL_S_MIN, 5 * self.usual_step_s, 1.5 * self.longest_gap_s)
        return PAUSE_S_MAX if self._in_long_phase(now) else min(STALL_S_MAX, usual)

    def decisive_after_s(self, now: datetime) -> float:
        """The same when hard evidence is at hand."""
        return max(STALL_DECISIVE_S_MIN, 3 * self.usual_step_s)

    def _in_long_phase(self, now: datetime) -> bool:
        facts = [self.ranks[rank].last for rank in self.reporting(now)]
        reports = [each.fact for each in facts if each is not None and isinstance(each.fact, RankProgress)]
        return bool(reports) and all(fact.phase in LONG_PHASES for fact in reports)

    def paused(self, now: datetime) -> bool:
        """Whether somebody asked it to stand still."""
        tracks = [self.ranks[rank].last for rank in self.reporting(now)]
        return any(isinstance(t.fact, RankProgress) and t.fact.paused for t in tracks if t is not None)

    @property
    def ended(self) -> bool:
        """All ranks left on their own and said so."""
        return bool(self.ranks) and all(
            t.exited is not None and isinstance(t.exited.fact, RankExited) and t.exited.fact.clean
            for t in self.ranks.values()
        )

    @property
    def placement(self) -> Placement:
        places = {}
        for rank, track in self.ranks.items():
            fact = track.registered.fact
            assert isinstance(fact, RankRegistered)
            places[rank] = RankPlace(
                rank, fact.host, fact.pid, fact.gpu, fact.gpu_uuid, fact.local_rank, track.registered.received_at
            )
        return Placement(self.job, self.world_size, self.generation, dict(sorted(places.items())))

    def facts(self) -> list[Observed]:
        return [each for track in self.ranks.values() for each in track.facts()]


@dataclass(slots=True)
class HostTimeline:
    """What one host's collector said lately. Repeats beyond the caps are counted, the first of a kind is never dropped."""

    host: str
    events: deque[Observed] = field(default_factory=deque)
    states: dict[tuple[str, str], Observed] = field(default_factory=dict)
    heartbeat: Observed | None = None
    heard_at: datetime | None = None
    dropped: int = 0

    def fold(self, seen: Observed) -> None:
        self.heard_at = seen.received_at
        fact = seen.fact
        if isinstance(fact, CollectorHeartbeat):
            self.heartbeat = seen
        elif isinstance(fact, State):
            self.states[(fact.component, fact.name)] = seen
        elif isinstance(fact, Event):
            self._event(seen, fact)

    def _event(self, seen: Observed, fact: Event) -> None:
        limit = seen.received_at - timedelta(seconds=EVENT_KEEP_S)
        while self.events and self.events[0].received_at < limit:
            self.events.popleft()
        key = (fact.component, fact.name, fact.attrs.get("xid"))
        same = sum(
            1
            for each in self.events
            if isinstance(each.fact, Event) and (each.fact.component, each.fact.name, each.fact.attrs.get("xid")) == key
        )
        if same >= EVENTS_PER_KEY_MAX or len(self.events) >= EVENTS_PER_HOST_MAX:
            self.dropped += 1
            return
        self.events.append(seen)

    def facts(self, since: datetime) -> list[Observed]:
        kept = [each for each in self.events if each.received_at >= since]
        kept.extend(self.states.values())
        if self.heartbeat is not None:
            kept.append(self.heartbeat)
        return kept
