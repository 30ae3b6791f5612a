"""Disks and network mounts of this host, from tables that answer even when the storage does not.

    <proc>/diskstats            every disk: requests done, in flight, time busy
    <proc>/1/mountstats         every NFS mount of the host (of this process's own namespace where that may not be read)

No path on a mount is ever touched. Other file systems (Lustre, Ceph, GPFS) speak through the kernel log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from goodput_collector.adapters.host_files import KeptFile
from goodput_collector.application.ports import Absent, Reading
from goodput_collector.domain.changes import Changes
from goodput_collector.domain.deltas import Deltas
from goodput_collector.domain.deltas import Reading as CounterReading
from goodput_collector.domain.gauges import Gauges
from goodput_collector.domain.host_storage import (
    Disk,
    Mount,
    StallWatch,
    Turn,
    disk_rates,
    parse_diskstats,
    parse_mountstats,
)
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Event, EventName, Gauge, Sample, Severity, Source, State
from goodput_common.runtime.clock import Clock

RATES_EVERY_S = 10.0
DISKS_EVERY_S = 60.0
FULL_EVERY_S = 60.0
DISKS_MAX = 256
MOUNTS_MAX = 256
_NOISE = {"disk_busy_share": 0.05, "disk_await_ms": 5.0, "disk_in_flight": 32.0, "nfs_rtt_ms": 5.0, "nfs_backlog": 2.0}


@dataclass(slots=True)
class _Watched:
    watch: StallWatch
    deltas: Deltas
    disk: Disk | None = None
    mount: Mount | None = None
    rated_s: float = 0.0


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
        self._diskstats_path = proc_root / "diskstats"
        self._whole_disks: frozenset[str] = frozenset()
        self._looked_s = float("-inf")
        self._disks: dict[str, _Watched] = {}
        self._mounts: dict[str, _Watched] = {}
        self._gauges = Gauges(full_every_s=FULL_EVERY_S)
        self._changes = Changes(full_every_s=FULL_EVERY_S, volatile=("in_flight", "for_s"))

    def open(self) -> None:
        if not self._diskstats_path.exists() and self._mounts_text() is None:
            raise Absent(f"there is no {self._diskstats_path}")

    def wake_fd(self) -> int | None:
        return None

    def read(self) -> Reading:
        now, now_s = self._clock.now(), self._clock.monotonic_s()
        events: list[Sample] = []
        states: list[State] = []
        gauges: list[Gauge] = []
        troubles = []
        try:
            disks = self._of_interest(parse_diskstats(self._diskstats.whole()), now_s)
        except OSError as error:
            disks = {}
            troubles.append(f"{self._diskstats_path}: {error.strerror or error}")
        for name, disk in disks.items():
            self._disk(name, disk, now, now_s, events, states, gauges)
        text = self._mounts_text()
        if text is None:
            troubles.append("mountstats cannot be read: NFS mounts are not seen")
        for mount in parse_mountstats(text or "")[:MOUNTS_MAX]:
            self._mount(mount, now, now_s, events, states, gauges)
        _forget(self._disks, disks, trouble=bool(troubles))
        _forget(self._mounts, {state.attrs.get("mount", "") for state in states}, trouble=bool(troubles))
        samples = [*events, *self._changes.of(states, now_s), *self._gauges.of(gauges, now_s, noise=_NOISE)]
        return Reading(samples=samples, trouble="; ".join(troubles), covered=[self._host])

    def close(self) -> None:
        self._diskstats.close()
        for file in self._mountstats:
            file.close()

    # -- disks ------------------------------------------------------------------------------------------------------

    def _of_interest(self, disks: dict[str, Disk], now_s: float) -> dict[str, Disk]:
        """Whole disks only: what a partition does its disk does. Where sysfs is not there, all."""
        if now_s - self._looked_s >= DISKS_EVERY_S:
            self._looked_s = now_s
            with contextlib.suppress(OSError):
                self._whole_disks = frozenset(path.name for path in (self._sys / "block").iterdir())
        kept = {name: disk for name, disk in disks.items() if not self._whole_disks or name in self._whole_disks}
        return dict(list(kept.items())[:DISKS_MAX])

    def _disk(
        self,
        name: str,
        disk: Disk,
        now: datetime,
        now_s: float,
        events: list[Sample],
        states: list[State],
        gauges: list[Gauge],
    ) -> None:
        known = self._disks.get(name)
        if known is None:
            known = self._disks[name] = _Watched(
                StallWatch(after_s=self._stalled_after_s), Deltas(self._host, {}), disk=disk, rated_s=now_s
            )
        turn = known.watch.see(done=disk.done, waiting=disk.in_flight, now_s=now_s)
        attrs = {"device": name, "in_flight": str(disk.in_flight)}
        self._tell(turn, known.watch, attrs, f"disk {name}: {disk.in_flight} requests in flight", now, events)
        states.append(self._state(f"disk:{name}", known.watch, attrs, now))
        before = known.disk
        if before is None or now_s - known.rated_s < RATES_EVERY_S:
            return
        rates = disk_rates(before, disk, now_s - known.rated_s)
        known.disk, known.rated_s = disk, now_s
        if rates is None:
            return
        device = {"device": name}
        gauges.append(self._gauge("disk_busy_share", round(rates.busy_share, 3), now, device))
        gauges.append(self._gauge("disk_in_flight", float(disk.in_flight), now, device))
        if rates.await_ms is not None:
            gauges.append(self._gauge("disk_await_ms", round(rates.await_ms, 2), now, device))

    # -- mounts -----------------------------------------------------------------------------------------------------

    def _mounts_text(self) -> str | None:
        for file in self._mountstats:
            with contextlib.suppress(OSError):
                return file.whole().decode("utf-8", "replace")
        return None

    def _mount(
        self,
        mount: Mount,
        now: datetime,
        now_s: float,
        events: list[Sample],
        states: list[State],
        gauges: list[Gauge],
    ) -> None:
        known = self._mounts.get(mount.path)
        if known is None:
            watch = StallWatch(after_s=self._stalled_after_s, floor=True)
            known = self._mounts[mount.path] = _Watched(watch, Deltas(self._host, {}), mount=mount, rated_s=now_s)
            known.deltas.update(self._mount_counts(mount, now, now_s))
        before = known.mount
        if before is not None and mount.connects != before.connects:
            known.watch.forget_floor()
        turn = known.watch.see(done=mount.received, waiting=mount.under_way, now_s=now_s)
        attrs = {"mount": mount.path, "server": mount.server, "fstype": mount.kind}
        self._tell(turn, known.watch, attrs, f"{mount.path} of {mount.server}: requests sent, none answered", now, events)
        states.append(self._state(f"mount:{mount.path}", known.watch, attrs, now))
        if before is None or now_s - known.rated_s < RATES_EVERY_S:
            return
        events += known.deltas.update(self._mount_counts(mount, now, now_s))
        ops, sent = mount.ops - before.ops, mount.sent - before.sent
        known.mount, known.rated_s = mount, now_s
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

    def _tell(
        self, turn: Turn | None, watch: StallWatch, attrs: dict[str, str], words: str, now: datetime, events: list[Sample]
    ) -> None:
        if turn is None:
            return
        stalled = turn is Turn.STALLED
        restored = f"{attrs.get('mount') or attrs['device']} answers again"
        events.append(
            Event(
                component=self._host,
                name=EventName.STORAGE_STALL,
                observed_at=now,
                severity=Severity.ERROR if stalled else Severity.INFO,
                excerpt=f"{words} for {watch.for_s:.0f} s" if stalled else restored,
                attrs=attrs | {"what": "no completion", "state": turn.value, "for_s": f"{watch.for_s:.0f}"},
            )
        )

    def _state(self, name: str, watch: StallWatch, attrs: dict[str, str], now: datetime) -> State:
        value = "stalled" if watch.stalled else "ok"
        return State(component=self._host, name=name, observed_at=now, value=value, attrs=attrs)

    def _gauge(self, name: str, value: float, now: datetime, attrs: dict[str, str]) -> Gauge:
        return Gauge(component=self._host, name=name, observed_at=now, value=value, attrs=attrs)


def _forget(watched: dict[str, _Watched], there: Iterable[str], *, trouble: bool) -> None:
    """What is gone; nothing while the tables cannot be read."""
    if trouble:
        return
    kept = set(there)
    for name in [name for name in watched if name not in kept]:
        del watched[name]
