"""How much faster than real time the simulator is with 512 ranks, healthy and stalled, on one core.

    python bench/bench_simulate.py

CPU seconds of this process per simulated second, records made and encoded as for a recording.
"""

from __future__ import annotations

import time
from collections import Counter
from datetime import timedelta

import msgspec
from _report import Report

from goodput_faultlab.simulate import Simulation, scenario

SIMULATED_S = 60


def main() -> None:
    report = Report("simulate", packages=("msgspec",))
    encoder = msgspec.json.Encoder()
    for name in ("healthy", "dead-link", "rank-killed", "dead-link-late"):
        simulation = Simulation(scenario(name), 1)
        counts: Counter[str] = Counter()
        size = 0
        began = time.process_time()
        for message in simulation.records(simulation.spec.start + timedelta(seconds=SIMULATED_S)):
            counts[message.type] += 1
            size += len(encoder.encode(message.data))
        spent_s = time.process_time() - began
        report.add(
            name,
            ranks=512,
            simulated_s=SIMULATED_S,
            cpu_s=round(spent_s, 2),
            times_real_time=round(SIMULATED_S / spent_s, 1),
            messages=sum(counts.values()),
            megabytes=round(size / 1e6, 1),
        )
    report.write()


if __name__ == "__main__":
    main()
