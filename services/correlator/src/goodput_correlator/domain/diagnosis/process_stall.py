"""A rank that is there and does not move: frozen from outside, its interpreter locked, stuck in its own code or driver.

The recorder shows who it is: the others wait in a collective that it has not joined, or its device has fallen behind what
its peers have finished. The collector shows how: stopped, alive but silent, or reporting from somewhere outside collectives.

Silence of one agent among many tells more than silence of several: on a host that is short of CPU agents fall silent, too.
Whoever went silent late, or spoke on when steps already stood still, is left out; of what remains, nobody is named with
certainty, and not at once.

A device that falls *several* operations behind its peers has executed them (its peers could not have finished otherwise) and
can no longer say so: that is the GPU or its driver, not the process, and is called so.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from goodput_common.contracts.job import StallSuspected
from goodput_common.contracts.telemetry import EventName, State
from goodput_common.contracts.verdict import Action, ActionKind, Evidence, FaultClass
from goodput_correlator.domain.blame import analysis, cite_root
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import cite, events, symptoms_of
from goodput_correlator.domain.collectives import Root, RootKind
from goodput_correlator.domain.deaths import Death, deaths, gone_by_themselves, of_another_life, rank_of_event
from goodput_correlator.domain.finding import Finding
from goodput_correlator.domain.standing import SILENT_S

ENGINE = "process_stall"
STOPPED_STATES = frozenset({"T", "t", "stopped", "frozen"})
ALIVE_STATES = STOPPED_STATES | {"running", "D"}
RECONNECT_S = 8.0  # agents that lost the bus try again at growing intervals of up to 6 s
SEVERAL_S = 6.0  # several silent ranks are waited for this long: agents that starve come back
SEVERAL_EARLY, SEVERAL_MAX = 0.4, 0.65
SPINNING = 0.8  # of the time on a CPU: a process that gets this much does not starve


def diagnose(case: Case) -> tuple[Finding, ...]:
    if not case.stalled:
        return ()
    ended = deaths(case)
    dead = gone_by_themselves(ended.values())
    blame = analysis(case).blame
    roots = {
        root.rank: root
        for root in blame.roots
        if root.kind is not RootKind.MISMATCH and not (root.kind is RootKind.ABSENT and root.rank in ended)
    }
    stopped = _stopped(case)
    silent = _suspects(case, _silent(case))
    found = []
    for rank in sorted(roots.keys() | stopped.keys() | silent.keys()):
        if rank in dead or (stopped and rank in silent and rank not in stopped):
            continue  # a process that is known to be stopped explains the stall; mere silence beside it may be a slow agent
        found.append(_finding(case, rank, roots.get(rank), stopped.get(rank), silent))
    return tuple(found)


def _stopped(case: Case) -> dict[int, Observed]:
    """Ranks whose process was stopped from outside and has not been continued."""
    if case.placement is None:
        return {}
    found: dict[int, Observed] = {}
    for each, event in events(case, EventName.PROCESS_STOPPED, EventName.PROCESS_CONTINUED):
        rank = rank_of_event(case, each, event)
        if rank is None or of_another_life(case, rank, each):
            continue
        if event.name is EventName.PROCESS_STOPPED:
            found.setdefault(rank, each)
        else:
            found.pop(rank, None)
    for each in case.observed:
        fact = each.fact
        if (
            isinstance(fact, State)
            and fact.component.startswith("rank:")
            and fact.name in ("process", "process_state", "state")
        ):
            job, _, number = fact.component.removeprefix("rank:").rpartition("/")
            if job != case.job or not number.isdigit() or of_another_life(case, int(number), each):
                continue
            if fact.value in STOPPED_STATES:
                found.setdefault(int(number), each)
    return found


def _silent(case: Case) -> dict[int, Observed]:
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
        if _quiet_s(case, seen, ended.get(rank)) > SILENT_S
        and rank in case.placement.ranks
        and (rank not in case.exits or (rank in ended and ended[rank].aftermath))
        and (heard_since is None or heard_since <= seen.received_at or heard_since < back)
    }


def _suspects(case: Case, silent: dict[int, Observed]) -> dict[int, Observed]:
    """Of several silent ranks those that can be the reason: silent about as long as the longest, and from the start. A step
    may stop anywhere between two ends of steps, so a report of the first moments does not clear a rank."""
    if len(silent) < 2 or case.stalled_since is None:
        return silent
    ended = deaths(case)
    quiet_s = {rank: _quiet_s(case, seen, ended.get(rank)) for rank, seen in silent.items()}
    spoke_on = case.stalled_since + timedelta(seconds=0.5 + 1.5 * case.usual_step_s)
    longest_s = max(quiet_s.values())
    left = {rank: seen for rank, seen in silent.items() if quiet_s[rank] * 2 >= longest_s and seen.received_at <= spoke_on}
    return left or silent


def _quiet_s(case: Case, last: Observed, ended: Death | None) -> float:
    """How long a rank that lives (or lived) has said nothing."""
    until = case.now if ended is None else min(case.now, ended.died_at)
    return (until - last.received_at).total_seconds()


def _heard_since(case: Case, fresh: list[int]) -> datetime | None:
    """Since when most of those who report now have done so without a gap; None where that is not known."""
    since = sorted(case.reporting_since[rank] for rank in fresh if rank in case.reporting_since)
    return since[len(since) // 2] if since else None


def _finding(case: Case, rank: int, root: Root | None, stopped: Observed | None, silent: dict[int, Observed]) -> Finding:
    component = case.rank_component(rank)
    evidence: list[Evidence] = []
    decisive, settled = False, False
    score = 0.0
    how = "it does not move"
    if stopped is not None:
        score, decisive, how = 0.95, True, "its process is stopped from outside"
        evidence.append(cite(stopped, how, 0.95, component))
    if rank in silent:
        alive = _alive(case, rank)
        quiet_s = _quiet_s(case, silent[rank], deaths(case).get(rank))
        alone = len(silent) == 1
        cpu = _on_cpu(alive)
        if alone:
            certainty = (0.9 if alive else 0.8) - (0.15 if quiet_s < 3.0 else 0.0)
        else:
            certainty = SEVERAL_EARLY if quiet_s < SEVERAL_S else SEVERAL_MAX if cpu >= SPINNING else SEVERAL_MAX - 0.1
        score = max(score, certainty)
        how = "its process lives, yet even its agent thread does not run" if score == certainty else how
        words = "its agent shares the interpreter with the training loop and has fallen silent, while others report"
        evidence.append(cite(silent[rank], words, certainty, component))
        if alive is not None:
            spins = f" and has the CPU {cpu:.0%} of the time: it is not short of it" if cpu >= SPINNING else ""
            evidence.append(cite(alive, f"its process still exists{spins}", 0.3, component))
        settled = alone and quiet_s >= 3.0
    if root is not None:
        certainty = root.certainty
        score = max(score, certainty) if score == 0.0 else min(0.97, max(score, certainty) + 0.03)
        evidence += cite_root(case, root)
        if not (stopped or rank in silent):
            how = root.detail
    evidence += _own_words(case, rank)
    device = root is not None and root.kind is RootKind.BEHIND and root.lag >= 2 and not (stopped or rank in silent)
    return Finding(
        fault_class=FaultClass.GPU_DRIVER if device else FaultClass.PROCESS_STALL,
        component=component,
        score=score,
        evidence=tuple(evidence[:12]),
        engine=ENGINE,
        ranks=(rank,),
        host=case.host_of_rank(rank),
        explains=symptoms_of(case),
        because=f"the others wait for rank {rank}: {how}",
        decisive=decisive,
        settled=settled or (root is not None and root.certainty >= 0.9 and _complete(case)),
        action=_action(component, device),
    )


def _action(component: str, device: bool) -> Action:
    if device:
        return Action(
            kind=ActionKind.SWAP_NODE,
            target=component,
            reason="the device of that rank finishes nothing while its process goes on: use a spare until it is checked",
        )
    return Action(
        kind=ActionKind.RESTART_RANK,
        target=component,
        reason="the rank stands still by itself; nothing says that its hardware is at fault",
    )


def _complete(case: Case) -> bool:
    """Whether every rank that still speaks has said where it stands."""
    return not (analysis(case).standings.absent - _silent(case).keys())


def _alive(case: Case, rank: int) -> Observed | None:
    """Word of the collector, after the stall began, that the process exists."""
    for each in reversed(case.observed):
        fact = each.fact
        if isinstance(fact, State) and fact.component == case.rank_component(rank) and each.source == "process":
            late = case.stalled_since is not None and each.received_at < case.stalled_since
            there = fact.value in ALIVE_STATES and not late and not of_another_life(case, rank, each)
            return each if there else None
    return None


def _on_cpu(alive: Observed | None) -> float:
    """The share of the time that its process was on a CPU, by the collector; 0 where that is not known."""
    attrs = alive.fact.attrs if alive is not None and isinstance(alive.fact, State) else {}
    used_ms, window_ms = attrs.get("cpu_ms", ""), attrs.get("window_ms", "")
    if attrs.get("cpu") != "used" or not used_ms.isdigit() or not window_ms.isdigit():
        return 0.0
    return int(used_ms) / max(1, int(window_ms))


def _own_words(case: Case, rank: int) -> list[Evidence]:
    said = case.stalls.get(rank)
    if said is None or not isinstance(said.fact, StallSuspected):
        return []
    where = said.fact.in_collective or said.fact.phase
    return [cite(said, f"it says itself where it stands{': ' + where if where else ''}", 0.2, case.rank_component(rank))]
