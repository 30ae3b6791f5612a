"""Questions to the kernel over netlink: one is sent, the answer is read until it is all there.

For reading what is; messages that come by themselves are `goodput_collector.adapters.netlink`'s business. A question the
kernel refuses raises OSError with its reason (EOPNOTSUPP: this driver does not have it). The wait is bounded, as is the
answer.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import Protocol

from goodput_collector.application.ports import Absent, Unreadable
from goodput_collector.domain import netlink_wire as wire

GENERIC_PROTOCOL, RDMA_PROTOCOL = 16, 20
_ANSWER_WITHIN_S = 2.0
_MESSAGES_MAX = 65536
_RECEIVE_BYTES = 1 << 17
_CONTROL, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 16, 3, 1, 2
_MCAST_GROUPS, _GROUP_NAME, _GROUP_ID = 7, 1, 2


class RawSocket(Protocol):
    """What is used of `socket.socket`; the seam at which tests put another kernel."""

    def send(self, data: bytes, /) -> int: ...
    def recv(self, size: int, /) -> bytes: ...
    def close(self) -> None: ...
    def fileno(self) -> int: ...


SocketOf = Callable[[int], RawSocket]


def kernel_socket(protocol: int) -> RawSocket:
    """Raises Absent where the kernel has no such netlink protocol."""
    family = getattr(socket, "AF_NETLINK", None)
    if family is None:
        raise Absent("this system has no netlink")
    try:
        made = socket.socket(family, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    except OSError as error:
        if error.errno in (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT):
            raise Absent(f"the kernel has no netlink protocol {protocol}") from None
        raise
    made.settimeout(_ANSWER_WITHIN_S)
    made.bind((0, 0))
    return made


class NetlinkSocket:
    """Raises Absent, Unreadable; OSError where the kernel refuses."""

    def __init__(self, protocol: int, *, socket_of: SocketOf = kernel_socket) -> None:
        self._socket = socket_of(protocol)
        self._seq = 0

    def ask(self, kind: int, payload: bytes, *, dump: bool = False) -> list[wire.Message]:
        """The messages of the answer. `dump`: everything of that sort; else one thing, which is one message."""
        self._seq = (self._seq + 1) & 0xFFFFFFFF
        self._socket.send(wire.request(kind, wire.DUMP if dump else 0, self._seq, payload))
        answer: list[wire.Message] = []
        try:
            while len(answer) < _MESSAGES_MAX:
                for message in wire.messages(self._socket.recv(_RECEIVE_BYTES)):
                    if message.seq != self._seq:
                        continue  # what an earlier question, given up on, is still told
                    if message.kind in (wire.ERROR, wire.DONE):
                        if message.error:
                            raise OSError(message.error, os.strerror(message.error), "netlink")
                        return answer
                    answer.append(message)
                    if not dump:
                        return answer
        except TimeoutError:
            raise Unreadable(f"the kernel did not answer over netlink within {_ANSWER_WITHIN_S:g} s") from None
        except wire.Malformed as error:
            raise Unreadable(f"the kernel's netlink answer makes no sense: {error}") from None
        raise Unreadable(f"the kernel's netlink answer has more than {_MESSAGES_MAX} messages")

    def family(self, name: str) -> tuple[int, dict[str, int]]:
        """(number of a generic family, its multicast groups). Raises Absent where the kernel has none."""
        try:
            answer = self.ask(_CONTROL, wire.generic(_GET_FAMILY, 1, wire.string(_FAMILY_NAME, name)))
            found = answer[0].attributes() if answer else {}
            groups = {}
            for _, group in wire.attribute_list(found.get(_MCAST_GROUPS, b"")):
                parts = wire.attributes(group)
                groups[wire.text(parts.get(_GROUP_NAME))] = wire.number(parts.get(_GROUP_ID)) or 0
        except wire.Malformed as error:
            raise Unreadable(f"the kernel's netlink answer makes no sense: {error}") from None
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise Absent(f"the kernel has no netlink family {name}") from None
            raise
        number = wire.number(found.get(_FAMILY_ID))
        if number is None:
            raise Absent(f"the kernel has no netlink family {name}")
        return number, groups

    def close(self) -> None:
        self._socket.close()
