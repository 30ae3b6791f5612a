"""Who is blamed, how surely and how fast, over thousands of simulated incidents that nothing was fitted to.

    python bench/attribution.py [--split held_out|fit] [--count N] [--first N] [--loss SHARE] [--skew SECONDS] [--show N]

Each incident runs through the very code of the live service; the simulator's ledger judges. Figures: culprit right (of all
incidents with a fault; nobody, where that is the truth), class right, precision of verdicts with confidence of 0.9 and more,
recall (somebody was named), cascades by themselves, expected calibration error in ten bins, evidence that is cited and can
be found and supports the claim, in every version of every verdict (`goodput_faultlab.evidence`). `--show` lists misses.
Results: bench/results/attribution.json (of the fit split: attribution-fit.json).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from _attribution import Judged, run_one
from _report import Report

from goodput_faultlab.score import NOBODY, Outcome

SURE = 0.9
BINS = 10
UNSUPPORTED_LISTED = 500


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
            "calibration_error": calibration_error(blamed),
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


def calibration_error(blamed: list[Judged]) -> float:
    """The mean distance between what was said and what was true, weighted by how often it was said."""
    bins: dict[int, list[Judged]] = defaultdict(list)
    for each in blamed:
        bins[min(BINS - 1, int(each.scored.confidence * BINS))].append(each)
    off = 0.0
    for some in bins.values():
        said = sum(each.scored.confidence for each in some) / len(some)
        off += abs(said - _share(each.scored.component_right for each in some)) * len(some)
    return round(off / max(1, len(blamed)), 4)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=("held_out", "fit"), default="held_out")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--loss", type=float, default=0.10)
    parser.add_argument("--skew", type=float, default=2.0)
    parser.add_argument("--drawn", action="store_true", help="loss and skew as the suite draws them")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--show", type=int, default=40, help="how many misses to list")
    parser.add_argument("--results", type=Path, help="folder for the results; bench/results if not given")
    arguments = parser.parse_args()
    name = "attribution" if arguments.split == "held_out" else "attribution-fit"
    report = Report(name, results=arguments.results)
    loss, skew_s = (None, None) if arguments.drawn else (arguments.loss, arguments.skew)
    asked = [(arguments.split, n, loss, skew_s) for n in range(arguments.first, arguments.first + arguments.count)]
    judged: list[Judged] = []
    began_s = shown_s = time.monotonic()
    with multiprocessing.Pool(arguments.processes) as pool:
        for done, some in enumerate(pool.imap_unordered(run_one, asked, chunksize=4), 1):
            judged += some
            if time.monotonic() - shown_s > 10:
                shown_s = time.monotonic()
                print(f"{done} of {len(asked)} incidents, {done / (shown_s - began_s):.1f} a second", flush=True)
    judged.sort(key=lambda each: (each.number, each.scored.entry or ""))
    for name, values in figures(judged).items():
        report.add(name, **values)
    report.add("by_class", **by_class(judged))
    wrong = [each for each in judged if each.scored.outcome is not Outcome.RIGHT]
    report.add("misses", listed=[miss(each) for each in wrong])
    unsupported = [text for each in judged for text in each.unsupported]
    report.add("unsupported_evidence", listed=unsupported[:UNSUPPORTED_LISTED])
    report.add("asked", split=arguments.split, first=arguments.first, count=arguments.count, loss=loss, skew_s=skew_s)
    for each in wrong[: arguments.show]:
        print(miss(each))
    report.write()


if __name__ == "__main__":
    main()
