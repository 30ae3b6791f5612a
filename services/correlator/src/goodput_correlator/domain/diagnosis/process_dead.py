"""A rank's process is gone: killed, crashed, or ended by an exception of its own.

When one rank dies the others lose their connections and may die of that. Whoever says "connection closed by peer" is a
victim; the culprit left without a word, or with a reason of its own. A rank that left cleanly is done, not dead. If all
ranks leave within seconds and none gives a reason, somebody stopped the job - unless all but one lost their connections.
An end that came after the stall (`deaths`) is an effect of it: it is named only where nothing else is known, in doubt.
"""

from __future__ import annotations

from datetime import timedelta

from goodput_common.contracts.verdict import Action, ActionKind, FaultClass
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.clues import cite, symptoms_of
from goodput_correlator.domain.deaths import OWN_FAULT, Death, deaths, in_long_phase
from goodput_correlator.domain.finding import Finding

ENGINE = "process_dead"
TEXT_ONLY_MAX = 0.6
LATE_ALONE = 0.5  # it ended late, alone, and nothing else is known
VICTIM = 0.2
TOGETHER_S = 1.2  # by the broker's clock: deaths closer than this have no order
STOPPED_WITHIN_S = 6.0
OUTLIVED_S = 2.5


def diagnose(case: Case) -> tuple[Finding, ...]:
    found = deaths(case)
    if not found or case.placement is None:
        return ()
    if _stopped_as_a_whole(found, len(case.placement.ranks)):
        return ()
    in_time = {
        rank: death for rank, death in found.items() if not death.aftermath and (death.telling or not _outlived(case, rank))
    }
    own = {rank: death for rank, death in in_time.items() if not death.consequence and not death.polite}
    candidates = own or in_time
    if not candidates:
        alone = len(found) == 1 and not any(_outlived(case, rank) for rank in found)
        return tuple(_finding(case, death, LATE_ALONE if alone else VICTIM) for death in found.values())
    first = min(candidates.values(), key=lambda death: death.at.order)
    together = [d for d in candidates.values() if d.at.received_at <= first.at.received_at + timedelta(seconds=TOGETHER_S)]
    telling = [death for death in together if death.telling]
    out = []
    for rank, death in found.items():
        if death in telling or (rank in own and death in together and not telling):
            score = 0.94 if len(together) == 1 or (len(telling) == 1 and death.telling) else 0.85 if death.telling else 0.5
        else:
            score = VICTIM  # it died of what killed another, or with it
        if death.reason and (any(d.wordless for d in together) or death.late) and not OWN_FAULT.search(death.reason):
            score = min(score, TEXT_ONLY_MAX)  # a killed rank says nothing; what its peers say of that has many wordings
        out.append(_finding(case, death, score))
    return tuple(out)


def _outlived(case: Case, rank: int) -> bool:
    """Whether the rank still reported when steps had long stood still: then it died of the stall (a watchdog, or a launcher
    that restarts the job), and the stall not of its death - unless it had a reason of its own."""
    report = case.progress.get(rank)
    if case.offline or case.stalled_since is None or report is None or in_long_phase(case, rank):
        return False
    patience = timedelta(seconds=max(OUTLIVED_S, 2 * case.usual_step_s, case.patience_s))
    return report.received_at > case.stalled_since + patience


def _stopped_as_a_whole(found: dict[int, Death], world: int) -> bool:
    """All gone within seconds, and none with a reason of its own: a person or a scheduler ended the job."""
    if len(found) < world:
        return False
    wordless = [death for death in found.values() if not death.consequence]
    if len(wordless) == 1 and len(found) > 1 and not wordless[0].polite:
        return False  # one went without a word and all the others say that they lost their connections: it was first
    times = [death.at.received_at for death in found.values()]
    return not any(death.telling for death in found.values()) and max(times) - min(times) <= timedelta(
        seconds=STOPPED_WITHIN_S
    )


def _finding(case: Case, death: Death, score: float) -> Finding:
    component = case.rank_component(death.rank)
    host = case.host_of_rank(death.rank)
    how = f"with: {death.reason}" if death.reason else f"by {death.signal}" if death.signal else "without a word"
    evidence = [cite(each, f"the process of rank {death.rank} ended {how}", score, component) for each in death.seen[:4]]
    if death.killed_for_memory is not None:
        evidence.append(cite(death.killed_for_memory, "the kernel killed it for want of memory", 0.5, component))
    return Finding(
        fault_class=FaultClass.PROCESS_DEAD,
        component=component,
        score=score,
        evidence=tuple(evidence),
        engine=ENGINE,
        ranks=(death.rank,),
        host=host,
        explains=symptoms_of(case),
        because="the others wait for a process that no longer exists",
        decisive=score >= 0.8,
        aftermath=_aftermath(death) if death.aftermath else "",
        action=Action(
            kind=ActionKind.RESTART_RANK, target=component, reason="the process is gone; its host and GPU show no fault"
        ),
    )


def _aftermath(death: Death) -> str:
    return f"it ended after steps had stood still for {death.stood_s:.0f} s: by a restart or a watchdog"
