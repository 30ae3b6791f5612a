"""The collectors of all hosts: they gather samples into batches as the real one does, one sequence a source.

A sample that happens at true time t carries the host's own clock, which is off by up to the specified maximum. Batches
leave a fraction of a second after their first sample; heartbeats every few seconds name each source's newest batch.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

from goodput_common.contracts import subjects
from goodput_common.contracts.telemetry import (
    CollectorHeartbeat,
    Sample,
    Source,
    SourceHealth,
    SourceStatus,
    TelemetryBatch,
)
from goodput_faultlab.simulate.clockwork import Clockwork

HEARTBEAT_S = 5.0
SAMPLES_A_BATCH = 500
REPORTED = (Source.KERNEL_LOG, Source.NETLINK, Source.RDMA, Source.PROCESS, Source.FLIGHT_RECORDER)

MakeSample = Callable[[datetime], Sample]


class Collectors:
    """`add` takes a sample for a host; everything else follows by itself."""

    def __init__(self, clockwork: Clockwork, fabric: str, clock_offset_s_max: float) -> None:
        self._clockwork = clockwork
        self._fabric = fabric
        self._offset_s_max = clock_offset_s_max
        self._offsets: dict[str, timedelta] = {}
        self._seqs: dict[tuple[str, Source], int] = defaultdict(int)
        self._held: dict[tuple[str, Source], list[Sample]] = defaultdict(list)
        self._silent: set[str] = set()

    def clock(self, host: str) -> datetime:
        """What the host's own clock says now."""
        if host not in self._offsets:
            # drawn by name, so that it does not depend on who asked first
            rng = self._clockwork.rng(f"clock/{host}")
            self._offsets[host] = timedelta(seconds=rng.uniform(-self._offset_s_max, self._offset_s_max))
        return self._clockwork.now + self._offsets[host]

    def boot_id(self, host: str) -> str:
        started = self._clockwork.start.isoformat()  # another run on the same fabric is another boot
        text = hashlib.sha256(f"boot/{self._fabric}/{host}/{started}".encode()).hexdigest()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"

    def start(self, hosts: tuple[str, ...]) -> None:
        rng = self._clockwork.rng("heartbeat")
        for host in hosts:
            self._clockwork.after(rng.uniform(0.0, HEARTBEAT_S), partial(self._heartbeat, host))

    def silence(self, host: str) -> None:
        """The collector stops: nothing more comes from this host."""
        self._silent.add(host)

    def add(self, host: str, source: Source, make: MakeSample) -> None:
        if host in self._silent:
            return
        held = self._held[host, source]
        held.append(make(self.clock(host)))
        if len(held) == 1:
            wait_s = self._clockwork.rng("batch").uniform(0.05, 0.4)
            self._clockwork.after(wait_s, lambda: self._flush(host, source))
        elif len(held) >= SAMPLES_A_BATCH:
            self._flush(host, source)

    def _flush(self, host: str, source: Source) -> None:
        held = self._held.pop((host, source), None)
        if not held or host in self._silent:
            return
        seq = self._seqs[host, source] = self._seqs[host, source] + 1
        boot_id = self.boot_id(host)
        now = self.clock(host)
        self._clockwork.publish(
            subject=subjects.telemetry(self._fabric, host, source.value),
            id=f"{self._fabric}/{host}/{source.value}/{boot_id}/{seq}",
            source=f"collector/{self._fabric}/{host}",
            struct=TelemetryBatch(
                fabric=self._fabric, host=host, source=source, boot_id=boot_id, seq=seq,
                observed_from=held[0].observed_at, observed_to=now, samples=tuple(held),
            ),
            time=now,
        )  # fmt: skip

    def _heartbeat(self, host: str) -> None:
        if host in self._silent:
            return
        seq = self._seqs[host, Source.HEARTBEAT] = self._seqs[host, Source.HEARTBEAT] + 1
        boot_id, now = self.boot_id(host), self.clock(host)
        health = tuple(
            SourceHealth(source=source, status=SourceStatus.OK, last_seq=self._seqs[host, source]) for source in REPORTED
        )
        self._clockwork.publish(
            subject=subjects.telemetry(self._fabric, host, Source.HEARTBEAT.value),
            id=f"{self._fabric}/{host}/heartbeat/{boot_id}/{seq}",
            source=f"collector/{self._fabric}/{host}",
            struct=CollectorHeartbeat(
                fabric=self._fabric, host=host, boot_id=boot_id, seq=seq, at=now, interval_s=HEARTBEAT_S, sources=health
            ),
            time=now,
        )
        self._clockwork.after(HEARTBEAT_S, lambda: self._heartbeat(host))
