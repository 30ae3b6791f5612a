"""What is remembered of a job, in the broker's time (of a host: `host_timeline`).

Reports arrive about once a second; a decision needs to know when each rank last finished a step, how long steps usually
take, and who has gone quiet. `JobTimeline` keeps just that, bounded, by reading evidence in the one order
`(received_at, id)`. Host clocks may be 2 s apart, so a step's end is placed by its *age* on the host's own clock, counted
back from the moment the broker got the report: clock error cancels out. A report that was held on its host, to travel with
those of other ranks, has grown older by then, by what the same clock says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from goodput_common.contracts.job import (
    FlightRecorderDump,
    GroupProgress,
    RankExited,
    RankProgress,
    RankRegistered,
    StallSuspected,
)
from goodput_common.contracts.telemetry import CollectorHeartbeat, Event, State
from goodput_correlator.domain.case import Observed, Placement, RankPlace
from goodput_correlator.domain.pace import JobPace, Own, RankPace

# What the timelines remember anything of. Counters and gauges are in `measurements`.
READ = (RankRegistered, RankProgress, RankExited, StallSuspected, FlightRecorderDump, CollectorHeartbeat, Event, State)
CLOCK_DOUBT_S = 2.0  # never order events of two hosts more tightly than this by their own clocks
STALL_S_MIN = 2.5  # steps that stand still for less are no stall, whatever the usual step
STALL_S_MAX = 180.0
STALL_DECISIVE_S_MIN = 1.0  # with hard evidence at hand, this much standing still is enough
START_UP_S = 120.0  # patience before the second step: compilation, data loading
FIRST_STEP_S_MAX = 900.0  # and while a rank says that it compiles (or the like), before the first
PAUSE_S = 60.0  # while a rank says that it writes a checkpoint (or evaluates), patience is this long
RESUME_GAP_S = 1.0  # steps further apart than this (and than usual) have stood still in between
HEARD_S = 3.5  # a rank heard within this is "reporting"
REPORT_GAP_S = 1.8  # reports come every second: one further from the last than this had something in its way
_TELL_GROUPS = (RankProgress, FlightRecorderDump)
_REPORT_GAP = timedelta(seconds=REPORT_GAP_S)
_RESUME_GAP = timedelta(seconds=RESUME_GAP_S)
_NONE = timedelta(0)
GAP_BUCKET_S = 10
WARM_UP_STEPS = 5  # the first steps of a process connect and compile: they teach nothing
GAP_BUCKETS_MAX = 180  # half an hour of the job's own pauses teach what is normal
LONG_PHASES = frozenset({"checkpoint", "save", "eval", "evaluation", "validation", "compile"})
GROUPS_MAX = 10_000  # of a job; the members of further ones are known only from their newest report


JOB_FACTS = (RankProgress, RankRegistered, RankExited, StallSuspected, FlightRecorderDump)  # the most frequent first


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
    since: datetime | None = None  # reports have come without a gap since then
    counted_at: datetime | None = None  # its counts of collectives have been what they are since this report
    learned: int = 0
    exited: Observed | None = None
    stall: Observed | None = None
    dump: Observed | None = None
    own: Own = field(default_factory=Own)

    def facts(self) -> list[Observed]:
        return [each for each in (self.moved, self.last, self.exited, self.stall, self.dump) if each is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """What an earlier process noted of a job in its newest generation: stands in for reports that are kept no longer."""

    job: str
    generation: int
    heard_at: datetime
    step: int = -1
    step_at: datetime | None = None


def _counts(seen: Observed) -> list[tuple[str, int, int]]:
    groups = seen.fact.groups if isinstance(seen.fact, RankProgress) else ()
    return [(each.group, each.last_enqueued, each.last_completed) for each in groups]


def _stands(fact: StallSuspected) -> tuple[int, str, str, tuple[str, ...]]:
    return fact.step, fact.phase, fact.in_collective, fact.frames


def _clean(track: RankTrack) -> bool:
    return track.exited is not None and isinstance(track.exited.fact, RankExited) and track.exited.fact.clean


@dataclass(slots=True)
class JobTimeline:
    """One job in its newest generation, and what is normal for it."""

    job: str
    fabric: str
    world_size: int = 0
    generation: int = -1
    ranks: dict[int, RankTrack] = field(default_factory=dict)
    heard_at: datetime | None = None
    learning: bool = True  # off while an incident is open: its own gap is not normal
    moved_at: datetime | None = None  # when any rank last finished a step
    resumed_at: datetime | None = None  # when steps began to move after they had stood still
    news: int = 0  # grows with every fact that may change a diagnosis
    news_at: datetime | None = None  # when the last of them was received
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of each group, as far as reports have said
    pace: JobPace = field(default_factory=JobPace)
    _noted_step: int = -1  # by an earlier process, until a rank is seen to finish a step
    _gaps: deque[tuple[int, float, float, int]] = field(default_factory=deque)  # bucket, longest s, sum s, steps
    _before: tuple[float, int] = (0.0, 0)  # sum s and steps of all `_gaps` but the last: this is asked at every report

    def fold(self, seen: Observed, *, said_at: datetime | None = None) -> None:
        """`said_at`: when its host sent it, where that is later than when it was made."""
        fact = seen.fact
        if not isinstance(fact, JOB_FACTS):  # a tuple: a union is made anew each time, which costs more than the rest
            return
        if fact.generation < self.generation:
            return  # a word from a past life of the job
        self.heard_at = seen.received_at
        if fact.generation > self.generation:
            self.generation, self.ranks, self.learning = fact.generation, {}, True
            self.moved_at = self.resumed_at = None
            self.members, self._noted_step, self.pace = {}, -1, JobPace()
        if isinstance(fact, RankRegistered):
            self._register(seen, fact)
            return
        if isinstance(fact, _TELL_GROUPS) and fact.groups:
            self._learn_members(fact.groups)
        track = self.ranks.get(fact.rank)
        if track is None:  # its registration was lost: what it says shows where it is
            track = self.ranks[fact.rank] = RankTrack(registered=seen)
        track.heard_at = seen.received_at
        if isinstance(fact, RankProgress):
            self._progress(track, seen, fact, said_at)
        elif isinstance(fact, RankExited):
            track.exited = track.exited or seen
        elif isinstance(fact, StallSuspected):
            known = track.stall.fact if track.stall is not None else None
            if not isinstance(known, StallSuspected) or _stands(known) != _stands(fact):
                self._tell(seen)  # agents repeat it for as long as it lasts
            track.stall = seen
        else:
            track.dump = seen
            self._tell(seen)

    def _tell(self, seen: Observed) -> None:
        self.news += 1
        self.news_at = seen.received_at

    def resume(self, noted: Noted) -> None:
        """Go on from what was noted, where that is further than the evidence that was read again."""
        if noted.generation != self.generation:
            return
        self.heard_at = max(self.heard_at or noted.heard_at, noted.heard_at)
        if self.moved_at is None and noted.step >= 0:
            self.moved_at, self._noted_step = noted.step_at, noted.step

    def _register(self, seen: Observed, fact: RankRegistered) -> None:
        self.world_size = max(fact.world_size, 1)
        known = self.ranks.get(fact.rank)
        if known is None:
            self.ranks[fact.rank] = RankTrack(registered=seen, heard_at=seen.received_at)
            return
        before = known.registered.fact
        if (
            isinstance(before, RankRegistered)
            and before.pid
            and (before.host, before.pid, before.process_start)
            != (
                fact.host,
                fact.pid,
                fact.process_start,
            )
        ):
            self.ranks[fact.rank] = RankTrack(registered=seen, heard_at=seen.received_at)  # another process in its place
        else:
            known.registered = seen

    def _learn_members(self, groups: Iterable[GroupProgress]) -> None:
        """Reports name the members of a group now and then, and only count in between."""
        for each in groups:
            if not each.ranks or (known := self.members.get(each.group)) == each.ranks:
                continue
            if known is not None or len(self.members) < GROUPS_MAX:
                self.members[each.group] = each.ranks

    def _progress(self, track: RankTrack, seen: Observed, fact: RankProgress, said_at: datetime | None) -> None:
        if fact.seq < track.seq:
            return  # an older report that came late
        last = track.last
        if last is not None and fact.seq == track.seq and fact == last.fact:
            return  # told in two messages: by the rank itself, and together with others
        if last is None or seen.received_at - last.received_at > _REPORT_GAP:
            track.since = seen.received_at
        if last is None or _counts(last) != _counts(seen):
            track.counted_at = seen.received_at
        track.seq, track.last = fact.seq, seen
        if fact.step_at is None and fact.step <= track.step:
            return
        if fact.step_at is None and track.step < 0:
            track.step, track.moved = fact.step, seen  # loaded from a checkpoint: no step of this process yet
            return
        age = max(fact.at, said_at or fact.at) - fact.step_at if fact.step_at is not None else _NONE
        finished_at = seen.received_at - age if age > _NONE else seen.received_at
        if fact.step != track.step or track.finished_at is None:
            self._learn(track, seen, fact, finished_at)
            self._paced(track, seen, fact)
            track.step, track.finished_at, track.moved = fact.step, finished_at, seen
            self._moved(finished_at)
        elif finished_at < track.finished_at:
            track.finished_at = finished_at

    def _moved(self, finished_at: datetime) -> None:
        self._noted_step = -1
        before = self.moved_at
        if before is not None and finished_at <= before:
            return  # another rank was quicker to say so
        gap = finished_at - before if before is not None else timedelta.max
        if gap > _RESUME_GAP and gap.total_seconds() > 2.5 * self.usual_step_s:
            self.resumed_at = finished_at
        self.moved_at = finished_at

    def _learn(self, track: RankTrack, seen: Observed, fact: RankProgress, finished_at: datetime) -> None:
        if not self.learning or fact.steps <= 0 or track.step < 0 or track.finished_at is None:
            return
        track.learned += fact.steps
        if track.learned <= WARM_UP_STEPS:
            return
        between_s = (finished_at - track.finished_at).total_seconds()
        mean_ms, told, gaps = fact.step_ms_mean, fact.steps, self._gaps
        # a pause between steps shows only here: the time that all but one usual step leave over
        steps = max(1, fact.step - track.step)
        longest_s = max(fact.step_ms_max / 1000, between_s - (steps - 1) * mean_ms / 1000)
        bucket = int(seen.received_at.timestamp()) // GAP_BUCKET_S
        total_s = max(mean_ms / 1000 * told, between_s if mean_ms == 0 else 0.0)
        if gaps and gaps[-1][0] == bucket:
            _, longest, total, steps = gaps[-1]
            gaps[-1] = (bucket, longest_s if longest_s > longest else longest, total + total_s, steps + told)
            return
        self._gaps.append((bucket, longest_s, total_s, fact.steps))
        if len(self._gaps) > GAP_BUCKETS_MAX:
            self._gaps.popleft()
        closed = list(self._gaps)[:-1]
        self._before = (sum(gap[2] for gap in closed), sum(gap[3] for gap in closed))

    def _paced(self, track: RankTrack, seen: Observed, fact: RankProgress) -> None:
        if track.learned > WARM_UP_STEPS or not self.learning:
            self.pace.report(fact, seen.received_at, self.world_size)
            track.own.report(seen, slow=self.pace.slow is not None, window=self.pace.windows)

    def paces(self, since: datetime) -> dict[int, RankPace]:
        """Of each rank that has finished steps since then."""
        found = {rank: track.own.pace(rank, since) for rank, track in sorted(self.ranks.items())}
        return {rank: pace for rank, pace in found.items() if pace is not None}

    # what is normal, and what is now

    @property
    def usual_step_s(self) -> float:
        if not self._gaps:
            return 0.0
        _, _, total_s, steps = self._gaps[-1]
        before_s, before = self._before
        return (before_s + total_s) / (before + steps) if before + steps else 0.0

    @property
    def habit_gap_s(self) -> float:
        """The longest gap between steps that the job has shown more than once (twice makes a habit)."""
        longest = sorted((gap[1] for gap in self._gaps), reverse=True)[:2]
        return longest[-1] if longest else 0.0

    @property
    def step(self) -> int:
        """The furthest step that any rank has finished."""
        return max(self._noted_step, max((track.step for track in self.ranks.values()), default=-1))

    @property
    def registered_at(self) -> datetime | None:
        """When the newest of its present processes was announced: tells two lives of one generation apart."""
        known = [t.registered for t in self.ranks.values() if isinstance(t.registered.fact, RankRegistered)]
        return max((each.received_at for each in known), default=None)

    @property
    def started_at(self) -> datetime | None:
        """Since when a step can be expected: all ranks are there. None before."""
        there = self.world_size > 0 and len(self.ranks) >= self.world_size
        return self.registered_at if there else None

    @property
    def waiting_since(self) -> datetime | None:
        """Since when its next step is waited for: the end of the last, or, before the first, when all ranks were there."""
        return self.moved_at if self.moved_at is not None else self.started_at

    def reporting(self, now: datetime) -> list[int]:
        limit = now - timedelta(seconds=HEARD_S)
        return [rank for rank, t in self.ranks.items() if t.last is not None and t.last.received_at >= limit]

    @property
    def reporting_since(self) -> dict[int, datetime]:
        return {rank: track.since for rank, track in self.ranks.items() if track.since is not None}

    @property
    def counted_since(self) -> dict[int, datetime]:
        return {rank: track.counted_at for rank, track in self.ranks.items() if track.counted_at is not None}

    def stood_s(self, now: datetime) -> float:
        """How long steps are *shown* to stand still: up to the newest report. Silence of everybody shows nothing."""
        since = self.waiting_since
        if since is None:
            return 0.0
        newest = max((t.last.received_at for t in self.ranks.values() if t.last is not None), default=since)
        return (min(newest, now) - since).total_seconds()

    def stall_after_s(self, now: datetime) -> float:
        """How long steps may stand still before that alone is a stall: learned from the job's own pauses."""
        if self._before[1] + (self._gaps[-1][3] if self._gaps else 0) < 2:
            return FIRST_STEP_S_MAX if self.moved_at is None and self._in_long_phase(now) else START_UP_S
        usual_s = min(STALL_S_MAX, max(STALL_S_MIN, 5 * self.usual_step_s, 1.5 * self.habit_gap_s))
        return max(PAUSE_S, usual_s) if self._in_long_phase(now) else usual_s

    def patience_s(self, now: datetime) -> float:
        """How long steps may stand still with nothing wrong: before the first step of a generation, all of its start-up."""
        usual_s = self.stall_after_s(now)
        return max(START_UP_S, usual_s) if self.moved_at is None else usual_s

    def decisive_after_s(self, now: datetime) -> float:
        """The same when hard evidence is at hand. Before the first step nothing is known to stand still."""
        if self.moved_at is None:
            return self.stall_after_s(now)
        return max(STALL_DECISIVE_S_MIN, 3 * self.usual_step_s)

    def _in_long_phase(self, now: datetime) -> bool:
        facts = [self.ranks[rank].last for rank in self.reporting(now)]
        reports = [each.fact for each in facts if each is not None and isinstance(each.fact, RankProgress)]
        return any(fact.phase in LONG_PHASES for fact in reports)

    def paused(self, now: datetime) -> bool:
        """Whether somebody asked it to stand still."""
        tracks = [self.ranks[rank].last for rank in self.reporting(now)]
        return any(isinstance(t.fact, RankProgress) and t.fact.paused for t in tracks if t is not None)

    @property
    def ended(self) -> bool:
        """All ranks left on their own and said so."""
        return bool(self.ranks) and all(_clean(track) for track in self.ranks.values())

    @property
    def ending(self) -> bool:
        """Some ranks have left cleanly: the others are about to."""
        return any(_clean(track) for track in self.ranks.values())

    @property
    def hosts(self) -> list[str]:
        """Where its ranks run, in order of name."""
        return sorted({track.registered.host for track in self.ranks.values()})

    @property
    def placement(self) -> Placement:
        places = {}
        for rank, track in self.ranks.items():
            fact = track.registered.fact
            at = track.registered.received_at
            if isinstance(fact, RankRegistered):
                places[rank] = RankPlace(rank, fact.host, fact.pid, fact.gpu, fact.gpu_uuid, fact.local_rank, at)
            else:
                places[rank] = RankPlace(rank, track.registered.host)
        return Placement(self.job, max(self.world_size, len(places)), self.generation, dict(sorted(places.items())))

    def facts(self) -> list[Observed]:
        return [each for track in self.ranks.values() for each in track.facts()]
