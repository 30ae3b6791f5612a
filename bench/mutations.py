"""Does the suite notice when a rule of an engine is broken? Each of some forty mutations has to be caught.

    python bench/mutations.py [--only NAME ...] [--most N] [--processes N] [--results FOLDER]

Every mutation (`_mutations`) is applied in a process of its own, by patching, and run against a few incidents of the fit
split that its rule is about: the first of their kind, with 2% of messages lost and clocks 2 s off. The same incidents are
run without it. It is *caught* if they are worth fewer points then (2 for culprit and class right, 1 for the culprit alone,
2 for a healthy stretch without blame; -1 for anybody else blamed with certainty, -2 for a false alarm), or if one of its
unit expectations breaks, which is asked for only where the points are no fewer. Expectations that fail without any mutation
are listed and not asked. Results: bench/results/mutations.json; exit code 1 if a mutation survives or no longer applies.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _attribution import judge
from _mutations import MUTATIONS, Mutation, wanted
from _report import ROOT, Report

from goodput_faultlab.score import Outcome, Score, score
from goodput_faultlab.simulate.suite import Incident, incident

LOSS, SKEW_S = 0.02, 2.0
SEARCH_MAX = 4_000
BY_NAME = {each.name: each for each in MUTATIONS}


@dataclass(frozen=True, slots=True)
class Run:
    """What one mutation, or none, came to. `raised`: it could not be applied, or an engine failed under it."""

    points: dict[int, int]
    broken: tuple[str, ...] = ()
    raised: str = ""


def given(number: int) -> Incident:
    return incident("fit", number, loss=LOSS, skew_s=SKEW_S)


def chosen(mutations: Iterable[Mutation], at_most: int) -> dict[str, list[int]]:
    """The first incidents of each kind that is asked for, as many as are asked for at most."""
    most: dict[str, int] = {}
    for mutation in mutations:
        for want, count in mutation.of.items():
            most[want] = max(min(count, at_most), most.get(want, 0))
    found: dict[str, list[int]] = {want: [] for want in most}
    for number in range(SEARCH_MAX):
        if all(len(found[want]) == count for want, count in most.items()):
            return found
        each = given(number)
        first = each.spec.faults[0] if each.spec.faults else None
        fault = None if first is None else (first.fault_class.value, first.flavour, first.cascade)
        look_alikes = frozenset(benign.kind for benign in each.spec.benign)
        for want, count in most.items():
            if len(found[want]) < count and wanted(want, each.kind, fault, look_alikes):
                found[want].append(number)
    short = ", ".join(want for want, count in most.items() if len(found[want]) < count)
    raise SystemExit(f"fewer incidents than asked for among the first {SEARCH_MAX}: {short}. Mend `of` in _mutations.py")


def points_of(found: Score) -> int:
    """What was said of one incident is worth this much."""
    points = 2 if not found.entries else 0
    for each in found.entries:
        if each.outcome is Outcome.FALSE_ALARM:
            points -= 2
            continue
        points += 2 if each.outcome is Outcome.RIGHT else 1 if each.component_right else 0
        points -= each.sure_and_wrong
    return points


def points(number: int) -> int:
    each = given(number)
    verdicts, _, simulation = judge(each)
    return points_of(score((*simulation.ledger, *simulation.background), verdicts))


def baseline(number: int) -> tuple[int, int]:
    return number, points(number)


def expectations(tests: Sequence[str]) -> tuple[str, ...]:
    """Those files among `tests` that do not pass in this process."""
    os.chdir(ROOT)
    broken = []
    for each in tests:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", each])
        if code != pytest.ExitCode.OK:
            broken.append(each)
    return tuple(broken)


def mutated(asked: tuple[str, dict[int, int], tuple[str, ...]]) -> tuple[str, Run]:
    """In a process that nothing else will use: patch, then judge."""
    name, before, tests = asked
    mutation = BY_NAME[name]
    try:
        mutation.patch()
        after = {number: points(number) for number in before}
    except Exception as error:  # noqa: BLE001 - whatever an engine does when it is broken is a result
        return name, Run({}, raised=f"{type(error).__name__}: {error}")
    if sum(after.values()) < sum(before.values()):
        return name, Run(after)
    return name, Run(after, broken=expectations(tests))


def row(mutation: Mutation, before: dict[int, int], run: Run) -> dict[str, Any]:
    worse = [number for number, value in run.points.items() if value < before[number]]
    return {
        "what": mutation.what,
        "caught": caught(before, run),
        "points": sum(before.values()),
        "points_mutated": sum(run.points.values()),
        "incidents": len(before),
        "worse": worse,
        "expectations_broken": list(run.broken),
        "raised": run.raised,
    }


def caught(before: dict[int, int], run: Run) -> bool:
    if run.raised:
        return False  # a mutation that cannot run shows nothing
    return sum(run.points.values()) < sum(before.values()) or bool(run.broken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(BY_NAME), help="these mutations and no others")
    parser.add_argument("--most", type=int, default=12, help="incidents of one kind a mutation: fewer show less")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--results", type=Path, help="folder for the results; bench/results if not given")
    asked = parser.parse_args()
    mutations = [each for each in MUTATIONS if not asked.only or each.name in asked.only]
    report = Report("mutations", packages=("pytest",), results=asked.results)
    began_s = time.monotonic()
    numbers = chosen(mutations, asked.most)
    mine = {
        each.name: sorted({n for want, count in each.of.items() for n in numbers[want][: min(count, asked.most)]})
        for each in mutations
    }
    tests = sorted({test for each in mutations for test in each.tests})
    with multiprocessing.Pool(asked.processes, maxtasksperchild=1) as pool:
        broken = pool.apply_async(expectations, (tests,))
        everything = sorted({n for some in mine.values() for n in some})
        before = dict(pool.imap_unordered(baseline, everything, chunksize=1))
        failing = broken.get()
        report.add("unmutated", incidents=len(before), points=sum(before.values()), failing_expectations=list(failing))
        todo = [
            (each.name, {n: before[n] for n in mine[each.name]}, tuple(t for t in each.tests if t not in failing))
            for each in mutations
        ]
        rows: dict[str, dict[str, Any]] = {}
        for name, run in pool.imap_unordered(mutated, todo):
            rows[name] = row(BY_NAME[name], {n: before[n] for n in mine[name]}, run)
            report.add(name, **rows[name])
    survived = [name for name, each in rows.items() if not each["caught"]]
    report.add(
        "mutations",
        applied=len(rows),
        caught=len(rows) - len(survived),
        by_incidents=sum(each["points_mutated"] < each["points"] and not each["raised"] for each in rows.values()),
        survived=sorted(survived),
        wall_s=round(time.monotonic() - began_s, 1),
    )
    report.write()
    raise SystemExit(f"not caught: {', '.join(sorted(survived))}" if survived else 0)


if __name__ == "__main__":
    main()
