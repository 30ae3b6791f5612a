"""How long it takes to name the culprit from the flight recorders of 512 ranks, and from the live state of a 512-rank job.

Dumps are those of a simulated hang (`goodput_faultlab.hangs`): 512 ranks, tensor 8 x pipeline 8 x data 8, hosts that run
ahead of their GPUs by up to 30 operations, one rank stuck. They are written as torch would write them (pickle), and read
back through the restricted reader. Live: the state after a stall of the simulated 512-rank job, judged once a second. All
of it is one thread; CPU time is what it costs, wall time (on whatever else the machine does) stands beside it.

    python bench/bench_diagnose.py [--runs 5]
"""

from __future__ import annotations

import argparse
import pickle
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from _report import Report, summary

from goodput_common.contracts.verdict import Verdict
from goodput_common.flight_recorder import read_dump
from goodput_correlator.domain.blame import analysis
from goodput_correlator.domain.case import Case, Observed, ordered, unpack
from goodput_correlator.domain.incidents import Incidents
from goodput_correlator.domain.offline import diagnose_facts
from goodput_faultlab.hangs import Break, Fault, Layout, simulate
from goodput_faultlab.simulate import Simulation, scenario
from goodput_topology.graph import Fabric

NOW = datetime(2026, 3, 2, tzinfo=UTC)
CULPRIT = 300


def write_dumps(folder: Path) -> int:
    """512 dumps. Returns their size in bytes."""
    layout = Layout(tensor=8, pipeline=8, data=8, microbatches=8, layers=3, steps=2)
    hang = simulate(layout, [Fault(rank=CULPRIT, kind=Break.HOST, at=70)], ahead=30)
    assert hang.culprits == {CULPRIT}
    size = 0
    for rank in range(layout.world):
        data = pickle.dumps(hang.raw(rank), protocol=2)
        (folder / f"rank_{rank}").write_bytes(data)
        size += len(data)
    return size


def read_all(folder: Path) -> list[Observed]:
    found = []
    for file in sorted(folder.iterdir()):
        rank = int(file.name.partition("_")[2])
        dump = read_dump(file.read_bytes(), fabric="f", job="j", rank=rank, host="", origin=file.name)
        found.append(Observed(file.name, "", "flight_recorder", dump.at, dump.at, dump))
    return found


def files(report: Report, runs: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        size = write_dumps(folder)
        entries = 0
        wall_s, parse_s, decide_s, engine_s = [], [], [], []
        for _ in range(runs):
            wall, began = time.perf_counter(), time.process_time()
            facts = read_all(folder)
            parsed = time.process_time()
            verdicts = diagnose_facts(facts, now=NOW)
            decided = time.process_time()
            wall_s.append(time.perf_counter() - wall)
            right(verdicts)
            case = Case(now=NOW, fabric="f", job="j", observed=ordered(facts), topology=Fabric.empty("f"), offline=True)
            began_engine = time.process_time()
            analysis(case)
            engine_s.append(time.process_time() - began_engine)
            parse_s.append(parsed - began)
            decide_s.append(decided - parsed)
            entries = sum(len(each.fact.collectives) for each in facts)  # type: ignore[union-attr]
    both = [a + b for a, b in zip(parse_s, decide_s, strict=True)]
    size_of = {"dumps": 512, "bytes": size, "open_operations": entries}
    report.add("512 dumps, files to verdict, wall", **summary(wall_s, "s"), **size_of)
    report.add("512 dumps, files to verdict", **summary(both, "cpu_s"))
    report.add("512 dumps, parse", **summary(parse_s, "cpu_s"))
    report.add("512 dumps, decide", **summary(decide_s, "cpu_s"))
    report.add("512 dumps, who waits for whom", **summary(engine_s, "cpu_s"))


def right(verdicts: list[Verdict]) -> None:
    named = [culprit.component for verdict in verdicts for culprit in verdict.culprits]
    if named != [f"rank:j/{CULPRIT}"]:
        raise SystemExit(f"wrong: {named}")


def live(report: Report, name: str) -> None:
    spec = scenario(name, hosts=64)
    simulation = Simulation(spec, 1)
    until = spec.start + timedelta(seconds=35)
    incidents = Incidents(spec.fabric)
    messages = 0
    for record in simulation.records(until):
        messages += 1
        for each in unpack(record):
            incidents.observe(each)
    healthy_s, stalled_s = [], []
    verdicts: list[Verdict] = []
    for second in range(35):
        began = time.process_time()
        verdicts += incidents.tick(spec.start + timedelta(seconds=second))
        took = time.process_time() - began
        if second > 5 and not verdicts:
            healthy_s.append(took)
        elif verdicts:
            stalled_s.append(took)
    culprit = next((v.culprit.component for v in verdicts if v.job), None)
    if culprit != simulation.ledger[0].component:
        raise SystemExit(f"wrong: {culprit}, not {simulation.ledger[0].component}")
    first = next(v for v in verdicts if v.job)
    delay_s = (first.published_at - simulation.ledger[0].injected_at).total_seconds()
    report.add(f"live, {name}: a second without a fault", **summary(healthy_s, "cpu_s"), messages_per_s=messages / 35)
    report.add(f"live, {name}: a second of an open incident", **summary(stalled_s, "cpu_s"))
    report.add(f"live, {name}: injection to verdict, simulated time", delay_s=delay_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    report = Report("diagnose", packages=("goodput-correlator", "msgspec"))
    files(report, arguments.runs)
    for name in ("dead-link", "gil-held"):
        live(report, name)
    report.write()


if __name__ == "__main__":
    main()
