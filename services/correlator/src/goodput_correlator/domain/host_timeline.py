"""What is remembered of a host, in the broker's time: what its collector said lately, bounded."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from goodput_common.contracts.telemetry import CollectorHeartbeat, Event, State
from goodput_correlator.domain.case import Observed

EVENTS_PER_KEY_MAX = 20
EVENTS_PER_HOST_MAX = 2000
EVENT_KEEP_S = 900.0
STATES_PER_HOST_MAX = 2000
CPU_WINDOWS_MAX = 16  # of one process: what it had of the CPU lately


def _key(seen: Observed) -> tuple[str, str, str]:
    """Events of the same key repeat each other."""
    assert isinstance(seen.fact, Event)
    return seen.fact.component, seen.fact.name, seen.fact.attrs.get("xid", "")


@dataclass(slots=True)
class HostTimeline:
    """What one host's collector said lately. Repeats beyond the caps are counted, the first of a kind is never dropped."""

    host: str
    events: deque[Observed] = field(default_factory=deque)
    states: dict[tuple[str, str], Observed] = field(default_factory=dict)
    cpu: dict[str, deque[Observed]] = field(default_factory=dict)
    outer_pids: dict[str, tuple[int, datetime]] = field(default_factory=dict)  # of ranks, as the host numbers processes
    heartbeat: Observed | None = None
    heard_at: datetime | None = None
    dropped: int = 0
    news: int = 0  # grows with every fact that may change a diagnosis
    news_at: datetime | None = None  # when the last of them was received
    _same: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # kept events of each key

    def fold(self, seen: Observed) -> None:
        self.heard_at = seen.received_at
        fact = seen.fact
        if isinstance(fact, CollectorHeartbeat):
            self.heartbeat = seen
        elif isinstance(fact, State):
            key = (fact.component, fact.name)
            known = self.states.get(key)
            if known is None and len(self.states) >= STATES_PER_HOST_MAX:
                self.dropped += 1
                return
            if not (known and isinstance(known.fact, State) and known.fact.value == fact.value):
                self._tell(seen)
            self.states[key] = seen
            self._number(seen, fact)
            if "cpu_ms" in fact.attrs and "window_ms" in fact.attrs:
                self.cpu.setdefault(fact.component, deque(maxlen=CPU_WINDOWS_MAX)).append(seen)
        elif isinstance(fact, Event):
            self._event(seen, fact)

    def _number(self, seen: Observed, fact: State) -> None:
        """A rank in a container registers under the pid that it sees itself; the collector tells the host's own number with
        the ranks of a GPU, or with the process. It is kept once the process is gone: the kernel speaks of it then."""
        if not fact.attrs:
            return
        told = {key[4:]: pid for key, pid in fact.attrs.items() if key[:9] == "pid:rank:"}
        if fact.component.startswith("rank:") and "outer_pid" in fact.attrs:
            told[fact.component] = fact.attrs["outer_pid"]
        for rank, pid in told.items():
            if pid.isdigit() and (rank in self.outer_pids or len(self.outer_pids) < STATES_PER_HOST_MAX):
                self.outer_pids[rank] = (int(pid), seen.received_at)

    def _event(self, seen: Observed, fact: Event) -> None:
        limit = seen.received_at - timedelta(seconds=EVENT_KEEP_S)
        while self.events and self.events[0].received_at < limit:
            gone = _key(self.events.popleft())
            self._same[gone] -= 1
            if not self._same[gone]:
                del self._same[gone]
        key = _key(seen)
        if self._same[key] >= EVENTS_PER_KEY_MAX or len(self.events) >= EVENTS_PER_HOST_MAX:
            self.dropped += 1
            return
        self.events.append(seen)
        self._same[key] += 1
        self._tell(seen)

    def _tell(self, seen: Observed) -> None:
        self.news += 1
        self.news_at = seen.received_at

    def facts(self, since: datetime) -> list[Observed]:
        kept = [each for each in self.events if each.received_at >= since]
        kept.extend(self.states.values())
        if self.heartbeat is not None:
            kept.append(self.heartbeat)
        return kept

    def silent(self, now: datetime) -> bool:
        """Its collector used to send heartbeats and has missed more than two."""
        beat = self.heartbeat
        if beat is None or not isinstance(beat.fact, CollectorHeartbeat):
            return False
        return beat.received_at < now - timedelta(seconds=2.5 * max(1.0, beat.fact.interval_s))
