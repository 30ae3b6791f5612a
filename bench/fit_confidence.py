"""Counts how often verdicts are right, by the score of their evidence, and writes the correlator's table of confidence.

    python bench/fit_confidence.py --count N [--first N] [--rows FILE] [--processes N] [--results FOLDER] [--dry]
    python bench/fit_confidence.py [--rows FILE]        fit again from the rows that are there, in a second

Incidents of the fit split, under 10% of loss and clocks 2 s off, run through the code of the live service with the scores as
they are; the simulator's ledger says of each version of each verdict whether it names the right component (or rightly none).
These rows are written to `--rows` (bench/results/confidence-rows.csv) and the curves (`_confidence`) to the table that the
correlator reads, domain/calibration_table.py. The held-out split is never looked at.

How well such curves hold is measured on what they were not fitted on: one topology left out at a time, one kind of fault or
cascade at a time, and five parts at random. Of these, what was said and what was true by bin (expected calibration error,
Brier score), and by what the curves do not know: trouble, silent collectors, class of topology. `as_scored` is the same
without any curve. Results: bench/results/confidence.json.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

from _attribution import judge, reliability
from _confidence import COLUMNS, Row, by, fitted, held_out, rows_of, said
from _report import BENCH, ROOT, Report

from goodput_common.contracts.verdict import FaultClass, Verdict, VerdictState
from goodput_correlator.domain import ranking
from goodput_correlator.domain.calibration import Calibration, Grounds, Knots
from goodput_correlator.domain.finding import Diagnosis
from goodput_faultlab.score import score
from goodput_faultlab.simulate.suite import Incident, incident

ROWS = BENCH / "results" / "confidence-rows.csv"
TABLE = ROOT / "services/correlator/src/goodput_correlator/domain/calibration_table.py"
LOSS, SKEW_S = 0.10, 2.0
FOLDS = 5
BLAMING = ("decisive", "indirect")  # a job's; idle hardware is told apart from nothing and would only flatter
KEY = tuple[str | None, FaultClass, float]

_grounds: dict[KEY, Grounds] = {}


def remembering() -> None:
    """Let every diagnosis of this process leave its grounds, and let none be calibrated."""
    real = ranking.weigh

    def weigh(*args: Any) -> Diagnosis:
        found = real(*args)
        if found.grounds is not None:
            _grounds[_key(found.culprits[0].component if found.culprits else None, found)] = found.grounds
        return found

    vars(ranking).update(weigh=weigh, CALIBRATION=Calibration({}))


def _key(component: str | None, found: Diagnosis | Verdict) -> KEY:
    return component, found.fault_class, found.confidence


def rows_from(given: Incident) -> list[Row]:
    """A row for each version of each verdict that rests on evidence. A version is judged as if it were the last: somebody
    may act on it."""
    _grounds.clear()
    verdicts, _, simulation = judge(given)
    ledger = (*simulation.ledger, *simulation.background)
    standing = [each for each in verdicts if each.state is not VerdictState.RESOLVED]
    chains = [each.id for each in standing]
    what = given.kind if not given.spec.faults else given.spec.faults[0].cascade or given.spec.faults[0].fault_class.value
    rows = []
    for each in standing:
        grounds = _grounds.get(_key(each.culprit.component, each))
        if grounds is None:
            continue
        about = [entry for entry in score(ledger, [each]).entries if entry.verdict == each.id]
        rows.append(
            Row(
                incident=given.number,
                topology=given.topology,
                kind=what,
                way=grounds.way.value,
                trouble=grounds.trouble.value,
                raw=round(grounds.raw, 4),
                bound=round(grounds.bound, 4),
                silent=grounds.silent_share,
                unseen=grounds.unseen,
                share=round(1 / chains.count(each.id), 4),
                right=all(entry.component_right for entry in about),
            )
        )
    return rows


def run_one(number: int) -> list[Row]:
    return rows_from(incident("fit", number, loss=LOSS, skew_s=SKEW_S))


def gather(first: int, count: int, processes: int) -> list[Row]:
    rows: list[Row] = []
    began_s = shown_s = time.monotonic()
    with multiprocessing.Pool(processes, initializer=remembering) as pool:
        for done, some in enumerate(pool.imap_unordered(run_one, range(first, first + count), chunksize=4), 1):
            rows += some
            if time.monotonic() - shown_s > 10:
                shown_s = time.monotonic()
                print(f"{done} of {count} incidents, {done / (shown_s - began_s):.1f} a second", flush=True)
    return sorted(rows, key=lambda row: (row.incident, row.text()))


def written(rows: list[Row], first: int, count: int) -> str:
    """The file of rows. Its first line says what it was made from."""
    head = f"# split fit, incidents {first} to {first + count - 1}, loss {LOSS}, skew {SKEW_S} s"
    return "\n".join([head, ",".join(COLUMNS), *(row.text() for row in rows), ""])


def table(curves: dict[str, Knots], source: str, rows: int) -> str:
    """The module that the correlator reads."""
    lines = [
        '"""How often verdicts were right, by the score of their evidence. Made by bench/fit_confidence.py: do not edit.',
        "",
        f"From: {source}: {rows} versions of verdicts.",
        "Knots are (score, probability); `calibration` says what the curves are of.",
        '"""',
        "",
        "CURVES: dict[str, tuple[tuple[float, float], ...]] = {",
    ]
    for name, knots in sorted(curves.items()):
        lines += [f'    "{name}": (', *(f"        ({x}, {y})," for x, y in knots), "    ),"]
    return "\n".join([*lines, "}", ""])


