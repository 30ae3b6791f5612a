"""The course of an incident: when it is over, what is another one beside it, and when somebody else may be named in it.

Evidence fades as a job is torn down, and two suspects that are about as likely must not take turns: what was said stands
until something clearly better is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from goodput_common.contracts.ids import host_id
from goodput_common.contracts.verdict import Action, ActionKind, Culprit, FaultClass, Trouble, Verdict
from goodput_correlator.domain.finding import Diagnosis
from goodput_correlator.domain.pace import SLOW_WINDOWS, WINDOW_S
from goodput_correlator.domain.ranking import EVIDENCE_MAX
from goodput_correlator.domain.timeline import JobTimeline

RESUMED_S = 2.0  # steps must move this long before an incident is over
CHANGE_OF_MIND = 0.1  # another culprit is named only if not less certain than this below the one named
APART_MIN = (
    0.8  # so likely have both to be, that a slow job which stands still has two faults, where no evidence is decisive
)


def over(job: JobTimeline, previous: Verdict, at: datetime) -> str:
    """Why an incident is over, or ""."""
    if job.ended:
        return "the job ended"
    if previous.trouble is Trouble.SLOW:
        return _fast_again(job, previous, at)
    if job.moved_at is None or job.resumed_at is None:
        return ""
    since = job.resumed_at if job.generation > previous.generation else max(job.resumed_at, previous.detected_at)
    moving = (at - job.moved_at).total_seconds() < max(RESUMED_S, 2.5 * job.usual_step_s)
    if moving and job.moved_at > previous.detected_at and (at - since).total_seconds() >= RESUMED_S:
        again = f" in generation {job.generation}" if job.generation > previous.generation else ""
        return f"steps resumed{again}: step {job.step} finished"
    return ""


def _fast_again(job: JobTimeline, previous: Verdict, at: datetime) -> str:
    """A job that stands still is not faster for that: windows count that lie behind the standstill."""
    if job.pace.slow is not None or job.pace.fine_windows < SLOW_WINDOWS:
        return ""
    if job.moved_at is None or job.moved_at <= previous.detected_at:
        return ""
    stood = job.resumed_at is not None and job.resumed_at > previous.detected_at
    if stood and job.resumed_at is not None and (at - job.resumed_at).total_seconds() < SLOW_WINDOWS * WINDOW_S:
        return ""
    if job.generation > previous.generation:
        return f"generation {job.generation} keeps its own pace"
    return "steps take no longer than usual again"


def of_another_cause(previous: Verdict, diagnosis: Diagnosis) -> bool:
    """Whether a slow job stands still for something that its slowness has nothing to do with: what is surely broken now
    carries none of the ranks that were late, and is in another host. That is an incident of its own beside the first."""
    if previous.trouble is not Trouble.SLOW:
        return False
    surely = diagnosis.decisive or min(diagnosis.confidence, previous.confidence) >= APART_MIN
    return surely and apart(previous.culprits, diagnosis.culprits)


def apart(some: Iterable[Culprit], others: Iterable[Culprit]) -> bool:
    """Whether these have nothing in common: no rank, no host, no component. Where it is not known which ranks a culprit
    carries, nothing tells that it is not behind the trouble of all."""
    some, others = tuple(some), tuple(others)
    if not some or not others or not all(each.ranks for each in (*some, *others)):
        return False
    return all(
        set(one.ranks).isdisjoint(other.ranks)
        and one.component != other.component
        and (one.host is None or one.host != other.host)
        for one in some
        for other in others
    )


def names_same(previous: Verdict, diagnosis: Diagnosis) -> bool:
    """Whether a diagnosis names somebody whom the incident names already."""
    named = {culprit.component for culprit in previous.culprits}
    return any(culprit.component in named for culprit in diagnosis.culprits)


def held_back(previous: Verdict, diagnosis: Diagnosis) -> bool:
    """Whether the process that stands still now is one that something was known to hold back: its GPU was too hot, others
    had its host's CPUs. It stands for that reason, and the reason stays when the process is started anew."""
    if previous.fault_class is not FaultClass.STRAGGLER or diagnosis.fault_class is not FaultClass.PROCESS_STALL:
        return False
    late = {rank for culprit in previous.culprits for rank in culprit.ranks}
    stands = {rank for culprit in diagnosis.culprits for rank in culprit.ranks}
    return bool(stands) and stands <= late and not names_same(previous, diagnosis)


def for_the_same_reason(previous: Verdict, diagnosis: Diagnosis) -> Diagnosis:
    """What to say of a job that was slow and stands still now, where `held_back`: the culprit is who it was, and both what
    held it back and what shows that it stands are evidence. No checkpoint to wait for will come."""
    host = previous.culprit.host
    reason = "the rank that was held back stands still, and what held it back stays with the node: continue on a spare"
    cited = {each.event_id: each for each in (*previous.evidence, *diagnosis.evidence)}
    return replace(
        diagnosis,
        fault_class=previous.fault_class,
        culprits=previous.culprits,
        confidence=min(previous.confidence, diagnosis.confidence),
        evidence=tuple(cited.values())[:EVIDENCE_MAX],
        action=Action(kind=ActionKind.SWAP_NODE, target=host_id(host), reason=reason) if host else diagnosis.action,
        engine=previous.diagnosed_by.partition("/")[0],
        first_evidence_at=min(previous.first_evidence_at, diagnosis.first_evidence_at),
    )


def named_at(previous: Verdict | None, trouble: Trouble) -> datetime | None:
    """When a culprit of this very trouble was named. That of a slow job says nothing of why it stands still now."""
    return previous.detected_at if previous is not None and previous.culprits and previous.trouble is trouble else None


def says(diagnosis: Diagnosis) -> bool:
    """Whether it is an answer: somebody is named, or it is said that no hardware is at fault."""
    return diagnosis.fault_class is not FaultClass.UNDETERMINED


def better(previous: Verdict, diagnosis: Diagnosis) -> bool:
    """Whether a later diagnosis may replace what was said: it names the same, or is about as certain. "Nobody" never
    replaces somebody: evidence fades as the job is torn down. Another of the same class, while the first is still suspected,
    has to be clearly more certain."""
    if previous.fault_class is FaultClass.UNDETERMINED:
        return True
    if not says(diagnosis):
        return False
    before, now = {c.component for c in previous.culprits}, {c.component for c in diagnosis.culprits}
    if before == now:
        return diagnosis.confidence >= previous.confidence or diagnosis.action.kind != previous.action.kind
    suspected = before & {each.component for each in diagnosis.alternatives}
    if suspected and not before & now and diagnosis.fault_class is previous.fault_class:
        return diagnosis.confidence >= previous.confidence + CHANGE_OF_MIND  # two that are as likely must not take turns
    return diagnosis.confidence >= previous.confidence - CHANGE_OF_MIND
