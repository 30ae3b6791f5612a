"""What is told less often while the bus cannot take everything: measurements, traffic and its pacing, never what may be a
fault.

How often low-value samples are told is a setting (every 5 s). A spool that fills up evicts its oldest messages, whatever
is in them. So before it is full, low-value samples are held back and told every 10, 60 or 300 s instead: of a measurement
the newest, of a traffic counter the sum, so that nothing that was counted is lost. Events, states and error counters
always go at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

import msgspec

from goodput_collector.domain.rdma_counters import OTHER_COUNTERS, PORT_COUNTERS, QUEUE_COUNTERS, Tells
from goodput_common.contracts.telemetry import Counter, CounterDoubt, Gauge, Sample

_Series = TypeVar("_Series", bound=Hashable)


class Level(NamedTuple):
    filled: float  # share of the spool from which on it holds
    every_s: float


LEVELS = (Level(0.0, 0.0), Level(0.1, 10.0), Level(0.4, 60.0), Level(0.7, 300.0))
HELD_MAX = 20_000  # samples; at it everything held goes at once
TRAFFIC = frozenset(
    name
    for table in (QUEUE_COUNTERS, PORT_COUNTERS, OTHER_COUNTERS)
    for name, counter in table.items()
    if counter.tells in (Tells.TRAFFIC, Tells.PACING)
) | {"rx_bytes", "tx_bytes", "rx_packets", "tx_packets"}


def thinned_to(filled: float) -> float:
    """How long low-value samples are held back when this share of the spool is full."""
    return max(level.every_s for level in LEVELS if filled >= level.filled)


def is_low_value(sample: Sample) -> bool:
    """A measurement, or a counter that only tells of traffic and its pacing and whose delta is certain."""
    if isinstance(sample, Gauge):
        return True
    return isinstance(sample, Counter) and sample.name in TRAFFIC and sample.doubt is CounterDoubt.NONE


class Thinning(Generic[_Series]):
    """Holds low-value samples back, each series by itself (a source, a reader)."""

    def __init__(self) -> None:
        self._held: dict[_Series, dict[Hashable, Counter | Gauge]] = {}
        self._released_s: dict[_Series, float] = {}

    def take(self, series: _Series, samples: Iterable[Sample], *, every_s: float, now_s: float) -> list[Sample]:
        """What is to be told now. `every_s` 0: all of it, with what was held back before."""
        held = self._held.setdefault(series, {})
        told: list[Sample] = []
        for sample in samples:
            if isinstance(sample, Counter | Gauge) and (every_s > 0 or held) and is_low_value(sample):
                key = (sample.component, sample.name, tuple(sample.attrs.items()) if isinstance(sample, Gauge) else ())
                held[key] = _joined(held.get(key), sample)
            else:
                told.append(sample)
        if self._is_due(series, every_s, now_s) or len(held) >= HELD_MAX:
            told += self._release(series, now_s)
        return told

    def due(self, *, every_s: float, now_s: float) -> list[tuple[_Series, list[Sample]]]:
        """What has been held long enough, by series: a source that falls silent does not keep what it told. `every_s` 0: all
        that is held."""
        found = [series for series, held in self._held.items() if held and self._is_due(series, every_s, now_s)]
        return [(series, self._release(series, now_s)) for series in found]

    def _is_due(self, series: _Series, every_s: float, now_s: float) -> bool:
        return now_s - self._released_s.get(series, float("-inf")) >= every_s

    def _release(self, series: _Series, now_s: float) -> list[Sample]:
        held = self._held.get(series)
        if not held:
            return []
        released: list[Sample] = list(held.values())
        held.clear()
        self._released_s[series] = now_s
        return released


def _joined(before: Counter | Gauge | None, sample: Counter | Gauge) -> Counter | Gauge:
    if not isinstance(sample, Counter) or not isinstance(before, Counter):
        return sample
    return msgspec.structs.replace(
        sample, delta=before.delta + sample.delta, interval_s=round(before.interval_s + sample.interval_s, 3)
    )