def shown(rows: list[Row], report: Report) -> None:
    report.add("as_scored", **reliability(said(rows, Calibration({}))))
    report.add("as_fitted", **reliability(said(rows, Calibration(fitted(rows)))))
    for name, fold in {
        "without_its_topology": lambda row: row.topology,
        "without_its_kind": lambda row: row.kind,
        "in_five_parts": lambda row: row.incident % FOLDS,
    }.items():
        held = held_out(rows, fold)
        blaming = [each for row, each in held if row.way in BLAMING]
        report.add(name, all=reliability(each for _, each in held), blaming=reliability(blaming))
    held = held_out(rows, lambda row: row.topology)
    report.add("by_way", **by(held, lambda row: row.way))
    report.add("by_trouble", **by(held, lambda row: row.trouble))
    report.add("by_silent_collectors", **by(held, lambda row: row.silent > 0))
    report.add("by_unseen_sources", **by(held, lambda row: row.unseen > 0))
    report.add("by_topology", **by(held, lambda row: row.topology))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=0, help="incidents to run; 0: fit from the rows that are there")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--results", type=Path, help="folder for the results; bench/results if not given")
    parser.add_argument("--dry", action="store_true", help="leave the correlator's table as it is")
    asked = parser.parse_args()
    report = Report("confidence", results=asked.results)
    if asked.count:
        rows = gather(asked.first, asked.count, asked.processes)
        asked.rows.parent.mkdir(parents=True, exist_ok=True)
        asked.rows.write_text(written(rows, asked.first, asked.count))
    try:
        lines = asked.rows.read_text().splitlines()
    except OSError as error:
        raise SystemExit(f"{asked.rows}: {error.strerror}; run this with --count N first") from error
    rows = rows_of(lines, str(asked.rows))
    source = lines[0].lstrip("# ") if lines else ""
    if not rows:
        raise SystemExit(f"{asked.rows}: no rows in it; run this with --count N")
    curves = fitted(rows)
    shown(rows, report)
    report.add("curves", source=source, rows=len(rows), **{name: list(knots) for name, knots in curves.items()})
    if not asked.dry:
        TABLE.write_text(table(curves, source, len(rows)))
        print(f"wrote {os.path.relpath(TABLE)}")
    report.write()


if __name__ == "__main__":
    main()
