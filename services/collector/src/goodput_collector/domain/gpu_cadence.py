"""What to ask which GPU when: cheap questions often, dear ones seldom, and never all GPUs at once.

Reading a clock is an ioctl of microseconds. ECC errors by location, remapped rows and the fabric's state ask the GPU's
own firmware (GSP), which takes milliseconds and is what hangs first on a sick GPU. Each group has its own interval; the
GPUs take turns within it, so that a host of eight does not ask eight firmwares in the same moment. A group that turns out
to be slow is asked less often: its time may take at most a fiftieth of its interval.

When a total that is cheap to read says that an error was counted, the group that knows where is due at once.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

DUTY = 50  # a group's interval is at least this many times what it takes
STRETCHED_MAX = 20  # times its own interval


class Group(enum.StrEnum):
    CLOCKS = "clocks"  # clocks, what holds them down, power, temperature
    COUNTS = "counts"  # PCIe, time throttled, ECC totals, rows remapped: one batch of fields
    LINKS = "links"  # NVLink state and errors
    PROCESSES = "processes"
    MEMORY = "memory"  # ECC by location, remapped rows, retired pages
    FABRIC = "fabric"
    SETTINGS = "settings"  # limits, maxima, modes, MIG instances


INTERVALS_S = {
    Group.CLOCKS: 1.0,
    Group.COUNTS: 5.0,
    Group.LINKS: 5.0,
    Group.PROCESSES: 5.0,
    Group.MEMORY: 30.0,
    Group.FABRIC: 30.0,
    Group.SETTINGS: 60.0,
}


QUICK = (Group.CLOCKS,)  # what is asked in nearly every round
_SLOW = tuple(group for group in Group if group is not Group.CLOCKS)


class Cadence:
    """The clockwork of one GPU. `place` of `places` is its turn among the GPUs."""

    def __init__(self, *, place: int = 0, places: int = 1, fastest_s: float = 1.0) -> None:
        self._intervals_s = {
            group: fastest_s if group is Group.CLOCKS else max(interval_s, fastest_s)
            for group, interval_s in INTERVALS_S.items()
        }
        self._turn = place / max(places, 1)
        self._slack_s = fastest_s / 5  # a reading that comes a little early must not wait for the next one
        self._due_s: dict[Group, float] = {}
        self._slow_due_s = float("-inf")  # the first of the slow groups

    def due(self, now_s: float) -> tuple[Group, ...]:
        """Groups to ask now. At first all: what a GPU is like is known from the first reading on."""
        until_s = now_s + self._slack_s
        if until_s < self._slow_due_s:
            return QUICK if self._due_s.get(Group.CLOCKS, now_s) <= until_s else ()
        return tuple(group for group in Group if self._due_s.get(group, now_s) <= until_s)

    def asked(self, groups: Sequence[Group], now_s: float, took_s: Mapping[Group, float]) -> None:
        """`groups` were asked at `now_s` and took this long each."""
        for group in groups:
            base_s = self._intervals_s[group]
            interval_s = min(max(base_s, took_s.get(group, 0.0) * DUTY), base_s * STRETCHED_MAX)
            first = group not in self._due_s
            turn_s = interval_s * self._turn if first and group is not Group.CLOCKS else 0.0
            self._due_s[group] = now_s + (turn_s or interval_s)
        if groups != QUICK:
            self._find_slow()

    def hurry(self, group: Group) -> None:
        """Ask `group` at the next reading."""
        self._due_s.pop(group, None)
        self._find_slow()

    def _find_slow(self) -> None:
        self._slow_due_s = min(self._due_s.get(group, float("-inf")) for group in _SLOW)
