"""Pause frames: how much of the time a port was told to stop, and when an adapter itself cries storm.

    rx_prio3_pause_duration   the network told this adapter to stop sending, so long in all (microseconds)
    tx_prio3_pause_duration   this adapter told the network to stop: a slow receiver

A count of pause frames says little (one frame may stop a port for a microsecond or for 65 of its quanta); the share of time
says all. `tx_pause_storm_*_events` are the adapter's own watchdog: a warning that it has been pausing for long, then an
error, after which it pauses no more and drops.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from goodput_common.contracts.telemetry import Counter, CounterDoubt, Event, EventName, Gauge, Severity

_DURATION = re.compile(r"(?P<direction>[rt]x)_(?:prio(?P<priority>[0-7])|global)_pause_duration")
_STORMS = {
    "tx_pause_storm_warning_events": (Severity.WARNING, "the adapter has been sending pause frames for long"),
    "tx_pause_storm_error_events": (
        Severity.ERROR,
        "the adapter sent pause frames for too long, and pauses no more: it drops",
    ),
}


class PauseShares:
    """Of one interface. A priority that never paused is not told of; one that did, is also when it no longer does."""

    def __init__(self) -> None:
        self._paused: set[str] = set()
        self._read_at_s: float | None = None

    def of(self, moved: Iterable[Counter], names: Iterable[str], now: Gauge, monotonic_s: float) -> list[Gauge]:
        """`moved` are the counters that increased, `names` all that were read, `now` a pattern: its component and time."""
        since_s = None if self._read_at_s is None else monotonic_s - self._read_at_s
        self._read_at_s = monotonic_s
        if not since_s or since_s <= 0:
            return []
        deltas = {each.name: each for each in moved}
        self._paused |= {name for name in deltas if _DURATION.fullmatch(name)}
        return [_share(name, deltas.get(name), now) for name in sorted(self._paused & set(names))]


def storms(moved: Iterable[Counter], attrs: Mapping[str, str]) -> list[Event]:
    """The adapter's own watchdog, as events."""
    found = []
    for counter in moved:
        if counter.name in _STORMS and counter.doubt is not CounterDoubt.RESET:
            severity, text = _STORMS[counter.name]
            found.append(
                Event(
                    component=counter.component,
                    name=EventName.PAUSE_STORM,
                    observed_at=counter.observed_at,
                    severity=severity,
                    excerpt=f"{counter.name} +{counter.delta}: {text}",
                    attrs={**attrs, "by": "ethtool", "state": "stormed", "priority": "unknown", "what": counter.name},
                    count=counter.delta,
                )
            )
    return found


def _share(name: str, counter: Counter | None, now: Gauge) -> Gauge:
    match = _DURATION.fullmatch(name)
    assert match is not None
    share = 0.0
    if counter is not None and counter.interval_s > 0 and counter.doubt is not CounterDoubt.RESET:
        share = min(1.0, counter.delta / (counter.interval_s * 1e6))
    attrs = {**now.attrs, "direction": match["direction"], "priority": match["priority"] or "global"}
    return Gauge(
        component=now.component, name="pause_share", observed_at=now.observed_at, value=round(share, 4), attrs=attrs
    )
