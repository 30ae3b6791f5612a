"""Simulated time: a queue of things to happen, and the messages that come of them.

Nothing here reads a real clock. `run_until` carries out what is due in order; what is published on the way is collected
with the simulated moment of publication, after the transport has lost, doubled or delayed its share. All draws come
from one generator per purpose, so that switching one kind of noise off does not shift any other.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_right
from collections.abc import Callable
from datetime import datetime, timedelta
from operator import itemgetter

import msgspec

from goodput_common.contracts import job, telemetry
from goodput_faultlab.simulate.spec import TransportSpec

DELAY_S_MIN = 0.002
_AT_ONCE = timedelta(0)
_at = itemgetter(0)
LOSABLE = (telemetry.TelemetryBatch, telemetry.CollectorHeartbeat, job.RankProgress, job.HostProgress)


class Outgoing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message ready to be published. `at` is when (simulated true time); `time` is what the sender's own clock says."""

    subject: str
    id: str
    source: str
    struct: msgspec.Struct
    at: datetime
    time: datetime


class Clockwork:
    """The queue. `rng(purpose)` gives the generator of a purpose, always the same one."""

    def __init__(self, start: datetime, seed: int, transport: TransportSpec) -> None:
        self.now = start
        self.start = start
        self._seed = seed
        self._transport = transport
        self._queue: list[tuple[datetime, int, Callable[[], object]]] = []
        self._out: list[tuple[datetime, int, Outgoing]] = []
        self._pushed = 0
        self._rngs: dict[str, random.Random] = {}
        self._transport_rng = self.rng("transport")
        self._delay_s = max(0.0, transport.delay_s_max - DELAY_S_MIN)

    def rng(self, purpose: str) -> random.Random:
        if purpose not in self._rngs:
            self._rngs[purpose] = random.Random(f"{self._seed}/{purpose}")
        return self._rngs[purpose]

    @property
    def elapsed_s(self) -> float:
        return (self.now - self.start).total_seconds()

    def at(self, when: datetime, what: Callable[[], object]) -> None:
        """Do `what` at `when`, or next if that has passed."""
        self._pushed += 1
        heapq.heappush(self._queue, (max(when, self.now), self._pushed, what))

    def after(self, seconds: float, what: Callable[[], object]) -> None:
        wait = timedelta(0, seconds)
        self._pushed += 1
        heapq.heappush(self._queue, (self.now + wait if wait > _AT_ONCE else self.now, self._pushed, what))

    def publish(self, *, subject: str, id: str, source: str, struct: msgspec.Struct, time: datetime) -> None:
        """Put a message on its way, now."""
        rng, transport = self._transport_rng, self._transport
        if transport.lost and isinstance(struct, LOSABLE) and rng.random() < transport.lost:
            return
        at = self.now + timedelta(0, DELAY_S_MIN + self._delay_s * rng.random())
        if transport.late and rng.random() < transport.late:
            at += timedelta(seconds=rng.uniform(0.0, transport.late_s_max))
        self._push(Outgoing(subject=subject, id=id, source=source, struct=struct, at=at, time=time))
        if transport.doubled and rng.random() < transport.doubled:
            again = at + timedelta(seconds=rng.uniform(0.01, 2.0))
            self._push(Outgoing(subject=subject, id=id, source=source, struct=struct, at=again, time=time))

    def _push(self, out: Outgoing) -> None:
        self._pushed += 1
        self._out.append((out.at, self._pushed, out))

    def run_until(self, to: datetime) -> list[Outgoing]:
        """Carry out everything due up to `to`; the messages published in that time, in order."""
        queue, pop = self._queue, heapq.heappop
        while queue and queue[0][0] <= to:
            self.now, _, what = pop(queue)
            what()
        self.now = max(self.now, to)
        self._out.sort()  # nearly in order already: cheaper than a heap
        end = bisect_right(self._out, to, key=_at)
        due, self._out = self._out[:end], self._out[end:]
        return [out for _, _, out in due]
