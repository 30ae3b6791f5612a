"""From many findings to one diagnosis: the component that explains all observed symptoms beats the loudest one."""

from __future__ import annotations

from goodput_correlator.domain.case import Case
from goodput_correlator.domain.diagnosis import ENGINES
from goodput_correlator.domain.finding import Diagnosis


def decide(case: Case) -> Diagnosis | None:
    """One diagnosis, or None where nothing is wrong."""
    findings = [finding for engine in ENGINES for finding in engine(case)]
    from goodput_common.contracts.verdict import Affected

    if not findings:
        return None
    best = max(findings, key=lambda f: (f.score, f.component or ""))
    placement = case.placement
    affected = Affected(
        jobs=(case.job,) if case.job else (),
        ranks=tuple(placement.ranks) if placement else (),
        hosts=placement.hosts if placement else (),
    )
    assert best.action is not None
    return Diagnosis(
        fault_class=best.fault_class,
        culprits=(best.culprit,) if best.component else (),
        confidence=best.score,
        alternatives=(),
        evidence=best.evidence,
        explained=(),
        affected=affected,
        action=best.action,
        first_evidence_at=case.stalled_since or case.now,
        engine=best.engine,
    )
