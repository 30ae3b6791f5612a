"""Who is blamed, how surely and how fast, over thousands of simulated incidents that nothing was fitted to.

    python bench/attribution.py [--split held_out|fit] [--count N] [--first N] [--loss SHARE] [--skew SECONDS] [--show N]

Each incident runs through the very code of the live service; the simulator's ledger judges. Figures: culprit right (of all
incidents with a fault; nobody, where that is the truth), class right, precision of verdicts with confidence of 0.9 and more,
recall (somebody was named), cascades by themselves, evidence that is cited and can be found and supports the claim, in every
version of every verdict (`goodput_faultlab.evidence`). How far confidence is a probability: expected calibration error and
what was said and true in ten bins, Brier score, of all verdicts that blame somebody, of cascades, and of those that blame
nobody. Precision and recall of each fault class. `--show` lists misses.
Results: bench/results/attribution.json (of the fit split: attribution-fit.json).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from pathlib import Path

from _attribution import Judged, by_class, calibrations, figures, miss, per_class, run_one
from _report import Report

from goodput_faultlab.score import Outcome

UNSUPPORTED_LISTED = 500


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
    report.add("calibration", **calibrations(judged))
    report.add("classes", **per_class(judged))
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
