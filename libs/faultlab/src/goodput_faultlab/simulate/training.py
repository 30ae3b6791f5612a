"""The training job: its steps, and where every rank stands when they stop.

One generation of the job is a `Layout` plus a counter of steps. Steps follow each other until a fault stands in the
way; then all ranks stand where `stall.settle` puts them. A fault that only slows down makes them longer (`steps`). What
the agents in the ranks say about it is in `agents`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime

from goodput_faultlab.simulate.agents import Agents
from goodput_faultlab.simulate.clockwork import Clockwork
from goodput_faultlab.simulate.collectors import Collectors
from goodput_faultlab.simulate.faults.model import Fault
from goodput_faultlab.simulate.layout import OPS, SCHEDULE, Layout
from goodput_faultlab.simulate.spec import SimulationSpec
from goodput_faultlab.simulate.stall import Obstacle, Position, settle
from goodput_faultlab.simulate.steps import STEP_SPREAD, USUAL, Pace, Step, pace_of, whereabouts

START_UP_S = 2.0
DISK_CHECKPOINT_STEPS = 50
HABIT = 2  # pauses of the same kind that raise a suspicion before the agent takes them for normal
PHASES = ((0.40, "forward"), (0.78, "backward"), (1.1, "optimizer"))  # of a stalled rank, by its next collective


class Training:
    """Drives one job. `blocking()` tells the faults that stand in its way now; `gave_up()` is called when the collective
    timeout has passed."""

    def __init__(
        self,
        spec: SimulationSpec,
        clockwork: Clockwork,
        collectors: Collectors,
        blocking: Callable[[], Sequence[Fault]],
        gave_up: Callable[[], None],
    ) -> None:
        self.spec = spec
        self.layout = Layout(spec.fabric, spec.job, spec.hosts, 0)
        self.step = -1  # last finished
        self.step_at: datetime | None = None
        self.steps_before = 0  # steps before this generation's groups were made
        self.recent: deque[Step] = deque(maxlen=64)
        self.stalled_since: datetime | None = None
        self.positions: list[Position] | None = None
        self.stall_faults: Sequence[Fault] = ()
        self.gone: set[int] = set()
        self.silent: set[int] = set()
        self.paused: set[int] = set()
        self.waiting = ""  # starting, checkpoint, paused: why no step runs though nothing is wrong
        self.epoch = 0  # grows with every change of course; what was planned under an older one does not happen
        self.idle_s = 0.0
        self.redone_s = 0.0
        self.slowed_s = 0.0  # what steps took beyond the usual
        self._executed = 0.0  # steps carried out so far, redone ones counted again
        self._stalled_share = 0.0
        self._pace = USUAL
        self._clockwork = clockwork
        self._blocking = blocking
        self._gave_up = gave_up
        self._waiting_since = spec.start
        self._started: datetime | None = None
        self._lasts_s = spec.step_s
        self._habit = 0
        self.agents = Agents(self, clockwork, collectors)

    @property
    def generation(self) -> int:
        return self.layout.generation

    @property
    def stalled(self) -> bool:
        return self.positions is not None

    @property
    def steps_done(self) -> int:
        """Steps finished in this generation."""
        return self.step + 1 - self.steps_before

    @property
    def work(self) -> float:
        """Steps carried out since the start of the run, with the share of the one in hand; never falls. Whatever the job
        moves over its network is proportional to this."""
        if self._started is None or self.waiting:
            return self._executed
        if self.stalled:
            return self._executed + self._stalled_share
        return self._executed + min(1.0, (self._clockwork.now - self._started).total_seconds() / self._lasts_s)

    def mute(self, rank: int) -> bool:
        """Whether nothing is heard from this rank's agent."""
        return rank in self.gone or rank in self.silent

    def begin(self) -> None:
        """Ranks register within a second or so; the first step starts a little later."""
        self.epoch += 1
        self.positions, self.stall_faults = None, ()
        self.agents.register_all()
        self._wait("starting")
        epoch = self.epoch
        self._clockwork.after(START_UP_S, lambda: self._start_step(epoch))

    def restart(self, hosts: tuple[str, ...], *, new_processes: bool, from_memory: bool) -> None:
        """A new generation: after a re-init of the communicators the processes are the same, else they are new. Steps resume
        after the last one that peers keep in memory, or after the last checkpoint on disk."""
        before = self.layout
        self._executed = self.work  # what was done of the step in hand is lost, but it was sent
        self._started, self._stalled_share = None, 0.0
        self.layout = Layout(self.spec.fabric, self.spec.job, hosts, before.generation + 1)
        if new_processes:
            self.gone, self.silent = set(), set()
        else:
            for place in before.places:
                self.layout.moved(self.layout.places[place.rank], place.pid, place.process_start)
        self._account()
        self.stalled_since = self._clockwork.now  # still no step
        self.paused = set()
        if not from_memory and self.step >= 0:
            every = self.spec.noise.checkpoint_every or DISK_CHECKPOINT_STEPS
            kept = (self.step + 1) // every * every - 1
            self.redone_s += (self.step - kept) * self.spec.step_s
            self.step = kept
        self.steps_before = self.step + 1
        self.step_at = None
        self.begin()

    def reconsider(self) -> None:
        """Something began or ended to stand in the way."""
        if self.stalled:
            if not self._stuck(self._obstacle(0)):  # what was retried goes through, and the step comes to its end
                self.epoch += 1
                epoch = self.epoch
                self.positions = None
                self._clockwork.after(self._lasts_s * 0.3, lambda: self._end_step(epoch))
        elif self._started is not None and not self.waiting:
            self._try_stall(self._obstacle(self.op_now()))

    # ------------------------------------------------------------------------------------------------- steps

    def _account(self) -> None:
        """Close the time that was lost."""
        if self.stalled_since is not None:
            self.idle_s += (self._clockwork.now - self.stalled_since).total_seconds()
            self.stalled_since = None

    def _wait(self, why: str) -> None:
        if self.waiting != why:
            self.waiting, self._waiting_since = why, self._clockwork.now

    def _start_step(self, epoch: int) -> None:
        if epoch != self.epoch:
            return
        if self.paused:
            self._wait("paused")
            self._clockwork.after(0.1, lambda: self._start_step(epoch))
            return
        self.waiting = ""
        self._started = self._clockwork.now
        self._pace = self._pace_now()
        usual_s = self.spec.step_s * max(0.8, self._clockwork.rng("steps").gauss(1.0, STEP_SPREAD))
        self._lasts_s = usual_s * self._pace.factor
        if not self._try_stall(self._obstacle(0)):
            self._suspect_if_long()
            self._clockwork.after(self._lasts_s, lambda: self._end_step(epoch))

    def _end_step(self, epoch: int) -> None:
        if epoch != self.epoch:
            return
        now = self._clockwork.now
        self.step += 1
        self.step_at = now
        self._executed += 1
        self._stalled_share = 0.0
        self.recent.append(Step((now - (self._started or now)).total_seconds(), self._pace))
        self.slowed_s += self._lasts_s * (1 - 1 / self._pace.factor)
        self._account()
        noise = self.spec.noise
        if noise.checkpoint_every and (self.step + 1) % noise.checkpoint_every == 0:
            self._wait("checkpoint")
            if noise.checkpoint_s > self.agents.suspect_s:
                self._suspect_by_habit()
            self._clockwork.after(noise.checkpoint_s, lambda: self._start_step(epoch))
        else:
            self._start_step(epoch)

    def _suspect_by_habit(self) -> None:
        """The agents take a pause for a stall, until they have seen a few of the kind."""
        if self._habit < HABIT:
            self._habit += 1
            self.agents.watch_for_stall()

    def _suspect_if_long(self) -> None:
        if self._lasts_s > self.agents.suspect_s:
            self._suspect_by_habit()

    def _pace_now(self) -> Pace:
        active = [fault for fault in self._blocking() if fault.slowdown is not None]
        if not active:
            return USUAL
        now_s = self._clockwork.elapsed_s
        return pace_of((fault.slowdown, now_s - fault.spec.at_s) for fault in active if fault.slowdown is not None)

    def op_now(self) -> int:
        """How many collectives of the step have been enqueued by now."""
        if self._started is None or self.waiting:
            return 0
        share = (self._clockwork.now - self._started).total_seconds() / self._lasts_s
        return sum(1 for op in SCHEDULE if op.at <= share)

    def position(self, rank: int) -> Position:
        """Where a rank stands inside the step."""
        if self.positions is not None:
            return self.positions[rank]
        op = self.op_now()
        return Position(op, max(0, op - 1))

    def phase(self, rank: int) -> tuple[str, float]:
        """Where the main thread of a rank is, and for how many seconds."""
        now = self._clockwork.now
        if self.positions is not None:
            stood_s = (now - (self.stalled_since or now)).total_seconds()
            fault = self.fault_of(rank)
            if fault is not None and fault.phase:
                return fault.phase, stood_s
            enqueued = self.positions[rank].enqueued
            share = SCHEDULE[enqueued].at if enqueued < OPS else 1.0
            return next(name for limit, name in PHASES if share < limit), stood_s
        if self.waiting or self._started is None:
            return self.waiting, (now - self._waiting_since).total_seconds()
        into_s = (now - self._started).total_seconds()
        return whereabouts(into_s, self.spec.step_s, self._pace.late.get(rank, {}))

    def fault_of(self, rank: int) -> Fault | None:
        return next((fault for fault in self.stall_faults if rank in fault.ranks), None)

    # ------------------------------------------------------------------------------------------------- stalls

    def _obstacle(self, op: int) -> Obstacle | None:
        """All that blocks now, as one; None when nothing does."""
        each = [fault.obstacle(op) for fault in self._blocking() if fault.blocks]
        if not each:
            return None
        broken = [o for o in each if o.broken]
        return Obstacle(
            stops_at={rank: n for o in each for rank, n in o.stops_at.items()},
            halts_at={rank: n for o in each for rank, n in o.halts_at.items()},
            skips={rank: n for o in each for rank, n in o.skips.items()},
            differs={rank: n for o in each for rank, n in o.differs.items()},
            broken=frozenset().union(*(o.broken for o in broken)),
            broken_from=min((o.broken_from for o in broken), default=0),
        )

    def _stuck(self, obstacle: Obstacle | None) -> list[Position] | None:
        """Where all ranks come to rest; None where the step comes through."""
        if obstacle is None:
            return None
        positions = settle(self.layout, obstacle)
        return None if all(position.completed == OPS for position in positions) else positions

    def _try_stall(self, obstacle: Obstacle | None) -> bool:
        """Stop here if the step cannot come through; a fault that comes too late for this step stops the next one."""
        positions = self._stuck(obstacle)
        if positions is None:
            return False
        share = (self._clockwork.now - (self._started or self._clockwork.now)).total_seconds() / self._lasts_s
        self._stalled_share = min(1.0, share)
        self.epoch += 1
        epoch = self.epoch
        self.positions = positions
        self.stall_faults = tuple(fault for fault in self._blocking() if fault.blocks)
        self.stalled_since = self.stalled_since or self.step_at or self._clockwork.now
        self.agents.watch_for_stall()
        self._clockwork.after(self.spec.watchdog_s, lambda: self._give_up(epoch))
        return True

    def _give_up(self, epoch: int) -> None:
        if epoch == self.epoch and self.stalled:
            self._gave_up()
