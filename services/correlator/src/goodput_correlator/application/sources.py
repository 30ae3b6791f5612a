"""Which sources we cannot see now: silent collectors, sources that say so themselves, holes in a batch sequence.

None of these says anything about the hardware behind: an unknown source is neither healthy nor broken, it is counted, and
people look after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from goodput_common.contracts.telemetry import CollectorHeartbeat, SourceHealth, SourceStatus, TelemetryBatch
from goodput_correlator.domain.room import Leave, Room

HOSTS_MAX = 100_000
HOLES_MAX = 1000  # of one source; beyond that more holes make no difference
HOLE_S = 120.0  # a batch that has not come within this is lost; its hole no longer counts as doubt about the present
FORGET_S = 24 * 3600.0  # a host that has not been heard of for this long is gone, not silent
SILENT_AFTER_INTERVALS = 3.0


@dataclass(slots=True)
class _Sequence:
    boot_id: str
    highest: int
    holes: dict[int, datetime] = field(default_factory=dict)

    def seen(self, seq: int, at: datetime) -> int:
        """Returns how many batches are newly missing."""
        self.holes.pop(seq, None)
        fresh = range(self.highest + 1, seq)[-HOLES_MAX:]
        self.highest = max(self.highest, seq)
        for missing in fresh:
            if len(self.holes) < HOLES_MAX:
                self.holes[missing] = at
        return len(fresh)

    def doubtful(self, now: datetime) -> bool:
        limit = now - timedelta(seconds=HOLE_S)
        for seq in [seq for seq, at in self.holes.items() if at < limit]:
            del self.holes[seq]
        return bool(self.holes)


@dataclass(slots=True)
class _Host:
    heard_at: datetime
    interval_s: float = 0.0
    health: tuple[SourceHealth, ...] = ()
    sequences: dict[str, _Sequence] = field(default_factory=dict)


class Sources:
    """By host. At the bound the longest silent host gives way; where all speak, new ones are not tracked (their evidence is
    used all the same)."""

    def __init__(self, held_max: int = HOSTS_MAX) -> None:
        self._hosts: dict[str, _Host] = {}
        self._room: Room[_Host] = Room(held_max)

    def batch(self, batch: TelemetryBatch, received_at: datetime) -> int:
        """Note a batch; returns how many before it are missing so far."""
        host = self._host(batch.host, received_at)
        if host is None:
            return 0
        known = host.sequences.get(batch.source.value)
        if known is None or known.boot_id != batch.boot_id:
            host.sequences[batch.source.value] = _Sequence(batch.boot_id, batch.seq)
            return 0
        return known.seen(batch.seq, received_at)

    def heartbeat(self, beat: CollectorHeartbeat, received_at: datetime) -> None:
        host = self._host(beat.host, received_at)
        if host is not None:
            host.interval_s, host.health = beat.interval_s, beat.sources

    def _host(self, name: str, received_at: datetime) -> _Host | None:
        host = self._hosts.get(name)
        if host is None:
            for gone in self._room.leaving(self._hosts, lambda each: Leave(False, each.heard_at), received_at):
                del self._hosts[gone]
            if len(self._hosts) >= self._room.held_max:
                return None
            host = self._hosts[name] = _Host(received_at)
        host.heard_at = max(host.heard_at, received_at)
        return host

    def unknown(self, now: datetime) -> Mapping[str, int]:
        """Source -> on how many hosts it is unknown at `now`; a silent collector counts under `heartbeat`."""
        counts: dict[str, int] = {}
        for name, host in list(self._hosts.items()):
            quiet_s = (now - host.heard_at).total_seconds()
            if quiet_s > FORGET_S:
                del self._hosts[name]
                continue
            doubtful = {source for source, sequence in host.sequences.items() if sequence.doubtful(now)}
            doubtful |= {each.source.value for each in host.health if each.status is SourceStatus.UNKNOWN}
            if host.interval_s and quiet_s > SILENT_AFTER_INTERVALS * host.interval_s:
                doubtful.add("heartbeat")
            for source in doubtful:
                counts[source] = counts.get(source, 0) + 1
        return counts
