"""What a source is to the application, and what a spool is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import msgspec

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.job import FlightRecorderDump
from goodput_common.contracts.telemetry import Sample, Source
from goodput_common.contracts.topology import TopologySnapshot


class Unreadable(Exception):
    """A source cannot be read now; the text says why, in words for the heartbeat. It is tried again, ever more slowly.
    `remedy` says what somebody could do about it ("run as root, or give it CAP_SYSLOG"), for `goodput collector check`."""

    def __init__(self, reason: str, *, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy


class Absent(Unreadable):
    """This host has no such thing (no RDMA device, no kernel log here). Looked for again now and then: devices appear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one read of a source gave. `trouble` is a part that could not be read while the rest could. `covered` names every
    component that was looked at, whether or not it had anything to tell; None: as at the last read. `snapshots` is the
    topology, when it has changed or is to be told again. `kept` is called once all of it is in the spool, from where kill -9
    does not take it away (so not while the disk refuses): only then may a reader's bookmark move. A reading that came after
    its deadline is published too. `marks` are those bookmarks: they are spooled with the last message of the reading, in one
    write, so that not even a kill between the two can tell anything twice."""

    samples: Sequence[Sample] = ()
    dumps: Sequence[FlightRecorderDump] = ()
    trouble: str = ""
    covered: Sequence[ComponentId] | None = None
    snapshots: Sequence[TopologySnapshot] = ()
    kept: Callable[[], None] | None = None
    marks: Mapping[str, int | str] = field(default_factory=dict)


class SourceReader(Protocol):
    """One source. Calls come one after the other, not always from the same thread. A call may block: it is then left alone
    with its thread (`lane`), and after `deadline_s` the source is unknown until it returns. Several readers may serve one
    source; then each has its own `instance`."""

    source: Source
    instance: str  # "" where there is one
    interval_s: float  # between reads when nothing wakes it
    deadline_s: float

    def open(self) -> None:
        """Raises Unreadable, Absent."""

    def read(self) -> Reading:
        """All that is new. Raises Unreadable, Absent; the source is then closed, and opened again later."""

    def wake_fd(self) -> int | None:
        """A file descriptor that becomes readable when there is something new; None: read by the clock only."""

    def close(self) -> None:
        """Give everything back. Never raises."""


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A message on its way: what `Bus.publish` needs, with the struct still as a struct."""

    subject: str
    id: str
    source: str
    time: datetime
    data: msgspec.Struct
    component: str = ""
    marks: Mapping[str, int | str] = {}  # kept with it, not sent


@dataclass(slots=True)
class SpoolState:
    waiting: int = 0
    dropped: int = 0
    trouble: str = field(default="")
    filled: float = 0.0  # share of its bound


class Spool(Protocol):
    """Keeps messages in order until they are acknowledged, within a bound; the oldest go first at the bound."""

    def next_seq(self, source: str) -> int:
        """The next number of `source` in this boot: from 1, never twice, never back, also after kill -9."""

    def append(self, message: Outgoing, *, source: str, seq: int) -> bool:
        """Never fails. False: it waits in memory, where kill -9 takes it away, so its bookmarks must not move."""

    def peek(self, count: int) -> Iterable[tuple[int, Outgoing]]:
        """The oldest `count` messages that are not acknowledged, each with its position."""

    def acknowledge(self, position: int) -> None:
        """Everything up to and including `position` has been stored by the server."""

    def state(self) -> SpoolState:
        """As of the last change; from any thread."""

    def close(self) -> None: ...
