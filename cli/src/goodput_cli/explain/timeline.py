"""What happened when, across components: progress, evidence of every version, versions, recovery.

Evidence about a component that the newest version does not blame, and that only an earlier version cites, is told as a
symptom: it was once thought to matter by itself and has been explained or outweighed since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from goodput_cli.explain.model import Moment, MomentKind, RecoveryStep
from goodput_cli.explain.words import clean, culprits_of, who
from goodput_common.contracts.ids import ComponentId, job_id
from goodput_common.contracts.verdict import Trouble, Verdict, VerdictState

ORDER = tuple(MomentKind)  # among what has the same time


def timeline(chain: Sequence[Verdict], recovery: Iterable[RecoveryStep]) -> tuple[Moment, ...]:
    """`chain` holds the known versions of one verdict, oldest first."""
    newest = chain[-1]
    began = newest.first_evidence_at

    def moment(at: datetime, kind: MomentKind, component: ComponentId | None, what: str) -> Moment:
        after_s = round((at - began).total_seconds(), 3)
        return Moment(after_s=after_s, at=at, kind=kind, component=component, what=clean(what))

    cited = {(each.event_id, each.component) for each in newest.evidence}
    blamed = {each.component for each in culprits_of(newest)}
    seen: set[tuple[str, ComponentId | None]] = set()
    found = []
    for verdict in reversed(chain):
        for each in verdict.evidence:
            key = (each.event_id, each.component)
            if key not in seen:
                seen.add(key)
                matters = key in cited or each.component in blamed
                kind = MomentKind.EVIDENCE if matters else MomentKind.SYMPTOM
                found.append(moment(each.observed_at, kind, each.component, each.excerpt or each.why))
    if newest.job is not None and newest.trouble is not Trouble.IDLE and not any(each.at <= began for each in found):
        what = "last progress seen" if newest.trouble is Trouble.STALLED else "first sign that it is slow"
        found.append(moment(began, MomentKind.STEP, job_id(newest.job), what))
    for previous, verdict in zip((None, *chain), chain, strict=False):
        found.append(moment(verdict.published_at, MomentKind.VERDICT, verdict.culprit.component, _said(previous, verdict)))
    for step in recovery:
        what = f"{step.state}: {step.action}" + (f" {step.target}" if step.target else "")
        found.append(moment(step.at, MomentKind.RECOVERY, step.target, f"{what} ({step.reason})" if step.reason else what))
    return tuple(sorted(found, key=lambda each: (each.at, ORDER.index(each.kind))))


def _said(previous: Verdict | None, verdict: Verdict) -> str:
    """What a version brings that the one before it did not say."""
    head = f"v{verdict.version} {verdict.state}"
    if verdict.state is VerdictState.RESOLVED:
        return f"{head}: {verdict.resolution or 'without a reason'}"
    if previous is None or (who(previous), previous.fault_class) != (who(verdict), verdict.fault_class):
        before = f", no longer {who(previous)}, {previous.fault_class}" if previous is not None else ""
        return f"{head}: {who(verdict)}, {verdict.fault_class}, confidence {verdict.confidence:.2f}{before}"
    news = []
    if previous.confidence != verdict.confidence:
        news.append(f"confidence {previous.confidence:.2f} -> {verdict.confidence:.2f}")
    if previous.action.kind is not verdict.action.kind:
        news.append(f"{verdict.action.kind} instead of {previous.action.kind}")
    if previous.trouble is not verdict.trouble:
        news.append(f"{previous.trouble} -> {verdict.trouble}")
    return f"{head}: {', '.join(news) or 'the same culprit'}"
