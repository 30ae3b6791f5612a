"""What this host is short of: CPU, memory and I/O by the kernel's pressure tables, and numbers that run out.

    <proc>/pressure/{cpu,memory,io}    meminfo, vmstat, sys/fs/file-nr, loadavg
    <cgroup>/<of a rank>/memory.pressure: what a job feels within its own limit, while the host has plenty

Measurements are taken every second, counters told every ten: nobody diagnoses by the microseconds of one second. A table
that reads as it did before has nothing to say in between.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from goodput_collector.adapters.host_files import KeptFile, small_or_none, text_of
from goodput_collector.application.ports import Absent, Reading
from goodput_collector.domain.deltas import Deltas
from goodput_collector.domain.deltas import Reading as CounterReading
from goodput_collector.domain.gauges import Gauges
from goodput_collector.domain.host_pressure import (
    Pressure,
    parse_file_share,
    parse_meminfo,
    parse_pressure,
    parse_share,
    parse_task_share,
    parse_vmstat,
)
from goodput_common.contracts import ids
from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.telemetry import Gauge, Sample, Source
from goodput_common.runtime.clock import Clock

SHARE_NOISE = 0.03
COUNTERS_EVERY_S = 10.0
FULL_EVERY_S = 60.0
GROUPS_MAX = 64
_RESOURCES = ("cpu", "memory", "io")


class HostLoadReader:
    """See `goodput_collector.application.ports.SourceReader`. `ranks` are the processes whose control groups are read."""

    source = Source.HOST
    instance = "load"
    deadline_s = 5.0

    def __init__(
        self,
        *,
        host: str,
        boot_id: str,
        clock: Clock,
        ranks: Callable[[], Iterable[RankRegistered]],
        proc_root: Path = Path("/proc"),
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        interval_s: float = 1.0,
    ) -> None:
        self.interval_s = interval_s
        self._host = ids.host_id(host)
        self._boot_id = boot_id
        self._clock = clock
        self._ranks = ranks
        self._proc = proc_root
        self._cgroup = cgroup_root
        self._pressure = [
            _Pressures(self._host, f"pressure_{name}", KeptFile(proc_root / "pressure" / name)) for name in _RESOURCES
        ]
        self._meminfo, self._vmstat = KeptFile(proc_root / "meminfo"), KeptFile(proc_root / "vmstat")
        self._limits = {name: KeptFile(proc_root / path) for name, path in _LIMITS.items()}
        self._groups: dict[str, _Group] = {}
        self._covered = [self._host]
        self._gauges = Gauges(full_every_s=FULL_EVERY_S)
        self._deltas = Deltas(self._host, {})
        self._counted_s = float("-inf")

    def open(self) -> None:
        if not (self._proc / "meminfo").exists():
            raise Absent(f"there is no {self._proc}/meminfo")

    def wake_fd(self) -> int | None:
        return None

    def read(self) -> Reading:
        now, now_s = self._clock.now(), self._clock.monotonic_s()
        samples: list[Sample] = []
        gauges: list[Gauge] = []
        trouble = ""
        if full := now_s - self._counted_s >= COUNTERS_EVERY_S:
            self._counted_s = now_s
            self._find_groups()
            gauges += self._used_up(now)
        for table in self._pressure:
            try:
                moved = table.read()
            except OSError as error:
                trouble = _no_pressure(self._proc, error)
                continue
            if moved or full:
                gauges += table.shares(now, full=full)
        for group in self._groups.values():
            with contextlib.suppress(OSError):
                if group.pressures.read() or full:
                    gauges += group.pressures.shares(now, full=full)
        memory = parse_meminfo(small_or_none(self._meminfo) or b"")
        if memory is not None and (available := memory.available_share) is not None:
            gauges.append(_gauge(self._host, "memory_available_share", available, now))
        if full:
            samples += self._count(now, now_s)
        samples += self._gauges.of(gauges, now_s, noise=SHARE_NOISE)
        return Reading(samples=samples, trouble=trouble, covered=self._covered)

    def close(self) -> None:
        for file in (self._meminfo, self._vmstat, *self._limits.values()):
            file.close()
        for table in (*self._pressure, *(group.pressures for group in self._groups.values())):
            table.close()
        self._groups.clear()
        self._covered = [self._host]

    def _count(self, now: datetime, now_s: float) -> list[Sample]:
        counts = {name: value for table in self._pressure for name, value in table.counts().items()}
        with contextlib.suppress(OSError):
            counts |= parse_vmstat(self._vmstat.whole())
        reading = CounterReading(values=counts, at=now, monotonic_s=now_s, incarnation=self._boot_id)
        told: list[Sample] = list(self._deltas.update(reading))
        for group in self._groups.values():
            told += group.deltas.update(
                CounterReading(values=group.pressures.counts(), at=now, monotonic_s=now_s, incarnation=self._boot_id)
            )
        return told

    def _used_up(self, now: datetime) -> list[Gauge]:
        texts = {name: small_or_none(file) or b"" for name, file in self._limits.items()}
        shares = {
            "files_open_share": parse_file_share(texts["file_nr"]),
            "tasks_share": parse_task_share(texts["loadavg"], texts["pid_max"]),
            "connections_tracked_share": parse_share(texts["tracked"], texts["tracked_max"]),
        }
        return [_gauge(self._host, name, share, now) for name, share in shares.items() if share is not None]

    def _find_groups(self) -> None:
        """One for each control group that ranks are in; ranks of one group feel the same."""
        found: dict[str, str] = {}
        for rank in self._ranks():
            path = _group_of(text_of(self._proc / str(rank.pid) / "cgroup"))
            if path and len(found) < GROUPS_MAX:
                found.setdefault(path, ids.rank_id(rank.job, rank.rank))
        for gone in [path for path in self._groups if path not in found]:
            self._groups.pop(gone).pressures.close()
        for path, component in found.items():
            if path not in self._groups:
                root = self._cgroup / "unified" if (self._cgroup / "unified").is_dir() else self._cgroup
                file = KeptFile(root / path / "memory.pressure")
                self._groups[path] = _Group(_Pressures(component, "cgroup_memory", file), Deltas(component, {}))
        self._covered = [self._host, *(group.pressures.component for group in self._groups.values())]


_LIMITS = {
    "file_nr": "sys/fs/file-nr",
    "loadavg": "loadavg",
    "pid_max": "sys/kernel/pid_max",
    "tracked": "sys/net/netfilter/nf_conntrack_count",
    "tracked_max": "sys/net/netfilter/nf_conntrack_max",
}


class _Pressures:
    """One pressure table: parsed when it has moved."""

    def __init__(self, component: str, name: str, file: KeptFile) -> None:
        self.component = component
        self._name = name
        self._file = file
        self._text: bytes | None = None
        self._pressures: dict[str, Pressure] = {}
        self._given: dict[str, Pressure] = {}

    def read(self) -> bool:
        """Whether it reads otherwise than before. Raises OSError; it then has nothing to say until it can be read."""
        before, self._text = self._text, None
        try:
            self._text = text = self._file.small()
        except OSError:
            self._pressures = {}
            raise
        if text == before:
            return False
        self._pressures = parse_pressure(text)
        return True

    def shares(self, now: datetime, *, full: bool) -> list[Gauge]:
        """Those that have moved since they were asked for, or all."""
        before, self._given = self._given, self._pressures
        return [
            _gauge(self.component, f"{self._name}_{kind}_share", each.avg10_share, now)
            for kind, each in self._pressures.items()
            if full or kind not in before or before[kind].avg10_share != each.avg10_share
        ]

    def counts(self) -> dict[str, int]:
        return {f"{self._name}_{kind}_us": each.total_us for kind, each in self._pressures.items()}

    def close(self) -> None:
        self._file.close()


class _Group(NamedTuple):
    pressures: _Pressures
    deltas: Deltas


def _group_of(text: str) -> str:
    """The version 2 group of `/proc/<pid>/cgroup`, without its leading slash; "" for the root."""
    for line in text.splitlines():
        if line.startswith("0::"):
            return line[3:].strip("/") if ".." not in line else ""
    return ""


def _gauge(component: str, name: str, value: float, now: datetime) -> Gauge:
    return Gauge(component=component, name=name, observed_at=now, value=round(value, 4))


def _no_pressure(proc: Path, error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.EOPNOTSUPP):
        return f"no pressure tables in {proc}/pressure: the kernel has them off (boot it with psi=1)"
    return f"{proc}/pressure: {error.strerror or error}"
