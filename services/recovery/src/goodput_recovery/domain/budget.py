"""How much may be done, and the breaker: pure arithmetic over what was done lately.

Nothing is counted up or down and so nothing can leak: usage is read from the record of executed actions each time. A plan
that finds no room waits while room can come in time (`Wait`), and is refused with the reason otherwise (`Refuse`). The
breaker opens when incidents come faster than nodes break, which means that the monitor or the fabric is sick; it closes by
itself after quiet, with no person needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from goodput_common.contracts.verdict import ActionKind
from goodput_recovery.domain.ladder import LADDER
from goodput_recovery.domain.policy import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """One executed action. `running` until its plan has ended."""

    plan: str
    job: str | None
    kind: ActionKind
    host: str | None
    at: datetime
    running: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Executed actions within the longest window, when incidents were opened lately, and how many hosts carried a job that
    was heard of within that time."""

    spent: tuple[Spent, ...] = ()
    incidents_opened: tuple[datetime, ...] = ()
    hosts_known: int | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    left: str


@dataclass(frozen=True, slots=True)
class Wait:
    reason: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    reason: str


Answer = Grant | Wait | Refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What remains now, for the poller's view. `breaker_until` is set while the breaker is open."""

    fabric_actions: int
    fabric_concurrent: int
    nodes_out: int
    job_actions: int | None
    breaker_until: datetime | None


def window_s_max(budget: Budget) -> float:
    """How far back usage must reach."""
    return max(budget.fabric_window_s, budget.job_window_s, budget.nodes_out_window_s)


def answer(kind: ActionKind, job: str | None, host: str | None, usage: Usage, budget: Budget, now: datetime) -> Answer:
    """Whether one more action of `kind` may start now."""
    give_up = now + timedelta(seconds=budget.wait_s_max)
    if (until := breaker_until(usage.incidents_opened, budget, now)) is not None:
        opened = f"more than {budget.breaker_incidents} incidents within {budget.breaker_window_s:.0f} s"
        return Wait(f"breaker open ({opened}: the monitor or the fabric is suspect)", until)
    running = [each for each in usage.spent if each.running]
    if job is not None and (other := next((each for each in running if each.job == job), None)):
        return Wait(f"plan {other.plan} is under way on this job")
    if len(running) >= budget.fabric_concurrent_max:
        return Wait(f"{len(running)} actions are under way, the fabric's limit")
    for name, actions, limit, window_s in _rates(job, usage, budget):
        if (free := _free_at(actions, limit, window_s, now)) is not None:
            text = f"budget of the {name} is used up: {limit} actions within {window_s:.0f} s"
            return Refuse(f"{text}, room again at {_clock(free)}") if free > give_up else Wait(text, free)
    if LADDER[kind].nodes_out and (full := _nodes_full(host, usage, budget, now)):
        return Refuse(full)
    remaining = left(usage, budget, now, job)
    return Grant(f"{remaining.fabric_actions} of {budget.fabric_actions_max} actions left on the fabric before this one")


def left(usage: Usage, budget: Budget, now: datetime, job: str | None = None) -> Left:
    fabric = _within(usage.spent, budget.fabric_window_s, now)
    running = sum(each.running for each in usage.spent)
    jobs = [each for each in _within(usage.spent, budget.job_window_s, now) if each.job == job]
    return Left(
        fabric_actions=max(0, budget.fabric_actions_max - len(fabric)),
        fabric_concurrent=max(0, budget.fabric_concurrent_max - running),
        nodes_out=max(0, nodes_out_max(usage, budget) - len(_nodes_out(usage, budget, now))),
        job_actions=None if job is None else max(0, budget.job_actions_max - len(jobs)),
        breaker_until=breaker_until(usage.incidents_opened, budget, now),
    )


def nodes_out_max(usage: Usage, budget: Budget) -> int:
    """At least one: a share of a small cluster would forbid every repair. Unknown size counts as a small one."""
    return max(1, int((usage.hosts_known or 0) * budget.nodes_out_share_max))


def breaker_until(opened: Sequence[datetime], budget: Budget, now: datetime) -> datetime | None:
    """When the breaker closes, or None when it is closed. It is open from an incident that is one too many within the window
    until `breaker_quiet_s` after the last such incident."""
    times = sorted(at for at in opened if at <= now)
    window = timedelta(seconds=budget.breaker_window_s)
    trips = [
        times[i]
        for i in range(budget.breaker_incidents, len(times))
        if times[i] - times[i - budget.breaker_incidents] <= window
    ]
    if not trips:
        return None
    until = trips[-1] + timedelta(seconds=budget.breaker_quiet_s)
    return until if until > now else None


def _rates(job: str | None, usage: Usage, budget: Budget) -> list[tuple[str, list[Spent], int, float]]:
    rates = [("fabric", list(usage.spent), budget.fabric_actions_max, budget.fabric_window_s)]
    if job is not None:
        own = [each for each in usage.spent if each.job == job]
        rates.append(("job", own, budget.job_actions_max, budget.job_window_s))
    return rates


def _free_at(actions: Sequence[Spent], limit: int, window_s: float, now: datetime) -> datetime | None:
    """When one more action fits, or None when it fits now."""
    recent = sorted(each.at for each in _within(actions, window_s, now))
    if len(recent) < limit:
        return None
    return recent[len(recent) - limit] + timedelta(seconds=window_s) if limit else now + timedelta(days=3650)


def _nodes_out(usage: Usage, budget: Budget, now: datetime) -> frozenset[str]:
    recent = _within(usage.spent, budget.nodes_out_window_s, now)
    return frozenset(each.host or each.plan for each in recent if LADDER[each.kind].nodes_out)


def _nodes_full(host: str | None, usage: Usage, budget: Budget, now: datetime) -> str:
    out = _nodes_out(usage, budget, now)
    allowed = nodes_out_max(usage, budget)
    if len(out) < allowed or (host is not None and host in out):
        return ""
    known = "an unknown number of" if usage.hosts_known is None else str(usage.hosts_known)
    return (
        f"{len(out)} nodes were taken out within {budget.nodes_out_window_s:.0f} s, {allowed} of {known} hosts is the limit"
    )


def _within(actions: Sequence[Spent], window_s: float, now: datetime) -> list[Spent]:
    since = now - timedelta(seconds=window_s)
    return [each for each in actions if each.at > since]


def _clock(at: datetime) -> str:
    return at.isoformat(timespec="seconds")
