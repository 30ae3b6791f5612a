"""Disks and network mounts of this host, from tables that answer even when the storage does not.

    <proc>/diskstats            every disk: requests done, in flight, time busy
    <proc>/1/mountstats         every NFS mount of the host (of this process's own namespace where that may not be read)

What a disk or a mount says is parsed when it has moved, and told when it has turned. No path on a mount is ever touched.
Other file systems (Lustre, Ceph, GPFS) speak through the kernel log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from goodput_collector.adapters.host_files import KeptFile
from goodput_collector.application.ports import Absent, Reading
from goodput_collector.domain.changes import Changes
from goodput_collector.domain.deltas import Deltas
from goodput_collector.domain.deltas import Reading as CounterReading
from goodput_collector.domain.gauges import Gauges
from goodput_collector.domain.host_storage import (
    Disk,
    Mount,
    PartByPart,
    StallWatch,
    Turn,
    disk_rates,
    mount_blocks,
    parse_disk,
    parse_mount,
)
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Event, EventName, Gauge, Sample, Severity, Source, State
from goodput_common.runtime.clock import Clock

RATES_EVERY_S = 10.0
LOOK_EVERY_S = 60.0
FULL_EVERY_S = 60.0
DISKS_MAX = 256
MOUNTS_MAX = 256
_NOISE = {"disk_busy_share": 0.05, "disk_await_ms": 5.0, "disk_in_flight": 32.0, "nfs_rtt_ms": 5.0, "nfs_backlog": 2.0}

_T = TypeVar("_T")


@dataclass(slots=True)
class _WatchedDisk:
    watch: StallWatch
    rated: Disk  # its rates were told up to here
    rated_s: float


@dataclass(slots=True)
class _WatchedMount:
    watch: StallWatch
    deltas: Deltas
    rated: Mount
    rated_s: float
    latest: Mount


class HostStorageReader:
    """See `goodput_collector.application.ports.SourceReader`."""

    source = Source.HOST
    instance = "storage"
    deadline_s = 5.0

    def __init__(
        self,
        *,
        host: str,
        boot_id: str,
        clock: Clock,
        proc_root: Path = Path("/proc"),
        sys_root: Path = Path("/sys"),
        stalled_after_s: float = 20.0,
        interval_s: float = 2.0,
    ) -> None:
        self.interval_s = interval_s
        self._host = ids.host_id(host)
        self._boot_id = boot_id
        self._clock = clock
        self._sys = sys_root
        self._stalled_after_s = stalled_after_s
        self._diskstats = KeptFile(proc_root / "diskstats")
        self._mountstats = [KeptFile(proc_root / name / "mountstats") for name in ("1", "self")]
        self._readable: KeptFile | None = None
        self._diskstats_path = proc_root / "diskstats"
        self._whole_disks: frozenset[str] = frozenset()
        self._looked_s = float("-inf")
        self._disk_lines = PartByPart(parse_disk)
        self._mount_blocks = PartByPart(parse_mount)
        self._disks: dict[str, _WatchedDisk] = {}
        self._mounts: dict[str, _WatchedMount] = {}
        self._turned = False  # some state is another than it was
        self._gauges = Gauges(full_every_s=FULL_EVERY_S)
        self._changes = Changes(full_every_s=FULL_EVERY_S, volatile=("in_flight", "for_s"))

    def open(self) -> None:
        if not self._diskstats_path.exists() and self._mounts_text() is None:
            raise Absent(f"there is no {self._diskstats_path}")

    def wake_fd(self) -> int | None:
        return None

    def read(self) -> Reading:
        now, now_s = self._clock.now(), self._clock.monotonic_s()
        samples: list[Sample] = []
        gauges: list[Gauge] = []
        troubles = []
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            self._look()
        try:
            disks = self._of_interest(self._disk_lines.of(self._diskstats.whole().splitlines()))
        except OSError as error:
            disks = {}
            troubles.append(f"{self._diskstats_path}: {error.strerror or error}")
        for name, disk in disks.items():
            self._disk(name, disk, now, now_s, samples, gauges)
        text = self._mounts_text()
        if text is None:
            troubles.append("mountstats cannot be read: NFS mounts are not seen")
        mounts = self._mount_blocks.of(mount_blocks(text or ""))[:MOUNTS_MAX]
        for mount in mounts:
            self._mount(mount, now, now_s, samples, gauges)
        if not troubles:  # else nobody knows what is gone
            self._turned |= _forget(self._disks, disks) + _forget(self._mounts, {each.path for each in mounts}) > 0
        if self._turned or self._changes.due(now_s):
            self._turned = False
            samples += self._changes.of(self._states(disks, mounts, now), now_s)
        samples += self._gauges.of(gauges, now_s, noise=_NOISE)
        return Reading(samples=samples, trouble="; ".join(troubles), covered=[self._host])

    def close(self) -> None:
        self._diskstats.close()
        for file in self._mountstats:
            file.close()

    def _look(self) -> None:
        """Which disks there are, and which table of mounts may be read: that hardly ever changes."""
        self._readable = None
        with contextlib.suppress(OSError):
            self._whole_disks = frozenset(path.name for path in (self._sys / "block").iterdir())

    # -- disks ------------------------------------------------------------------------------------------------------

    def _of_interest(self, disks: Iterable[tuple[str, Disk]]) -> dict[str, Disk]:
        """Whole disks only: what a partition does its disk does. Where sysfs is not there, all."""
        kept = {name: disk for name, disk in disks if not self._whole_disks or name in self._whole_disks}
        return kept if len(kept) <= DISKS_MAX else dict(list(kept.items())[:DISKS_MAX])

    def _disk(self, name: str, disk: Disk, now: datetime, now_s: float, samples: list[Sample], gauges: list[Gauge]) -> None:
        known = self._disks.get(name)
        if known is None:
            watch = StallWatch(after_s=self._stalled_after_s)
            known = self._disks[name] = _WatchedDisk(watch, rated=disk, rated_s=now_s)
            self._turned = True
        turn = known.watch.see(done=disk.done, waiting=disk.in_flight, now_s=now_s)
        if turn is not None:
            words = f"disk {name}: {disk.in_flight} requests in flight"
            samples.append(self._stall(turn, known.watch, _disk_attrs(name, disk), words, now))
        if now_s - known.rated_s < RATES_EVERY_S:
            return
        rates = disk_rates(known.rated, disk, now_s - known.rated_s)
        known.rated, known.rated_s = disk, now_s
        if rates is None:
            return
        device = {"device": name}
        gauges.append(self._gauge("disk_busy_share", round(rates.busy_share, 3), now, device))
        gauges.append(self._gauge("disk_in_flight", float(disk.in_flight), now, device))
        if rates.await_ms is not None:
            gauges.append(self._gauge("disk_await_ms", round(rates.await_ms, 2), now, device))

    # -- mounts -----------------------------------------------------------------------------------------------------

    def _mounts_text(self) -> str | None:
        """Of the first that may be read; which one that is, is tried out once a minute."""
        for file in self._mountstats if self._readable is None else (self._readable, *self._mountstats):
            with contextlib.suppress(OSError):
                text = file.whole().decode("utf-8", "replace")
                self._readable = file
                return text
        return None

    def _mount(self, mount: Mount, now: datetime, now_s: float, samples: list[Sample], gauges: list[Gauge]) -> None:
        known = self._mounts.get(mount.path)
        if known is None:
            watch = StallWatch(after_s=self._stalled_after_s, floor=True)
            known = _WatchedMount(watch, Deltas(self._host, {}), rated=mount, rated_s=now_s, latest=mount)
            known.deltas.update(self._mount_counts(mount, now, now_s))
            self._mounts[mount.path] = known
            self._turned = True
        before = known.rated
        if mount.connects != before.connects:
            known.watch.forget_floor()
        self._turned |= (mount.server, mount.kind) != (known.latest.server, known.latest.kind)
        known.latest = mount
        turn = known.watch.see(done=mount.received, waiting=mount.under_way, now_s=now_s)
        if turn is not None:
            words = f"{mount.path} of {mount.server}: requests sent, none answered"
            samples.append(self._stall(turn, known.watch, _mount_attrs(mount), words, now))
        if now_s - known.rated_s < RATES_EVERY_S:
            return
        samples += known.deltas.update(self._mount_counts(mount, now, now_s))
        ops, sent = mount.ops - before.ops, mount.sent - before.sent
        known.rated, known.rated_s = mount, now_s
        if ops > 0:
            gauges.append(
                self._gauge("nfs_rtt_ms", round((mount.rtt_ms - before.rtt_ms) / ops, 2), now, {"mount": mount.path})
            )
        if sent > 0:
            waited = max(0, mount.backlog - before.backlog) / sent
            gauges.append(self._gauge("nfs_backlog", round(waited, 2), now, {"mount": mount.path}))

    def _mount_counts(self, mount: Mount, now: datetime, now_s: float) -> CounterReading:
        values = {f"nfs_retransmits:{mount.path}": mount.retransmits, f"nfs_timeouts:{mount.path}": mount.timeouts}
        return CounterReading(values=values, at=now, monotonic_s=now_s, incarnation=self._boot_id)

    # -- what is told -----------------------------------------------------------------------------------------------

    def _stall(self, turn: Turn, watch: StallWatch, attrs: dict[str, str], words: str, now: datetime) -> Event:
        self._turned = True
        stalled = turn is Turn.STALLED
        restored = f"{attrs.get('mount') or attrs['device']} answers again"
        return Event(
            component=self._host,
            name=EventName.STORAGE_STALL,
            observed_at=now,
            severity=Severity.ERROR if stalled else Severity.INFO,
            excerpt=f"{words} for {watch.for_s:.0f} s" if stalled else restored,
            attrs=attrs | {"what": "no completion", "state": turn.value, "for_s": f"{watch.for_s:.0f}"},
        )

    def _states(self, disks: Mapping[str, Disk], mounts: Iterable[Mount], now: datetime) -> Iterator[State]:
        for name, disk in disks.items():
            yield self._state(f"disk:{name}", self._disks[name].watch, _disk_attrs(name, disk), now)
        for mount in mounts:
            yield self._state(f"mount:{mount.path}", self._mounts[mount.path].watch, _mount_attrs(mount), now)

    def _state(self, name: str, watch: StallWatch, attrs: dict[str, str], now: datetime) -> State:
        value = "stalled" if watch.stalled else "ok"
        return State(component=self._host, name=name, observed_at=now, value=value, attrs=attrs)

    def _gauge(self, name: str, value: float, now: datetime, attrs: dict[str, str]) -> Gauge:
        return Gauge(component=self._host, name=name, observed_at=now, value=value, attrs=attrs)


def _disk_attrs(name: str, disk: Disk) -> dict[str, str]:
    return {"device": name, "in_flight": str(disk.in_flight)}


def _mount_attrs(mount: Mount) -> dict[str, str]:
    return {"mount": mount.path, "server": mount.server, "fstype": mount.kind}


def _forget(watched: dict[str, _T], there: Collection[str]) -> int:
    """What is gone; returns how many."""
    gone = [name for name in watched if name not in there]
    for name in gone:
        del watched[name]
    return len(gone)
