"""Calls into a driver that may not come back, made so that one that does not keeps no other waiting.

All calls are made one after the other in one helper thread. When one of them has not returned in time, its thread is left
to it, its key counts as stuck until it does return, and the others go on in a new thread. So there is one thread more than
there are stuck keys, and nobody asks a key that is stuck.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_T = TypeVar("_T")


@dataclass(slots=True)
class Outcome(Generic[_T]):
    """What the calls gave, by key. `unread`: neither asked nor stuck, because the time for all was over."""

    results: dict[str, _T] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    stuck: dict[str, float] = field(default_factory=dict)  # for how many seconds
    unread: list[str] = field(default_factory=list)


class Lanes(Generic[_T]):
    """`run` is called from one thread. At most `each_s` for a call, and `all_s` for all of one run."""

    def __init__(self, name: str, *, each_s: float = 2.0, all_s: float = 6.0) -> None:
        self._name = name
        self._each_s = each_s
        self._all_s = all_s
        self._stuck: dict[str, float] = {}
        self._lane: _Lane[_T] | None = None

    def run(self, calls: Sequence[tuple[str, Callable[[], _T]]]) -> Outcome[_T]:
        outcome: Outcome[_T] = Outcome()
        until_s = time.monotonic() + self._all_s
        asked = [(key, call) for key, call in calls if key not in self._stuck]
        while asked:
            lane = self._lane
            if lane is None:
                lane = self._lane = _Lane(self._name, self._stuck)
            lane.inbox.put(asked)
            while asked:
                left_s = min(self._each_s, until_s - time.monotonic())
                try:
                    key, result, error = lane.outbox.get(timeout=max(left_s, 0.001))
                except queue.Empty:
                    key, _ = asked.pop(0)
                    self._leave(lane, key)
                    break
                asked.pop(0)
                if error is None:
                    outcome.results[key] = result  # type: ignore[assignment]
                else:
                    outcome.errors[key] = error
            if asked and time.monotonic() >= until_s:
                outcome.unread = [key for key, _ in asked]
                break
        now_s = time.monotonic()
        outcome.stuck = {key: now_s - since_s for key, since_s in dict(self._stuck).items()}
        return outcome

    @property
    def stuck(self) -> bool:
        return bool(self._stuck)

    def close(self) -> None:
        """The helper ends when it is idle; one that is stuck ends when it returns."""
        if self._lane is not None:
            self._lane.inbox.put(None)
            self._lane = None

    def _leave(self, lane: _Lane[_T], key: str) -> None:
        with lane.lock:
            if lane.at == key:  # else it came back in this very moment; then only its result is lost
                self._stuck[key] = time.monotonic() - self._each_s
            lane.left = True
        self._lane = None


class _Lane(Generic[_T]):
    def __init__(self, name: str, stuck: dict[str, float]) -> None:
        self.inbox: queue.SimpleQueue[list[tuple[str, Callable[[], _T]]] | None] = queue.SimpleQueue()
        self.outbox: queue.SimpleQueue[tuple[str, _T | None, Exception | None]] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.left = False
        self.at = ""
        self._stuck = stuck
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (calls := self.inbox.get()) is not None:
            for key, call in list(calls):
                with self.lock:
                    if self.left:
                        return
                    self.at = key
                result: _T | None = None
                error: Exception | None = None
                try:
                    result = call()
                except Exception as raised:  # noqa: BLE001 - handed to whoever asked
                    error = raised
                if not self._returned(key, result, error):
                    return

    def _returned(self, key: str, result: _T | None, error: Exception | None) -> bool:
        """Whether somebody still waits for it."""
        with self.lock:
            self.at = ""
            if self.left:
                self._stuck.pop(key, None)
                return False
            self.outbox.put((key, result, error))
            return True
