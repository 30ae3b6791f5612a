"""Ranks whose agents have fallen silent: which, for how long, and what their processes do in the meantime.

An agent shares the interpreter with the training loop, so its silence tells of it. But agents fall silent for want of a CPU
or of the bus as well, and then tell nothing: who spoke on when steps stood still already, is left out.

Reports get lost, too: how long a silence has to be before it tells anything depends on how many do (`gaps`).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from goodput_common.contracts.telemetry import State
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.deaths import Death, deaths, of_another_life
from goodput_correlator.domain.gaps import SILENT_S, silent_after_s

STOPPED_STATES = frozenset({"T", "t", "stopped", "frozen"})
ALIVE_STATES = STOPPED_STATES | {"running", "D"}
RECONNECT_S = 8.0  # agents that lost the bus try again at growing intervals of up to 6 s
SEVERAL_S = 6.0  # several silent ranks are waited for this long: agents that starve come back
SPEAKS_S = 1.5  # what a host says this long after the last step, it says during the stall
NEARLY_OF = 4  # of this many ranks of a host, one may still speak


def silent_ranks(case: Case) -> dict[int, Observed]:
    """Ranks whose agent has fallen silent while most others report: it shares the interpreter with the training loop.

    After an outage of the bus agents come back one by one: whoever was not heard of since before the others came back is
    given the time that a connection takes to be made anew. Of a rank that was ended since, the time before that counts.
    """
    if case.offline or case.placement is None or case.stalled_since is None:
        return {}
    limit = case.now - timedelta(seconds=SILENT_S)
    back = case.now - timedelta(seconds=RECONNECT_S)
    fresh = [rank for rank, seen in case.progress.items() if seen.received_at >= limit]
    if len(fresh) * 2 < len(case.placement.ranks):
        return {}
    heard_since = _heard_since(case, fresh)
    ended = deaths(case)
    return {
        rank: seen
        for rank, seen in case.progress.items()
        if quiet_s(case, seen, ended.get(rank)) > silent_after_s(case)
        and rank in case.placement.ranks
        and (rank not in case.exits or (rank in ended and ended[rank].aftermath))
        and (heard_since is None or heard_since <= seen.received_at or heard_since < back)
    }


def suspects(case: Case, silent: dict[int, Observed]) -> dict[int, Observed]:
    """Of several silent ranks those that can be the reason: silent about as long as the longest, and from the start. A step
    may stop anywhere between two ends of steps, so a report of the first moments does not clear a rank."""
    if len(silent) < 2 or case.stalled_since is None:
        return silent
    ended = deaths(case)
    silence_s = {rank: quiet_s(case, seen, ended.get(rank)) for rank, seen in silent.items()}
    spoke_on = case.stalled_since + timedelta(seconds=0.5 + 1.5 * case.usual_step_s)
    longest_s = max(silence_s.values())
    left = {rank: seen for rank, seen in silent.items() if silence_s[rank] * 2 >= longest_s and seen.received_at <= spoke_on}
    return left or silent


def quiet_s(case: Case, last: Observed, ended: Death | None) -> float:
    """How long a rank that lives (or lived) has said nothing."""
    until = case.now if ended is None else min(case.now, ended.died_at)
    return (until - last.received_at).total_seconds()


def _heard_since(case: Case, fresh: list[int]) -> datetime | None:
    """Since when most of those who report now have done so without a gap; None where that is not known."""
    since = sorted(case.reporting_since[rank] for rank in fresh if rank in case.reporting_since)
    return since[len(since) // 2] if since else None


def alive_since(case: Case, rank: int) -> Observed | None:
    """Word of the collector, after the stall began, that the process exists."""
    for each in reversed(case.observed):
        fact = each.fact
        if isinstance(fact, State) and fact.component == case.rank_component(rank) and each.source == "process":
            late = case.stalled_since is not None and each.received_at < case.stalled_since
            there = fact.value in ALIVE_STATES and not late and not of_another_life(case, rank, each)
            return each if there else None
    return None


def on_cpu(case: Case, rank: int, *, since: datetime) -> float:
    """The share of the time since then that its process was on a CPU, by the collector; 0 where that is not known. All of
    the silence counts: a share that is taken anew from window to window would go up and down."""
    used_ms = window_ms = 0
    for each in case.cpu.get(case.rank_component(rank), ()):
        attrs = each.fact.attrs if isinstance(each.fact, State) else {}
        if each.received_at > since and not of_another_life(case, rank, each) and attrs["window_ms"].isdigit():
            used_ms += int(attrs["cpu_ms"]) if attrs["cpu_ms"].isdigit() else 0
            window_ms += int(attrs["window_ms"])
    return used_ms / max(1, window_ms)


def silent_host(case: Case, suspected: dict[int, Observed]) -> str | None:
    """The host whose ranks are just the silent ones, or all but one of many; None if there is none."""
    if case.placement is None or len(case.placement.hosts) < 2 or len(suspected) < 2:
        return None
    hosts = {case.placement.host_of(rank) or "" for rank in suspected}
    if len(hosts) != 1:
        return None
    host = hosts.pop()
    ranks = case.placement.on_host(host)
    return host if len(ranks) - len(suspected) <= (1 if len(ranks) >= NEARLY_OF else 0) else None


def speaks(case: Case, host: str) -> bool:
    """Whether anything on the host has been heard of during the stall, its collector above all."""
    assert case.stalled_since is not None
    since = case.stalled_since + timedelta(seconds=SPEAKS_S)
    return any(each.host == host and each.received_at > since and each.source != "flight_recorder" for each in case.observed)
