"""What the agent costs a training step: the same loop bare and under the agent.

    python bench/bench_agent.py [--steps N]

Three measurements. *Calls*: an empty loop, so that the difference is the agent's own calls (a step and three phases).
*Calls_cpu*: the processor time of that loop's own thread, which a busy machine does not inflate.
*Steps*: a loop whose steps take about a millisecond of real work, in which the reporter's thread has to share the
interpreter lock: bare and attached in turn, so that a machine that gets slower meanwhile hurts both alike. No bus is
needed: one that is away is the worse case.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable

from _report import Report, summary

import goodput_agent

PHASES = ("forward", "backward", "optimizer")
REPEATS = 15


def bare(steps: int, work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    for _ in range(steps):
        for _ in PHASES:
            work()
    return (time.perf_counter() - began_s) / steps


def attached(
    agent: goodput_agent.Agent, steps: int, work: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> float:
    began_s = clock()
    for _ in range(steps):
        with agent.step():
            for phase in PHASES:
                with agent.phase(phase):
                    work()
    return (clock() - began_s) / steps


def compare(agent: goodput_agent.Agent, steps: int, work: Callable[[], object]) -> dict[str, float]:
    """Interleaved; the cost is the difference within each pair."""
    pairs = [(bare(steps, work), attached(agent, steps, work)) for _ in range(REPEATS)]
    return {
        **summary([(with_agent - without) * 1e6 for without, with_agent in pairs], "us"),
        "bare_step_us": round(sorted(without for without, _ in pairs)[REPEATS // 2] * 1e6, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    steps = parser.parse_args().steps
    os.environ["GOODPUT_RUN_DIR"] = tempfile.mkdtemp(prefix="goodput-bench-")
    os.environ.setdefault("GOODPUT_NATS_URL", "nats://127.0.0.1:9")  # nobody listens there
    agent = goodput_agent.attach(job="bench")
    report = Report("agent", packages=("goodput-agent", "torch"))
    report.add("calls", **compare(agent, steps * 10, lambda: None))
    own = [attached(agent, steps * 10, lambda: None, time.thread_time) * 1e6 for _ in range(REPEATS)]
    report.add("calls_cpu", **summary(own, "us"))
    numbers = list(range(6_000))
    report.add("steps", **compare(agent, steps, lambda: sum(numbers)))
    report.write()


if __name__ == "__main__":
    main()
