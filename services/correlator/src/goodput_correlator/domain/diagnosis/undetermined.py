"""Steps stand still and nothing says why: an honest answer, with whatever is known."""

from __future__ import annotations

from goodput_common.contracts.verdict import Action, ActionKind, Evidence, FaultClass
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.finding import Finding

ENGINE = "undetermined"


def diagnose(case: Case) -> tuple[Finding, ...]:
    if case.stalled_since is None:
        return ()
    evidence = tuple(
        Evidence(
            event_id=each.id,
            component=None,
            excerpt=f"rank {rank}: last finished step {case.stalled_step}",
            observed_at=each.observed_at,
            why="the last step that any rank finished",
            weight=0.1,
        )
        for rank, each in sorted(case.progress.items())[:3]
    )
    return (
        Finding(
            fault_class=FaultClass.UNDETERMINED,
            component=None,
            score=0.1,
            evidence=evidence,
            engine=ENGINE,
            action=Action(
                kind=ActionKind.HAND_TO_PERSON,
                target=None,
                reason="no evidence names a component; a person has to look before anything is restarted",
            ),
        ),
    )
