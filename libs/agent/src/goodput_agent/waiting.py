"""How much of its steps a rank waits for the others, by looking where its main thread is, twenty times a second.

Who is late makes all others wait and waits least itself: that is what tells a straggler from its victims. Nothing is hooked
into torch for it. The reporter's thread glances at the main thread's frames: inside a collective of torch.distributed it
waits. What is between two glances counts for the second, and no more than two usual gaps of it: a glance that comes late
came late because the main thread had the interpreter to itself, and who has that does not wait.

This can be told only where a collective returns when it is done, as with gloo. It cannot, and then nothing is said, where

- the device waits and the main thread goes on (NCCL, unless TORCH_NCCL_BLOCKING_WAIT is set);
- waiting goes on in C++ where no frame shows it: under DDP and FSDP, which wait inside the backward pass;
- no wait was ever seen (collectives that are waited for by `work.wait()`).
"""

from __future__ import annotations

import enum
import os
import sys
from collections import deque
from collections.abc import Mapping
from types import FrameType
from typing import Any

from goodput_agent.recorder import COLLECTIVE_MODULE, NOT_COLLECTIVES

GLANCE_EVERY_S = 0.05  # in the mean
UNEVEN = (
    0.8  # gaps differ by so much of it: even ones would meet steps of about that length at the same place again and again
)
GOLDEN = 0.6180339887498949  # its multiples fill an interval evenly
TAKEN_TOGETHER = 5  # reports: twenty glances say too little by themselves
ABSENT_GAPS = 2.0  # of the usual gap: what is beyond was no waiting
ENOUGH_S = 0.3  # of steps seen: less says nothing of them
FRAMES_MAX = 64
ON_DEVICE = ("nccl", "xccl", "hccl", "ucc")
_HIDDEN = ("/torch/nn/parallel/distributed.py", "/torch/distributed/fsdp/", "/torch/distributed/_composable/")
_BLOCKING = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")


class Place(enum.Enum):
    """Where the main thread is."""

    WORKING = "working"
    WAITING = "waiting"  # inside a collective
    HIDDEN = "hidden"  # inside something that waits where no frame shows it


def place_of(frame: FrameType | None) -> Place:
    """By the frames of a thread, innermost first."""
    depth, place = 0, Place.WORKING
    while frame is not None and depth < FRAMES_MAX:
        code = frame.f_code
        if code.co_filename.endswith(COLLECTIVE_MODULE) and code.co_name not in NOT_COLLECTIVES:
            place = Place.WAITING
        elif any(name in code.co_filename for name in _HIDDEN):
            return Place.HIDDEN
        frame, depth = frame.f_back, depth + 1
    return place


def waits_on_host(modules: Mapping[str, Any] = sys.modules, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether collectives of this process keep its main thread until they are done."""
    world = getattr(modules.get("torch.distributed.distributed_c10d"), "_world", None)
    backends = [str(kind) for kind, *_ in getattr(world, "pg_map", {}).values()]
    if not backends:
        return False
    blocking = any(environment.get(name, "0") in ("1", "true", "True") for name in _BLOCKING)
    return blocking or not any(device in backend for backend in backends for device in ON_DEVICE)


def gap_s(number: int) -> float:
    """How long to wait for the next glance."""
    return GLANCE_EVERY_S * (1.0 + UNEVEN * (number * GOLDEN % 1.0 - 0.5))


class Waiting:
    """Sums up glances. Called from the reporter's thread only."""

    def __init__(self) -> None:
        self._glanced_s: float | None = None
        self._seen_s = 0.0
        self._waited_s = 0.0
        self._hidden = False
        self._taken: deque[tuple[float, float]] = deque(maxlen=TAKEN_TOGETHER)
        self._ever = False  # a wait was seen: where none ever is, they are somewhere else

    def glance(self, now_s: float, place: Place, *, in_step: bool) -> None:
        """`in_step`: the time since the last glance belongs to a step."""
        before_s, self._glanced_s = self._glanced_s, now_s
        if before_s is None or not in_step:
            return
        passed_s = now_s - before_s
        self._seen_s += passed_s
        if place is Place.WAITING:
            self._waited_s += min(passed_s, ABSENT_GAPS * GLANCE_EVERY_S)
            self._ever = True
        self._hidden = self._hidden or place is Place.HIDDEN

    def away(self) -> None:
        """It is not looked at for a while."""
        self._glanced_s = None

    def take(self) -> float | None:
        """The share of the time in steps that was waited, over the last few times that this was asked. None where it cannot
        be told."""
        if self._hidden or not self._ever:
            self._taken.clear()
        elif self._seen_s:
            self._taken.append((self._seen_s, self._waited_s))
        self._seen_s, self._waited_s, self._hidden = 0.0, 0.0, False
        seen_s = sum(seen for seen, _ in self._taken)
        if not self._ever or seen_s < ENOUGH_S:
            return None
        return min(1.0, sum(waited for _, waited in self._taken) / seen_s)
