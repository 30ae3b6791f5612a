"""A fabric of 35,328 GPUs: how long it takes to build, check, save, load and ask.

    python bench/bench_topology.py

69 rail-optimised pods of 64 hosts under 32 spines: 226,000 components and 314,000 edges. Building includes every check.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from _report import Report, summary

from goodput_common.contracts.ids import ComponentKind
from goodput_topology import jsonfile
from goodput_topology.generate import h100_pod, nvl72, size
from goodput_topology.graph import Fabric
from goodput_topology.snapshot import to_snapshots

RUNS = 2
QUERIES = 2_000


def timed(what: Callable[[], object]) -> float:
    """CPU seconds: one thread, hardly any I/O, and the same on a busy machine."""
    began = time.process_time()
    what()
    return time.process_time() - began


def each_us(fabric: Fabric, what: Callable[[Fabric, random.Random], object]) -> dict[str, float]:
    """Mean CPU time of one query over random places; the best of three rounds."""
    rounds = []
    for round_ in range(3):
        rng = random.Random(round_)
        rounds.append(timed(lambda rng=rng: [what(fabric, rng) for _ in range(QUERIES)]) / QUERIES * 1e6)
    return {"mean_cpu_us": round(min(rounds), 2), "queries": QUERIES}


def nic(fabric: Fabric, rng: random.Random) -> str:
    return f"nic:h{rng.randrange(4416)}/mlx5_{rng.randrange(8)}/1"


def main() -> None:
    report = Report("topology", packages=("networkx", "msgspec"))
    fabric = h100_pod(hosts=64, pods=69, spines=32)
    report.add("fabric", edges=len(fabric.edges), **size(fabric))
    report.add(
        "generate_and_build",
        **summary([timed(lambda: h100_pod(hosts=64, pods=69, spines=32)) for _ in range(RUNS)], "cpu_s"),
    )
    records = [r for r in fabric.components.values() if r.kind is not ComponentKind.LINK]
    report.add(
        "build_from_records",
        **summary([timed(lambda: Fabric.build("f", records, fabric.edges)) for _ in range(RUNS)], "cpu_s"),
    )
    report.add("nvl72_of_35136_gpus", **summary([timed(lambda: nvl72(racks=488, spines=16)) for _ in range(RUNS)], "cpu_s"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fabric.json"
        report.add(
            "save_json",
            **summary([timed(lambda: jsonfile.save(fabric, path))], "cpu_s"),
            megabytes=round(path.stat().st_size / 1e6, 1),
        )
        report.add("load_json", **summary([timed(lambda: jsonfile.load(path)) for _ in range(RUNS)], "cpu_s"))
    at = datetime(2026, 1, 1, tzinfo=UTC)
    parts = to_snapshots(fabric, source="bench", version=1, at=at)
    spent = [timed(lambda: to_snapshots(fabric, source="bench", version=1, at=at))]
    report.add("cut_into_messages", parts=len(parts), **summary(spent, "cpu_s"))
    report.add("first_spine_query", **summary([timed(lambda: fabric.hosts_behind("switch:spine-0"))], "cpu_s"))
    report.add("resolve_pci", **each_us(fabric, lambda f, r: f.resolve(f"h{r.randrange(4416)}", "0000:9d:00.0")))
    report.add("path_any_two_nics", **each_us(fabric, lambda f, r: f.path(nic(f, r), nic(f, r), limit=4)))
    report.add(
        "path_on_one_rail", **each_us(fabric, lambda f, r: f.path("nic:h7/mlx5_3/1", f"nic:h{r.randrange(64)}/mlx5_3/1"))
    )
    report.add("hosts_behind_link", **each_us(fabric, lambda f, r: f.hosts_behind(f.link_of(nic(f, r)) or "")))
    report.add("failure_domains_gpu", **each_us(fabric, lambda f, r: f.failure_domains(f"gpu:h{r.randrange(4416)}/3")))
    report.add("neighbourhood_of_3_steps", **each_us(fabric, lambda f, r: f.neighbourhood(nic(f, r), 3)))
    report.write()


if __name__ == "__main__":
    main()
