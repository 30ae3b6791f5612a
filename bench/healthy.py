"""A day on which nothing is broken and everything looks as if: how often is hardware blamed all the same?

    python bench/healthy.py [--hours 24] [--gpus 4096] [--every 10] [--processes N] [--first N] [--apart] [--results FOLDER]

One fabric of `--gpus` GPUs, made of islands of 256, 128 and 64 hosts with a job in each (two spares and two hosts of nobody
an island). Every look-alike of the simulator (`simulate.benign`) comes back every `--every` minutes in every job, at a
moment and a place drawn anew, on top of the usual noise (corrected errors, ports that flap, Xids of other processes) and of
all that collectors measure, of switches and probes too, with clocks 2 s off and some messages late or twice. Reports of
ranks travel host by host in one message, unless `--apart`. The day is cut into hours that are simulated each by itself,
from the start of its jobs (`WARM_S` before the hour) to their clean end, as many at once as there are processors. Messages
go one by one from the simulator into the code of the live service; neither keeps what is past, so memory does not grow with
the hours (`rss_mib` at a quarter of an hour's run and at its end).

Right is: no verdict that blames hardware with a confidence of 0.7 or more. All verdicts are listed, whoever they blame.
Results: bench/results/healthy.json, written anew with every hour that is done; exit code 1 if hardware was blamed.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import multiprocessing
import os
import random
import resource
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from _report import Report

from goodput_common.bus.ports import Message
from goodput_common.contracts.ids import ComponentKind, kind_of
from goodput_common.contracts.topology import TopologySnapshot
from goodput_common.contracts.verdict import Verdict
from goodput_correlator.domain.incidents import Incidents
from goodput_correlator.domain.replay import LATENESS_S
from goodput_faultlab.score import NOBODY, SURE
from goodput_faultlab.simulate.benign import BENIGN
from goodput_faultlab.simulate.engine import Simulation
from goodput_faultlab.simulate.spec import START, BenignSpec, NoiseSpec, SimulationSpec, TransportSpec
from goodput_topology.generate import h100_pod
from goodput_topology.graph import Fabric

GPUS_A_HOST = 8
HOSTS_A_POD = 64
SPARES, NOBODYS = 2, 2
HOUR_S = 3600.0
WARM_S = 120.0
ENDS_S = 20.0  # from the moment that jobs end to the end of a run
STEP_S = 0.8
ONCE = ("start_up", "job_end")  # at the start and at the end of a job, where they belong
SOFT = frozenset({ComponentKind.RANK, ComponentKind.JOB})
TRANSPORT = TransportSpec(clock_offset_s_max=2.0, doubled=0.02, late=0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One stretch of the day."""

    number: int
    seconds: float
    gpus: int
    every_s: float
    together: bool = True


