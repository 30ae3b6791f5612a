"""Flight-recorder analysis beside torchfrtrace of the installed torch: who names whom, and what it costs at scale.

1. The labelled public traces (16 real ranks, two culprits each; `fault_injection.log` of each folder is the truth): truth,
   what NVIDIA's own tool says (its stored reference outputs), torchfrtrace, ours. Then with each dump deleted in turn, for
   both tools; torchfrtrace also with --allow-incomplete-ranks. Traces of the set that are not at hand are listed as absent.
2. The same for four real gloo ranks of which one never joins.
3. Synthetic dumps (`_megatron`: tensor x pipeline x data parallel, full buffers of 2,000 entries, one rank that stops):
   wall time, CPU time and peak memory (all processes of a tool together), for torchfrtrace on growing jobs until it passes a
   limit of CPU time or memory, for ours on the same and on 4,096 ranks in any case. Peak memory is polled every 0.2 s from
   the resident sizes. Both tools get the same dumps; reading them from disk is in the page cache's hands.

torchfrtrace prints sets of "missing ranks" and "Culprit rank"s, one a message; what it names is taken to be their union. It
is run as it is meant to be, with the folder and the prefix of the files. Ours names the culprits of its verdicts; what it
says with a confidence of 0.5 or less (a suspect, shown as such) is listed apart.

    python bench/flight_recorder.py [--part table|scale] [--data ../shared/data] [--limit-s 900] [--limit-gib 10]

Needs torch, the CPU build is enough: uv pip install torch
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from _megatron import job
from _report import ROOT, Report

from goodput_common.contracts.job import FlightRecorderDump
from goodput_common.flight_recorder.many import read_many
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.offline import diagnose_facts

NOW = datetime(2026, 3, 2, tzinfo=UTC)
DOUBTFUL = 0.5
PROGRESS_S = 5.0
TORCH_SIZES = (512, 1024, 2048, 4096)
OUR_SIZES = (512, 4096)
TRACES = ("gpu_error_1st", "gpu_error_2nd", "lock_gil_1st", "lock_gil_2nd")
# What the tool of the traces' owner prints for them: summary lines of tests/attribution/unit/reference_outputs/*.txt in
# github.com/NVIDIA/nvidia-resiliency-ext (gpu_error_1st: commit 6410d4581ab5, others as stored there).
NVRX_REFERENCE = {
    "gpu_error_1st": [12, 14],
    "gpu_error_2nd": [9, 14],
    "lock_gil_1st": [9, 14],
    "lock_gil_2nd": [10, 15],
}
_MISSING = re.compile(r"missing ranks: \{([\d, ]*)\}")
_CULPRIT = re.compile(r"Culprit rank (\d+)")


def truth_of(folder: Path) -> set[int]:
    text = (folder / "fault_injection.log").read_text()
    return set(map(int, re.findall(r"^Rank (\d+), fault_type", text, re.MULTILINE)))


# -- ours --------------------------------------------------------------------------------------------------------------


def analyse(folder: Path, *, progress: bool = False) -> dict[str, Any]:
    """Names and doubtful suspects, from the dumps of a folder read one by one."""
    paths = sorted(path for path in folder.iterdir() if path.suffix != ".log")
    facts: list[Observed] = []
    began = told = time.monotonic()
    unreadable = 0
    for number, dump in enumerate(read_many(paths, fabric="f", job="j"), 1):
        if isinstance(dump, FlightRecorderDump):
            facts.append(Observed(dump.origin, dump.host, "flight_recorder", dump.at, dump.at, dump))
        else:
            unreadable += 1
        if progress and (time.monotonic() - told >= PROGRESS_S or number == len(paths)):
            told = time.monotonic()
            print(f"  read {number} of {len(paths)} dumps in {told - began:.0f} s", file=sys.stderr, flush=True)
    read_s = time.monotonic() - began
    verdicts = diagnose_facts(facts, now=NOW)
    named: set[int] = set()
    doubted: set[int] = set()
    for verdict in verdicts:
        ranks = {rank for culprit in verdict.culprits or (verdict.culprit,) for rank in culprit.ranks}
        (named if verdict.confidence > DOUBTFUL else doubted).update(ranks)
    return {
        "named": sorted(named),
        "doubted": sorted(doubted - named),
        "classes": sorted({verdict.fault_class.value for verdict in verdicts}),
        "unreadable": unreadable,
        "read_s": round(read_s, 2),
        "decide_s": round(time.monotonic() - began - read_s, 2),
    }


# -- torchfrtrace ------------------------------------------------------------------------------------------------------


def torch_worker() -> None:
    """Runs torchfrtrace for each line of arguments on stdin, in a child of its own that has torch imported already."""
    from torch.distributed.flight_recorder import fr_trace

    for line in sys.stdin:
        arguments = json.loads(line)
        with tempfile.TemporaryFile("w+") as output:
            child = os.fork()
            if child == 0:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                fr_trace.main(arguments)
                sys.stdout.flush()
                os._exit(0)
            _, status = os.waitpid(child, 0)
            output.seek(0)
            print(json.dumps({"exit": os.waitstatus_to_exitcode(status), "output": output.read()}), flush=True)


class Torch:
    def __init__(self) -> None:
        self._worker = subprocess.Popen(
            [sys.executable, __file__, "--torch-worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, folder: Path, prefix: str, *more: str) -> dict[str, Any]:
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.write(json.dumps([str(folder), "-p", prefix, *more]) + "\n")
        self._worker.stdin.flush()
        answer = json.loads(self._worker.stdout.readline())
        return read_answer(answer["output"], answer["exit"])

    def close(self) -> None:
        assert self._worker.stdin is not None
        self._worker.stdin.close()
        self._worker.wait()


def read_answer(output: str, exit_code: int) -> dict[str, Any]:
    sets = [sorted(int(rank) for rank in found.replace(" ", "").split(",") if rank) for found in _MISSING.findall(output)]
    culprits = sorted({int(rank) for rank in _CULPRIT.findall(output)})
    named = sorted({rank for found in sets for rank in found} | set(culprits))
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")
    distinct = [list(each) for each in sorted({tuple(found) for found in sets})]
    return {
        "named": named,
        "sets": distinct[:12],
        "mismatch_culprits": culprits[:16],
        "error": last[:160] if exit_code else "",
    }


# -- the table ---------------------------------------------------------------------------------------------------------


@contextmanager
def without(folder: Path, missing: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / folder.name
        copy.mkdir()
        for path in folder.iterdir():
            if path.name != missing:
                (copy / path.name).symlink_to(path.resolve())
        yield copy


def judged(answer: Mapping[str, Any], truth: set[int]) -> str:
    if answer.get("error"):
        return "error"
    named = set(answer["named"])
    if named == truth:
        return "right"
    if not named:
        return "nobody named"
    if named < truth:
        return "one of them" if len(truth) > 1 else "nobody named"
    return "right and innocents" if named >= truth else "some and innocents" if named & truth else "innocents only"


def table(report: Report, data: Path) -> None:
    torch = Torch()
    try:
        folders = [(data / "public" / "nvrx-flight-recorder" / name, "_dump_") for name in TRACES]
        for folder, prefix in folders:
            if not folder.exists():
                report.add(folder.name, absent=True, nvrx_reference=NVRX_REFERENCE[folder.name])
                continue
            row(report, torch, folder, prefix, truth_of(folder))
        gloo = data / "flight-recorder" / "gloo-4ranks-rank2-never-joins"
        if gloo.exists():
            row(report, torch, gloo, "rank_", {2})
    finally:
        torch.close()


def row(report: Report, torch: Torch, folder: Path, prefix: str, truth: set[int]) -> None:
    theirs, ours = torch(folder, prefix), analyse(folder)
    report.add(
        folder.name,
        truth=sorted(truth),
        nvrx_reference=NVRX_REFERENCE.get(folder.name, "none"),
        torchfrtrace=judged(theirs, truth),
        torchfrtrace_says=theirs,
        ours=judged(ours, truth),
        ours_says={key: ours[key] for key in ("named", "doubted", "classes")},
    )
    dumps = sorted(path.name for path in folder.iterdir() if path.name.startswith(prefix))
    outcomes: dict[str, dict[str, int]] = {"torchfrtrace": {}, "torchfrtrace --allow-incomplete-ranks": {}, "ours": {}}
    each: dict[str, Any] = {}
    innocents = {"torchfrtrace": 0, "torchfrtrace --allow-incomplete-ranks": 0, "ours": 0}
    kept = 0
    for name in sorted(dumps, key=lambda name: int(name.removeprefix(prefix))):
        with without(folder, name) as copy:
            answers = {
                "torchfrtrace": torch(copy, prefix),
                "torchfrtrace --allow-incomplete-ranks": torch(copy, prefix, "--allow-incomplete-ranks"),
                "ours": analyse(copy),
            }
        for tool, answer in answers.items():
            verdict = judged(answer, truth)
            outcomes[tool][verdict] = outcomes[tool].get(verdict, 0) + 1
            innocents[tool] += bool(set(answer["named"]) - truth)
        kept += truth <= {*answers["ours"]["named"], *answers["ours"]["doubted"]}
        each[name] = {tool: answer["error"] or answer["named"] for tool, answer in answers.items() if tool != "ours"}
        each[name]["ours"] = answers["ours"]["named"]
        each[name]["ours_doubtful"] = answers["ours"]["doubted"]
    report.add(
        f"{folder.name}, one dump deleted",
        runs=len(dumps),
        outcomes=outcomes,
        runs_that_name_innocents=innocents,
        ours_names_or_suspects_all_culprits=kept,
        each=each,
    )


# -- scale -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    wall_s: float
    cpu_s: float
    peak_mib: float
    ended: str  # "", or the limit that it passed, or how it died
    output: str


def measure(command: list[str], *, limit_s: float, limit_gib: float) -> Cost:
    """Runs a command to its end or to a limit (of CPU time: another load on the machine does not count); memory is the sum
    over its processes."""
    with tempfile.TemporaryFile("w+") as output:
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        peak_kib, ended, status, usage = 0, "", 0, None
        while usage is None:
            found, status, used = os.wait4(process.pid, os.WNOHANG)
            if found:
                usage = used
                break
            peak_kib = max(peak_kib, resident_kib(process.pid))
            if not ended and cpu_s(process.pid) > limit_s:
                ended = f"passed {limit_s:.0f} s of CPU time"
            elif not ended and peak_kib > limit_gib * (1 << 20):
                ended = f"passed {limit_gib:g} GiB"
            if ended:
                os.killpg(process.pid, 9)
            time.sleep(0.2)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.monotonic() - began
        peak_kib = max(peak_kib, usage.ru_maxrss)
        output.seek(0)
        text = output.read()
        if not ended and process.returncode != 0:
            last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
            ended = f"exit {process.returncode}: {last[:120]}"
        return Cost(wall_s, usage.ru_utime + usage.ru_stime, peak_kib / 1024, ended, text)


def resident_kib(root: int) -> int:
    """Resident memory of a process and all below it."""
    total, todo = 0, [root]
    while todo:
        pid = todo.pop()
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            for thread in Path(f"/proc/{pid}/task").iterdir():
                todo += map(int, (thread / "children").read_text().split())
        except OSError:
            continue
        total += int(next((line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")), "0"))
    return total


def cpu_s(pid: int) -> float:
    """Used so far by a process and its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def scale(report: Report, *, limit_s: float, limit_gib: float) -> None:
    limits = {"limit_s": limit_s, "limit_gib": limit_gib}
    survived: tuple[int, Cost, Cost] | None = None
    torch_lives = True
    for world in sorted({*TORCH_SIZES, *OUR_SIZES}):
        if not torch_lives and world not in OUR_SIZES:
            continue
        with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
            folder = Path(directory)
            synthetic = job(world)
            size = sum(synthetic.write(folder))
            ours = measure([sys.executable, __file__, "--analyse", str(folder)], limit_s=limit_s, limit_gib=limit_gib)
            say(report, f"ours, {world} ranks", ours, world, size, {synthetic.culprit}, answer_of(ours.output), limits)
            if torch_lives:
                command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder), "-p", "rank_"]
                theirs = measure(command, limit_s=limit_s, limit_gib=limit_gib)
                answer = read_answer(theirs.output, 0)
                say(report, f"torchfrtrace, {world} ranks", theirs, world, size, {synthetic.culprit}, answer, limits)
                torch_lives = not theirs.ended
                if torch_lives:
                    survived = (world, ours, theirs)
    if survived is None:
        report.add("ratio", largest_size_that_torchfrtrace_survives="none", **limits)
        return
    world, ours, theirs = survived
    report.add(
        "ratio",
        largest_size_that_torchfrtrace_survives=world,
        wall_torchfrtrace_over_ours=round(theirs.wall_s / ours.wall_s, 2),
        cpu_torchfrtrace_over_ours=round(theirs.cpu_s / ours.cpu_s, 2),
        memory_torchfrtrace_over_ours=round(theirs.peak_mib / ours.peak_mib, 2),
        **limits,
    )


