"""One simulated incident judged: by the live service's code, then against the simulator's ledger and the evidence checker.

Shared by what measures verdicts over many incidents (attribution.py, mutations.py), so that all of them mean the same by
*right*, *cited* and *supported*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from goodput_common.contracts.verdict import Verdict, VerdictState
from goodput_correlator.domain.case import MessageLike, Observed, unpack
from goodput_correlator.domain.clues import describe
from goodput_correlator.domain.replay import replay
from goodput_faultlab.evidence import Checker
from goodput_faultlab.score import Outcome, Scored, score
from goodput_faultlab.simulate.suite import Incident, Split, incident

Asked = tuple[Split, int, float | None, float | None]  # split, number, share of lost messages, largest error of a clock in s


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
