"""What the agents inside the ranks say: registrations, a report a second, suspicions, flight recorders, last words.

They follow the real agent (`goodput_agent`): a stall is suspected after a few usual steps, a flight recorder goes out
at once and again some seconds later, a rank that ends with an exception says so and one that is killed does not. A rank
whose process is stopped, or whose interpreter lock is held, says nothing at all. Progress per group is reported only
while steps stand still: with 512 ranks that keeps a healthy job cheap.

With `reports_together` the ranks of a host report at the same moments and their collector sends that on (`goodput_agent.
handover`); while it is dead they report by themselves.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from goodput_common.contracts import subjects
from goodput_common.contracts.job import (
    FlightRecorderDump,
    GroupProgress,
    HostProgress,
    RankExited,
    RankProgress,
    RankRegistered,
    StallSuspected,
)
from goodput_faultlab.simulate.clockwork import Clockwork
from goodput_faultlab.simulate.collectors import Collectors
from goodput_faultlab.simulate.layout import OPS, Place
from goodput_faultlab.simulate.recorder import recorded
from goodput_faultlab.simulate.stall import counts
from goodput_faultlab.simulate.steps import RANK_SPREAD, Step, own_ms

if TYPE_CHECKING:
    from goodput_faultlab.simulate.training import Training

REPORT_S = 1.0
SUSPECT_FLOOR_S, SUSPECT_STEPS = 2.0, 5.0  # the agent's rule: so many usual steps, at least so long
SECOND_DUMP_S = 3.0
STEPS_BEFORE_SUSPICION = 5
HOLD_S = 0.2  # from the first report to the message with all of a host
UNTAKEN_S = 1.0  # after which an agent sends by itself what nobody has taken
STAGGER_S = 0.004  # between the reports of a host's ranks


class _Lately(NamedTuple):
    """The steps that a report speaks of."""

    steps: tuple[Step, ...]
    mean_ms: float
    told_mean_ms: float
    told_max_ms: float


class Agents:
    """The agents of all ranks of one job; they read where the job stands from `training`."""

    def __init__(self, training: Training, clockwork: Clockwork, collectors: Collectors) -> None:
        self._training = training
        self._spec = training.spec
        self._clockwork = clockwork
        self._collectors = collectors
        self._sent: dict[int, int] = {}
        self._reports: dict[int, int] = {}
        self._step_reported: dict[int, int] = {}
        self._lost: frozenset[int] | None = None
        self._subjects: dict[str, str] = {}
        self._names: dict[int, tuple[Place, str, str]] = {}  # of a process: in ids, and as a source
        self._lately: tuple[Step | None, dict[int, _Lately]] = (None, {})
        self._gauss = clockwork.rng("own").gauss
        self._counted: dict[int, tuple[tuple[int, int], tuple[GroupProgress, ...]]] = {}
        self._phases: dict[str, float] = {}  # of a second, at which the ranks of a host report
        self._held: dict[str, list[tuple[Place, RankProgress, datetime]]] = {}
        self._sent_on: dict[str, int] = {}

    @property
    def suspect_s(self) -> float:
        """How long a step may last before the agents suspect a stall."""
        return max(SUSPECT_FLOOR_S, SUSPECT_STEPS * self._spec.step_s)

    def register_all(self) -> None:
        self._sent, self._reports, self._step_reported = {}, {}, {}
        rng = self._clockwork.rng("agent")
        for place in self._training.layout.places:
            if place.rank not in self._training.gone:
                self._clockwork.after(rng.uniform(0.0, 1.0), partial(self._register, place))

    def _register(self, place: Place) -> None:
        if self._training.layout.places[place.rank] is not place:
            return  # a newer generation has begun meanwhile
        registered = RankRegistered(
            fabric=self._spec.fabric.name,
            job=self._spec.job,
            rank=place.rank,
            world_size=self._training.layout.world_size,
            host=place.host,
            pid=place.pid,
            at=self._collectors.clock(place.host),
            generation=self._training.generation,
            local_rank=place.local,
            gpu=place.local,
            gpu_uuid=place.gpu_uuid,
            backend="nccl",
            boot_id=self._collectors.boot_id(place.host),
            process_start=place.process_start,
            steps_published_s=REPORT_S,
        )
        self._put(place, "rank_registered", registered)
        self._step_reported[place.rank] = self._training.step
        generation = self._training.generation
        self._clockwork.after(self._first_s(place), partial(self._tick, generation, place))

    def _first_s(self, place: Place) -> float:
        """From the registration to the first report."""
        if not self._spec.reports_together:
            return REPORT_S
        phase = self._phases.get(place.host)
        if phase is None:
            phase = self._phases[place.host] = self._clockwork.rng("together").uniform(0.0, REPORT_S)
        return REPORT_S + (phase + place.local * STAGGER_S - self._clockwork.elapsed_s) % REPORT_S

    def _tick(self, generation: int, place: Place) -> None:
        """A report a second, for as long as this process lives."""
        if generation != self._training.generation or place.rank in self._training.gone:
            return
        self._clockwork.after(REPORT_S, partial(self._tick, generation, place))
        if place.rank not in self._training.silent:
            self._report(place)

    def _report(self, place: Place) -> None:
        training, rank = self._training, place.rank
        now, clock = self._clockwork.now, self._collectors.clock(place.host)
        steps = max(0, training.step - self._step_reported.get(rank, training.step))
        self._step_reported[rank] = training.step
        lately = self._of_last(steps)
        grain = self._gauss(1.0, RANK_SPREAD)
        own = own_ms(rank, lately.steps, self._spec.step_s, grain) if lately.steps else {}
        phase, for_s = training.phase(rank)
        number = self._reports[rank] = self._reports.get(rank, 0) + 1
        progress = RankProgress(
            fabric=self._spec.fabric.name,
            job=self._spec.job,
            rank=rank,
            host=place.host,
            seq=number,
            at=clock,
            generation=training.generation,
            step=training.step,
            step_at=clock - (now - training.step_at) if training.step_at is not None else None,
            steps=steps,
            step_ms_mean=lately.told_mean_ms,
            step_ms_max=lately.told_max_ms,
            phases_ms=own,
            waiting_ms=round(max(0.0, lately.mean_ms - sum(own.values())), 1) if own else -1.0,
            phase=phase,
            phase_for_ms=round(1000 * for_s, 1),
            groups=self._groups(rank) if training.stalled else (),
            paused=rank in training.paused and training.waiting == "paused",
        )
        if not self._spec.reports_together or self._collectors.is_silent(place.host):
            self._put(place, "rank_progress", progress, clock)
            return
        held = self._held.setdefault(place.host, [])
        held.append((place, progress, clock))
        if len(held) == 1:
            self._clockwork.after(HOLD_S, partial(self._send_on, place.host))

    def _send_on(self, host: str) -> None:
        """What the collector holds, in one message; a dead one has taken nothing, and those who still live say it again."""
        held = self._held.pop(host)
        if self._collectors.is_silent(host):
            self._clockwork.after(UNTAKEN_S - HOLD_S, partial(self._send_untaken, held))
            return
        number = self._sent_on[host] = self._sent_on.get(host, 0) + 1
        spec, clock = self._spec, self._collectors.clock(host)
        self._clockwork.publish(
            subject=subjects.job(spec.fabric.name, spec.job, "host_progress"),
            id=f"{spec.fabric.name}/{host}/{self._collectors.boot_id(host)[:8]}/{spec.job}/host_progress/{number}",
            source=f"collector/{host}",
            struct=HostProgress(
                fabric=spec.fabric.name, job=spec.job, host=host, at=clock, reports=tuple(each for _, each, _ in held)
            ),
            time=clock,
        )

    def _send_untaken(self, held: list[tuple[Place, RankProgress, datetime]]) -> None:
        for place, progress, clock in held:
            if self._training.layout.places[place.rank] is place and not self._training.mute(place.rank):
                self._put(place, "rank_progress", progress, clock)

    def _of_last(self, steps: int) -> _Lately:
        """Of the last so many steps; the same for all ranks that report between two of them."""
        recent = self._training.recent
        newest = recent[-1] if recent else None
        if self._lately[0] is not newest:
            self._lately = (newest, {})
        found = self._lately[1].get(steps)
        if found is None:
            of = tuple(recent)[-steps:] if steps else ()
            mean_ms = 1000 * sum(each.lasted_s for each in of) / len(of) if of else 0.0
            longest_ms = 1000 * max((each.lasted_s for each in of), default=0.0)
            found = self._lately[1][steps] = _Lately(of, mean_ms, round(mean_ms, 1), round(longest_ms, 1))
        return found

    # ------------------------------------------------------------------------------------------------- stalls

    def watch_for_stall(self) -> None:
        """Each agent looks a few times a second and notices by itself that the step does not end."""
        training = self._training
        if training.steps_done < STEPS_BEFORE_SUSPICION:
            return  # too few steps yet to know what is usual
        rng, now = self._clockwork.rng("agent"), self._clockwork.now
        spent_s = (now - (training.step_at or now)).total_seconds()
        at = (training.generation, training.step, training.epoch)

        def still() -> bool:
            return at == (training.generation, training.step, training.epoch)

        def suspect(place: Place) -> None:
            if still() and not training.mute(place.rank):
                self._suspect(place)
                self.dump(place.rank, "stall")

        def again(place: Place) -> None:
            if still() and training.stalled:
                self.dump(place.rank, "stall")

        for place in training.layout.places:
            wait_s = max(0.0, self.suspect_s - spent_s) + rng.uniform(0.0, 0.3)
            self._clockwork.after(wait_s, partial(suspect, place))
            self._clockwork.after(wait_s + SECOND_DUMP_S, partial(again, place))

    def _suspect(self, place: Place) -> None:
        training = self._training
        phase, _ = training.phase(place.rank)
        fault = training.fault_of(place.rank)
        frames: tuple[str, ...] = ()
        if fault is not None and fault.frames:
            frames = fault.frames
        elif training.stalled and training.position(place.rank).enqueued == OPS:
            frames = ("train.py:204 in read_loss",)  # waits for the GPU, which waits for the others
        stood_s = (self._clockwork.now - (training.step_at or self._clockwork.now)).total_seconds()
        suspected = StallSuspected(
            fabric=self._spec.fabric.name,
            job=self._spec.job,
            rank=place.rank,
            host=place.host,
            at=self._collectors.clock(place.host),
            generation=training.generation,
            step=training.step,
            stalled_for_ms=round(1000 * stood_s, 1),
            usual_step_ms=round(1000 * self._spec.step_s, 1),
            phase=phase,
            frames=frames,
        )
        self._put(place, "stall_suspected", suspected)
        self._report(place)

    def dump(self, rank: int, reason: str) -> bool:
        """The rank's flight recorder. False when its agent does not answer; a lost message counts as sent."""
        training = self._training
        if training.mute(rank):
            return False
        if rank in self._never_arrive():
            return True
        place, fault = training.layout.places[rank], training.fault_of(rank)
        clock, now = self._collectors.clock(place.host), self._clockwork.now
        dump = FlightRecorderDump(
            fabric=self._spec.fabric.name,
            job=self._spec.job,
            rank=rank,
            host=place.host,
            at=clock,
            backend="nccl",
            version="2.10",
            generation=training.generation,
            reason=reason,
            origin="memory",
            groups=self._groups(rank),
            collectives=recorded(
                training.layout,
                rank,
                training.steps_done,
                training.position(rank),
                at=clock - (now - training.step_at) if training.step_at is not None else clock,
                step_s=self._spec.step_s,
                skipped=self._skipped(rank),
                mismatch=fault.mismatch if fault is not None else None,
                timeout_ms=int(self._spec.watchdog_s * 1000),
            ),
            truncated=training.steps_done > 1,
        )
        self._put(place, "flight_recorder", dump)
        return True

    def _groups(self, rank: int) -> tuple[GroupProgress, ...]:
        """While a stall lasts nobody gets any further, and each says the same again and again."""
        training = self._training
        standing, known = (training.generation, training.epoch), self._counted.get(rank)
        if known is not None and known[0] == standing and training.stalled:
            return known[1]
        found = counts(training.layout, rank, training.steps_done, training.position(rank), self._skipped(rank))
        self._counted[rank] = (standing, found)
        return found

    def _skipped(self, rank: int) -> int | None:
        fault = self._training.fault_of(rank)
        return None if fault is None else fault.obstacle(0).skips.get(rank)

    def _never_arrive(self) -> frozenset[int]:
        if self._lost is None:
            size = self._training.layout.world_size
            count = min(self._spec.transport.lost_dumps, size)
            self._lost = frozenset(self._clockwork.rng("lost_dumps").sample(range(size), count))
        return self._lost

    # ------------------------------------------------------------------------------------------------- ends

    def leave(self, rank: int, reason: str, *, clean: bool = False) -> None:
        """The process of a rank ends: cleanly, with an exception that the agent still tells of, or without a word ("")."""
        training = self._training
        place = training.layout.places[rank]
        if (reason or clean) and not training.mute(rank):
            if training.stalled and not clean:
                self.dump(rank, "exit")
            exited = RankExited(
                fabric=self._spec.fabric.name,
                job=self._spec.job,
                rank=rank,
                host=place.host,
                at=self._collectors.clock(place.host),
                generation=training.generation,
                clean=clean,
                reason=reason,
            )
            self._put(place, "rank_exited", exited)
        training.gone.add(rank)

    def _put(self, place: Place, event: str, struct: msgspec.Struct, at: datetime | None = None) -> None:
        number = self._sent[place.rank] = self._sent.get(place.rank, 0) + 1
        subject = self._subjects.get(event)
        if subject is None:
            subject = self._subjects[event] = subjects.job(self._spec.fabric.name, self._spec.job, event)
        known = self._names.get(place.rank)
        if known is None or known[0] is not place:
            process = f"{self._collectors.boot_id(place.host)[:8]}.{place.pid}.{place.process_start}"
            named = f"{self._spec.fabric.name}/{self._spec.job}/{place.rank}/{self._training.generation}/{process}"
            known = self._names[place.rank] = (place, named, f"agent/{place.host}/{place.rank}")
        self._clockwork.publish(
            subject=subject,
            id=f"{known[1]}/{event}/{number}",
            source=known[2],
            struct=struct,
            time=self._collectors.clock(place.host) if at is None else at,
        )