def islands(hosts: int) -> list[int]:
    """Hosts by island: half of what is left, in whole pods, down to single pods."""
    found = []
    while hosts > HOSTS_A_POD:
        found.append(max(HOSTS_A_POD, hosts // 2 // HOSTS_A_POD * HOSTS_A_POD))
        hosts -= found[-1]
    return [*found, hosts]


def whole(parts: Sequence[Fabric]) -> Fabric:
    components = [record for part in parts for record in part.components.values()]
    return Fabric.build(parts[0].name, components, [edge for part in parts for edge in part.edges])


def look_alikes(rng: random.Random, seconds: float, every_s: float) -> tuple[BenignSpec, ...]:
    """Every kind in every interval, at a moment of its own."""
    found = [BenignSpec(kind="start_up", at_s=0.5)]
    for kind in sorted(set(BENIGN) - set(ONCE)):
        begins_s = WARM_S / 2
        while begins_s < seconds - ENDS_S:
            found.append(BenignSpec(kind=kind, at_s=round(begins_s + rng.uniform(0.0, every_s), 2)))
            begins_s += every_s
    last_s = seconds - 2 * ENDS_S
    return (*(each for each in found if each.at_s < last_s), BenignSpec(kind="job_end", at_s=seconds - ENDS_S))


def simulations(asked: Asked) -> tuple[Fabric, list[Simulation]]:
    sizes = islands(asked.gpus // GPUS_A_HOST)
    parts = [
        h100_pod(hosts=min(size, HOSTS_A_POD), pods=-(-size // HOSTS_A_POD), spines=8, prefix=f"i{n}-")
        for n, size in enumerate(sizes)
    ]
    seconds = asked.seconds + WARM_S
    made = []
    for n, part in enumerate(parts):
        names, seed = part.hosts(), asked.number * len(parts) + n
        spec = SimulationSpec(
            fabric=part,
            hosts=names[: -SPARES - NOBODYS],
            spares=names[-SPARES - NOBODYS : -NOBODYS],
            job=f"train-{n}",
            start=START + timedelta(seconds=asked.number * asked.seconds - WARM_S),
            step_s=STEP_S,
            benign=look_alikes(random.Random(f"healthy/{seed}"), seconds, asked.every_s),
            noise=replace(NoiseSpec(), other_jobs=False),
            transport=TRANSPORT,
            switches=True,
            probes=True,
            reports_together=asked.together,
            scenario=f"healthy-{seed}",
        )
        made.append(Simulation(spec, seed))
    return whole(parts), made


def messages(made: Sequence[Simulation], seconds: float) -> Iterator[Message]:
    """What all of them say, in the order in which the broker gets it. The graph is given, and left out."""
    each = [one.records(one.spec.start + timedelta(seconds=seconds)) for one in made]
    merged = heapq.merge(*each, key=lambda message: message.received_at)
    return (message for message in merged if not isinstance(message.data, TopologySnapshot))


def hour(asked: Asked) -> dict[str, Any]:
    """One stretch: what was said in it, and what it cost."""
    gc.disable()  # nothing here makes cycles, and looking for them takes a fifth of the time
    began_s, cpu_s = time.monotonic(), time.process_time()
    fabric, made = simulations(asked)
    incidents = Incidents(fabric)
    seconds = asked.seconds + WARM_S
    start = made[0].spec.start
    grid, watermark = start + timedelta(seconds=1), timedelta(seconds=LATENESS_S)
    quarter = start + timedelta(seconds=seconds / 4)
    verdicts: list[Verdict] = []
    counts: Counter[str] = Counter()
    rss: list[float] = []
    for message in messages(made, seconds):
        while message.received_at > grid + watermark:
            verdicts += incidents.tick(grid)
            grid += timedelta(seconds=1)
            if not rss and grid >= quarter:
                rss.append(rss_mib())
        counts["messages"] += 1
        counts["samples"] += len(getattr(message.data, "samples", ()))
        incidents.take(message)
    verdicts += incidents.tick(start + timedelta(seconds=seconds))
    return {
        "number": asked.number,
        "simulated_s": seconds,
        "wall_s": round(time.monotonic() - began_s, 1),
        "cpu_s": round(time.process_time() - cpu_s, 1),
        "rss_mib": [*rss, rss_mib()],
        "rss_mib_max": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "gpus": len(list(fabric.of_kind(ComponentKind.GPU))),
        "ranks": sum(len(one.spec.hosts) * GPUS_A_HOST for one in made),
        "look_alikes": dict(Counter(each.kind for one in made for each in one.spec.benign)),
        "overflow": incidents.overflow,
        "verdicts": [told(asked.number, each, (each.published_at - start).total_seconds()) for each in verdicts],
        **counts,
    }


def rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / (1 << 20), 1)


def told(number: int, verdict: Verdict, at_s: float) -> dict[str, Any]:
    return {
        "hour": number,
        "at_s": at_s,
        "job": verdict.job,
        "says": verdict.fault_class.value,
        "of": [each.component for each in verdict.culprits],
        "confidence": verdict.confidence,
        "trouble": verdict.trouble.value,
        "state": verdict.state.value,
        "version": verdict.version,
        "by": verdict.diagnosed_by,
        "hardware": blames_hardware(verdict),
        "evidence": [each.excerpt[:120] for each in verdict.evidence[:2]],
    }


def blames_hardware(verdict: Verdict) -> bool:
    """Whether anything but processes is named: a machine, a part of one, or what joins them."""
    named = [each.component for each in verdict.culprits or (verdict.culprit,) if each.component is not None]
    return verdict.fault_class not in NOBODY and any(kind_of(each) not in SOFT for each in named)


def figures(done: Sequence[dict[str, Any]], asked: argparse.Namespace, wall_s: float) -> dict[str, dict[str, Any]]:
    verdicts = [verdict for each in done for verdict in each["verdicts"]]
    blaming = [verdict for verdict in verdicts if verdict["hardware"]]
    simulated_s = sum(each["simulated_s"] for each in done)
    return {
        "healthy": {
            "hours": round(sum(each["simulated_s"] - WARM_S for each in done) / HOUR_S, 3),
            "hours_asked": asked.hours,
            "gpus": done[0]["gpus"],
            "ranks": done[0]["ranks"],
            "hardware_blamed_sure": sum(verdict["confidence"] >= SURE for verdict in blaming),
            "hardware_blamed": len(blaming),
            "somebody_blamed_sure": sum(
                verdict["confidence"] >= SURE and bool(verdict["of"]) and verdict["says"] not in set(NOBODY)
                for verdict in verdicts
            ),
            "verdict_versions": len(verdicts),
        },
        "look_alikes": dict(sum((Counter(each["look_alikes"]) for each in done), Counter())),
        "cost": {
            "wall_s": round(wall_s, 1),
            "cpu_s": round(sum(each["cpu_s"] for each in done), 1),
            "simulated_s_per_cpu_s": round(simulated_s / sum(each["cpu_s"] for each in done), 3),
            "rss_mib_max": max(each["rss_mib_max"] for each in done),
            "rss_mib_quarter_and_end": done[-1]["rss_mib"],
            "messages": sum(each["messages"] for each in done),
            "samples": sum(each["samples"] for each in done),
            "left_out": sum(each["overflow"] for each in done),
            "processes": asked.processes,
        },
        "verdicts": {"listed": verdicts},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--gpus", type=int, default=4096)
    parser.add_argument("--every", type=float, default=10.0, help="minutes between two look-alikes of one kind in one job")
    parser.add_argument("--first", type=int, default=0, help="hour to begin with: other hours, other seeds")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--results", type=Path, help="folder for the results; bench/results if not given")
    parser.add_argument("--apart", action="store_true", help="every rank sends its reports by itself")
    given = parser.parse_args()
    if given.gpus < 2 * GPUS_A_HOST + GPUS_A_HOST * (SPARES + NOBODYS) or given.gpus % GPUS_A_HOST:
        parser.error(f"--gpus {given.gpus}: a multiple of {GPUS_A_HOST}, of {2 + SPARES + NOBODYS} hosts at least")
    pieces = max(1, round(given.hours))
    seconds = given.hours * HOUR_S / pieces
    asked = [
        Asked(number=given.first + n, seconds=seconds, gpus=given.gpus, every_s=given.every * 60, together=not given.apart)
        for n in range(pieces)
    ]
    report = Report("healthy", packages=("msgspec",), results=given.results)
    done: list[dict[str, Any]] = []
    began_s = time.monotonic()
    with multiprocessing.Pool(given.processes, maxtasksperchild=1) as pool:
        for each in pool.imap_unordered(hour, asked):
            done.append(each)
            done.sort(key=lambda one: one["number"])
            print(f"{len(done)} of {len(asked)} done after {time.monotonic() - began_s:.0f} s", flush=True)
            for name, values in figures(done, given, time.monotonic() - began_s).items():
                report.add(name, **values)
            report.write()
    blamed = figures(done, given, 0.0)["healthy"]["hardware_blamed_sure"]
    raise SystemExit(f"hardware was blamed {blamed} times with a confidence of {SURE} and more" if blamed else 0)


if __name__ == "__main__":
    main()
