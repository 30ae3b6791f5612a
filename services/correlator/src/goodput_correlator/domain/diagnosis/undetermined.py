"""Steps stand still and nothing says why: an honest answer, with whatever is known."""

from __future__ import annotations

from goodput_common.contracts.verdict import Action, ActionKind, Evidence, FaultClass
from goodput_correlator.domain.blame import analysis
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.clues import cite, symptoms_of
from goodput_correlator.domain.finding import Finding

ENGINE = "undetermined"
SCORE = 0.2  # how likely it is that the cause is something that no engine sees


def diagnose(case: Case) -> tuple[Finding, ...]:
    if not case.stalled:
        return ()
    view = analysis(case)
    evidence: list[Evidence] = []
    because = "steps stand still and no evidence names a component"
    for each in view.blame.inside[:2]:
        what = view.standings.describe(each.key, each.op)
        because = f"all {len(each.ranks)} members are inside {what} and it does not end: something between them is at fault"
        evidence += [
            cite(view.standings.known[rank].seen, f"rank {rank} is inside {what}", 0.2, case.rank_component(rank))
            for rank in each.ranks[:3]
        ]
    if not evidence:
        for rank, seen in sorted((case.progress or case.dumps).items())[:3]:
            evidence.append(cite(seen, "where this rank stands", 0.1, case.rank_component(rank)))
    return (
        Finding(
            fault_class=FaultClass.UNDETERMINED,
            component=None,
            score=SCORE,
            evidence=tuple(evidence),
            engine=ENGINE,
            explains=symptoms_of(case),
            because=because,
            action=Action(
                kind=ActionKind.HAND_TO_PERSON,
                target=None,
                reason="no evidence names a component; a person has to look before anything is restarted",
            ),
        ),
    )
