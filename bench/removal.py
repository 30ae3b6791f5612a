"""Evidence taken away piece by piece: does confidence fall, and end in doubt rather than in another's name?

    python bench/removal.py [--split held_out|fit] [--count N] [--first N] [--loss SHARE] [--skew SECONDS] [--processes N]

Of each of `--count` incidents with one culprit, which the whole log names, what the verdict rests on is left out of the log:
one source of one host at a time (of many, a quarter), in an order drawn by seed, as if it had never been told (`Piece`: what
that source of that host tells under the names that the verdict cites). The rest is judged anew from its beginning by the
code of the live service, and so on, until nothing that is cited is left to take, or the culprit is neither named nor
suspected. Heartbeats of collectors and registrations of ranks stay: they say what can be seen, not what is wrong.

`confidence_by_share_removed` is the mean confidence in the right culprit (its probability as an alternative, where another
or nobody is named), by the share of pieces that are gone; `falls` whether it never rises. `wrong_names` lists each stage
that blames somebody else in the end, `wrong_at_first` those that corrected it in a later version. `ends` counts what is said
when nothing is left. Results: bench/results/removal.json (of the fit split: removal-fit.json).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from _report import Report

from goodput_common.bus.ports import Message
from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.telemetry import CollectorHeartbeat, TelemetryBatch
from goodput_common.contracts.verdict import Verdict, VerdictState
from goodput_correlator.domain.case import Observed, unpack
from goodput_correlator.domain.replay import replay
from goodput_faultlab.score import Outcome, Score, score
from goodput_faultlab.simulate.suite import Incident, Split, incident
from goodput_topology.graph import Fabric

STAGES_MAX = 24
AT_ONCE = 4  # of so many that are cited, one is taken away
GRID = 10  # steps of the share removed
RISE_MIN = 0.005  # of a mean: less is what rounding to three digits leaves
KEPT = (CollectorHeartbeat, RankRegistered)
NAMED = frozenset({Outcome.RIGHT, Outcome.WRONG_CLASS})
WRONG = frozenset({Outcome.WRONG, Outcome.FALSE_ALARM})
Asked = tuple[Split, int, float | None, float | None]


class Piece(NamedTuple):
    """What one source of one host tells under one name: the kind of fact for what agents and recorders say."""

    source: str
    host: str
    name: str


@dataclass(frozen=True, slots=True)
class Stage:
    """What is said when so many pieces are gone. `confidence`: in the right culprit."""

    removed: int
    outcome: str
    confidence: float
    said: str
    wrong_confidence: float  # of anybody else, in any version


@dataclass(frozen=True, slots=True)
class Story:
    """One incident, from the whole log to nothing."""

    number: int
    topology: str
    what: str
    stages: tuple[Stage, ...]
    spent: bool  # it ended for want of evidence, not of stages


def piece_of(seen: Observed) -> Piece:
    return Piece(seen.source, seen.host, str(getattr(seen.fact, "name", type(seen.fact).__name__)))


def without(log: Sequence[Message], gone: set[Piece]) -> Iterator[Message]:
    """The log as if these pieces had never been told."""
    for message in log:
        if isinstance(message.data, KEPT):
            yield message
            continue
        seen = unpack(message)
        left = [each for each in seen if piece_of(each) not in gone]
        if len(left) == len(seen):
            yield message
        elif left and isinstance(message.data, TelemetryBatch):
            samples = tuple(each.fact for each in left)
            yield msgspec.structs.replace(message, data=msgspec.structs.replace(message.data, samples=samples))


def cited(log: Sequence[Message], verdicts: Sequence[Verdict], gone: set[Piece]) -> dict[tuple[str, str], set[Piece]]:
    """What the verdicts rest on and can be taken away, by source and host."""
    ids = {each.event_id for verdict in verdicts for each in verdict.evidence}
    found: dict[tuple[str, str], set[Piece]] = {}
    for message in without(log, gone):
        if isinstance(message.data, KEPT):
            continue
        for each in unpack(message):
            if each.id in ids:
                piece = piece_of(each)
                found.setdefault((piece.source, piece.host), set()).add(piece)
    return found


def stage(removed: int, result: Score, verdicts: Sequence[Verdict], right: frozenset[str]) -> Stage:
    """The newest word on the incident, and how likely it makes the right culprit."""
    entry = next((each for each in result.entries if each.entry is not None), None)
    alarm = next((each for each in result.entries if each.outcome is Outcome.FALSE_ALARM), None)
    outcome = alarm.outcome if alarm is not None else entry.outcome if entry is not None else Outcome.MISSED
    told = alarm if alarm is not None else entry
    last = verdicts[-1] if verdicts else None
    likely = 0.0
    if entry is not None and entry.outcome in NAMED:
        likely = entry.confidence
    elif last is not None:
        likely = sum(each.confidence for each in last.alternatives if each.component in right)
    wrong = max((each.wrong_confidence for each in result.entries), default=0.0)
    said = f"{told.said or 'nobody'} ({told.said_class.value})" if told is not None and told.said_class else "nothing"
    return Stage(removed, outcome.value, round(likely, 3), said, round(wrong, 3))


def peel(given: Incident) -> Story | None:
    """None where there is not one culprit, or the whole log does not name it."""
    simulation = given.simulation()
    log = list(simulation.records(given.until))
    ledger = (*simulation.ledger, *simulation.background)
    if len(simulation.ledger) != 1 or simulation.ledger[0].component is None:
        return None
    truth = simulation.ledger[0]
    right = frozenset((str(truth.component), *truth.also_right))
    rng = random.Random(f"removal/{given.name}")
    gone: set[Piece] = set()
    stages: list[Stage] = []
    spent = False
    for removed in range(STAGES_MAX + 1):
        verdicts = judged(without(log, gone), given.spec.fabric, truth.job)
        stages.append(stage(removed, score(ledger, verdicts), verdicts, right))
        if removed == 0 and Outcome(stages[0].outcome) not in NAMED:
            return None
        about = [each for each in verdicts if suspects(each, right)]
        groups = cited(log, about, gone)
        if spent := not groups:
            break
        for group in rng.sample(sorted(groups), max(1, len(groups) // AT_ONCE)):
            gone |= groups[group]
    fault = given.spec.faults[0]
    return Story(given.number, given.topology, f"{fault.fault_class.value}/{fault.flavour}", tuple(stages), spent)


def judged(log: Iterator[Message], fabric: Fabric, job: str | None) -> list[Verdict]:
    """What is said of the job, resolutions left out: they claim nothing."""
    return [v for v in replay(log, fabric) if v.job == job and v.state is not VerdictState.RESOLVED]


def suspects(verdict: Verdict, right: frozenset[str]) -> bool:
    """Whether it speaks of the culprit: as such, or as one of those who may be."""
    named = {each.component for each in (*verdict.culprits, verdict.culprit)}
    return bool((named | {each.component for each in verdict.alternatives}) & right)


# ------------------------------------------------------------------------------------------------------------ figures


def course(stories: Sequence[Story]) -> list[float]:
    """Mean confidence in the right culprit at each tenth of what could be taken."""
    means = []
    for step in range(GRID + 1):
        at = [story.stages[step * (len(story.stages) - 1) // GRID].confidence for story in stories]
        means.append(round(sum(at) / max(1, len(at)), 4))
    return means


def figures(stories: Sequence[Story]) -> dict[str, Any]:
    means = course(stories)
    wrong = [(story, each) for story in stories for each in story.stages if Outcome(each.outcome) in WRONG]
    first = [
        (story, each) for story in stories for each in story.stages if each.wrong_confidence and (story, each) not in wrong
    ]
    return {
        "incidents": len(stories),
        "stages": sum(len(story.stages) for story in stories),
        "confidence_by_share_removed": {f"{step / GRID:.1f}": mean for step, mean in enumerate(means)},
        "falls": all(after <= before + RISE_MIN for before, after in pairwise(means)),
        "ends": dict(Counter(story.stages[-1].outcome for story in stories)),
        "spent": sum(story.spent for story in stories),
        "wrong_names": len(wrong),
        "wrong_names_listed": [told(*each) for each in wrong],
        "wrong_at_first": len(first),
        "wrong_at_first_listed": [told(*each) for each in first],
    }


def told(story: Story, each: Stage) -> str:
    return (
        f"{story.number:>6} {story.topology:<20} {story.what}: {each.removed} of {len(story.stages) - 1} gone,"
        f" {each.outcome}; said {each.said}, wrong with {each.wrong_confidence:.2f}"
    )


def by_class(stories: Sequence[Story]) -> dict[str, Any]:
    groups: dict[str, list[Story]] = {}
    for story in stories:
        groups.setdefault(story.what.partition("/")[0], []).append(story)
    return {name: {"n": len(some), "confidence": course(some)} for name, some in sorted(groups.items())}


def run_one(asked: Asked) -> Story | None:
    split, number, loss, skew_s = asked
    given = incident(split, number, loss=loss, skew_s=skew_s)
    return peel(given) if given.kind == "fault" else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=("held_out", "fit"), default="held_out")
    parser.add_argument("--count", type=int, default=200, help="incidents to draw; those with one culprit are used")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--loss", type=float, default=0.0, help="share of messages lost besides what is taken away")
    parser.add_argument("--skew", type=float, default=2.0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--results", type=Path, help="folder for the results; bench/results if not given")
    asked = parser.parse_args()
    report = Report("removal" if asked.split == "held_out" else "removal-fit", results=asked.results)
    numbers = range(asked.first, asked.first + asked.count)
    stories: list[Story] = []
    began_s = shown_s = time.monotonic()
    with multiprocessing.Pool(asked.processes) as pool:
        todo = [(asked.split, n, asked.loss, asked.skew) for n in numbers]
        for done, story in enumerate(pool.imap_unordered(run_one, todo), 1):
            stories += [story] if story is not None else []
            if time.monotonic() - shown_s > 10:
                shown_s = time.monotonic()
                print(f"{done} of {asked.count} incidents, {done / (shown_s - began_s):.2f} a second", flush=True)
    stories.sort(key=lambda story: story.number)
    found = figures(stories)
    report.add("removal", **found)
    report.add("by_class", **by_class(stories))
    report.add("asked", split=asked.split, first=asked.first, count=asked.count, loss=asked.loss, skew_s=asked.skew)
    report.write()
    raise SystemExit(
        0 if found["falls"] and not found["wrong_names"] else "confidence rises, or a wrong name was said: see above"
    )


if __name__ == "__main__":
    main()
