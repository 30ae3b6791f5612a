"""How many seconds of how many hosts' telemetry the simulator generates in a second of CPU time, on one core.

    python bench/bench_telemetry.py [HOSTS ...]

Healthy hosts with 8 GPUs and 8 NICs that carry one job, read every 5 s; messages are made, not encoded. Measured after the
first minute's readings have been laid out, so that what is paid once a host is told apart (`laid_out_ms_a_host`).
"""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from _report import Report

from goodput_faultlab.simulate.clockwork import Clockwork
from goodput_faultlab.simulate.collectors import Collectors
from goodput_faultlab.simulate.flows import Flows
from goodput_faultlab.simulate.layout import Layout
from goodput_faultlab.simulate.measures import Measures
from goodput_faultlab.simulate.spec import NoiseSpec, SimulationSpec, TransportSpec
from goodput_topology.generate import h100_pod

SIZES = (512, 2_250, 9_000)
LAY_OUT_S, MEASURED_S = 6, 60


@dataclass
class SteadyJob:
    """Steps that go on and on: what `Measures` asks of a training job."""

    layout: Layout
    work: float = 0.0
    waiting: str = ""
    gone: set[int] = field(default_factory=set)


def measure(hosts: int) -> dict[str, Any]:
    fabric = h100_pod(hosts=min(hosts, 64), pods=-(-hosts // 64), spines=8)
    spec = SimulationSpec(fabric=fabric, hosts=fabric.hosts()[:hosts], noise=NoiseSpec.none())
    clockwork = Clockwork(spec.start, 1, TransportSpec())
    job = SteadyJob(Layout(fabric, "job", spec.hosts, 0))
    collectors = Collectors(clockwork, fabric.name, 2.0)
    measures = Measures(spec, clockwork, collectors, job, Flows(fabric, job.layout), 1)  # type: ignore[arg-type]
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    measures.start(spec.hosts)
    counts: Counter[str] = Counter()

    def run(until_s: int) -> float:
        began = time.process_time()
        now_s = round(clockwork.elapsed_s)
        for second in range(now_s + 1, until_s + 1):
            job.work = second / spec.step_s
            for out in clockwork.run_until(spec.start + timedelta(seconds=second)):
                counts["messages"] += 1
                counts["samples"] += len(out.struct.samples)  # type: ignore[attr-defined]
        return time.process_time() - began

    laid_out_s = run(LAY_OUT_S)
    counts.clear()
    spent_s = run(LAY_OUT_S + MEASURED_S)
    return {
        "hosts": hosts,
        "simulated_s": MEASURED_S,
        "cpu_s": round(spent_s, 2),
        "host_seconds_per_cpu_s": round(hosts * MEASURED_S / spent_s),
        "times_real_time": round(MEASURED_S / spent_s, 1),
        "laid_out_ms_a_host": round(1000 * laid_out_s / hosts, 2),
        "messages": counts["messages"],
        "samples": counts["samples"],
        "kib_a_host": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / hosts, 1),
    }


def main() -> None:
    report = Report("telemetry", packages=("msgspec",))
    for hosts in [int(each) for each in sys.argv[1:]] or SIZES:
        report.add(f"{hosts}_hosts", **measure(hosts))
    report.write()


if __name__ == "__main__":
    main()
