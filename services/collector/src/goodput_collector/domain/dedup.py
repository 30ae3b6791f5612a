"""Fold what repeats. One broken GPU can log the same line 800,000 times in an hour, and each line says the same.

The same thing is the same component, event and code (Xid number, what a stall was ...). Of each, the first `burst`
events in a window go through untouched: the first is the one that matters, and a handful shows the rhythm. The rest of
the window becomes one event with a count, dated by the first of them, with `last_at`. What goes on and on after that is
told once in a window, and the windows get longer. Nothing is lost but the wording.

Bounded: at most `keys_max` things are followed; when there are more, the one not seen for longest is told and let go.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from goodput_common.contracts.telemetry import Event

Key = tuple[str, str, str]
_CODES = (
    *("xid", "sxid", "what", "event", "severity", "status", "kind", "fatal", "cause", "rank", "process"),
    *("state", "corrected", "reason", "device", "mount", "controller", "module"),
)


def key_of(event: Event) -> Key:
    """What makes two events the same thing."""
    code = "|".join(event.attrs[name] for name in _CODES if name in event.attrs)
    return event.component, event.name.value, code


@dataclass(slots=True)
class _Window:
    started: datetime
    length: timedelta
    left: int  # events that still go through
    overflowed: bool = False
    folded: Event | None = None
    count: int = 0
    last_at: datetime | None = None

    def fold(self, event: Event) -> None:
        self.overflowed = True
        if self.folded is None:
            self.folded = event
        self.count += event.count
        latest = event.last_at or event.observed_at
        self.last_at = latest if self.last_at is None else max(self.last_at, latest)

    def told(self) -> tuple[Event, ...]:
        if self.folded is None:
            return ()
        return (msgspec.structs.replace(self.folded, count=self.count, last_at=self.last_at),)


class Folder:
    """Events in, fewer events out. Windows go by the events' own time, so that a log gives the same at any speed."""

    def __init__(self, *, burst: int = 8, window_s: float = 30.0, window_s_max: float = 600.0, keys_max: int = 4096) -> None:
        self._burst = burst
        self._window = timedelta(seconds=window_s)
        self._window_max = timedelta(seconds=window_s_max)
        self._keys_max = keys_max
        self._open: OrderedDict[Key, _Window] = OrderedDict()

    def add(self, event: Event) -> tuple[Event, ...]:
        """What is to be told now."""
        key = key_of(event)
        window = self._open.get(key)
        if window is not None and abs(event.observed_at - window.started) < window.length:
            self._open.move_to_end(key)
            if window.left > 0:
                window.left -= 1
                return (event,)
            window.fold(event)
            return ()
        told: tuple[Event, ...] = ()
        length, left = self._window, self._burst
        if window is not None:
            told = self._open.pop(key).told()
            if window.overflowed and event.observed_at - window.started < 2 * window.length:  # it goes on and on
                length, left = min(2 * window.length, self._window_max), 1
        if len(self._open) >= self._keys_max:
            told += self._open.popitem(last=False)[1].told()
        self._open[key] = _Window(event.observed_at, length, left - 1)
        return (*told, event)

    def flush(self, now: datetime | None = None) -> tuple[Event, ...]:
        """What the windows that ended before `now` (None: all windows) have folded. One is kept open for as long again, so
        that what goes on is known to do so."""
        told: tuple[Event, ...] = ()
        for key, window in list(self._open.items()):
            if now is None or now - window.started >= 2 * window.length:
                told += window.told()
                del self._open[key]
            elif window.folded is not None and now - window.started >= window.length:
                told += window.told()
                window.folded, window.count, window.last_at = None, 0, None
        return told
