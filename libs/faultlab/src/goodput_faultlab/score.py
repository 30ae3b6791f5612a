"""Verdicts against the ledger: who was right, how fast, and how sure when wrong.

Each chain of verdicts (one incident) belongs to exactly one entry. Of the entries of its job whose time it falls in, that is
the one whose component it names in the end: two faults at once are told in any order, and the slower one to show is not
wrong for being told after the other had begun. A chain that names none of them goes by time, to the entry that was injected
last before it, and is wrong there. An incident that was resolved and came back (`open` again) is told anew from there on:
what was said before answers for the fault then, what is said after for the next.

What counts is the *last* version that blames somebody, because that is what a person acts on, but a wrong culprit in *any*
version is remembered with its confidence. Where an entry has several chains, each of them has to end right: a second
incident that blames an innocent is an error, whatever the first says. An entry that asks for nobody's blame (`component`
None) is right when nobody is blamed.

    right        culprit named, component and class as in the ledger
    wrong_class  the component is right, the class is not
    wrong        somebody else is blamed
    abstained    a verdict, but undetermined or no_hardware_fault, though somebody was to blame
    missed       no verdict at all
    false_alarm  a verdict that blames somebody when nothing was broken
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.verdict import FaultClass, Verdict, VerdictState
from goodput_faultlab.ledger import LedgerEntry

BEFORE_S = 2.5  # evidence may be dated this much before the injection: clocks differ by up to 2 s
AFTER_S = 120.0  # a verdict this long after a fault has been cleared is still about it
NOBODY = frozenset({FaultClass.UNDETERMINED, FaultClass.NO_HARDWARE_FAULT})
SURE = 0.7  # a wrong culprit above this confidence is the worst that can happen


class Outcome(enum.StrEnum):
    RIGHT = "right"
    WRONG_CLASS = "wrong_class"
    WRONG = "wrong"
    ABSTAINED = "abstained"
    MISSED = "missed"
    FALSE_ALARM = "false_alarm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One entry (or one false alarm, then `entry` is None) and what was said about it."""

    entry: str | None
    scenario: str
    outcome: Outcome
    verdict: str | None = None
    said: ComponentId | None = None
    said_class: FaultClass | None = None
    truth: ComponentId | None = None
    truth_class: FaultClass | None = None
    component_right: bool = False
    class_right: bool = False
    ranks_right: bool = False
    confidence: float = 0.0
    detect_s: float | None = None  # from injection to the first version that blames somebody
    right_s: float | None = None  # from injection to the first version that is right
    wrong_confidence: float = 0.0  # the highest with which anybody else was blamed, in any version

    @property
    def sure_and_wrong(self) -> bool:
        return self.wrong_confidence > SURE


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The sum of a run or of many."""

    entries: tuple[Scored, ...] = field(default_factory=tuple)

    def count(self, outcome: Outcome) -> int:
        return sum(1 for each in self.entries if each.outcome is outcome)

    @property
    def correct(self) -> bool:
        """Everything right, nobody else blamed."""
        return all(each.outcome is Outcome.RIGHT for each in self.entries)

    @property
    def detect_s_median(self) -> float | None:
        times = sorted(each.detect_s for each in self.entries if each.detect_s is not None)
        return times[len(times) // 2] if times else None

    @property
    def wrong_confidence_max(self) -> float:
        return max((each.wrong_confidence for each in self.entries), default=0.0)

    def plus(self, other: Score) -> Score:
        return Score(entries=(*self.entries, *other.entries))

    def as_dict(self) -> dict[str, Any]:
        return {
            "correct": self.correct,
            "counts": {outcome.value: self.count(outcome) for outcome in Outcome},
            "detect_s_median": self.detect_s_median,
            "wrong_confidence_max": self.wrong_confidence_max,
            "entries": [asdict(each) for each in self.entries],
        }

    def text(self) -> str:
        """A line an entry and a summary, for people."""
        lines = []
        for each in self.entries:
            took = f" after {each.detect_s:.1f} s" if each.detect_s is not None else ""
            said = (
                f"said {each.said or 'nobody'} ({each.said_class.value}, {each.confidence:.2f}){took}"
                if each.said_class
                else ""
            )
            truth = (
                f"truth {each.truth or 'nobody'} ({each.truth_class.value})" if each.truth_class else "nothing was broken"
            )
            lines.append(f"{each.outcome.value:<12} {each.scenario}: {truth}" + (f"; {said}" if said else ""))
        counts = ", ".join(f"{self.count(o)} {o.value}" for o in Outcome if self.count(o))
        median = f"; detected in {self.detect_s_median:.1f} s (median)" if self.detect_s_median is not None else ""
        return "\n".join([*lines, f"{len(self.entries)} scored: {counts or 'nothing'}{median}"])


def score(ledger: Iterable[LedgerEntry], verdicts: Iterable[Verdict]) -> Score:
    """Match and judge. Order of both does not matter. Verdicts about background entries are right and not counted."""
    given = sorted(ledger, key=lambda entry: (entry.injected_at, entry.id))
    entries = [entry for entry in given if not entry.background]
    background = [entry for entry in given if entry.background]
    chains = sorted(
        (chain for chain in _chains(verdicts) if not any(_is_background(each, chain) for each in background)),
        key=lambda chain: (chain[0].detected_at, chain[0].id),
    )
    mine: dict[int, list[list[Verdict]]] = {position: [] for position in range(len(entries))}
    strays = []
    for chain in chains:
        position = _belongs(entries, chain)
        if position is None:
            strays.append(chain)
        else:
            mine[position].append(chain)
    scored = [_judge(entry, mine[position]) for position, entry in enumerate(entries)]
    scored += [alarm for chain in strays if (alarm := _false_alarm(chain)) is not None]
    return Score(entries=tuple(scored))


def _chains(verdicts: Iterable[Verdict]) -> list[list[Verdict]]:
    """The versions of each incident in order, anew from where it came back."""
    found: list[list[Verdict]] = []
    for verdict in sorted(verdicts, key=lambda v: (v.id, v.version)):
        before = found[-1][-1] if found and found[-1][-1].id == verdict.id else None
        over = before is not None and before.state is VerdictState.RESOLVED
        if before is None or (over and verdict.state is not VerdictState.RESOLVED):
            found.append([verdict])
        else:
            found[-1].append(verdict)
    return found


def _belongs(entries: Sequence[LedgerEntry], chain: Sequence[Verdict]) -> int | None:
    """The position of the one entry that a chain is about, None where there is none. `entries` in the order of time."""
    about = [n for n, entry in enumerate(entries) if _about(entry, chain[0])]
    last = _last(chain)
    named = [n for n in about if _blames(last) and _names(entries[n], last.culprit.component)]
    candidates = named or about
    begun = [n for n in candidates if entries[n].injected_at <= chain[0].detected_at]
    return begun[-1] if begun else candidates[0] if candidates else None


def _last(chain: Sequence[Verdict]) -> Verdict:
    """The version that counts: the last that blames somebody, else the last that is no mere resolution."""
    standing = [v for v in chain if v.state is not VerdictState.RESOLVED] or chain
    return ([v for v in standing if _blames(v)] or standing)[-1]


def _about(entry: LedgerEntry, verdict: Verdict) -> bool:
    """Whether a chain that begins so can be about it: of its job, and in its time."""
    if verdict.job is None and entry.job is not None:
        if not _names(entry, verdict.culprit.component):
            return False  # hardware that failed where the job does not run
    elif entry.job is not None and entry.job != verdict.job:
        return False
    if verdict.detected_at < entry.injected_at - timedelta(seconds=BEFORE_S):
        return False
    return entry.cleared_at is None or verdict.detected_at <= entry.cleared_at + timedelta(seconds=AFTER_S)


def _is_background(entry: LedgerEntry, chain: Sequence[Verdict]) -> bool:
    """The whole chain is about no job of ours and names that component, at a time when it was broken."""
    return _about(entry, chain[0]) and all(
        verdict.job is None and _names(entry, verdict.culprit.component) for verdict in chain
    )


def _blames(verdict: Verdict) -> bool:
    return verdict.fault_class not in NOBODY and verdict.culprit.component is not None


def _names(entry: LedgerEntry, component: ComponentId | None) -> bool:
    return component is not None and component in (entry.component, *entry.also_right)


def _names_only(entry: LedgerEntry, verdict: Verdict) -> bool:
    """Every culprit that the verdict names is the one in the ledger: somebody innocent beside it is an error."""
    return all(_names(entry, culprit.component) for culprit in verdict.culprits or (verdict.culprit,))


def _ranks_right(entry: LedgerEntry, verdict: Verdict) -> bool:
    """The ranks that the culprit carries; a culprit without ranks of its own (a link) may list the rank it serves."""
    said = {rank for culprit in verdict.culprits or (verdict.culprit,) for rank in culprit.ranks}
    if entry.component is not None and ids.kind_of(entry.component) is ids.ComponentKind.RANK:
        return said == set(entry.ranks)
    return bool(said) and said >= set(entry.ranks) if entry.ranks else True


def _judge(entry: LedgerEntry, chains: Sequence[Sequence[Verdict]]) -> Scored:
    truth = {"entry": entry.id, "scenario": entry.scenario, "truth": entry.component, "truth_class": entry.fault_class}
    versions = [v for chain in chains for v in chain]
    standing = [v for v in versions if v.state is not VerdictState.RESOLVED] or versions
    blaming = [v for v in standing if _blames(v)]
    nobody_is_right = entry.component is None
    wrong = max((v.confidence for v in blaming if not _names_only(entry, v)), default=0.0)
    if not versions:
        outcome = Outcome.RIGHT if nobody_is_right else Outcome.MISSED
        return Scored(outcome=outcome, component_right=nobody_is_right, class_right=False, **truth)  # type: ignore[arg-type]

    def seconds(verdict: Verdict | None) -> float | None:
        return None if verdict is None else (verdict.detected_at - entry.injected_at).total_seconds()

    ends = [_last(chain) for chain in chains]
    astray = [v for v in ends if _blames(v) and not _names_only(entry, v)]
    last = (astray or [v for v in ends if _blames(v)] or ends)[-1]
    component_right = not blaming if nobody_is_right else _names_only(entry, last)
    class_right = last.fault_class is entry.fault_class or (nobody_is_right and last.fault_class in NOBODY)
    if nobody_is_right:
        outcome = Outcome.WRONG if blaming else Outcome.RIGHT
    elif not blaming:
        outcome = Outcome.ABSTAINED
    elif not component_right:
        outcome = Outcome.WRONG
    else:
        outcome = Outcome.RIGHT if class_right else Outcome.WRONG_CLASS
    right = [v for v in blaming if _names_only(entry, v)]
    return Scored(
        outcome=outcome,
        verdict=last.id,
        said=last.culprit.component,
        said_class=last.fault_class,
        component_right=component_right,
        class_right=class_right,
        ranks_right=_ranks_right(entry, last) if component_right else False,
        confidence=last.confidence,
        detect_s=seconds(blaming[0] if blaming else standing[0]),
        right_s=seconds(right[0]) if right else None,
        wrong_confidence=wrong,
        **truth,  # type: ignore[arg-type]
    )


def _false_alarm(chain: Sequence[Verdict]) -> Scored | None:
    """A chain that belongs to no entry: harmless when it never blamed anybody."""
    blaming = [v for v in chain if _blames(v)]
    if not blaming:
        return None
    last = blaming[-1]
    return Scored(
        entry=None,
        scenario="nothing injected",
        outcome=Outcome.FALSE_ALARM,
        verdict=last.id,
        said=last.culprit.component,
        said_class=last.fault_class,
        confidence=last.confidence,
        wrong_confidence=max(v.confidence for v in blaming),
    )
