"""Measurements are told when they have moved by more than their noise, and each of them now and then all the same.

A temperature that wavers by a degree is not news sixty times a minute. Each gauge is compared with what was *told* last,
not with the last reading: a slow drift is told as soon as it adds up to more than the noise. A gauge is one (component,
name, attrs): two lanes of one port are two gauges. What is not a number (NaN, infinity) is not told at all; JSON has no
word for it, and a device that says so cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from goodput_common.contracts.telemetry import Gauge

Key = tuple[str, str, tuple[tuple[str, str], ...]]  # component, name, attributes in order
_FORGET_AFTER = 3  # full intervals without being reported


class Gauges:
    """Each gauge is told at least every `full_every_s`, counted from when it itself was told: so gauges that are read at
    different intervals may share one of these, and do not all come at once. Forgets what is no longer reported."""

    def __init__(self, *, full_every_s: float) -> None:
        self._full_every_s = full_every_s
        self._told: dict[Key, tuple[float, float]] = {}
        self._swept_at_s: float | None = None

    def of(self, gauges: Iterable[Gauge], monotonic_s: float, *, noise: float | Mapping[str, float] = 0.0) -> list[Gauge]:
        """Those of `gauges` that are to be told now. `noise` is the deadband, in the gauge's own unit: one for all, or by
        name (0 where a name is missing: every change is told)."""
        told = []
        for gauge in gauges:
            key = (gauge.component, gauge.name, tuple(sorted(gauge.attrs.items())) if gauge.attrs else ())
            band = noise if isinstance(noise, (int, float)) else noise.get(gauge.name, 0.0)
            if self.due(key, gauge.value, monotonic_s, band):
                told.append(gauge)
        self.sweep(monotonic_s)
        return told

    def due(self, key: Key, value: float, monotonic_s: float, band: float) -> bool:
        """Whether to tell it now, and then it counts as told. For whoever makes a gauge only when it is; `sweep` as often as
        there is a reading."""
        known = self._told.get(key)
        if known is not None and monotonic_s - known[1] < self._full_every_s and abs(value - known[0]) <= band:
            return False
        if not math.isfinite(value):
            return False
        self._told[key] = (value, monotonic_s)
        return True

    def sweep(self, monotonic_s: float) -> None:
        """Forget what is no longer reported."""
        if self._swept_at_s is None:
            self._swept_at_s = monotonic_s
        after_s = self._full_every_s * _FORGET_AFTER
        if monotonic_s - self._swept_at_s < after_s:
            return
        self._swept_at_s = monotonic_s
        for key in [key for key, (_, at_s) in self._told.items() if monotonic_s - at_s >= after_s]:
            del self._told[key]
