"""From the versions of one verdict to its story. Pure: the same versions give the same story."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from goodput_cli.explain.model import Advice, ExplainedAway, Heard, Line, RecoveryStep, Story
from goodput_cli.explain.reasons import rivals, why_this, would_change
from goodput_cli.explain.timeline import timeline
from goodput_cli.explain.words import clean, names, summary
from goodput_cli.verdict_view import headline
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.verdict import ActionKind, Evidence, Explained, Verdict

DOES: dict[ActionKind, str] = {
    ActionKind.OBSERVE: "do nothing yet and watch",
    ActionKind.REINIT_COMMUNICATORS: "set the job's communicators up anew in the same processes",
    ActionKind.RESTART_RANK: "start the rank's process again where it ran",
    ActionKind.EXCLUDE_NIC: "go on without this network adapter",
    ActionKind.ISOLATE_LINK: "take the link out of use and route around it",
    ActionKind.RESET_GPU: "reset the GPU",
    ActionKind.SWAP_NODE: "go on with a spare node in place of this one",
    ActionKind.CORDON_AT_CHECKPOINT: "take the node out at the next checkpoint",
    ActionKind.DRAIN_AND_RESUME: "drain the node and resume from the last checkpoint",
    ActionKind.RESTART_JOB: "restart the job from its last checkpoint",
    ActionKind.HAND_TO_PERSON: "let a person look: no automatic step fits",
}


def tell(
    chain: Sequence[Verdict],
    *,
    heard: Mapping[str, Heard] | None = None,
    recovery: Sequence[RecoveryStep] = (),
    recovery_unknown: str = "",
) -> Story:
    """`chain` holds the versions that are known, oldest first. `heard` says by event id who told a fact; `recovery_unknown`
    why it is not known what recovery did."""
    newest = chain[-1]
    heard = heard or {}
    return Story(
        verdict=newest.id,
        version=newest.version,
        state=newest.state,
        fabric=newest.fabric,
        job=newest.job,
        fault_class=newest.fault_class,
        component=newest.culprit.component,
        confidence=newest.confidence,
        headline=headline(newest),
        summary=summary(newest),
        began_at=newest.first_evidence_at,
        timeline=timeline(chain, recovery),
        evidence=_lines(newest.evidence, newest.first_evidence_at, heard),
        why_this=tuple(why_this(newest, heard)),
        rivals=tuple(rivals(chain)),
        explained=_explained(newest.explained),
        not_seen=tuple(clean(each) for each in newest.unknown),
        would_change=tuple(would_change(newest, heard)),
        advice=_advice(newest, recovery),
        recovery=_became(recovery, recovery_unknown),
    )


def _lines(evidence: Iterable[Evidence], began: datetime, heard: Mapping[str, Heard]) -> tuple[Line, ...]:
    """The weightiest first."""
    return tuple(
        Line(
            after_s=round((each.observed_at - began).total_seconds(), 3),
            component=each.component,
            excerpt=clean(each.excerpt),
            why=clean(each.why),
            weight=each.weight,
            event_id=each.event_id,
            heard=_heard(each, heard.get(each.event_id)),
        )
        for each in sorted(evidence, key=lambda each: (-each.weight, each.observed_at, each.event_id))
    )


def _heard(evidence: Evidence, told: Heard | None) -> str:
    if told is None:
        return ""
    late_s = (told.received_at - evidence.observed_at).total_seconds()
    return f"{told.source} of {told.host}, arrived {late_s:.1f} s later"


def _explained(explained: Iterable[Explained]) -> tuple[ExplainedAway, ...]:
    alike: dict[tuple[str, str], list[ComponentId | None]] = {}
    for each in explained:
        alike.setdefault((clean(each.symptom), clean(each.because)), []).append(each.component)
    return tuple(
        ExplainedAway(who=names(components), symptom=symptom, because=because, count=len(components))
        for (symptom, because), components in alike.items()
    )


def _advice(verdict: Verdict, recovery: Sequence[RecoveryStep]) -> Advice:
    action = verdict.action
    passed_over = next((each.not_chosen for each in reversed(recovery) if each.not_chosen), ())
    return Advice(
        kind=action.kind, target=action.target, what=DOES[action.kind], reason=clean(action.reason), not_chosen=passed_over
    )


def _became(recovery: Sequence[RecoveryStep], unknown: str) -> str:
    if unknown:
        return f"unknown: {clean(unknown)}"
    if not recovery:
        return "nothing has been planned"
    last = sorted(recovery, key=lambda each: each.at)[-1]
    return f"{last.state}: {last.action}" + (f" ({clean(last.reason)})" if last.reason else "")
