"""How fast the collector's parsers are: a large quiet log, a flood of one error, single lines, flight-recorder dumps.

    python bench/bench_parsers.py

CPU time of one thread; memory is the peak of what reading the log allocated.
"""

from __future__ import annotations

import pickle
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from _report import Report, summary

from goodput_collector.application.read_files import read_path
from goodput_collector.domain.kernel_log import KernelLogParser
from goodput_collector.domain.timestamps import LineClock
from goodput_common.flight_recorder import read_dump

QUIET_BYTES = 256 << 20
FLOOD_LINES = 100_000
ENTRIES = 2000
RUNS = 3
AT = datetime(2026, 3, 1, tzinfo=UTC)
CHATTER = "[Sun Feb 23 16:24:18 2025] usb 1-1: new high-speed USB device number 7 using xhci_hcd, as it has been before\n"
XID = (
    "[Sun Feb 23 16:{:02d}:{:02d} 2025] NVRM: Xid (PCI:0000:9b:00): 119, pid={}, name=python3, "
    "Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20801813 0x4c).\n"
)


def cpu_s(what: Callable[[], object]) -> float:
    began = time.process_time()
    what()
    return time.process_time() - began


def recorder(entries: int, frames: int) -> bytes:
    """A dump as torch writes one: `entries` collectives with `frames` frames each."""
    stack = [{"name": f"function_{n}", "filename": f"/home/user/project/module_{n}.py", "line": n} for n in range(frames)]
    found: list[dict[str, Any]] = [
        {
            "record_id": seq,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": seq,
            "p2p_seq_id": 0,
            "op_id": seq,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1_700_000_000_000_000_000 + seq,
            "input_sizes": [[4096, 5120]],
            "input_dtypes": ["BFloat16"],
            "output_sizes": [[4096, 5120]],
            "output_dtypes": ["BFloat16"],
            "state": "completed",
            "retired": seq < entries - 5,
            "timeout_ms": 600_000,
            "is_p2p": False,
            "frames": [dict(frame) for frame in stack],
        }
        for seq in range(entries)
    ]
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(512)))}}
    return pickle.dumps({"version": "2.10", "pg_config": config, "pg_status": {}, "entries": found}, protocol=2)


def main() -> None:
    report = Report("parsers")
    with tempfile.TemporaryDirectory() as folder:
        quiet = Path(folder) / "quiet.log"
        with quiet.open("w") as file:
            for _ in range(QUIET_BYTES // len(CHATTER) // 1000):
                file.write(CHATTER * 1000)
            file.write(XID.format(1, 2, 3))
        spent = [cpu_s(lambda: read_path(quiet)) for _ in range(RUNS)]
        tracemalloc.start()
        facts = len(read_path(quiet).facts)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        size_mb = quiet.stat().st_size / 1e6
        report.add(
            "quiet_log",
            size_mb=round(size_mb),
            facts=facts,
            mb_per_cpu_s=size_mb / min(spent),
            peak_mb=peak / 1e6,
            **summary(spent, "cpu_s"),
        )
        flood = Path(folder) / "flood.log"
        flood.write_text("".join(XID.format(n // 6000 % 60, n // 100 % 60, n) for n in range(FLOOD_LINES)))
        spent = [cpu_s(lambda: read_path(flood)) for _ in range(RUNS)]
        found = read_path(flood).facts
        report.add("flood_of_one_xid", lines=FLOOD_LINES, facts=len(found), us_per_line=min(spent) / FLOOD_LINES * 1e6)
    parser = KernelLogParser(host="h0", clock=LineClock(reference=AT), reference=AT)
    for name, line in (
        ("xid_line", XID.format(1, 2, 3)),
        (
            "nvlink5_line",
            "[1.0] NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x0 0x0 0x0)",
        ),
        ("link_line", "Feb  7 06:18:01 vm-0 systemd-networkd[5398]: ib6: lost carrier"),
        ("chatter_line", CHATTER),
    ):
        spent = [cpu_s(lambda line=line: [parser.feed(line) for _ in range(20_000)]) for _ in range(RUNS)]  # type: ignore[misc]
        report.add(name, us=min(spent) / 20_000 * 1e6)
    for name, data in (("dump_of_2000_entries", recorder(ENTRIES, 0)), ("with_stacks_of_20", recorder(ENTRIES, 20))):
        spent = [cpu_s(lambda data=data: read_dump(data, fabric="f", job="j", rank=0, host="h")) for _ in range(RUNS)]  # type: ignore[misc]
        report.add(name, size_mb=len(data) / 1e6, ms=min(spent) * 1e3)
    report.write()


if __name__ == "__main__":
    main()
