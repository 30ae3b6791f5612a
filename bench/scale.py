"""Whether one correlator a fabric keeps real time at 35,000 GPUs, what it costs, and how long a verdict takes.

    python bench/scale.py [--quick] [--seconds 40] [--no-sizes] [--no-fabrics] [--no-latency]

Load: GB200 racks (18 hosts of 4 GPUs), every GPU training, counters every 5 s, a report a rank and second, two pods with a
fault (`_fabric_load`). A worker process reads recorded bus messages and does what a correlator does with each but the
network and the database: decode (headers and body), take in, read, judge every grid time. Figures are of the time after
the first `SETTLE_S` seconds.

* *sizes*: one fabric of about 4k, 9k, 18k and 35k GPUs, each alone: processor seconds a simulated second, memory, a straight
  line through them.
* *fabrics*: four fabrics of 9k GPUs in four processes at once: simulated over wall time of each and of all.
* *latency*: 4,096 GPUs, a fault in each of many pods. The decisive message of a verdict is found by trying: the first
  without which the verdict would not have come at its grid time. From its arrival: the wait for that time, the grace
  that the live service gives the broker, reading and judging (of the whole second, which is more than it took).
  Storing and publishing come on top: `bench_ingest_to_verdict`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from _fabric_load import GPUS_A_POD, Load, Wire, at, seconds_of
from _report import Report

from goodput_common.bus.codec import decode
from goodput_common.bus.ports import Message
from goodput_correlator.application.watermark import GRACE_S
from goodput_correlator.collecting import settle
from goodput_correlator.domain.arrivals import REMEMBER_IDS_S
from goodput_correlator.domain.incidents import Incidents

SETTLE_S = 10
SIZES = (4_096, 9_000, 18_000, 35_000)
FABRICS = 4
FABRIC_GPUS = 9_000
FAULTY = 2
LATENCY_GPUS = 4_096


def pods_of(gpus: int) -> int:
    return -(-gpus // GPUS_A_POD)


def end_of(given: Sequence[Message]) -> datetime:
    """Of the second in which these came: nothing later may be judged before the next are there."""
    return given[-1].received_at.replace(microsecond=0) + timedelta(seconds=1)


def decoded(wires: Sequence[Wire]) -> list[Message]:
    return [
        decode(subject, headers, body, received_at=at(us), stream=stream) for subject, headers, body, us, stream in wires
    ]


def memory_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


# ------------------------------------------------------------------------------------------------- a worker


def work(path: Path, pods: int) -> dict[str, Any]:
    """One fabric, from a file of messages; as fast as it goes."""
    settle()
    load = Load(pods=pods, seconds=0)
    base_mib = memory_mib()
    incidents = Incidents(load.fabric())
    graph_mib = memory_mib() - base_mib
    spent = {"decode": 0.0, "take": 0.0, "tick": 0.0}
    ticks: list[float] = []
    messages = verdicts = second = 0
    wall_began = cpu_began = 0.0
    for second, wires in enumerate(seconds_of(path)):
        if second == SETTLE_S:
            wall_began, cpu_began = time.perf_counter(), time.process_time()
            spent, ticks, messages = dict.fromkeys(spent, 0.0), [], 0
        began = time.process_time()
        given = decoded(wires)
        took = time.process_time()
        for message in given:
            incidents.take(message)
        ticked = time.process_time()
        verdicts += len(incidents.tick(end_of(given)))
        done = time.process_time()
        spent["decode"] += took - began
        spent["take"] += ticked - took
        spent["tick"] += done - ticked
        ticks.append(done - ticked)
        messages += len(given)
    seconds = second + 1 - SETTLE_S
    wall_s, cpu_s = time.perf_counter() - wall_began, time.process_time() - cpu_began
    del given, wires
    gc.collect()
    rss_mib = memory_mib()
    _fill_ids(incidents, messages // seconds)
    ticks.sort()
    return {
        "gpus": load.gpus,
        "hosts": load.hosts,
        "messages_per_s": round(messages / seconds),
        "simulated_s": seconds,
        "wall_s": round(wall_s, 2),
        "simulated_over_wall": round(seconds / wall_s, 2),
        "cpu_s_per_simulated_s": round(cpu_s / seconds, 4),
        **{f"{name}_cpu_s_per_simulated_s": round(each / seconds, 4) for name, each in spent.items()},
        "tick_cpu_ms_p50": round(1000 * ticks[len(ticks) // 2], 1),
        "tick_cpu_ms_max": round(1000 * ticks[-1], 1),
        "graph_mib": round(graph_mib),
        "rss_mib": round(rss_mib),
        "rss_with_ids_full_mib": round(memory_mib()),
        "verdicts": verdicts,
        "overflow": incidents.overflow,
    }


def _fill_ids(incidents: Incidents, messages_per_s: int) -> None:
    """The ids of three minutes, which a run of less has not seen."""
    seen, judged = incidents._arrivals.seen, incidents.judged
    assert judged is not None
    for second in range(int(REMEMBER_IDS_S) + 30 - int(len(seen) / max(1, messages_per_s))):
        seen.begin(judged + timedelta(seconds=second))
        for n in range(messages_per_s):
            seen.note(f"{second}/{n}")


# ------------------------------------------------------------------------------------------------- time to publication


def latencies(path: Path, pods: int) -> dict[str, Any]:
    """Of each verdict that names somebody for the first time: its decisive message's arrival to the end of judging, in s."""
    settle()
    incidents = Incidents(Load(pods=pods, seconds=0).fabric())
    found: dict[str, list[float]] = {"waited_s": [], "judged_s": []}
    for wires in seconds_of(path):
        given = decoded(wires)
        until = end_of(given)
        before = Forked(incidents, given, until)
        began = time.perf_counter()
        for message in given:
            incidents.take(message)
        verdicts = incidents.tick(until)
        judged_s = time.perf_counter() - began
        for verdict in verdicts:
            if verdict.job is None or verdict.version > 1 or not verdict.culprits:
                continue
            low, high = 0, len(given)  # so many messages do not suffice, so many do
            while high - low > 1:
                middle = (low + high) // 2
                if before.names(verdict.job, middle, verdict.published_at):
                    high = middle
                else:
                    low = middle
            found["waited_s"].append((verdict.published_at - given[high - 1].received_at).total_seconds())
            found["judged_s"].append(judged_s)
        before.end()
    return found