def say(
    report: Report,
    name: str,
    cost: Cost,
    world: int,
    size: int,
    truth: set[int],
    answer: Mapping[str, Any],
    limits: Mapping[str, float],
) -> None:
    more = {key: answer[key] for key in ("read_s", "decide_s") if key in answer}
    report.add(
        name,
        dumps=world,
        entries=world * 2000,
        size_mb=round(size / 1e6, 1),
        wall_s=round(cost.wall_s, 2),
        cpu_s=round(cost.cpu_s, 2),
        peak_mib=round(cost.peak_mib),
        ended=cost.ended or "by itself",
        answer="none" if cost.ended else judged({**answer, "error": ""}, truth),
        named=len(answer.get("named", ())),
        **more,
        **limits,
    )


def answer_of(output: str) -> dict[str, Any]:
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    return {"named": []}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("table", "scale"), action="append", help="default: both")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--limit-s", type=float, default=900.0, help="of CPU time")
    parser.add_argument("--limit-gib", type=float, default=10.0)
    parser.add_argument("--analyse", type=Path, help="only analyse a folder of dumps, with progress on stderr")
    parser.add_argument("--torch-worker", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.analyse is not None:
        print(json.dumps(analyse(chosen.analyse, progress=True)))
        return 0
    if importlib.util.find_spec("torch") is None:
        sys.exit("torchfrtrace comes with torch, which is not installed; the CPU build is enough: uv pip install torch")
    if chosen.torch_worker:
        torch_worker()
        return 0
    parts = chosen.part or ["table", "scale"]
    report = Report("flight_recorder", packages=("torch", "msgspec"))
    if "table" in parts:
        table(report, chosen.data)
    if "scale" in parts:
        scale(report, limit_s=chosen.limit_s, limit_gib=chosen.limit_gib)
    report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
