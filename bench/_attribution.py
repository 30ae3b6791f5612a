"""One simulated incident judged: by the live service's code, then against the simulator's ledger and the evidence checker.

Shared by what measures verdicts over many incidents (attribution.py, fit_confidence.py, mutations.py, removal.py), so that
all of them mean the same by *right*, *cited*, *supported* and *calibrated*.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from goodput_common.contracts.verdict import FaultClass, Verdict, VerdictState
from goodput_correlator.domain.case import MessageLike, Observed, unpack
from goodput_correlator.domain.clues import describe
from goodput_correlator.domain.replay import replay
from goodput_faultlab.evidence import Checker
from goodput_faultlab.score import NOBODY, Outcome, Scored, score
from goodput_faultlab.simulate.suite import Incident, Split, incident

Asked = tuple[Split, int, float | None, float | None]  # split, number, share of lost messages, largest error of a clock in s
SURE = 0.9
BINS = 10


@dataclass(frozen=True, slots=True)
class Judged:
    """One entry of one incident's ledger (or a false alarm) and what was said about it."""

    number: int
    kind: str
    topology: str
    what: str  # class/flavour of what was injected, or the cascade
    severity: float
    scored: Scored
    cited: int
    unfounded: tuple[str, ...]
    versions: int = 0  # of all verdicts, that claim anything
    sound: int = 0  # of these, whose evidence is in the log and supports the claim
    unsupported: tuple[str, ...] = ()


def judge(given: Incident) -> tuple[list[Verdict], dict[str, Observed], Any]:
    """(all versions of all verdicts, what was delivered by evidence id, the simulation)."""
    simulation = given.simulation()
    facts: dict[str, Observed] = {}

    def delivered() -> Iterator[MessageLike]:
        for message in simulation.records(given.until):
            for each in unpack(message):
                facts.setdefault(each.id, each)
            yield message

    return replay(delivered(), given.spec.fabric), facts, simulation


def unfounded(verdicts: Iterable[Verdict], facts: dict[str, Observed]) -> tuple[int, tuple[str, ...]]:
    """(evidence cited, what of it is not in the log as it is cited)."""
    cited, wrong = 0, []
    for verdict in verdicts:
        for each in verdict.evidence:
            cited += 1
            fact = facts.get(each.event_id)
            if fact is None:
                wrong.append(f"{each.event_id} is not in the log")
            elif each.observed_at != fact.observed_at:
                wrong.append(f"{each.event_id} was observed at {fact.observed_at}, not {each.observed_at}")
            elif each.excerpt not in describe(fact) and not _of_recorder(fact):
                wrong.append(f"{each.event_id} says {describe(fact)!r}, not {each.excerpt!r}")
    return cited, tuple(wrong)


def _of_recorder(fact: Observed) -> bool:
    """Of dumps and reports the few counts that matter are cited, not the whole."""
    return fact.source in ("flight_recorder", "agent")


def run_one(asked: Asked) -> list[Judged]:
    split, number, loss, skew_s = asked
    given = incident(split, number, loss=loss, skew_s=skew_s)
    verdicts, facts, simulation = judge(given)
    checker = Checker(given.spec.fabric, facts.values())
    claiming = [verdict for verdict in verdicts if verdict.state is not VerdictState.RESOLVED]
    cited, wrong = unfounded(claiming, facts)
    unsupported = {(each.id, each.version): checker.check(each) for each in claiming}
    unsound = sum(1 for each in claiming if unfounded([each], facts)[1] or unsupported[each.id, each.version])
    found = score((*simulation.ledger, *simulation.background), verdicts)
    faults = given.spec.faults
    what = "+".join(f"{fault.fault_class.value}/{fault.flavour}" for fault in faults) or "healthy"
    severity = max((fault.severity for fault in faults if fault.severity is not None), default=0.0)
    entries = found.entries or (Scored(entry="none", scenario=given.name, outcome=Outcome.RIGHT, component_right=True),)
    first = Judged(
        number, given.kind, given.topology, what, severity, entries[0], cited, wrong,
        versions=len(claiming),
        sound=len(claiming) - unsound,
        unsupported=tuple(f"{given.name}: {each}" for some in unsupported.values() for each in some),
    )  # fmt: skip
    return [first, *(Judged(number, given.kind, given.topology, what, severity, each, 0, ()) for each in entries[1:])]


# ------------------------------------------------------------------------------------------- is it a probability?


class Said(NamedTuple):
    """How sure a verdict was and whether it was right; `weight` as much as it counts."""

    confidence: float
    right: bool
    weight: float = 1.0


def reliability(some: Iterable[Said]) -> dict[str, Any]:
    """What was said and what was true, in all and in ten bins. `ece`, the expected calibration error, is the mean distance
    between the two, weighted by how often it was said; `brier` the mean square of what was said of what was not so."""
    bins: dict[int, list[Said]] = defaultdict(list)
    for each in some:
        bins[min(BINS - 1, int(each.confidence * BINS))].append(each)
    every = [each for inside in bins.values() for each in inside]
    total = sum(each.weight for each in every)
    if not total:
        return {"n": 0, "said": 0.0, "right": 0.0, "ece": 0.0, "brier": 0.0, "bins": {}}
    table, off = {}, 0.0
    for n, inside in sorted(bins.items()):
        said, right = _mean(inside), _mean(each._replace(confidence=float(each.right)) for each in inside)
        off += abs(said - right) * sum(each.weight for each in inside)
        table[f"{n / BINS:.1f}"] = {"n": len(inside), "said": round(said, 4), "right": round(right, 4)}
    return {
        "n": len(every),
        "said": round(_mean(every), 4),
        "right": round(_mean(each._replace(confidence=float(each.right)) for each in every), 4),
        "ece": round(off / total, 4),
        "brier": round(_mean(each._replace(confidence=(each.confidence - each.right) ** 2) for each in every), 4),
        "bins": table,
    }


