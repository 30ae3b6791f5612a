"""From many findings to one diagnosis: the component that explains all observed symptoms beats the loudest one.

1. Findings that follow from a better one are set aside, to be listed as explained.
2. What is left competes. Findings that can hold *together* (two ranks that nobody waits behind, each a root of its own) are
   joint culprits; the others are rivals, and each takes a share of the certainty according to its odds.
3. *No hardware fault* is an answer like the others, without a component: it competes with them, and gives way to hardware
   that is clearly broken, whatever exceptions that brought about.
4. What its share of the certainty is worth was counted on incidents (`calibration`): confidence is the probability that the
   culprit is right, that of an alternative that it is this one, and together they are at most 1.
5. Below `NAMED_MIN` nobody is named: the answer is *undetermined*, with the rivals as alternatives. Its confidence is the
   probability that no component can be named: none of those listed, and none that more evidence would show.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.telemetry import CollectorHeartbeat, SourceStatus
from goodput_common.contracts.verdict import Affected, Alternative, Evidence, FaultClass, Trouble
from goodput_correlator.domain.blame import analysis
from goodput_correlator.domain.calibration import CALIBRATION, Grounds, Way, against, divided, odds
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.causal import CAUSE_SCORE_MIN, follows, of_the_application
from goodput_correlator.domain.clues import first_seen
from goodput_correlator.domain.diagnosis import ENGINES, SLOW_ENGINES, undetermined
from goodput_correlator.domain.finding import Diagnosis, Finding
from goodput_correlator.domain.rivals import why_not
from goodput_correlator.domain.victims import accounted_for

NAMED_MIN = 0.43  # of the calibrated confidence, where the service is not told otherwise (`named_min`)
FILES_NAMED_MIN = 0.45  # of the score, which is what files give: of two that are half likely, neither
JOINT_MIN = 0.7
JOINT_GAP = 0.15  # joint culprits are about equally certain; what is clearly weaker may be a misread consequence
HALF = 0.5  # from files: nobody is more than half likely by what is missing
DOUBTFUL_MIN = 0.4  # from files: also shown, as a verdict of its own with that confidence
ALTERNATIVES_MAX = 8
EVIDENCE_MAX = 24
UNKNOWN_FACTOR = 0.95
NOBODY_MAX = 0.9
BROKEN_FACTOR = 0.5  # what is left of "it is the application" beside hardware that is broken


def decide(case: Case, named_min: float | None = None) -> Diagnosis | None:
    """One diagnosis, or None where nothing is wrong. `named_min`: what is less likely is not named, but undetermined."""
    engines = SLOW_ENGINES if case.slow is not None else ENGINES
    findings = [finding for engine in engines for finding in engine(case)]
    return weigh(case, findings, named_min) if findings else None


def decide_each(case: Case) -> list[Diagnosis]:
    """For a reader of files: the diagnosis, then one for each further suspect that is too doubtful to be joint culprit and
    too likely to be left out (a rank whose dump is missing), with its own confidence."""
    findings = [finding for engine in ENGINES for finding in engine(case)]
    if not findings:
        return []
    best = weigh(case, findings, FILES_NAMED_MIN)
    named = {culprit.component for culprit in best.culprits}
    also = []
    for finding in _standing_alone(findings)[0]:
        if finding.component is None or finding.component in named or finding.score < DOUBTFUL_MIN or not best.culprits:
            continue
        score = finding.score if finding.hardware else min(finding.score, HALF)
        grounds = _grounds(case, _way(case, finding), score)
        also.append(_diagnosis(case, [finding], [], [], grounds))
    return [best, *also]


def weigh(case: Case, findings: list[Finding], named_min: float | None = None) -> Diagnosis:
    least = NAMED_MIN if named_min is None else named_min
    standing, consequences = _standing_alone(findings)
    ranked = sorted((f for f in standing if f.component is not None), key=_rank)
    application = _application(findings, ranked)
    if application is not None:
        aside = [(f, application, because) for f in ranked if (because := of_the_application(f, application))]
        explained = {id(f) for f, _, _ in aside}
        ranked = [f for f in ranked if id(f) not in explained]
        consequences += aside
        bound = against(application.score, [f.score for f in ranked])
        grounds = _grounds(case, Way.APPLICATION, _share(application, ranked), bound)
        if probability(case, grounds) >= least and (not ranked or application.score >= ranked[0].score):
            return _diagnosis(case, [application], ranked, consequences, grounds)
    if not ranked:
        return _nobody(case, findings, [], 0.0)
    best = ranked[0]
    joint = [best]
    for finding in ranked[1:]:
        if finding.score >= max(JOINT_MIN, best.score - JOINT_GAP) and all(_together(finding, other) for other in joint):
            joint.append(finding)
    others = [f for f in ranked if f not in joint]
    else_ = [application] if application is not None else []
    raw = _share(best, [*(f for f in others if not set(f.ranks) & set(best.ranks)), *else_])
    if not best.hardware and _unknown(case, best):
        raw *= UNKNOWN_FACTOR
    bound = against(best.score, [f.score for f in (*others, *else_) if not _carried(f, best)])
    grounds = _grounds(case, _way(case, best), raw, bound)
    if (confidence := probability(case, grounds)) < least:
        return _nobody(case, findings, ranked, confidence)
    return _diagnosis(case, joint, others, consequences, grounds)


def probability(case: Case, grounds: Grounds) -> float:
    """How likely it is that the verdict is right. Files are no running job: nothing was counted on them, and the score of
    what they hold stands for itself."""
    return min(grounds.raw, grounds.bound) if case.offline else CALIBRATION.probability(grounds)


def _way(case: Case, best: Finding) -> Way:
    return Way.IDLE if case.job is None else Way.DECISIVE if best.decisive else Way.INDIRECT


def _grounds(case: Case, way: Way, raw: float, bound: float = 1.0) -> Grounds:
    hosts = len(case.placement.hosts) if case.placement is not None else 0
    return Grounds(
        way=way,
        raw=raw,
        bound=bound,
        trouble=Trouble.SLOW if case.slow is not None else Trouble.IDLE if case.job is None else Trouble.STALLED,
        silent_share=round(len(case.silent_hosts) / hosts, 3) if hosts else 0.0,
        unseen=len(_unknown(case, None)),
    )


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


def _carried(finding: Finding, best: Finding) -> bool:
    """Whether it is about what the broken hardware carries: that speaks for it rather than against it."""
    return best.hardware and not finding.hardware and bool(set(finding.ranks) & set(best.ranks))


def _share(best: Finding, rivals: Iterable[Finding]) -> float:
    mine = odds(best.score)
    others = odds(undetermined.SCORE) + sum(odds(rival.score) for rival in rivals)
    return min(best.score, mine / (mine + others))


def _alternatives(left: float, findings: list[Finding], best: Finding | None) -> tuple[Alternative, ...]:
    """The runners-up, by how likely they are; of several ways to blame one component for the same, the first."""
    shown: dict[tuple[ComponentId | None, FaultClass], Alternative] = {}
    shares = divided(left, [finding.score for finding in findings], undetermined.SCORE)
    for finding, share in zip(findings, shares, strict=True):
        key = (finding.component, finding.fault_class)
        because = why_not(finding, best)
        each = Alternative(component=key[0], fault_class=key[1], confidence=round(share, 3), because=because)
        shown.setdefault(key, each)
    return tuple(shown.values())[:ALTERNATIVES_MAX]


def _nobody(case: Case, findings: list[Finding], ranked: list[Finding], likely: float) -> Diagnosis:
    """Undetermined. `likely`: the probability of the first of `ranked`, which is too little."""
    honest = next((f for f in findings if f.fault_class is FaultClass.UNDETERMINED), None)
    evidence: list[Evidence] = list(honest.evidence) if honest else []
    for finding in ranked[:3]:
        evidence += finding.evidence[:3]
    unseen = odds(undetermined.SCORE)
    raw = min(NOBODY_MAX, unseen / (unseen + sum(odds(f.score) for f in ranked)))
    grounds = _grounds(case, Way.NOBODY, raw, 1.0 - likely)
    confidence = probability(case, grounds)
    first = divided(1.0, [f.score for f in ranked], undetermined.SCORE)[:1]
    left = min(1.0 - confidence, likely / first[0]) if first and first[0] else 0.0  # so that the first is as likely as it is
    alternatives = _alternatives(left, ranked, None)
    accounted = accounted_for(case, [], ranked if honest is None else [honest, *ranked], [])
    action = honest.action if honest and honest.action else ranked[0].action if ranked else None
    assert action is not None
    return Diagnosis(
        fault_class=FaultClass.UNDETERMINED,
        culprits=(),
        confidence=round(confidence, 3),
        alternatives=alternatives,
        evidence=_unique(evidence),
        explained=accounted.explained,
        unexplained=accounted.unexplained,
        ways=accounted.ways,
        affected=_affected(case, ranked),
        action=action,
        first_evidence_at=_first(case, evidence),
        engine=undetermined.ENGINE,
        unknown=_unknown(case, None),
        grounds=grounds,
    )


def _diagnosis(
    case: Case,
    joint: list[Finding],
    others: list[Finding],
    consequences: list[tuple[Finding, Finding, str]],
    grounds: Grounds,
) -> Diagnosis:
    best = joint[0]
    evidence = [each for finding in joint for each in finding.evidence]
    confidence = probability(case, grounds)
    accounted = accounted_for(case, joint, others, consequences)
    assert best.action is not None
    return Diagnosis(
        fault_class=best.fault_class,
        culprits=tuple(finding.culprit for finding in joint if finding.component is not None),
        confidence=round(confidence, 3),
        alternatives=_alternatives(1.0 - confidence, others, best),
        evidence=_unique(evidence),
        explained=accounted.explained,
        unexplained=accounted.unexplained,
        ways=accounted.ways,
        affected=_affected(case, joint),
        action=best.action,
        first_evidence_at=_first(case, evidence),
        engine=best.engine,
        decisive=best.decisive,
        settled=best.settled,
        unknown=_unknown(case, best),
        grounds=grounds,
    )


def _unique(evidence: Iterable[Evidence]) -> tuple[Evidence, ...]:
    kept: dict[tuple[str, ComponentId | None], Evidence] = {}
    for each in sorted(evidence, key=lambda e: (-e.weight, e.observed_at, e.event_id)):
        kept.setdefault((each.event_id, each.component), each)
    return tuple(kept.values())[:EVIDENCE_MAX]


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
