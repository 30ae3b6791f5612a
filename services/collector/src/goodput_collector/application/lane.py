"""A thread that reads sources one after the other, and is left behind by the others when one of them hangs.

A read of a hung device does not return, and no Python can make it. A thread for each source would be safe from that, but on
a healthy host the dearest thing about a quiet read is to wake up for it. So all sources share one thread while they answer
quickly. When a call takes long, whoever watches (`keeps_waiting`) gives the other sources, and what they have told so far,
to a new lane (`split`); this thread keeps the slow one for itself. After many quick reads it is asked to share again.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from goodput_collector.application.ports import Reading
from goodput_collector.application.turn import EARLY_S, Turn
from goodput_common.runtime.alarm import Alarm

HOLD_S = 0.2  # so long a call may keep the other sources waiting
QUICK_READS = 60  # in a row, before a source that was slow shares a thread again
ALONE_OFFSET_S = 0.05  # not at the moment at which the shared lane reads: they would want the interpreter together


class Told(NamedTuple):
    turn: Turn
    reading: Reading


class Lane:
    """`take` publishes readings and returns once it has, with the error of each that could not be. `quick` is told that this
    lane's only source has been quick for long. Both are called in the lane's thread; all else may be from any. The thread
    waits for `begin`: so whoever has no thread or descriptor left (RuntimeError, OSError) knows it before sources change
    hands."""

    def __init__(
        self,
        name: str,
        *,
        take: Callable[[Sequence[Told]], Sequence[Exception | None]],
        quick: Callable[[Lane], object],
    ) -> None:
        self._take = take
        self._quick = quick
        self._lock = threading.Lock()
        self._turns: list[Turn] = []
        self._told: list[Told] = []
        self._alone = False
        self._quick_reads = 0
        self._in_round = False
        self._current: Turn | None = None
        self._since_s = 0.0
        self._begun = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        with contextlib.ExitStack() as undo:
            self.alarm = Alarm()
            undo.callback(self.alarm.close)
            self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            undo.callback(os.close, self._bell)
            self._thread.start()
            undo.pop_all()

    def begin(self, turns: Sequence[Turn], told: Sequence[Told] = ()) -> None:
        with self._lock:
            self._turns, self._told = list(turns), list(told)
        self._begun.set()

    def stop(self) -> None:
        """Returns at once; the thread ends after the call that it is in."""
        self._stopping = True
        self._ring()

    def forget(self) -> None:
        """Nobody watches it any more."""
        with self._lock:
            self.alarm.close()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def adopt(self, turn: Turn) -> None:
        with self._lock:
            self._turns.append(turn)
        self._ring()

    def retire(self) -> Turn | None:
        """The only source of this lane, whose thread then ends; None while it is being read."""
        with self._lock:
            if self._current is not None or self._told or len(self._turns) != 1:
                return None
            (turn,) = self._turns
            self._turns = []
        self.stop()
        return turn

    def keeps_waiting(self) -> bool:
        """To be called when the alarm has rung: whether a call keeps other sources waiting, so that this lane is to be
        `split`. Else the alarm is set for when there is more to say."""
        with self._lock:
            turn = self._current
            if turn is None:
                if self._in_round:  # between two calls
                    self.alarm.set(HOLD_S)
                return False
            if self._alone:
                if (left_s := turn.late_in_s()) is not None:
                    self.alarm.set(left_s)
                return False
            took_s = time.monotonic() - self._since_s
            if took_s < HOLD_S:
                self.alarm.set(HOLD_S - took_s)
                return False
            return True

    def split(self) -> tuple[list[Turn], list[Told]] | None:
        """Another lane is to go on with the sources that are kept waiting, and with what they have told. None: the call has
        come back."""
        with self._lock:
            turn = self._current
            if turn is None or self._alone:
                return None
            others, told = [each for each in self._turns if each is not turn], self._told
            self._turns, self._told, self._alone, self._quick_reads = [turn], [], True, 0
            self.alarm.set(turn.late_in_s() or HOLD_S)
            return others, told

    def wait_on(self, seconds: float) -> None:
        """There is no lane for the others now: the alarm rings again, and the slow source is told all the same."""
        with self._lock:
            if self._current is not None:
                self._current.late_in_s()
            if self._in_round:
                self.alarm.set(seconds)

    # -- in the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._begun.wait()
        self._hand_over()  # what the lane before this one has read
        while not self._stopping:
            self._read()
            self._hand_over()
            if not self._stopping:
                self._wait()
        for turn in self._turns:
            turn.close()
        with self._lock:
            os.close(self._bell)
            self._bell = -1

    def _read(self) -> None:
        """All sources that are due."""
        now_s = time.monotonic() + EARLY_S
        with self._lock:
            due = [turn for turn in self._turns if turn.due_at_s <= now_s]
            if not due:
                return
            self._in_round = True
            self.alarm.set(due[0].reader.deadline_s if self._alone else HOLD_S)
        for turn in due:
            with self._lock:
                if self._stopping or turn not in self._turns:  # another lane goes on with it
                    break
                self._current, self._since_s = turn, time.monotonic()
            reading = turn.take()
            with self._lock:
                self._current = None
                if reading is not None:
                    self._told.append(Told(turn, reading))
                if self._alone:
                    quick = time.monotonic() - self._since_s < HOLD_S / 2
                    self._quick_reads = self._quick_reads + 1 if quick else 0
        with self._lock:
            self._in_round = False
            self.alarm.clear()

    def _hand_over(self) -> None:
        told = self._told
        if not told:
            return
        errors: Sequence[Exception | None]
        try:
            errors = self._take(told)
        except Exception as raised:  # noqa: BLE001 - it would end the thread, and all its sources with it
            errors = [raised] * len(told)
        offset_s = ALONE_OFFSET_S if self._alone else 0.0
        for (turn, reading), error in zip(told, errors, strict=True):
            turn.delivered(reading, error, offset_s=offset_s)
        self._told = []
        if self._alone and self._quick_reads >= QUICK_READS:
            self._quick_reads = 0
            self._quick(self)

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        with self._lock:
            turns = list(self._turns)
        waking = {fd: turn for turn in turns if (fd := turn.wake_fd()) is not None}
        for fd in waking:
            poll.register(fd, select.POLLIN)
        due_s = min((turn.due_at_s for turn in turns), default=float("inf")) - time.monotonic()
        for fd, _ in poll.poll(max(due_s, 0.0) * 1000 if turns else None):
            if fd == self._bell:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._bell)
            else:
                waking[fd].wake(time.monotonic())

    def _ring(self) -> None:
        with self._lock:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)