class Forked:
    """The diagnosis as it stood before a second, to try that second with fewer messages, each try a process."""

    def __init__(self, incidents: Incidents, given: Sequence[Message], until: Any) -> None:
        ask_here, self._ask = os.pipe()
        self._answer, answer_here = os.pipe()
        self._child = os.fork()
        if self._child:
            os.close(ask_here)
            os.close(answer_here)
            return
        os.close(self._ask)
        os.close(self._answer)
        while asked := os.read(ask_here, 256):  # one question at a time, answered before the next
            count, by, job = asked.decode().split(" ", 2)
            if (child := os.fork()) == 0:
                for message in given[: int(count)]:
                    incidents.take(message)
                said = incidents.tick(min(until, datetime.fromisoformat(by)))
                named = any(each.job == job and each.culprits for each in said)
                os.write(answer_here, b"1" if named else b"0")
                os._exit(0)
            os.waitpid(child, 0)
        os._exit(0)

    def names(self, job: str, count: int, by: datetime) -> bool:
        os.write(self._ask, f"{count} {by.isoformat()} {job}".encode())
        return os.read(self._answer, 1) == b"1"

    def end(self) -> None:
        os.close(self._ask)
        os.close(self._answer)
        os.waitpid(self._child, 0)


# ------------------------------------------------------------------------------------------------- the runs


def worker(path: Path, pods: int, what: str = "--work") -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__)), what, str(path), "--pods", str(pods)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a worker failed with {process.returncode}: its error is above")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def made(load: Load, path: Path) -> None:
    print(f"making {load.seconds} s of {load.gpus} GPUs on {load.hosts} hosts", flush=True)
    began = time.monotonic()
    counts = load.write(path, lambda text: print(f"\r  {text}", end="", flush=True))
    print(f"\r  {counts} in {time.monotonic() - began:.0f} s, {path.stat().st_size / 1e6:.0f} MB", flush=True)


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Least squares: slope, offset, share of the variance explained."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    offset = mean_y - slope * mean_x
    total = sum((y - mean_y) ** 2 for _, y in points)
    left = sum((y - slope * x - offset) ** 2 for x, y in points)
    return slope, offset, 1 - left / total if total else 1.0


def sizes(report: Report, directory: Path, gpus: Sequence[int], seconds: int) -> None:
    points = []
    for each in gpus:
        load, path = Load(pods=pods_of(each), seconds=seconds, faulty=FAULTY), directory / "load"
        made(load, path)
        result = answer(worker(path, load.pods))
        report.add(f"one_fabric_{each}", **result)
        points.append((result["gpus"], result["cpu_s_per_simulated_s"], result["rss_with_ids_full_mib"]))
    if len(points) > 1:
        slope, offset, fit = line([(x, cpu) for x, cpu, _ in points])
        memory, memory_offset, memory_fit = line([(x, rss) for x, _, rss in points])
        first, last = points[0], points[-1]
        report.add(
            "growth",
            cpu_ms_per_1000_gpus=round(1e6 * slope, 2),
            cpu_offset_s=round(offset, 4),
            cpu_r2=round(fit, 4),
            gpus_times=round(last[0] / first[0], 2),
            cpu_times=round(last[1] / first[1], 2),
            memory_mib_per_1000_gpus=round(1000 * memory, 1),
            memory_offset_mib=round(memory_offset),
            memory_r2=round(memory_fit, 4),
        )
        plot = report.path.with_suffix(".svg")
        plot.write_text(svg([(x, y) for x, y, _ in points], slope, offset))
        print(f"wrote {plot.name}")


