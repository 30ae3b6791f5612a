"""How well are sub-second flaps seen? A veth pair loses and gains its carrier at random times; the collector watches.

    python bench/flaps.py --flaps 200 --seed 1

The interface's peer is taken down for 20 to 500 ms and up again for 20 to 500 ms, by an ioctl whose moment is noted. The
netlink source runs in the collector's own schedule, as it does in the field; what it publishes is compared with what was
done: flaps made and told, and how far the times are apart. Runs in a network namespace of its own (`unshare -Urnm`), so it
needs no privileges and harms nobody.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import random
import re
import socket
import struct
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from _report import Report

from goodput_collector.adapters.netlink import NetlinkReader
from goodput_collector.application.ports import Reading
from goodput_collector.application.schedule import Schedule
from goodput_common.contracts.telemetry import Counter, Event, EventName, Source, SourceStatus
from goodput_common.runtime.clock import SystemClock

_INSIDE = "GOODPUT_BENCH_INSIDE"
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_NAMES = {EventName.LINK_DOWN: "down", EventName.LINK_UP: "up"}


def main() -> int:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--flaps", type=int, default=200)
    given.add_argument("--seed", type=int, default=1)
    given.add_argument("--results", type=Path, help="the folder for the result; bench/results if not given")
    args = given.parse_args()
    if not os.environ.get(_INSIDE):
        command = ["unshare", "-Urnm", sys.executable, *sys.argv]
        return subprocess.run(command, env=os.environ | {_INSIDE: "1"}, check=False).returncode
    for words in (
        "link add rail0 type veth peer name far0",
        "link set rail0 up",
        "link set far0 up",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    report = Report("flaps", results=args.results)
    for name, figures in asyncio.run(_watch(args.flaps, args.seed)).items():
        report.add(name, **figures)
    report.write()
    return 0


async def _watch(flaps: int, seed: int) -> dict[str, dict[str, float]]:
    readings: list[Reading] = []

    def publish(_: Source, reading: Reading) -> bool:
        readings.append(reading)
        return True

    reader = NetlinkReader(host="h0", clock=SystemClock(), ignore=re.compile("lo|far.*"))
    schedule = Schedule([reader], publish)
    await schedule.start()
    while schedule.conditions()[0].status is not SourceStatus.OK:  # noqa: ASYNC110 - a bench may poll
        await asyncio.sleep(0.02)
    made: list[tuple[str, datetime]] = []
    cpu_s = time.process_time()
    await asyncio.to_thread(_flap, flaps, random.Random(seed), made)
    await asyncio.sleep(1.5)
    cpu_s = time.process_time() - cpu_s
    await schedule.close()
    return _compared(made, [sample for each in readings for sample in each.samples], cpu_s)


def _flap(flaps: int, rng: random.Random, made: list[tuple[str, datetime]]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for _ in range(flaps):
            for what in ("down", "up"):
                made.append((what, datetime.now(UTC)))
                _set(control, up=what == "up")
                time.sleep(rng.uniform(0.02, 0.5))


def _set(control: socket.socket, *, up: bool) -> None:
    request = struct.pack("16sH14x", b"far0", 0)
    flags = struct.unpack("16sH14x", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
    flags = flags | _IFF_UP if up else flags & ~_IFF_UP
    fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"far0", flags))


def _compared(made: list[tuple[str, datetime]], samples: list[object], cpu_s: float) -> dict[str, dict[str, float]]:
    told: dict[str, list[datetime]] = {"down": [], "up": []}
    counters = {"down": 0, "up": 0}
    for sample in samples:
        if isinstance(sample, Event) and sample.name in _NAMES:
            told[_NAMES[sample.name]] += [sample.observed_at] * sample.count
        elif isinstance(sample, Counter) and sample.name.startswith("carrier_"):
            counters[sample.name.split("_")[1]] += sample.delta
    errors_ms, unmatched = [], 0
    for what, heard in told.items():
        true = [at for name, at in made if name == what]
        unmatched += abs(len(true) - len(heard))
        errors_ms += [(late - at).total_seconds() * 1000 for at, late in zip(true, sorted(heard), strict=False)]
    errors_ms.sort(key=abs)
    return {
        "made": {what: sum(name == what for name, _ in made) for what in told},
        "told": {what: len(heard) for what, heard in told.items()},
        "counters": counters,
        "told_wrong": {"unmatched": unmatched},
        "error_ms": {
            "median": round(abs(errors_ms[len(errors_ms) // 2]), 3),
            "p99": round(abs(errors_ms[int(len(errors_ms) * 0.99)]), 3),
            "max": round(abs(errors_ms[-1]), 3),
        },
        "cost": {"cpu_ms_per_flap": round(cpu_s * 1000 / max(1, len(made) // 2), 2)},
    }


if __name__ == "__main__":
    raise SystemExit(main())
