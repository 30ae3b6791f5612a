"""Network interfaces as the kernel tells them: a message at each change, the whole at intervals.

Polling the carrier misses a flap that is over before the next poll; the kernel's messages do not, and each carries counts
that make up for messages that were lost (`goodput_collector.domain.netlink_link`). When one came is noted by a thread that
does nothing else (`goodput_collector.adapters.netlink_arrivals`).

The whole is asked for on the same socket, so that it and the changes come in the order in which they happened. That an
interface is not in the answer means that it is gone only where the answer is proven whole: it came to its end, nothing was
lost or made no sense, and the kernel does not say that it was interrupted by a change. Else it is asked for again. For a
physical adapter the kernel may hold a message about a lost carrier back by up to a second after the one before; the
counts are exact all the same.

The answer leaves out the traffic's statistics, which other sources have: so what the kernel says of an interface to which
nothing happens is the same words each time, and those are not looked into again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import struct
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

from goodput_collector.adapters.netdevs import Netdev, Pods, netdev
from goodput_collector.adapters.netlink_arrivals import Arrivals
from goodput_collector.application.ports import Reading, Unreadable
from goodput_collector.domain import netlink_wire as wire
from goodput_collector.domain.changes import Changes
from goodput_collector.domain.netlink_link import (
    Link,
    Seen,
    carrier_event,
    index_of,
    moved,
    of_the_interface,
    parse_link,
    same_interface,
    was_moved,
)
from goodput_common.contracts.telemetry import EventName, Sample, Source, State
from goodput_common.runtime.clock import Clock

_RTM_NEWLINK, _RTM_DELLINK, _RTM_GETLINK = 16, 17, 18
_ANSWER_WITHIN_S = 2.0
_DUMP_WITHIN_S = 3.0  # below the deadline of a reading, however much is told in between
_DUMPS_MAX = 3
_OWED_MAX = 4096
_NAMES_EVERY_S = 300.0
_EXT_MASK, _SKIP_STATS = 29, 1 << 3  # IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS
_FIRST_SEQ, _LAST_SEQ = 0x600D, 0x7FFFFFFF  # not 0, which messages that come by themselves bear


class NetlinkReader:
    """See `goodput_collector.application.ports.SourceReader`."""

    source = Source.NETLINK
    instance = ""
    interval_s = 10.0
    deadline_s = 5.0

    def __init__(
        self,
        *,
        host: str,
        clock: Clock,
        sys_root: Path = Path("/sys"),
        ignore: re.Pattern[str],
        full_every_s: float = 30.0,
        pods: Pods | None = None,
        arrivals_of: Callable[[Clock], Arrivals] = Arrivals,
    ) -> None:
        self._host = host
        self._clock = clock
        self._sys_root = sys_root
        self._ignore = ignore
        self._full_every_s = full_every_s
        self._pods = pods if pods is not None else Pods()
        self._arrivals_of = arrivals_of
        self._arrivals: Arrivals | None = None
        self._links: dict[int, Link] = {}
        self._seen_at_s: dict[int, float] = {}
        self._words: dict[int, bytes] = {}  # of each interface, the last message
        self._names: dict[tuple[int, str], Netdev] = {}
        self._named_among: tuple[set[tuple[int, str]], set[str]] = set(), set()
        self._named_at_s = float("-inf")
        self._changes = Changes(full_every_s=full_every_s, volatile=("ups", "downs"))
        self._dumped_s = float("-inf")
        self._seq = _FIRST_SEQ  # of the dump that is on its way
        self._answered: set[int] = set()  # by it
        self._interrupted = False
        self._garbage = ""
        self._owed: list[Sample] = []  # what messages told, until a reading has taken it: one that fails loses none

    def open(self) -> None:
        self.close()  # a call that hung may have kept it from being closed
        self._arrivals = self._arrivals_of(self._clock)
        self._dumped_s = float("-inf")

    def wake_fd(self) -> int | None:
        return None if self._arrivals is None else self._arrivals.wake_fd

    def read(self) -> Reading:
        self._garbage = ""
        _, lost = self._drain()
        if lost or self._clock.monotonic_s() - self._dumped_s >= self._full_every_s:
            self._dump_until_whole()
        samples, self._owed = self._owed, []
        states = list(self._states())
        return Reading(
            samples=[*samples, *self._changes.of(states, self._clock.monotonic_s())],
            trouble=self._garbage,
            covered=tuple(dict.fromkeys(each.component for each in states)),
        )

    def close(self) -> None:
        if self._arrivals is not None:
            self._arrivals.close()
        self._arrivals = None

    def _open_arrivals(self) -> Arrivals:
        if self._arrivals is None:
            raise Unreadable("the netlink socket is closed")
        return self._arrivals

    def _drain(self) -> tuple[bool, bool]:
        """See what the messages that have come tell: (whether the dump is complete, whether messages were lost). Raises
        Unreadable where the kernel refused the dump."""
        done, refused = False, 0
        arrivals, lost = self._open_arrivals().take()
        for data, at, monotonic_s in arrivals:
            try:
                for message in wire.messages(data):
                    answer = message.seq == self._seq
                    if answer and message.flags & wire.INTERRUPTED:
                        self._interrupted = True
                    if message.kind in (wire.DONE, wire.ERROR):
                        done = done or answer
                        if answer and (message.error or message.kind == wire.ERROR):
                            refused = message.error or errno.EPROTO
                    elif message.kind in (_RTM_NEWLINK, _RTM_DELLINK) and of_the_interface(message.payload):
                        self._owed += self._told(message, at, monotonic_s)
            except wire.Malformed as error:
                lost, self._garbage = True, f"a link message made no sense: {error}"
        del self._owed[:-_OWED_MAX]
        if refused:
            raise Unreadable(f"the kernel refused a request for its network interfaces: {os.strerror(refused)}")
        return done, lost

    def _told(self, message: wire.Message, at: datetime, monotonic_s: float) -> Iterable[Sample]:
        """Raises Malformed."""
        if message.kind == _RTM_NEWLINK:
            return self._observe(message, at, monotonic_s)
        return self._gone(index_of(message.payload), at, elsewhere=was_moved(message.payload))

    def _dump_until_whole(self) -> None:
        """What a dump leaves out is concluded to be gone only where it is proven whole."""
        self._forget_names()
        until_s = self._clock.monotonic_s() + _DUMP_WITHIN_S
        for _ in range(_DUMPS_MAX):
            before = set(self._links)
            if self._dump(until_s):
                for index in before - self._answered:
                    self._owed += self._gone(index, self._clock.now())
                for index in self._words.keys() - self._answered:
                    del self._words[index]
                self._dumped_s = self._clock.monotonic_s()
                return
        self._dumped_s = float("-inf")  # at the next reading, then
        self._garbage = self._garbage or "network interfaces change faster than they can be listed; none is taken for gone"

    def _dump(self, until_s: float) -> bool:
        """Ask for everything, and read until it is all there: whether the answer is whole. Raises Unreadable."""
        arrivals = self._open_arrivals()
        self._seq = self._seq + 1 if self._seq < _LAST_SEQ else _FIRST_SEQ
        self._answered.clear()
        self._interrupted = False
        everything = struct.pack("=BxHiII", 0, 0, 0, 0, 0) + wire.u32(_EXT_MASK, _SKIP_STATS)
        arrivals.socket.send(wire.request(_RTM_GETLINK, wire.DUMP, self._seq, everything))
        done = lost = False
        while not done:
            if self._clock.monotonic_s() > until_s:
                return False
            if not arrivals.wait(_ANSWER_WITHIN_S):
                raise Unreadable("the kernel did not answer a request for its network interfaces")
            done, missed = self._drain()
            lost = lost or missed
        return not lost and not self._interrupted

    def _observe(self, message: wire.Message, at: datetime, monotonic_s: float) -> Iterable[Sample]:
        index = index_of(message.payload)
        if message.seq == self._seq:
            self._answered.add(index)
        if self._words.get(index) == message.payload:
            if index in self._links:
                self._seen_at_s[index] = monotonic_s
            return ()
        link = parse_link(message.payload)
        self._words[index] = message.payload
        if self._ignore.fullmatch(link.name):
            return ()
        before = self._links.get(link.index)
        self._links[link.index] = link
        since_s = self._seen_at_s.get(link.index, monotonic_s)
        self._seen_at_s[link.index] = monotonic_s
        if before is None or not same_interface(before, link):
            return ()
        return moved(before, link, self._seen(link, at, monotonic_s - since_s))

    def _gone(self, index: int, at: datetime, *, elsewhere: bool = False) -> Iterable[Sample]:
        """`elsewhere`: it goes on in another network namespace (a pod was given it), and has lost nothing."""
        link = self._links.pop(index, None)
        self._seen_at_s.pop(index, None)
        self._words.pop(index, None)
        if link is None:
            return ()
        seen = self._seen(link, at, 0.0)
        self._names.pop((index, link.name), None)
        value = "moved" if elsewhere else "removed"
        gone: list[Sample] = [
            State(component=seen.component, name="operstate", observed_at=at, value=value, attrs=seen.attrs)
        ]
        if link.carrier and not elsewhere:
            gone.insert(0, carrier_event(link, EventName.LINK_DOWN, seen, 1, what="interface removed"))
        return gone

    def _states(self) -> Iterable[State]:
        now = self._clock.now()
        for link in self._links.values():
            known = self._name(link)
            attrs = known.attrs | {"admin": link.admin, "carrier": str(int(link.carrier))}
            if link.downs >= 0:
                attrs |= {"ups": str(link.ups), "downs": str(link.downs)}
            if link.master:
                master = self._links.get(link.master)
                attrs["master"] = master.name if master is not None else str(link.master)
            if link.bond:
                attrs |= {"bond": link.bond, "mii": link.mii}
            if link.kind == "bond":
                attrs |= self._members(link.index)
            yield State(component=known.component, name="operstate", observed_at=now, value=link.operstate, attrs=attrs)

    def _members(self, bond: int) -> dict[str, str]:
        members = sorted(each.name for each in self._links.values() if each.master == bond)
        active = sorted(each.name for each in self._links.values() if each.master == bond and each.bond == "active")
        return {"members": ",".join(members), "active": ",".join(active)}

    def _seen(self, link: Link, at: datetime, interval_s: float) -> Seen:
        known = self._name(link)
        return Seen(component=known.component, attrs=known.attrs, at=at, interval_s=interval_s)

    def _forget_names(self) -> None:
        """An interface may have got another device, a function another pod: asked anew when the pods, the interfaces or the
        RDMA devices are others than before, and now and then."""
        rdma = set[str]()
        with contextlib.suppress(OSError):
            rdma = set(os.listdir(self._sys_root / "class" / "infiniband"))  # noqa: PTH208
        among = {(link.index, link.name) for link in self._links.values()}, rdma
        now_s = self._clock.monotonic_s()
        if self._pods.refresh() or among != self._named_among or now_s - self._named_at_s >= _NAMES_EVERY_S:
            self._names.clear()
            self._named_among, self._named_at_s = among, now_s

    def _name(self, link: Link) -> Netdev:
        key = (link.index, link.name)
        if key not in self._names:
            self._names[key] = netdev(self._sys_root, self._host, link.name, self._pods)
        return self._names[key]