def fabrics(report: Report, directory: Path, gpus: int, seconds: int, count: int) -> None:
    load, path = Load(pods=pods_of(gpus), seconds=seconds, faulty=FAULTY), directory / "load"
    made(load, path)
    began = time.perf_counter()
    running = [worker(path, load.pods) for _ in range(count)]
    results = [answer(each) for each in running]
    wall_s = time.perf_counter() - began
    for n, result in enumerate(results):
        report.add(f"fabric_{n + 1}_of_{count}", **result)
    simulated_s = results[0]["simulated_s"]
    slowest_s = max(each["wall_s"] for each in results)
    cpu = sum(each["cpu_s_per_simulated_s"] for each in results)
    report.add(
        "fabrics_at_once",
        fabrics=count,
        gpus=sum(each["gpus"] for each in results),
        hosts=sum(each["hosts"] for each in results),
        simulated_over_wall=round(simulated_s / slowest_s, 2),
        cpu_s_per_simulated_s=round(cpu, 3),
        share_of_two_cores=round(cpu / 2, 3),
        rss_mib_max=max(each["rss_with_ids_full_mib"] for each in results),
        wall_with_start_s=round(wall_s, 1),
    )


def latency(report: Report, directory: Path, gpus: int, seconds: int) -> None:
    pods = pods_of(gpus)
    waited: list[float] = []
    judged: list[float] = []
    for seed in (1, 101):
        load, path = Load(pods=pods, seconds=seconds, faulty=pods - 1, seed=seed), directory / "load"
        made(load, path)
        found = answer(worker(path, pods, "--latencies"))
        waited += found["waited_s"]
        judged += found["judged_s"]
    whole = sorted(wait + GRACE_S + judge for wait, judge in zip(waited, judged, strict=True))
    if not whole:
        raise SystemExit("no verdict named anybody: let the run take longer (--seconds)")
    report.add(
        "decisive_evidence_to_judged",
        gpus=pods * GPUS_A_POD,
        verdicts=len(whole),
        p50_s=round(whole[len(whole) // 2], 3),
        p99_s=round(whole[min(len(whole) - 1, int(len(whole) * 0.99))], 3),
        max_s=round(whole[-1], 3),
        wait_for_the_grid_p50_s=round(sorted(waited)[len(waited) // 2], 3),
        grace_s=GRACE_S,
        reading_and_judging_p50_s=round(sorted(judged)[len(judged) // 2], 3),
        reading_and_judging_max_s=round(max(judged), 3),
    )


def svg(points: Sequence[tuple[float, float]], slope: float, offset: float) -> str:
    """Processor seconds a second over GPUs, with the straight line."""
    width, height, edge = 640, 400, 60
    most_x, most_y = max(x for x, _ in points) * 1.1, max(y for _, y in points) * 1.2

    def place(x: float, y: float) -> tuple[float, float]:
        return edge + x / most_x * (width - 2 * edge), height - edge - y / most_y * (height - 2 * edge)

    (x0, y0), (x1, y1) = place(0, max(0.0, offset)), place(most_x, slope * most_x + offset)
    marks = "".join(
        f'<circle cx="{place(x, y)[0]:.1f}" cy="{place(x, y)[1]:.1f}" r="5" fill="#1f5fa8"/>'
        f'<text x="{place(x, y)[0]:.1f}" y="{place(x, y)[1] - 12:.1f}" text-anchor="middle">{y:.2f}</text>'
        f'<text x="{place(x, 0)[0]:.1f}" y="{height - edge + 20}" text-anchor="middle">{x:,.0f}</text>'
        for x, y in points
    )
    axes = f'<path d="M{edge},{edge / 2} V{height - edge} H{width - edge / 2}" fill="none" stroke="#333"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
        f'<rect width="{width}" height="{height}" fill="#fff"/>{axes}'
        f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="#b33" stroke-dasharray="5 4"/>{marks}'
        f'<text x="{width / 2}" y="{height - 15}" text-anchor="middle">GPUs in one fabric</text>'
        f'<text x="{edge}" y="20">processor seconds a simulated second (decode, take in, read, judge)</text></svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small fabrics and a short time: does it run?")
    parser.add_argument("--seconds", type=int, default=40, help="simulated, the first 10 to settle")
    for each in ("sizes", "fabrics", "latency"):
        parser.add_argument(f"--no-{each}", action="store_true")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--latencies", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--pods", type=int, default=1, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work or given.latencies:
        print(json.dumps(work(given.work, given.pods) if given.work else latencies(given.latencies, given.pods)))
        return
    report = Report("scale_quick" if given.quick else "scale", packages=("msgspec",))
    seconds = 26 if given.quick else max(26, given.seconds)  # the last fault comes after 19 s
    with tempfile.TemporaryDirectory(prefix="goodput-scale-") as name:
        directory = Path(name)
        if not given.no_fabrics:
            fabrics(report, directory, 576 if given.quick else FABRIC_GPUS, seconds, FABRICS)
            report.write()  # each part takes minutes: what is measured is kept
        if not given.no_latency:
            latency(report, directory, 864 if given.quick else LATENCY_GPUS, seconds)
            report.write()
        if not given.no_sizes:
            sizes(report, directory, (576, 1_152) if given.quick else SIZES, seconds)
            report.write()


if __name__ == "__main__":
    main()
