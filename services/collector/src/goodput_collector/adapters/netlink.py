"""Network interfaces as the kernel tells them: a message at each change, the whole at intervals.

Polling the carrier misses a flap that is over before the next poll. The kernel counts them: each link message carries
how often the carrier went up and down, so a flap between two messages still shows, with its number. Messages can be
lost too (the socket's buffer overflows, ENOBUFS): then everything is read anew, and the counts tell what was missed.

An interface that somebody took down (`admin: down`) is not one that lost its carrier; both are told, told apart.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pyroute2.netlink.rtnl.marshal import MarshalRtnl

from goodput_collector.adapters.netdevs import Netdev, netdev
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.domain.changes import Changes
from goodput_common.contracts.telemetry import Counter, Event, EventName, Sample, Severity, Source, State
from goodput_common.runtime.clock import Clock

_RTMGRP_LINK = 1
_RTM_NEWLINK, _RTM_DELLINK, _RTM_GETLINK = 16, 17, 18
_NLMSG_DONE, _NLMSG_ERROR = 3, 2
_REQUEST_DUMP = 0x301
_IFF_UP = 1
_BUFFER_BYTES = 4 << 20
_ANSWER_WITHIN_S = 2.0
_DUMP_SEQ = 0x600D
_NETLINK_ROUTE = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One interface at one moment. Counts are -1 where the kernel does not give them."""

    index: int
    name: str
    admin_up: bool
    carrier: bool
    operstate: str
    ups: int
    downs: int


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
    ) -> None:
        self._host = host
        self._clock = clock
        self._sys_root = sys_root
        self._ignore = ignore
        self._full_every_s = full_every_s
        self._marshal = MarshalRtnl()
        self._socket: socket.socket | None = None
        self._links: dict[int, Link] = {}
        self._seen_at_s: dict[int, float] = {}
        self._names: dict[tuple[int, str], Netdev] = {}
        self._changes = Changes(full_every_s=full_every_s, volatile=("ups", "downs"))
        self._dumped_s = float("-inf")
        self._answered: set[int] = set()  # by the dump that is on its way

    def open(self) -> None:
        family = getattr(socket, "AF_NETLINK", None)
        if family is None:
            raise Absent("this system has no netlink")
        self._socket = socket.socket(family, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, _NETLINK_ROUTE)
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._socket.bind((0, _RTMGRP_LINK))
        self._dumped_s = float("-inf")

    def wake_fd(self) -> int | None:
        return None if self._socket is None else self._socket.fileno()

    def read(self) -> Reading:
        samples: list[Sample] = []
        overrun = False
        try:
            samples += self._drain()
        except OSError as error:
            if error.errno != 105:  # ENOBUFS: messages were lost, the whole says what is
                raise
            overrun = True
        if overrun or self._clock.monotonic_s() - self._dumped_s >= self._full_every_s:
            samples += self._dump()
        return Reading(samples=[*samples, *self._changes.of(self._states(), self._clock.monotonic_s())])

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _open_socket(self) -> socket.socket:
        if self._socket is None:
            raise Unreadable("the netlink socket is closed")
        return self._socket

    def _drain(self) -> list[Sample]:
        samples: list[Sample] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                samples += self._take(self._open_socket().recv(1 << 18))[0]
        return samples

    def _dump(self) -> list[Sample]:
        """Ask for everything, and read until it is all there."""
        link = self._open_socket()
        request = struct.pack("=BBHiII", 0, 0, 0, 0, 0, 0)
        link.send(struct.pack("=IHHII", 16 + len(request), _RTM_GETLINK, _REQUEST_DUMP, _DUMP_SEQ, 0) + request)
        samples: list[Sample] = []
        before = set(self._links)
        self._answered.clear()
        done = False
        while not done:
            if not select.select([link], [], [], _ANSWER_WITHIN_S)[0]:
                raise Unreadable("the kernel did not answer a request for its network interfaces")
            told, done = self._take(link.recv(1 << 18))
            samples += told
        for index in before - self._answered:
            samples += self._gone(index)
        self._dumped_s = self._clock.monotonic_s()
        return samples

    def _take(self, data: bytes) -> tuple[list[Sample], bool]:
        samples: list[Sample] = []
        done = False
        for message in self._marshal.parse(data):
            kind = message["header"]["type"]
            if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                done = done or message["header"]["sequence_number"] == _DUMP_SEQ
            elif kind == _RTM_NEWLINK:
                self._answered.add(message["index"])
                samples += self._observe(_link(message))
            elif kind == _RTM_DELLINK:
                samples += self._gone(message["index"])
        return samples, done

    def _observe(self, link: Link) -> Iterable[Sample]:
        if self._ignore.fullmatch(link.name):
            return ()
        before = self._links.get(link.index)
        self._links[link.index] = link
        now, now_s = self._clock.now(), self._clock.monotonic_s()
        since_s = self._seen_at_s.get(link.index, now_s)
        self._seen_at_s[link.index] = now_s
        if before is None or before.name != link.name or link.downs < before.downs or link.ups < before.ups:
            return ()  # first seen, renamed, or another interface under the old number
        return self._moved(before, link, now, now_s - since_s)

    def _moved(self, before: Link, link: Link, now: datetime, over_s: float) -> list[Sample]:
        downs = link.downs - before.downs if link.downs >= 0 else int(before.carrier and not link.carrier)
        ups = link.ups - before.ups if link.ups >= 0 else int(link.carrier and not before.carrier)
        order = (EventName.LINK_DOWN, EventName.LINK_UP) if link.carrier else (EventName.LINK_UP, EventName.LINK_DOWN)
        samples: list[Sample] = []
        for name in order:
            count = downs if name is EventName.LINK_DOWN else ups
            if count > 0:
                samples.append(self._event(link, name, now, count))
        known = self._name(link)
        for counter, delta, value in (("carrier_down_count", downs, link.downs), ("carrier_up_count", ups, link.ups)):
            if delta > 0 and value >= 0:
                samples.append(
                    Counter(
                        component=known.component,
                        name=counter,
                        observed_at=now,
                        delta=delta,
                        interval_s=round(over_s, 3),
                        value=value,
                    )
                )
        return samples

    def _event(self, link: Link, name: EventName, now: datetime, count: int, **more: str) -> Event:
        known = self._name(link)
        down = name is EventName.LINK_DOWN
        what = "carrier lost" if down else "carrier gained"
        times = f" {count} times" if count > 1 else ""
        return Event(
            component=known.component,
            name=name,
            observed_at=now,
            severity=Severity.ERROR if down else Severity.INFO,
            excerpt=f"{link.name}: {what}{times} (operstate {link.operstate}, admin {_admin(link)})",
            attrs=known.attrs | {"by": "netlink", "operstate": link.operstate, "admin": _admin(link)} | more,
            count=count,
        )

    def _gone(self, index: int) -> Iterable[Sample]:
        link = self._links.pop(index, None)
        self._seen_at_s.pop(index, None)
        if link is None:
            return ()
        now = self._clock.now()
        known = self._name(link)
        self._names.pop((index, link.name), None)
        gone: list[Sample] = [
            State(component=known.component, name="operstate", observed_at=now, value="removed", attrs=known.attrs)
        ]
        if link.carrier:
            gone.insert(0, self._event(link, EventName.LINK_DOWN, now, 1, what="interface removed"))
        return gone

    def _states(self) -> Iterable[State]:
        now = self._clock.now()
        for link in self._links.values():
            known = self._name(link)
            counts = {"ups": str(link.ups), "downs": str(link.downs)} if link.downs >= 0 else {}
            yield State(
                component=known.component,
                name="operstate",
                observed_at=now,
                value=link.operstate,
                attrs=known.attrs | {"admin": _admin(link), "carrier": str(int(link.carrier))} | counts,
            )

    def _name(self, link: Link) -> Netdev:
        key = (link.index, link.name)
        if key not in self._names:
            self._names[key] = netdev(self._sys_root, self._host, link.name)
        return self._names[key]


def _admin(link: Link) -> str:
    return "up" if link.admin_up else "down"


def _link(message: object) -> Link:
    get = message.get_attr  # type: ignore[attr-defined]
    fields: dict[str, int] = message  # type: ignore[assignment]
    operstate = str(get("IFLA_OPERSTATE") or "unknown").lower()
    carrier = get("IFLA_CARRIER")
    ups, downs = get("IFLA_CARRIER_UP_COUNT"), get("IFLA_CARRIER_DOWN_COUNT")
    return Link(
        index=fields["index"],
        name=str(get("IFLA_IFNAME") or fields["index"]),
        admin_up=bool(fields["flags"] & _IFF_UP),
        carrier=bool(carrier) if carrier is not None else operstate == "up",
        operstate=operstate,
        ups=-1 if ups is None else int(ups),
        downs=-1 if downs is None else int(downs),
    )
