"""The collectors of all hosts: they gather samples into batches as the real one does, one sequence a source.

A sample that happens at true time t carries the host's own clock, which is off by up to the specified maximum. Batches of
what happens leave a fraction of a second after their first sample; what is measured at intervals comes as one batch. What a
counter stands at is kept here, whoever tells of it. Heartbeats every few seconds name each source's newest batch, and the
components that it looks at.

A collector may die and come back: its numbering goes on, what happened meanwhile was not seen. After another boot of the
host boot id, numbering and counters are new.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

import msgspec

from goodput_common.contracts import subjects
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import (
    CollectorHeartbeat,
    Counter,
    CounterDoubt,
    Sample,
    Source,
    SourceHealth,
    SourceStatus,
    TelemetryBatch,
)
from goodput_faultlab.simulate.clockwork import Clockwork
from goodput_faultlab.simulate.counts import Counts

HEARTBEAT_S = 5.0
SAMPLES_A_BATCH = 500
REPORTED = (Source.KERNEL_LOG, Source.NETLINK, Source.RDMA, Source.PROCESS, Source.FLIGHT_RECORDER)

MakeSample = Callable[[datetime], Sample]
Covered = Mapping[Source, tuple[ComponentId, ...]]


class _Names(NamedTuple):
    """Of the messages of one source of one host."""

    subject: str
    source: str
    prefix: str


class Collectors:
    """`add` takes a sample for a host, `send` a whole reading; everything else follows by itself."""

    def __init__(self, clockwork: Clockwork, fabric: str, clock_offset_s_max: float) -> None:
        self.counts = Counts()
        self._clockwork = clockwork
        self._fabric = fabric
        self._offset_s_max = clock_offset_s_max
        self._offsets: dict[str, timedelta] = {}
        self._seqs: dict[tuple[str, Source], int] = defaultdict(int)
        self._held: dict[tuple[str, Source], list[Sample]] = defaultdict(list)
        self._covered: dict[str, Covered] = {}
        self._silent: set[str] = set()
        self._lives: dict[str, int] = defaultdict(int)  # of a host's collector
        self._boots: dict[str, int] = {}
        self._boot_ids: dict[str, str] = {}
        self._names: dict[tuple[str, Source], _Names] = {}

    def clock(self, host: str) -> datetime:
        """What the host's own clock says now."""
        offset = self._offsets.get(host)
        if offset is None:
            # drawn by name, so that it does not depend on who asked first
            rng = self._clockwork.rng(f"clock/{host}")
            offset = self._offsets[host] = timedelta(seconds=rng.uniform(-self._offset_s_max, self._offset_s_max))
        return self._clockwork.now + offset

    def jump(self, host: str, seconds: float) -> None:
        """The host's clock is set."""
        self.clock(host)
        self._offsets[host] += timedelta(seconds=seconds)

    def boot_id(self, host: str) -> str:
        found = self._boot_ids.get(host)
        if found is None:
            started = self._clockwork.start.isoformat()  # another run on the same fabric is another boot
            number = self._boots.get(host, 0)
            named = f"boot/{self._fabric}/{host}/{started}" + (f"/{number}" if number else "")
            text = hashlib.sha256(named.encode()).hexdigest()
            found = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"
            self._boot_ids[host] = found
        return found

    def start(self, hosts: tuple[str, ...]) -> None:
        rng = self._clockwork.rng("heartbeat")
        for host in hosts:
            self._clockwork.after(rng.uniform(0.0, HEARTBEAT_S), partial(self._heartbeat, host, 0))

    def covers(self, host: str, covered: Covered) -> None:
        """Which components each measuring source of a host looks at. These sources are named in its heartbeats."""
        self._covered[host] = covered

    def is_silent(self, host: str) -> bool:
        return host in self._silent

    def silence(self, host: str) -> None:
        """The collector stops: nothing more comes from this host."""
        self._silent.add(host)
        for key in [key for key in self._held if key[0] == host]:
            del self._held[key]

    def speak(self, host: str) -> None:
        """The collector is there again."""
        if host in self._silent:
            self._silent.discard(host)
            self._lives[host] += 1
            self._heartbeat(host, self._lives[host])

    def boot(self, host: str) -> None:
        """The host has booted anew."""
        self._boots[host] = self._boots.get(host, 0) + 1
        self._boot_ids.pop(host, None)
        self.counts.restart(host)
        for key in [key for key in self._seqs if key[0] == host]:
            del self._seqs[key]
        for key in [key for key in self._held if key[0] == host]:
            del self._held[key]

    def add(self, host: str, source: Source, make: MakeSample) -> Sample | None:
        """Something that has happened. Returns what is told of it; None where nobody is there to tell."""
        if host in self._silent:
            return None
        sample = self._counted(make(self.clock(host)))
        if sample is None:
            return None
        held = self._held[host, source]
        held.append(sample)
        if len(held) == 1:
            wait_s = self._clockwork.rng("batch").uniform(0.05, 0.4)
            self._clockwork.after(wait_s, lambda: self._flush(host, source))
        elif len(held) >= SAMPLES_A_BATCH:
            self._flush(host, source)
        return sample

    def send(self, host: str, source: Source, samples: Sequence[Sample], observed_from: datetime) -> None:
        """A reading, all of it at once."""
        if samples and host not in self._silent:
            self._publish(host, source, tuple(samples), observed_from)

    def _counted(self, sample: Sample) -> Sample | None:
        """With the value that the counter stands at; None for a counter that stands at its end."""
        if not isinstance(sample, Counter) or sample.doubt is not CounterDoubt.NONE:
            return sample
        counted = self.counts.add(sample.component, sample.name, sample.delta)
        if counted is None:
            return None
        return msgspec.structs.replace(sample, delta=counted.delta, value=counted.value, doubt=counted.doubt)

    def _flush(self, host: str, source: Source) -> None:
        held = self._held.pop((host, source), None)
        if held and host not in self._silent:
            self._publish(host, source, tuple(held), held[0].observed_at)

    def _publish(self, host: str, source: Source, samples: tuple[Sample, ...], observed_from: datetime) -> None:
        key = (host, source)
        seq = self._seqs[key] = self._seqs[key] + 1
        names = self._names.get(key)
        if names is None:
            names = self._names[key] = _Names(
                subjects.telemetry(self._fabric, host, source.value),
                f"collector/{self._fabric}/{host}",
                f"{self._fabric}/{host}/{source.value}/",
            )
        boot_id = self.boot_id(host)
        now = self.clock(host)
        self._clockwork.publish(
            subject=names.subject,
            id=f"{names.prefix}{boot_id}/{seq}",
            source=names.source,
            struct=TelemetryBatch(
                fabric=self._fabric, host=host, source=source, boot_id=boot_id, seq=seq,
                observed_from=observed_from, observed_to=now, samples=samples,
            ),
            time=now,
        )  # fmt: skip

    def _heartbeat(self, host: str, life: int) -> None:
        if host in self._silent or life != self._lives[host]:
            return
        seq = self._seqs[host, Source.HEARTBEAT] = self._seqs[host, Source.HEARTBEAT] + 1
        boot_id, now = self.boot_id(host), self.clock(host)
        self._clockwork.publish(
            subject=subjects.telemetry(self._fabric, host, Source.HEARTBEAT.value),
            id=f"{self._fabric}/{host}/heartbeat/{boot_id}/{seq}",
            source=f"collector/{self._fabric}/{host}",
            struct=CollectorHeartbeat(
                fabric=self._fabric, host=host, boot_id=boot_id, seq=seq, at=now, interval_s=HEARTBEAT_S,
                sources=self._health(host),
            ),
            time=now,
        )  # fmt: skip
        self._clockwork.after(HEARTBEAT_S, lambda: self._heartbeat(host, life))

    def _health(self, host: str) -> tuple[SourceHealth, ...]:
        covered = self._covered.get(host, {})
        sources = (Source.SWITCH,) if Source.SWITCH in covered else dict.fromkeys((*REPORTED, *covered))
        return tuple(
            SourceHealth(
                source=each,
                status=SourceStatus.OK,
                last_seq=self._seqs[host, each],
                covered=covered.get(each, ()),
                instance=host if each is Source.SWITCH else "",
            )
            for each in sources
        )
