"""Has an address of an interface changed since the last look? Then a RoCE port's GIDs have too, and are worth reading now
rather than a minute later."""

from __future__ import annotations

import contextlib
import socket

_RTMGRP_IPV4_IFADDR, _RTMGRP_IPV6_IFADDR = 0x10, 0x100
_NETLINK_ROUTE = 0
_MESSAGES_MAX = 256


class AddressHints:
    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        family = getattr(socket, "AF_NETLINK", None)
        if family is None:
            return
        with contextlib.suppress(OSError):
            self._socket = socket.socket(
                family, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, _NETLINK_ROUTE
            )
            self._socket.bind((0, _RTMGRP_IPV4_IFADDR | _RTMGRP_IPV6_IFADDR))

    def changed(self) -> bool:
        found = False
        if self._socket is not None:
            for _ in range(_MESSAGES_MAX):
                try:
                    self._socket.recv(1)
                except BlockingIOError:
                    break
                except OSError:  # the kernel's buffer overflowed: many have
                    return True
                found = True
        return found

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
