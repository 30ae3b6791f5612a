"""A rank's process is gone: killed, crashed, or ended by an exception of its own.

When one rank dies the others lose their connections and may die of that. Whoever says "connection closed by peer" is a
victim; the culprit left without a word, or with a reason of its own. A rank that left cleanly is done, not dead. If all
ranks leave within seconds and none gives a reason, somebody stopped the job - unless all but one lost their connections.
An end that came after the stall (`deaths`) is an effect of it: it is named only where nothing else is known, in doubt.

Where several end at once and none says why, those decide who lost them: the first errors about closed connections name the
host where it began (`lost_peers`). An exception of the device ("CUDA error: …") is the rank's own and yet no word against
the program: what the GPU has had is not known, and nobody is sure. Where nothing clears the GPU, it is named (`suspected`).
"""

from __future__ import annotations

import re
from datetime import timedelta

from goodput_common.contracts.job import RankExited
from goodput_common.contracts.verdict import Action, ActionKind, FaultClass
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import cite, symptoms_of
from goodput_correlator.domain.deaths import OWN_FAULT, Death, deaths, in_long_phase
from goodput_correlator.domain.finding import Finding
from goodput_correlator.domain.lost_peers import lost_host
from goodput_correlator.domain.suspected import Suspected, suspected_device

ENGINE = "process_dead"
TEXT_ONLY_MAX = 0.6
LATE_ALONE = 0.5  # it ended late, alone, and nothing else is known
VICTIM = 0.2
TOGETHER_S = 1.2  # by the broker's clock: deaths closer than this have no order
STOPPED_WITHIN_S = 6.0
OUTLIVED_S = 2.5
LOST_BY_OTHERS = 0.85  # no word of its own, but the others say where they lost somebody
OF_DEVICE_MAX = 0.7
UNDER_SUSPICION = 0.5  # as long as nothing clears its device
OF_DEVICE = re.compile(r"\b(?:CUDA|HIP|CUDNN|cuDNN|CUBLAS)\w* (?:driver )?error|AcceleratorError|device-side", re.IGNORECASE)


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
    together = _together(list(candidates.values()))
    telling = [death for death in together if death.telling]
    lost = lost_host(case)
    there = [death for death in together if lost is not None and case.host_of_rank(death.rank) == lost[0]]
    out = []
    for rank, death in found.items():
        if death in telling or (rank in own and death in together and not telling):
            score = 0.94 if len(together) == 1 or (len(telling) == 1 and death.telling) else 0.85 if death.telling else 0.5
        else:
            score = VICTIM  # it died of what killed another, or with it
        if there and not telling and len(together) > 1 and death in together:
            score = VICTIM if death not in there else LOST_BY_OTHERS if len(there) == 1 else score
        quiet = any(d.wordless and not d.unseen for d in together) or death.late
        if death.reason and quiet and death not in there and not OWN_FAULT.search(death.reason):
            score = min(score, TEXT_ONLY_MAX)  # a killed rank says nothing; what its peers say of that has many wordings
        if OF_DEVICE.search(death.reason):
            score = min(score, OF_DEVICE_MAX)
        if score > VICTIM and (device := suspected_device(case, death)) is not None:
            score = min(score, UNDER_SUSPICION)
            out += [_device(case, death, device)] if device.score else []
        out.append(_finding(case, death, score, lost[1] if lost is not None and death in there else ()))
    return tuple(out)


def _together(candidates: list[Death]) -> list[Death]:
    """Those that ended first, as far as their order can be told. Of one whose exit nobody reported only the earliest time is
    known."""
    told = [death for death in candidates if not death.unseen]
    first_at = min(death.at.received_at for death in told or candidates)
    until = first_at + timedelta(seconds=TOGETHER_S)
    return [death for death in candidates if (death.died_at if death.unseen else death.at.received_at) <= until]


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


def _finding(case: Case, death: Death, score: float, lost_by: tuple[Observed, ...] = ()) -> Finding:
    component = case.rank_component(death.rank)
    host = case.host_of_rank(death.rank)
    how = f"with: {death.reason}" if death.reason else f"by {death.signal}" if death.signal else "without a word"
    what = (
        f"the process of rank {death.rank} ended {how}" if not death.unseen else f"rank {death.rank} has no process any more"
    )
    evidence = [cite(each, what, score, component) for each in death.seen[:4]]
    words = "another rank lost its connection to that host, before anybody else was lost"
    evidence += [cite(each, words, 0.3, component) for each in lost_by[:3]]
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


def _device(case: Case, death: Death, device: Suspected) -> Finding:
    ended = [each for each in death.seen if isinstance(each.fact, RankExited)]
    words = f"its process was ended by an error of the device; {device.why}"
    return Finding(
        fault_class=FaultClass.GPU_OFF_BUS,
        component=device.gpu,
        score=device.score,
        evidence=tuple(cite(each, words, device.score, device.gpu) for each in ended),
        engine=ENGINE,
        ranks=(death.rank,),
        host=case.host_of_rank(death.rank),
        explains=symptoms_of(case),
        because=f"the device is under suspicion: {words}",
        hardware=True,
        action=Action(
            kind=ActionKind.SWAP_NODE,
            target=device.gpu,
            reason="a process that is started anew on a device that is gone ends again: use a spare until it is checked",
        ),
    )


def _aftermath(death: Death) -> str:
    return f"it ended after steps had stood still for {death.stood_s:.0f} s: by a restart or a watchdog"
