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
            if self._lane is None:
                self._lane = _Lane(self._name, self._stuck)
            batch = _Batch(asked, outcome)
            self._lane.inbox.put(batch)
            if self._wait(batch, until_s):
                break
            left = self._leave(self._lane, batch)
            if left is None:
                break
            asked, self._lane = left, None
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

    def _wait(self, batch: _Batch[_T], until_s: float) -> bool:
        """Whether all calls have come back. One wait for all of them, as long as each keeps its time."""
        while True:
            late_s = min(batch.since_s + self._each_s, until_s)
            if batch.returned.acquire(timeout=max(late_s - time.monotonic(), 0.001)):
                return True
            if time.monotonic() >= min(batch.since_s + self._each_s, until_s):
                return False

    def _leave(self, lane: _Lane[_T], batch: _Batch[_T]) -> list[tuple[str, Callable[[], _T]]] | None:
        """Leave the lane to the call that is late. The calls that are still to be made; None: all came back just now."""
        with lane.lock:
            if batch.at >= len(batch.calls):
                return None
            batch.left = True
            self._stuck[batch.calls[batch.at][0]] = batch.since_s
            return list(batch.calls[batch.at + 1 :])


class _Batch(Generic[_T]):
    """Calls on their way. `at` is the one that is being made, since `since_s`; both change under the lane's lock. `returned`
    can be had once all have come back: a lock is the cheapest thing that one thread can wait for another with."""

    def __init__(self, calls: Sequence[tuple[str, Callable[[], _T]]], outcome: Outcome[_T]) -> None:
        self.calls = calls
        self.outcome = outcome
        self.returned = threading.Lock()
        self.returned.acquire()
        self.left = False
        self.at = 0
        self.since_s = time.monotonic()


class _Lane(Generic[_T]):
    def __init__(self, name: str, stuck: dict[str, float]) -> None:
        self.inbox: queue.SimpleQueue[_Batch[_T] | None] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self._stuck = stuck
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (batch := self.inbox.get()) is not None:
            for key, call in batch.calls:
                result: _T | None = None
                error: Exception | None = None
                try:
                    result = call()
                except Exception as raised:  # noqa: BLE001 - handed to whoever asked
                    error = raised
                if not self._returned(batch, key, result, error):
                    return
            batch.returned.release()

    def _returned(self, batch: _Batch[_T], key: str, result: _T | None, error: Exception | None) -> bool:
        """Whether somebody still waits for it, and for the next."""
        with self.lock:
            if batch.left:  # by whom `key` was called stuck, and the rest was given to another lane
                self._stuck.pop(key, None)
                return False
            if error is None:
                batch.outcome.results[key] = result  # type: ignore[assignment]
            else:
                batch.outcome.errors[key] = error
            batch.at, batch.since_s = batch.at + 1, time.monotonic()
            return True
