"""How a job's ranks get on, and whether an action helped: steps must move again on every rank, and keep moving.

A job counts as recovered when every rank of its newest generation has finished a step beyond the stall, and after a hold
time every one has finished at least one more. A stall that is merely reported late (a step that was finished before the
action but heard of after it) passes the first test and not the second. A job that was restored from a checkpoint starts
below the step where it stalled, so a newer generation is measured against its own beginning.

Nothing but steps is proof. That ranks left cleanly, or that the verdict was resolved, says that the stall is over and not
that training came back: a job that was withdrawn looks just the same. Such a plan has *ended*, unproven. A resolved verdict
counts only beside moving steps, for a job that had moved all along.

Silence is not failure. Time in which nothing could be heard does not count towards the deadline, and a plan that ends
without any report is *blind*: that goes to a person, not to the next larger action.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from goodput_common.contracts.job import RankExited, RankProgress, RankRegistered
from goodput_recovery.domain.plan import Plan
from goodput_recovery.domain.policy import Policy

MOVING_WITHIN_S = 10.0
RANKS_IN_WORDS = 8


@dataclass(slots=True)
class RankState:
    """`base` is the step that the rank stood at when it was first heard in this generation."""

    generation: int
    seq: int
    step: int
    base: int
    heard_at: datetime
    moved_at: datetime | None = None
    paused: bool = False


@dataclass(slots=True)
class JobProgress:
    """All that was heard of one job, newest generation only. Not a record: it is rebuilt from the reports of a second."""

    generation: int = 0
    world_size: int | None = None
    ranks: dict[int, RankState] = field(default_factory=dict)
    left: dict[int, bool] = field(default_factory=dict)  # rank -> cleanly
    processes: dict[int, RankRegistered] = field(default_factory=dict)  # rank -> its newest process

    def registered(self, rank: RankRegistered) -> None:
        self._reach(rank.generation)
        if rank.generation != self.generation:
            return
        self.world_size = rank.world_size
        known = self.processes.get(rank.rank)
        if known is not None and rank.at <= known.at:
            return  # told again, or late
        self.processes[rank.rank] = rank
        self.left.pop(rank.rank, None)
        if known is not None and (known.host, known.pid, known.process_start) != (rank.host, rank.pid, rank.process_start):
            self.ranks.pop(rank.rank, None)  # another process carries the rank: it counts its reports from 1 again

    def exited(self, exit_: RankExited) -> None:
        self._reach(exit_.generation)
        if exit_.generation != self.generation:
            return
        known = self.processes.get(exit_.rank)
        if known is not None and (known.host != exit_.host or exit_.at < known.at):
            return  # of the process before this one, told late
        self.left[exit_.rank] = exit_.clean

    def reported(self, report: RankProgress, heard_at: datetime) -> bool:
        """Take a report in; returns whether it was newer than what is known of the rank."""
        self._reach(report.generation)
        if report.generation < self.generation:
            return False
        known = self.ranks.get(report.rank)
        if known is None:
            base = report.step - max(0, report.steps)
            known = self.ranks[report.rank] = RankState(report.generation, -1, base, base, heard_at)
        if report.seq <= known.seq:
            return False
        known.seq = report.seq
        known.heard_at = max(known.heard_at, heard_at)
        known.paused = report.paused
        if report.step > known.step:
            known.step, known.moved_at = report.step, heard_at
        return True

    @property
    def step(self) -> int | None:
        """The furthest step of any rank, or None where nothing was heard."""
        return max((rank.step for rank in self.ranks.values()), default=None)

    def moving(self, now: datetime) -> bool | None:
        """Whether any rank finished a step lately; None where no rank was heard lately."""
        since = now - timedelta(seconds=MOVING_WITHIN_S)
        heard = [rank for rank in self.ranks.values() if rank.heard_at >= since]
        if not heard:
            return None
        return any(rank.moved_at is not None and rank.moved_at >= since for rank in heard)

    def finished(self) -> bool:
        """Every rank left by itself, cleanly: the job ran to its end."""
        expected = self.world_size or 0
        return expected > 0 and len(self.left) >= expected and all(self.left.values())

    def _reach(self, generation: int) -> None:
        if generation > self.generation:
            self.generation = generation
            self.ranks.clear()
            self.left.clear()
            self.processes.clear()


class Outcome(enum.StrEnum):
    WAIT = "wait"
    RECOVERED = "recovered"
    FAILED = "failed"
    BLIND = "blind"  # the deadline passed without a report to judge by
    ENDED = "ended"  # the job is over or withdrawn, and its steps were not seen to move again


@dataclass(frozen=True, slots=True)
class Seen:
    outcome: Outcome
    text: str


@dataclass(slots=True, kw_only=True)
class Watch:
    """One plan under verification. `blind_s` is the time in which the bus was away, which does not count; `began` are the
    steps of the ranks at the first look, in `began_generation`; `resolved_at` is when the verdict was first seen resolved.
    """

    since: datetime
    blind_s: float = 0.0
    began: dict[int, int] | None = None
    began_generation: int = -1
    resolved_at: datetime | None = None
    first_moved_at: datetime | None = None
    steps_then: dict[int, int] = field(default_factory=dict)
    generation: int = -1


def look(
    progress: JobProgress | None, plan: Plan, watch: Watch, policy: Policy, now: datetime, resolved: str | None = None
) -> Seen:
    """Judge one plan now. `watch` remembers what was seen at earlier looks; `resolved` is why the verdict is resolved, None
    while it is not."""
    if resolved is not None and watch.resolved_at is None:
        watch.resolved_at = now
    if watch.began is None and progress is not None:
        watch.began = {number: rank.step for number, rank in progress.ranks.items()}
        watch.began_generation = progress.generation
    if progress is not None and progress.finished():
        return _finished(progress, plan, watch, resolved)
    if _withdrawn(progress, plan, watch, policy, now):
        return Seen(Outcome.ENDED, f"no rank speaks any more{_because(resolved)}: its steps were not seen to move again")
    if not plan.steps_prove and resolved is None:
        return _deadline(progress, plan, watch, policy, now, "the verdict is not resolved")
    if progress is None or not progress.ranks:
        return _deadline(progress, plan, watch, policy, now, "no rank has reported")
    behind = _moved(progress, plan, watch, policy, now)
    if behind is None:
        slowest = min(rank.step for rank in progress.ranks.values())
        where = f"generation {progress.generation}"
        text = f"all {len(progress.ranks)} ranks move again, at step {slowest} or beyond in {where}"
        if progress.world_size is not None:
            return Seen(Outcome.RECOVERED, text)
        return _deadline(None, plan, watch, policy, now, "every rank heard moves, but how many the job has is not known")
    return _deadline(progress, plan, watch, policy, now, behind)


def _moved(progress: JobProgress, plan: Plan, watch: Watch, policy: Policy, now: datetime) -> str | None:
    """None once every rank has moved and kept moving under this watch, else what is missing."""
    if progress.generation != watch.generation:
        watch.generation, watch.first_moved_at = progress.generation, None
    if behind := _behind(progress, plan):
        watch.first_moved_at = None
        return behind
    if watch.first_moved_at is None:
        watch.first_moved_at = now
        watch.steps_then = {number: rank.step for number, rank in progress.ranks.items()}
    elif _held(progress, watch, policy, now):
        return None
    return "ranks moved once and stopped again"


def _finished(progress: JobProgress, plan: Plan, watch: Watch, resolved: str | None) -> Seen:
    """Every rank left cleanly. There is no holding time after the end, so each must have moved under this watch."""
    began = watch.began or {} if watch.began_generation == progress.generation else {}
    under_watch = all(rank.step > began.get(number, rank.base) for number, rank in progress.ranks.items())
    if (plan.steps_prove or resolved is not None) and under_watch and not _behind(progress, plan):
        return Seen(Outcome.RECOVERED, f"all {progress.world_size} ranks moved again and ran to their end")
    text = f"all {progress.world_size} ranks left cleanly{_because(resolved)}: their steps were not seen to move again"
    return Seen(Outcome.ENDED, text)


def _withdrawn(progress: JobProgress | None, plan: Plan, watch: Watch, policy: Policy, now: datetime) -> bool:
    """Nobody of the job was heard since the verdict was resolved, for as long as it takes to be sure: after an action until
    its deadline, because it may be the action that keeps the ranks away so long."""
    if watch.resolved_at is None:
        return False
    if not plan.passive and now < (plan.verify_by or now) + timedelta(seconds=watch.blind_s):
        return False
    listened_s = (now - max(watch.resolved_at, watch.since)).total_seconds() - watch.blind_s
    heard = progress is not None and any(rank.heard_at > watch.resolved_at for rank in progress.ranks.values())
    return not heard and listened_s >= policy.verify_watch_s_min


def _because(resolved: str | None) -> str:
    return "" if resolved is None else f" (verdict resolved: {resolved or 'no reason given'})"


def _behind(progress: JobProgress, plan: Plan) -> str:
    """Which ranks have not moved beyond the stall; empty when all have."""
    expected = set(range(progress.world_size)) if progress.world_size else set(progress.ranks)
    silent = sorted(expected - progress.ranks.keys())
    stuck = sorted(number for number, rank in progress.ranks.items() if rank.step <= _reference(progress, plan, rank))
    words = []
    if stuck:
        words.append(f"{_numbers(stuck)} not beyond {_where(progress, plan)}")
    if silent:
        words.append(f"{_numbers(silent)} silent")
    return "; ".join(words)


def _reference(progress: JobProgress, plan: Plan, rank: RankState) -> int:
    if progress.generation <= plan.stall_generation and plan.stall_step is not None:
        return plan.stall_step
    return rank.base


def _where(progress: JobProgress, plan: Plan) -> str:
    if progress.generation <= plan.stall_generation and plan.stall_step is not None:
        return f"step {plan.stall_step}"
    return f"their first step of generation {progress.generation}"


def _held(progress: JobProgress, watch: Watch, policy: Policy, now: datetime) -> bool:
    if watch.first_moved_at is None or now - watch.first_moved_at < timedelta(seconds=policy.verify_hold_s):
        return False
    return all(rank.step > watch.steps_then.get(number, rank.base) for number, rank in progress.ranks.items())


def _deadline(progress: JobProgress | None, plan: Plan, watch: Watch, policy: Policy, now: datetime, behind: str) -> Seen:
    watched_s = (now - watch.since).total_seconds() - watch.blind_s
    by = (plan.verify_by or now) + timedelta(seconds=watch.blind_s)
    if now < by or watched_s < policy.verify_watch_s_min:
        return Seen(Outcome.WAIT, behind)
    after = f"{(now - (plan.acted_at or plan.changed_at)).total_seconds():.0f} s after the action"
    if plan.passive:
        after = f"after {watched_s:.0f} s of watching"
    heard = progress is not None and any(rank.heard_at >= watch.since for rank in progress.ranks.values())
    return Seen(Outcome.FAILED, f"{after}: {behind}") if heard else Seen(Outcome.BLIND, f"{after}: {behind}, cannot tell")


def _numbers(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:RANKS_IN_WORDS]))
    more = f" and {len(ranks) - RANKS_IN_WORDS} more" if len(ranks) > RANKS_IN_WORDS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"
