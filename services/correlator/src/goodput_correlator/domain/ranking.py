"""From many findings to one diagnosis: the component that explains all observed symptoms beats the loudest one.

1. Findings that follow from a better one are set aside, to be listed as explained.
2. What is left competes. Findings that can hold *together* (two ranks that nobody waits behind, each a root of its own) are
   joint culprits; the others are rivals, and each takes a share of the certainty according to its odds.
3. *No hardware fault* is an answer like the others, without a component: it competes with them, and gives way to hardware
   that is clearly broken, whatever exceptions that brought about.
4. Below `NAMED_MIN` nobody is named: the answer is *undetermined*, with the rivals as alternatives.

Confidence is meant as a probability, and is never higher than the evidence of the finding itself supports.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.telemetry import CollectorHeartbeat, EventName, SourceStatus
from goodput_common.contracts.verdict import Affected, Alternative, Evidence, Explained, FaultClass
from goodput_correlator.domain.blame import analysis
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.causal import CAUSE_SCORE_MIN, follows, of_the_application
from goodput_correlator.domain.clues import events, first_seen
from goodput_correlator.domain.diagnosis import ENGINES, SLOW_ENGINES, undetermined
from goodput_correlator.domain.finding import Diagnosis, Finding
from goodput_correlator.domain.rivals import why_not

NAMED_MIN = 0.45
JOINT_MIN = 0.7
JOINT_GAP = 0.15  # joint culprits are about equally certain; what is clearly weaker may be a misread consequence
DOUBTFUL_MIN = 0.4  # from files: also shown, as a verdict of its own with that confidence
ALTERNATIVES_MAX = 8
EVIDENCE_MAX = 24
EXPLAINED_MAX = 40
WAITING_MAX = 24
UNKNOWN_FACTOR = 0.95
BROKEN_FACTOR = 0.5  # what is left of "it is the application" beside hardware that is broken


def decide(case: Case) -> Diagnosis | None:
    """One diagnosis, or None where nothing is wrong."""
    engines = SLOW_ENGINES if case.slow is not None else ENGINES
    findings = [finding for engine in engines for finding in engine(case)]
    return weigh(case, findings) if findings else None


def decide_each(case: Case) -> list[Diagnosis]:
    """For a reader of files: the diagnosis, then one for each further suspect that is too doubtful to be joint culprit and
    too likely to be left out (a rank whose dump is missing), with its own confidence."""
    findings = [finding for engine in ENGINES for finding in engine(case)]
    if not findings:
        return []
    best = weigh(case, findings)
    named = {culprit.component for culprit in best.culprits}
    also = []
    for finding in _standing_alone(findings)[0]:
        if finding.component is None or finding.component in named or finding.score < DOUBTFUL_MIN or not best.culprits:
            continue
        also.append(_diagnosis(case, [finding], [], [], min(finding.score, 0.5) if not finding.hardware else finding.score))
    return [best, *also]


def weigh(case: Case, findings: list[Finding]) -> Diagnosis:
    standing, consequences = _standing_alone(findings)
    ranked = sorted((f for f in standing if f.component is not None), key=_rank)
    application = _application(findings, ranked)
    if application is not None:
        aside = [(f, application, because) for f in ranked if (because := of_the_application(f, application))]
        explained = {id(f) for f, _, _ in aside}
        ranked = [f for f in ranked if id(f) not in explained]
        consequences += aside
        confidence = _share(application, ranked)
        if confidence >= NAMED_MIN and (not ranked or application.score >= ranked[0].score):
            return _diagnosis(case, [application], ranked, consequences, confidence)
    if not ranked:
        return _nobody(case, findings, [])
    best = ranked[0]
    joint = [best]
    for finding in ranked[1:]:
        if finding.score >= max(JOINT_MIN, best.score - JOINT_GAP) and all(_together(finding, other) for other in joint):
            joint.append(finding)
    rivals = [f for f in ranked if f not in joint and not set(f.ranks) & set(best.ranks)]
    confidence = _share(best, [*rivals, application] if application is not None else rivals)
    unknown = _unknown(case, best)
    if unknown and not best.hardware:
        confidence *= UNKNOWN_FACTOR
    if confidence < NAMED_MIN:
        return _nobody(case, findings, ranked)
    others = [f for f in ranked if f not in joint]
    return _diagnosis(case, joint, others, consequences, confidence)


def _application(findings: Iterable[Finding], standing: Iterable[Finding]) -> Finding | None:
    """The best reason to say that no hardware is at fault; half as likely beside hardware that is broken."""
    found = [f for f in findings if f.fault_class is FaultClass.NO_HARDWARE_FAULT]
    best = max(found, key=lambda f: (f.score, f.because), default=None)
    if best is not None and any(f.hardware and f.score >= CAUSE_SCORE_MIN for f in standing):
        best = replace(best, score=best.score * BROKEN_FACTOR, decisive=False, settled=False)
    return best


def _rank(finding: Finding) -> tuple[float, bool, tuple[int, ...], str]:
    return (-finding.score, not finding.hardware, finding.ranks, finding.component or "")


def _standing_alone(findings: Iterable[Finding]) -> tuple[list[Finding], list[tuple[Finding, Finding, str]]]:
    """(findings that follow from no other, those that do with their cause and the reason)."""
    all_of = sorted((f for f in findings if f.component is not None), key=_rank)
    standing: list[Finding] = []
    consequences: list[tuple[Finding, Finding, str]] = []
    effects: set[int] = set()
    for finding in all_of:
        for cause in all_of:
            if id(cause) in effects:
                continue  # a consequence explains nothing by itself
            because = follows(finding, cause)
            if because is not None:
                effects.add(id(finding))
                consequences.append((finding, cause, because))
                break
        else:
            standing.append(finding)
    return standing, consequences


def _together(one: Finding, other: Finding) -> bool:
    """Whether both can be true at once and each is needed: roots of the same kind on different ranks."""
    if set(one.ranks) & set(other.ranks) or one.component == other.component:
        return False
    if bool(one.ranks) != bool(other.ranks):
        return False
    ranks_both = one.kind is ComponentKind.RANK and other.kind is ComponentKind.RANK
    return one.fault_class is other.fault_class or ranks_both


def _odds(score: float) -> float:
    return score / max(0.02, 1.0 - score)


def _share(best: Finding, rivals: Iterable[Finding]) -> float:
    mine = _odds(best.score)
    others = _odds(undetermined.SCORE) + sum(_odds(rival.score) for rival in rivals)
    return min(best.score, mine / (mine + others))


def _nobody(case: Case, findings: list[Finding], ranked: list[Finding]) -> Diagnosis:
    honest = next((f for f in findings if f.fault_class is FaultClass.UNDETERMINED), None)
    evidence: list[Evidence] = list(honest.evidence) if honest else []
    for finding in ranked[:3]:
        evidence += finding.evidence[:3]
    total = sum(_odds(f.score) for f in ranked) + _odds(undetermined.SCORE)
    alternatives = tuple(
        Alternative(
            component=f.component,
            fault_class=f.fault_class,
            confidence=round(min(f.score, _odds(f.score) / total), 3),
            because=why_not(f, None),
        )
        for f in ranked[:ALTERNATIVES_MAX]
    )
    action = honest.action if honest and honest.action else ranked[0].action if ranked else None
    assert action is not None
    return Diagnosis(
        fault_class=FaultClass.UNDETERMINED,
        culprits=(),
        confidence=round(min(0.9, _odds(undetermined.SCORE) / total), 3),
        alternatives=alternatives,
        evidence=_unique(evidence),
        explained=(),
        affected=_affected(case, ranked),
        action=action,
        first_evidence_at=_first(case, evidence),
        engine=undetermined.ENGINE,
        unknown=_unknown(case, None),
    )


def _diagnosis(
    case: Case,
    joint: list[Finding],
    others: list[Finding],
    consequences: list[tuple[Finding, Finding, str]],
    confidence: float,
) -> Diagnosis:
    best = joint[0]
    evidence = [each for finding in joint for each in finding.evidence]
    culprit_ranks = {rank for finding in joint for rank in finding.ranks}
    shown: dict[tuple[ComponentId | None, FaultClass], Alternative] = {}
    for finding in others:
        key = (finding.component, finding.fault_class)
        certainty = round(finding.score * 0.9, 3)
        because = why_not(finding, best)
        shown.setdefault(key, Alternative(component=key[0], fault_class=key[1], confidence=certainty, because=because))
    explained = [_consequence(effect, because) for effect, _, because in consequences]
    explained += [_consequence(finding, finding.history) for finding in others if finding.history]
    explained += [each for finding in joint for each in finding.victims]
    explained += _victims(case, best)
    explained += _waiting(case, culprit_ranks, best.because)
    assert best.action is not None
    return Diagnosis(
        fault_class=best.fault_class,
        culprits=tuple(finding.culprit for finding in joint if finding.component is not None),
        confidence=round(confidence, 3),
        alternatives=tuple(shown.values())[:ALTERNATIVES_MAX],
        evidence=_unique(evidence),
        explained=tuple(explained[:EXPLAINED_MAX]),
        affected=_affected(case, joint),
        action=best.action,
        first_evidence_at=_first(case, evidence),
        engine=best.engine,
        decisive=best.decisive,
        settled=best.settled,
        unknown=_unknown(case, best),
    )


def _unique(evidence: Iterable[Evidence]) -> tuple[Evidence, ...]:
    kept: dict[tuple[str, ComponentId | None], Evidence] = {}
    for each in sorted(evidence, key=lambda e: (-e.weight, e.observed_at, e.event_id)):
        kept.setdefault((each.event_id, each.component), each)
    return tuple(kept.values())[:EVIDENCE_MAX]


def _consequence(effect: Finding, because: str) -> Explained:
    first = effect.evidence[0].excerpt if effect.evidence else effect.fault_class.value
    return Explained(component=effect.component, symptom=f"{effect.fault_class.value}: {first}"[:300], because=because)


def _victims(case: Case, best: Finding) -> list[Explained]:
    """Lines that look like faults of their own and are not."""
    found: dict[tuple[str, str], Explained] = {}
    for _, event in events(case, EventName.XID, EventName.NCCL_NET_ERROR, EventName.NCCL_WATCHDOG):
        component = case.topology.canonical(event.component)
        if component == best.component:
            continue
        if event.name is EventName.XID and event.attrs.get("impact") == "victim":
            cause = event.attrs.get("cause")
            because = (
                f"the line itself names its cause: Xid {cause}" if cause else "channels are removed when a job is torn down"
            )
        elif event.name is EventName.NCCL_NET_ERROR:
            because = "its transfer partner did not answer; the error names two ends, and neither need be guilty"
        elif event.name is EventName.NCCL_WATCHDOG:
            because = "every rank of the job reports the time-out of the collective that it waits in"
        else:
            continue
        key = (component, event.name.value)
        found.setdefault(
            key, Explained(component=component, symptom=(event.excerpt or event.name.value)[:300], because=because)
        )
    return list(found.values())[:12]


def _waiting(case: Case, culprits: set[int], because: str) -> list[Explained]:
    """Every rank that stands still, and how that follows: by whom it waits for, else by what stops its collectives."""
    if not case.stalled:
        return []
    view = analysis(case)
    chain = view.blame.graph.follow(culprits)
    found = []
    for rank in sorted(view.blame.stuck - culprits):
        if rank in chain:
            blocker, key, direct = chain[rank]
            reason = f"it waits for rank {blocker}" if direct else f"it waits for rank {blocker}, which waits itself"
        else:
            key, reason = view.standings.known[rank].pending[0].key, because
        what = view.standings.describe(key)
        found.append(Explained(component=case.rank_component(rank), symptom=f"stands still in {what}", because=reason))
    if len(found) > WAITING_MAX:
        more = len(found) - WAITING_MAX
        rest = Explained(component=None, symptom=f"{more} more ranks stand still", because="they wait in the same way")
        found = [*found[:WAITING_MAX], rest]
    return found


def _affected(case: Case, findings: Iterable[Finding]) -> Affected:
    if case.job is None:
        hosts = {finding.host for finding in findings if finding.host}
        return Affected(hosts=tuple(sorted(hosts)))
    hosts = set(case.placement.hosts) if case.placement else {h for r in case.world if (h := case.host_of_rank(r))}
    return Affected(jobs=(case.job,), ranks=case.world, hosts=tuple(sorted(hosts)))


def _first(case: Case, evidence: Iterable[Evidence]) -> datetime:
    seen = first_seen(evidence, case.now)
    return min(seen, case.stalled_since) if case.stalled_since is not None else seen


def _unknown(case: Case, best: Finding | None) -> tuple[str, ...]:
    """What could not be seen: it lowers confidence and is never evidence by itself."""
    words = [f"collector of {host}: silent" for host in case.silent_hosts]
    for each in case.observed:
        if isinstance(each.fact, CollectorHeartbeat) and (best is None or each.host == best.host):
            words += [
                f"{source.source.value} of {each.host}: {source.reason or 'not readable'}"
                for source in each.fact.sources
                if source.status is SourceStatus.UNKNOWN
            ]
    if case.stalled:
        absent = sorted(analysis(case).standings.absent)
        if absent and len(absent) < max(2, len(case.world)):
            shown = ", ".join(map(str, absent[:8])) + (" …" if len(absent) > 8 else "")
            words.append(f"no flight recorder or report of rank {shown}")
    return tuple(dict.fromkeys(words))[:16]
