"""A listening socket, or an error that says what to do about it."""

from __future__ import annotations

import errno
import socket

from goodput_common.runtime.lifecycle import StartError

_BACKLOG = 256


def listen(host: str, port: int) -> socket.socket:
    """Listens on the first address that `host` names; port 0 takes a free one. Raises StartError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise StartError(f"{host!r} is no address of this machine: {error}", do_next="set GOODPUT_HTTP_HOST") from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        do_next = {
            errno.EADDRINUSE: "stop what listens there or set GOODPUT_HTTP_PORT",
            errno.EACCES: "use a port above 1023: set GOODPUT_HTTP_PORT",
            errno.EADDRNOTAVAIL: "set GOODPUT_HTTP_HOST to an address of this machine",
        }.get(error.errno or 0, "see the error")
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror}", do_next=do_next) from None
    return listening
