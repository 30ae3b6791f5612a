"""The life of a verdict: open -> revised* -> resolved, as functions from one version to the next. What comes back soon after
it was resolved is open again, in the next version of the same verdict.

Ids are hashes of what the incident is (fabric, job, generation, the step after which nothing moved, which processes they
were), never random: the same log gives the same chain. Every version is written at a grid time, which is its `published_at`.
"""

from __future__ import annotations

import hashlib
from datetime import datetime

import msgspec

from goodput_common.contracts.verdict import Culprit, Explained, Trouble, Verdict, VerdictState
from goodput_correlator.domain.finding import ENGINE_VERSION, Diagnosis

NOBODY = Culprit(component=None, kind=None, host=None)
CONFIDENCE_CHANGE_MIN = 0.1  # smaller moves are no news
VERSIONS_MAX = 50  # of one verdict; after that only its resolution is written
CAME_BACK = "came back"  # how the symptom begins that tells of a return


class IllegalTransition(ValueError):
    """A resolved verdict was asked to change."""


def content_id(*parts: object) -> str:
    """24 hex digits that name what `parts` describe."""
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:24]


def incident_id(fabric: str, job: str | None, *onset: object) -> str:
    return content_id("incident", fabric, job or "", *onset)


def open_verdict(
    diagnosis: Diagnosis,
    *,
    incident: str,
    fabric: str,
    job: str | None,
    generation: int,
    at: datetime,
    trouble: Trouble = Trouble.STALLED,
) -> Verdict:
    """Version 1."""
    return Verdict(
        id=content_id("verdict", incident),
        version=1,
        incident=incident,
        fabric=fabric,
        job=job,
        state=VerdictState.OPEN,
        fault_class=diagnosis.fault_class,
        culprit=diagnosis.culprits[0] if diagnosis.culprits else NOBODY,
        confidence=diagnosis.confidence,
        alternatives=diagnosis.alternatives,
        evidence=diagnosis.evidence,
        explained=diagnosis.explained,
        affected=diagnosis.affected,
        action=diagnosis.action,
        first_evidence_at=diagnosis.first_evidence_at,
        detected_at=at,
        published_at=at,
        diagnosed_by=f"{diagnosis.engine}/{ENGINE_VERSION}",
        generation=generation,
        unknown=diagnosis.unknown,
        unexplained=diagnosis.unexplained,
        trouble=trouble,
        culprits=diagnosis.culprits,
    )


def is_news(previous: Verdict, diagnosis: Diagnosis) -> bool:
    """Whether a reader of `previous` would act or think differently."""
    return (
        diagnosis.fault_class != previous.fault_class
        or {c.component for c in diagnosis.culprits} != {c.component for c in previous.culprits}
        or diagnosis.action.kind != previous.action.kind
        or abs(diagnosis.confidence - previous.confidence) >= CONFIDENCE_CHANGE_MIN
        or not diagnosis.ways <= {each.because for each in previous.explained}
    )


def revise(previous: Verdict, diagnosis: Diagnosis, *, at: datetime, trouble: Trouble | None = None) -> Verdict | None:
    """The next version, or None where the diagnosis brings no news. The first sight of the fault stays the first. `trouble`,
    where it has changed: a job that was slow stands still now."""
    if previous.state is VerdictState.RESOLVED:
        raise IllegalTransition(f"verdict {previous.id} is resolved: it can only come back, or be another incident")
    trouble = trouble or previous.trouble
    if previous.version >= VERSIONS_MAX or not (is_news(previous, diagnosis) or trouble is not previous.trouble):
        return None
    named_before = {c.component for c in previous.culprits}
    named_now = {c.component for c in diagnosis.culprits}
    returns = tuple(each for each in previous.explained if each.symptom.startswith(CAME_BACK))
    return msgspec.structs.replace(
        _next(previous, diagnosis, at),
        state=VerdictState.REVISED,
        explained=(*returns, *diagnosis.explained),
        detected_at=previous.detected_at if named_now == named_before else at,
        trouble=trouble,
    )


def come_back(resolved: Verdict, diagnosis: Diagnosis, *, at: datetime, generation: int, trouble: Trouble) -> Verdict:
    """The next version of an incident that was over: the same component fails again in the same way. The first sight of the
    fault stays the first; that it came back, and after how long, is said among what is explained."""
    if resolved.state is not VerdictState.RESOLVED:
        raise IllegalTransition(f"verdict {resolved.id} is not resolved: it cannot come back")
    again = next((c for c in diagnosis.culprits if c.component in {old.component for old in resolved.culprits}), NOBODY)
    after_s = (at - resolved.published_at).total_seconds()
    returned = Explained(
        component=again.component,
        symptom=f"{CAME_BACK} {after_s:.0f} s after it was resolved ({resolved.resolution})",
        because="the same component failed again in the same way: one fault that comes and goes",
    )
    return msgspec.structs.replace(
        _next(resolved, diagnosis, at),
        state=VerdictState.OPEN,
        explained=(returned, *diagnosis.explained),
        detected_at=at,
        generation=generation,
        resolution="",
        trouble=trouble,
    )


def _next(previous: Verdict, diagnosis: Diagnosis, at: datetime) -> Verdict:
    """What every later version takes from the newest diagnosis."""
    return msgspec.structs.replace(
        previous,
        version=previous.version + 1,
        fault_class=diagnosis.fault_class,
        culprit=diagnosis.culprits[0] if diagnosis.culprits else NOBODY,
        confidence=diagnosis.confidence,
        alternatives=diagnosis.alternatives,
        evidence=diagnosis.evidence,
        affected=diagnosis.affected,
        action=diagnosis.action,
        first_evidence_at=min(previous.first_evidence_at, diagnosis.first_evidence_at),
        published_at=at,
        diagnosed_by=f"{diagnosis.engine}/{ENGINE_VERSION}",
        unknown=diagnosis.unknown,
        unexplained=diagnosis.unexplained,
        culprits=diagnosis.culprits,
    )


def resolve(previous: Verdict, *, at: datetime, why: str) -> Verdict:
    """The last version."""
    if previous.state is VerdictState.RESOLVED:
        raise IllegalTransition(f"verdict {previous.id} is already resolved")
    return msgspec.structs.replace(
        previous, version=previous.version + 1, state=VerdictState.RESOLVED, published_at=at, resolution=why
    )
