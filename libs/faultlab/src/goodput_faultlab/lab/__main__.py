"""For trying the lab itself: `python -m goodput_faultlab.lab SCENARIO... [--seed N] [--runs N] [--json]`.

`goodput lab run` is what users type.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from goodput_faultlab.lab import SCENARIOS, LabError, LabResult, LabSession, limits, preflight


def _line(result: LabResult) -> str:
    outcome = "right" if result.correct else "WRONG"
    times = f"detect {result.detect_s} s, recover {result.recover_s} s"
    return f"{outcome} {result.scenario} seed {result.seed}: {result.why}; {times}; {'; '.join(result.notes)}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m goodput_faultlab.lab", description=__doc__)
    parser.add_argument("scenario", nargs="+", choices=[*SCENARIOS, "all", "preflight"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--ranks-per-host", type=int, default=2)
    parser.add_argument("--rails", type=int, default=1)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--json", action="store_true", help="one JSON line a run on stdout")
    arguments = parser.parse_args()
    if arguments.scenario == ["preflight"]:
        found = [*preflight(), *limits()]
        print("\n".join(str(problem) for problem in found) or "the lab can run here")
        return 1 if found else 0
    names = list(SCENARIOS) if "all" in arguments.scenario else arguments.scenario
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:7.1f} s  {text}", file=sys.stderr, flush=True)

    results: list[LabResult] = []
    failures = 0
    try:
        with LabSession(
            hosts=arguments.hosts,
            ranks_per_host=arguments.ranks_per_host,
            rails=arguments.rails,
            directory=arguments.directory,
            on_progress=say,
        ) as lab:
            say(f"started in {lab.started_in_s:.1f} s; logs in {lab.directory}")
            for seed in range(arguments.seed, arguments.seed + arguments.runs):
                for name in names:
                    try:
                        result = lab.run(name, seed)
                    except LabError as error:
                        failures += 1
                        say(f"FAILED {name} seed {seed}: {error}")
                        continue
                    results.append(result)
                    if arguments.json:
                        print(result.to_json().decode(), flush=True)
                    say(_line(result))
    except LabError as error:
        print(error, file=sys.stderr)
        return 2
    for name in names:
        mine = [result for result in results if result.scenario == name]
        times = [result.detect_s for result in mine if result.detect_s is not None]
        middle = f", median {statistics.median(times):.1f} s to the verdict" if times else ""
        say(f"{name}: {sum(result.correct for result in mine)} of {len(mine)} right{middle}")
    return 0 if not failures and all(result.correct for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
