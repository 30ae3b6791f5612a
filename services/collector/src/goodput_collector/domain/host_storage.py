"""Disks and network mounts: how busy, how slow, and whether they have stopped answering.

A device that has requests in flight and completes none has stalled, whatever else it says. Nobody has to touch it to
know that, and nobody should: a process that asks a hung mount for its size hangs with it. So everything comes from
/proc/diskstats and /proc/self/mountstats, which answer from memory.

Of a mount the transport counts requests sent and answers received, and answers that nobody waited for any more (`bad_xids`:
the process was killed). Their difference is what is under way, but for requests that were lost with a connection: so the
smallest difference seen since the last connect counts as none. What is left unanswered while newer requests are answered
will never be: it counts as none from then on, too. An idle mount, and one that hung before anybody looked, say nothing
either way.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

_Part = TypeVar("_Part", str, bytes)
_Made = TypeVar("_Made")

_NOT_DISKS = re.compile(r"^(?:loop|ram|zram|dm-|md|sr|fd)\d")


class Disk(NamedTuple):
    done: int  # requests completed: reads, writes, discards, flushes
    done_ms: int  # time that those took, summed
    in_flight: int
    busy_ms: int


class DiskRates(NamedTuple):
    busy_share: float
    await_ms: float | None  # mean time of a request; None when none was completed


class Mount(NamedTuple):
    path: str
    server: str
    kind: str  # nfs, nfs4
    sent: int
    received: int
    unasked: int  # answers to nobody: whoever asked was killed
    backlog: int  # requests that waited for a slot, summed over all sends
    connects: int
    ops: int
    retransmits: int
    timeouts: int
    rtt_ms: int  # summed over all ops

    @property
    def under_way(self) -> int:
        return self.sent - self.received - self.unasked - self.retransmits


class PartByPart(Generic[_Part, _Made]):
    """Parses the parts of a table that read otherwise than the last time. Most disks are idle, and most mounts have no
    transport, or nobody is using it."""

    def __init__(self, parse: Callable[[_Part], _Made | None]) -> None:
        self._parse: Callable[[_Part], _Made | None] = parse
        self._made: dict[_Part, _Made | None] = {}

    def of(self, parts: Iterable[_Part]) -> list[_Made]:
        """What comes of each part, in order, without those that nothing comes of."""
        before, parse = self._made, self._parse
        self._made = {part: before[part] if part in before else parse(part) for part in parts}
        return [made for made in self._made.values() if made is not None]


def parse_disk(line: bytes) -> tuple[str, Disk] | None:
    """One line of diskstats, a disk or a partition; None for devices that stand for others or for memory."""
    fields = line.split()
    if len(fields) < 14:
        return None
    name = fields[2].decode("utf-8", "replace")
    if _NOT_DISKS.match(name) or not b"".join(fields[3:]).isdigit():
        return None
    numbers = [int(field[:20]) for field in fields[3:]]
    done = numbers[0] + numbers[4] + sum(numbers[11:12]) + sum(numbers[15:16])
    done_ms = numbers[3] + numbers[7] + sum(numbers[14:15]) + sum(numbers[16:17])
    return name, Disk(done, done_ms, numbers[8], numbers[9])


def disk_rates(before: Disk, after: Disk, over_s: float) -> DiskRates | None:
    """None when the counters do not fit together (a disk taken out and put back)."""
    done, done_ms, busy_ms = after.done - before.done, after.done_ms - before.done_ms, after.busy_ms - before.busy_ms
    if over_s <= 0 or min(done, done_ms, busy_ms) < 0:
        return None
    return DiskRates(min(1.0, busy_ms / 1000 / over_s), done_ms / done if done else None)


def mount_blocks(text: str) -> list[str]:
    """One for each mount of one mount namespace."""
    return text.split("\ndevice ")


def parse_mount(block: str) -> Mount | None:
    """None where there is no transport: only network mounts have one."""
    first, _, rest = block.removeprefix("device ").partition("\n")
    match = _DEVICE.match(first)
    if match is None or not rest:
        return None
    head, _, per_op = rest.partition("per-op statistics")
    sent = received = unasked = backlog = connects = ops = retransmits = timeouts = rtt_ms = 0
    transports = 0
    for line in head.splitlines():
        words = line.split()
        if len(words) < 3 or words[0] != "xprt:":
            continue
        at = _TRANSPORTS.get(words[1])
        numbers = _numbers(words[2:])
        if at is None or len(numbers) <= at.backlog:
            continue
        transports += 1
        connects += numbers[at.connects] if at.connects >= 0 else 0
        sent, received = sent + numbers[at.sent], received + numbers[at.sent + 1]
        unasked, backlog = unasked + numbers[at.sent + 2], backlog + numbers[at.backlog]
    for done, transmitted, timed_out, waited_ms in _USED_OPS.findall(per_op):
        ops, timeouts, rtt_ms = ops + int(done), timeouts + int(timed_out), rtt_ms + int(waited_ms)
        retransmits += max(0, int(transmitted) - int(done))
    if not transports:
        return None
    return Mount(
        path=match["path"],
        server=match["server"],
        kind=match["kind"],
        sent=sent,
        received=received,
        unasked=unasked,
        backlog=backlog,
        connects=connects,
        ops=ops,
        retransmits=retransmits,
        timeouts=timeouts,
        rtt_ms=rtt_ms,
    )


class _Fields(NamedTuple):
    connects: int  # -1: this transport does not connect
    sent: int  # behind it stands what is received, and behind that what nobody waited for
    backlog: int


_DEVICE = re.compile(r"(?P<server>\S+) mounted on (?P<path>\S+) with fstype (?P<kind>nfs\d?)\b")
_USED_OPS = re.compile(  # of dozens, a handful
    r"^[ \t]*\S+: (?!0 0 0 )([0-9]{1,20}) ([0-9]{1,20}) ([0-9]{1,20}) [0-9]+ [0-9]+ [0-9]+ ([0-9]{1,20}) [0-9]", re.MULTILINE
)
_TRANSPORTS = {
    "tcp": _Fields(2, 5, 9),
    "rdma": _Fields(2, 5, 9),
    "local": _Fields(1, 4, 8),
    "udp": _Fields(-1, 2, 6),
}


def _numbers(words: list[str]) -> list[int]:
    found = []
    for word in words:
        if not word.isascii() or not word.isdigit() or len(word) > 20:
            break
        found.append(int(word))
    return found


class Turn(enum.Enum):
    STALLED = "stalled"
    RESTORED = "restored"


class StallWatch:
    """Of one thing that has work to do: has it stopped completing any?

    `floor`: take the smallest amount of waiting work that was seen for none (some counts never come back to zero).
    """

    def __init__(self, *, after_s: float, floor: bool = False) -> None:
        self._after_s = after_s
        self._floor: int | None = None if floor else 0
        self._lowest = floor
        self._done: int | None = None
        self._since_s = 0.0
        self.stalled = False
        self.for_s = 0.0

    def see(self, *, done: int, waiting: int, now_s: float) -> Turn | None:
        """How it has turned with this reading, if it has. `for_s` is how long nothing has been completed."""
        moved = self._done is None or done != self._done
        if self._lowest:
            passed_over = moved and self.stalled  # newer ones are answered, these were not
            self._floor = waiting if self._floor is None or passed_over else min(self._floor, waiting)
        self._done = done
        if moved or waiting <= (self._floor or 0):
            self._since_s = now_s
        self.for_s = now_s - self._since_s
        stalled = self.for_s >= self._after_s
        if stalled == self.stalled:
            return None
        self.stalled = stalled
        return Turn.STALLED if stalled else Turn.RESTORED

    def forget_floor(self) -> None:
        """What was under way is lost (a new connection): learn anew what counts as none."""
        if self._lowest:
            self._floor = None