def _mean(some: Iterable[Said]) -> float:
    each = list(some)
    return sum(one.confidence * one.weight for one in each) / (sum(one.weight for one in each) or 1.0)


def said_of(judged: Iterable[Judged]) -> list[Said]:
    return [Said(each.scored.confidence, each.scored.component_right) for each in judged]


def calibrations(judged: list[Judged]) -> dict[str, dict[str, Any]]:
    """Of those who blame somebody; of cascades among them; and of those who say that nobody is to blame."""
    blamed = [each for each in judged if each.scored.said_class not in (None, *NOBODY)]
    return {
        "blaming": reliability(said_of(blamed)),
        "cascades": reliability(said_of(each for each in blamed if each.kind == "cascade")),
        "no_hardware_fault": reliability(said_of(j for j in judged if j.scored.said_class is FaultClass.NO_HARDWARE_FAULT)),
        "undetermined": reliability(said_of(j for j in judged if j.scored.said_class is FaultClass.UNDETERMINED)),
    }


# ------------------------------------------------------------------------------------------- figures


def figures(judged: list[Judged]) -> dict[str, dict[str, Any]]:
    faulty = [each for each in judged if each.scored.entry is not None and each.kind != "healthy"]
    blamed = [each for each in judged if each.scored.said_class not in (None, *NOBODY)]
    sure = [each for each in blamed if each.scored.confidence >= SURE]
    culprits = [each for each in faulty if each.scored.truth is not None]
    cascades = [each for each in culprits if each.kind == "cascade"]
    cited = sum(each.cited for each in judged)
    lost = [text for each in judged for text in each.unfounded]
    unsupported = [text for each in judged for text in each.unsupported]
    versions = sum(each.versions for each in judged)
    return {
        "all": {
            "incidents": len({each.number for each in judged}),
            "faults": len(faulty),
            "culprit_right": _share(each.scored.component_right for each in faulty),
            "class_right": _share(each.scored.class_right for each in faulty),
            "precision_when_sure": _share(each.scored.component_right for each in sure),
            "sure": len(sure),
            "recall": _share(each.scored.outcome not in (Outcome.MISSED, Outcome.ABSTAINED) for each in culprits),
            "cascades_culprit_right": _share(each.scored.component_right for each in cascades),
            "calibration_error": reliability(said_of(blamed))["ece"],
            "false_alarms": sum(each.scored.outcome is Outcome.FALSE_ALARM for each in judged),
            "false_alarms_sure": sum(
                each.scored.outcome is Outcome.FALSE_ALARM and each.scored.confidence >= 0.7 for each in judged
            ),
        },
        "evidence": {
            "cited": cited,
            "unfounded": len(lost),
            "such_as": lost[:5],
            "unsupported": len(unsupported),
            "supported_share": round(1 - (len(unsupported) + len(lost)) / max(1, cited), 5),
            "verdict_versions": versions,
            "sound_share": round(sum(each.sound for each in judged) / max(1, versions), 5),
        },
        "detect_s": _quantiles([s for each in culprits if (s := each.scored.right_s) is not None]),
        "outcomes": dict(Counter(each.scored.outcome.value for each in judged)),
    }


def by_class(judged: list[Judged]) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[Judged]] = defaultdict(list)
    for each in judged:
        if each.kind == "cascade":
            groups[f"cascade {each.what}"].append(each)
        else:
            groups[each.scored.truth_class.value if each.scored.truth_class is not None else "healthy"].append(each)
    return {
        name: {
            "n": len(some),
            "culprit_right": _share(each.scored.component_right for each in some),
            "class_right": _share(each.scored.class_right for each in some),
            "outcomes": dict(Counter(each.scored.outcome.value for each in some)),
        }
        for name, some in sorted(groups.items())
    }


def per_class(judged: list[Judged]) -> dict[str, dict[str, Any]]:
    """Precision: of the verdicts that say this class, how many have it right. Recall: of the faults of this class, of how
    many it was said. The component may be wrong in both: that is told by `by_class`."""
    pairs = [(each.scored.said_class, each.scored.truth_class) for each in judged if each.kind != "healthy"]
    return {
        fault_class.value: {
            "said": (said := sum(one is fault_class for one, _ in pairs)),
            "true": (true := sum(other is fault_class for _, other in pairs)),
            "precision": round((both := sum(one is other is fault_class for one, other in pairs)) / max(1, said), 4),
            "recall": round(both / max(1, true), 4),
        }
        for fault_class in FaultClass
        if any(fault_class in pair for pair in pairs)
    }


def _share(true: Iterable[bool]) -> float:
    values = list(true)
    return round(sum(values) / len(values), 4) if values else 0.0


def _quantiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    return {name: round(ordered[int(q * (len(ordered) - 1))], 2) for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}


def miss(each: Judged) -> str:
    scored = each.scored
    said = f"{scored.said} ({scored.said_class.value}, {scored.confidence:.2f})" if scored.said_class else "nothing"
    truth = f"{scored.truth} ({scored.truth_class.value})" if scored.truth_class else "nothing broken"
    where = f"{each.number:>6} {each.topology:<20} {each.what} severity {each.severity:.2f}"
    return f"{where}: {scored.outcome.value}; {truth}; said {said}"
