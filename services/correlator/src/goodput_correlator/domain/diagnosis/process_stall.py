"""A rank that is there and does not move: frozen from outside, its interpreter locked, stuck in its own code or driver.

The recorder shows who it is: the others wait in a collective that it has not joined, or its device has fallen behind what
its peers have finished. The collector shows how: stopped, alive but silent, or reporting from somewhere outside collectives.

Silence of one agent among many tells more than silence of several: on a host that is short of CPU agents fall silent, too.
Whoever went silent late, or spoke on when steps already stood still, is left out; of what remains, nobody is named with
certainty, and not at once. Where they are just the ranks of one host, that is no accident: then the host is named, for
whatever holds all its processes - unless nothing on it speaks, which is `host_down`'s.

Where the dumps have stacks it also says what the rank called last, and on which line the others wait for it.

A device that falls *several* operations behind its peers has executed them (its peers could not have finished otherwise) and
can no longer say so: that is the GPU or its driver, not the process, and is called so.
"""

from __future__ import annotations

from goodput_common.contracts.ids import host_id
from goodput_common.contracts.job import StallSuspected
from goodput_common.contracts.telemetry import EventName, State
from goodput_common.contracts.verdict import Action, ActionKind, Evidence, FaultClass
from goodput_correlator.domain.blame import analysis, cite_root, code_lines
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import cite, events, symptoms_of
from goodput_correlator.domain.deaths import deaths, gone_by_themselves, of_another_life, rank_of_event
from goodput_correlator.domain.finding import Finding
from goodput_correlator.domain.roots import Root, RootKind
from goodput_correlator.domain.silence import (
    SEVERAL_S,
    STOPPED_STATES,
    alive_since,
    on_cpu,
    quiet_s,
    silent_host,
    silent_ranks,
    speaks,
    suspects,
)

ENGINE = "process_stall"
SEVERAL_EARLY, SEVERAL_MAX = 0.4, 0.65
SPINNING = 0.8  # of the time on a CPU: a process that gets this much does not starve
WHOLE_HOST = 0.78  # all ranks of one host silent, while its collector speaks


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
    silent = suspects(case, silent_ranks(case))
    host = None if stopped or dead & silent.keys() else silent_host(case, silent)
    found = [_whole_host(case, host, silent)] if host is not None and speaks(case, host) else []
    for rank in sorted(roots.keys() | stopped.keys() | silent.keys()):
        if host is not None and case.host_of_rank(rank) == host:
            continue
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
        alive = alive_since(case, rank)
        silence_s = quiet_s(case, silent[rank], deaths(case).get(rank))
        alone = len(silent) == 1
        cpu = on_cpu(case, rank, since=silent[rank].received_at)
        if alone:
            certainty = (0.9 if alive else 0.8) - (0.15 if silence_s < 3.0 else 0.0)
        else:
            certainty = SEVERAL_EARLY if silence_s < SEVERAL_S else SEVERAL_MAX if cpu >= SPINNING else SEVERAL_MAX - 0.1
        score = max(score, certainty)
        how = "its process lives, yet even its agent thread does not run" if score == certainty else how
        words = "its agent shares the interpreter with the training loop and has fallen silent, while others report"
        evidence.append(cite(silent[rank], words, certainty, component))
        if alive is not None:
            spins = f" and has the CPU {cpu:.0%} of the time: it is not short of it" if cpu >= SPINNING else ""
            evidence.append(cite(alive, f"its process still exists{spins}", 0.3, component))
        settled = alone and silence_s >= 3.0
    if root is not None:
        certainty = root.certainty
        score = max(score, certainty) if score == 0.0 else min(0.97, max(score, certainty) + 0.03)
        evidence += cite_root(case, root)
        if not (stopped or rank in silent):
            how = root.detail
        if lines := code_lines(case, root):
            how = f"{how}; {lines}"
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


def _whole_host(case: Case, host: str, silent: dict[int, Observed]) -> Finding:
    assert case.placement is not None
    component, ranks = host_id(host), case.placement.on_host(host)
    silence_s = min(quiet_s(case, seen, deaths(case).get(rank)) for rank, seen in silent.items())
    score = SEVERAL_EARLY if silence_s < SEVERAL_S else WHOLE_HOST
    words = "the last word of rank {}, while ranks elsewhere report and the host's collector speaks"
    evidence = [cite(seen, words.format(rank), score, component) for rank, seen in silent.items()]
    alive = [each for rank in silent if (each := alive_since(case, rank)) is not None]
    evidence += [cite(each, "its process still exists", 0.3, component) for each in alive]
    return Finding(
        fault_class=FaultClass.PROCESS_STALL,
        component=component,
        score=score,
        evidence=tuple(evidence[:12]),
        engine=ENGINE,
        ranks=ranks,
        host=host,
        explains=symptoms_of(case),
        because=f"the ranks that are silent are those of {host}: something holds all of its processes",
        action=Action(
            kind=ActionKind.RESTART_RANK,
            target=component,
            reason="all ranks of that host stand still together; its hardware shows no fault",
        ),
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
    return not (analysis(case).standings.absent - silent_ranks(case).keys())


def _own_words(case: Case, rank: int) -> list[Evidence]:
    said = case.stalls.get(rank)
    if said is None or not isinstance(said.fact, StallSuspected):
        return []
    where = said.fact.in_collective or said.fact.phase
    line = f", at {said.fact.frames[0]}" if said.fact.frames else ""
    words = f"it says itself where it stands{': ' + where if where else ''}{line}"
    return [cite(said, words, 0.2, case.rank_component(rank))]
