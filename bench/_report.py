"""Writes a benchmark's result with what one needs to judge and repeat it: command, commit, machine, versions.

from _report import Report
report = Report("bus")                      # -> bench/results/bus.json
report.add("decode", rate_per_s=..., ...)
report.write()
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parent
ROOT = BENCH.parent


class Report:
    """One file of results. `packages` are those whose versions matter."""

    def __init__(self, name: str, *, packages: Sequence[str] = (), results: Path | None = None) -> None:
        self.path = (results or BENCH / "results") / f"{name}.json"
        self._packages = packages
        self._measured: dict[str, dict[str, Any]] = {}
        self._started_at = datetime.now(UTC)

    def add(self, name: str, **figures: Any) -> None:
        """Figures of one measurement; units last in their names. Printed at once."""
        self._measured[name] = figures
        print(f"{name}: " + ", ".join(f"{key}={_short(value)}" for key, value in figures.items()), flush=True)

    def write(self) -> Path:
        document = {
            "command": " ".join(["python", *[os.path.relpath(sys.argv[0], ROOT), *sys.argv[1:]]]),
            "commit": commit(),
            "started_at": self._started_at.isoformat(timespec="seconds"),
            "machine": machine(),
            "packages": {name: _version(name) for name in self._packages},
            "measured": self._measured,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(document, indent=2) + "\n")
        print(f"wrote {os.path.relpath(self.path)}")
        return self.path


def summary(samples: Sequence[float], unit: str) -> dict[str, float]:
    """Median and spread of repeated measurements, as figures for `Report.add`."""
    ordered = sorted(samples)
    return {
        f"median_{unit}": _round(statistics.median(ordered)),
        f"min_{unit}": _round(ordered[0]),
        f"max_{unit}": _round(ordered[-1]),
        "runs": len(ordered),
    }


def commit() -> str:
    """The commit that was measured, with `-dirty` when tracked files other than results had changed; "unknown" outside a
    checkout."""
    name = _git("describe", "--always", "--abbrev=12")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results")
    return (name + ("-dirty" if changed else "")) or "unknown"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def machine() -> dict[str, Any]:
    memory_kb = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "0")
    model = next((line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "")
    return {
        "cpu": model or platform.processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory_kb) / (1 << 20), 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_1m_at_end": round(os.getloadavg()[0], 2),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
