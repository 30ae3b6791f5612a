"""States are told when they change, and all of them now and then, so that a reader who came late or lost a batch
catches up."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from goodput_common.contracts.telemetry import State


class Changes:
    """`volatile` attributes (a measurement taken along) are no change. Forgets what is no longer reported."""

    def __init__(self, *, full_every_s: float, volatile: Collection[str] = ()) -> None:
        self._full_every_s = full_every_s
        self._volatile = frozenset(volatile)
        self._told: dict[tuple[str, str], tuple[str, tuple[tuple[str, str], ...]]] = {}
        self._full_at_s: float | None = None

    def due(self, monotonic_s: float) -> bool:
        """Whether all states are to be told now, changed or not."""
        return self._full_at_s is None or monotonic_s - self._full_at_s >= self._full_every_s

    def of(self, states: Iterable[State], monotonic_s: float) -> list[State]:
        """Those of `states` (all that there are) that are to be told now."""
        full = self.due(monotonic_s)
        if full:
            self._full_at_s = monotonic_s
        told, now = [], {}
        for state in states:
            key = (state.component, state.name)
            attrs = tuple(sorted((name, value) for name, value in state.attrs.items() if name not in self._volatile))
            now[key] = (state.value, attrs)
            if full or self._told.get(key) != now[key]:
                told.append(state)
        self._told = now
        return told
