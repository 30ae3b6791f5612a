"""One query to NCCL's status service: a line protocol on TCP, one answer a connection.

CLIENT PROTOCOL 2   -> SERVER PROTOCOL 2
TIMEOUT 5           -> OK                    how long it waits for the job's other processes
SET FORMAT json     -> OK, or ERROR before 2.28.7
VERBOSE STATUS      -> the answer, and the end of the connection
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import NamedTuple

ANSWER_BYTES_MAX = 64 << 20
_LINE_BYTES_MAX = 4096
_PROTOCOL = b"CLIENT PROTOCOL 2\n"


class NotRas(Exception):
    """Somebody listens there, but it is not RAS, or it breaks off before it has answered."""


class Answer(NamedTuple):
    text: str
    json: bool
    ended: bool  # False: cut off by the deadline or the bound


def ask(host: str, port: int, *, json: bool, wait_s: float, deadline_s: float) -> Answer:
    """`wait_s` is what RAS may wait for the job. Raises OSError when nobody is there, NotRas."""
    ends_s = time.monotonic() + deadline_s
    with socket.create_connection((host, port), timeout=deadline_s) as connection:
        line = _Lines(connection, ends_s)
        if not line.ask(_PROTOCOL).upper().startswith(b"SERVER PROTOCOL "):
            raise NotRas(f"{host}:{port} does not speak RAS")
        line.ask(b"TIMEOUT %g\n" % wait_s)
        json = json and line.ask(b"SET FORMAT json\n").upper().startswith(b"OK")
        connection.sendall(b"VERBOSE STATUS\n")
        data, ended = line.rest()
    return Answer(data.decode("utf-8", "replace"), json, ended)


class _Lines:
    def __init__(self, connection: socket.socket, ends_s: float) -> None:
        self._connection = connection
        self._ends_s = ends_s
        self._buffer = b""

    def ask(self, line: bytes) -> bytes:
        self._connection.sendall(line)
        while b"\n" not in self._buffer:
            part = self._receive()
            if not part or len(self._buffer) > _LINE_BYTES_MAX:
                raise NotRas("no answer to the greeting")
            self._buffer += part
        answer, _, self._buffer = self._buffer.partition(b"\n")
        return answer.strip()

    def rest(self) -> tuple[bytes, bool]:
        parts, size = [self._buffer], len(self._buffer)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while size < ANSWER_BYTES_MAX:
                part = self._receive()
                if not part:
                    return b"".join(parts), True
                parts.append(part)
                size += len(part)
        return b"".join(parts), False

    def _receive(self) -> bytes:
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no answer in time")
        self._connection.settimeout(left_s)
        return self._connection.recv(256 * 1024)


def is_local(node: str) -> bool:
    """Is this address one of this host's? The kernel lets a socket be bound to no other."""
    family = socket.AF_INET6 if ":" in node else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((node, 0))
    except (OSError, ValueError):
        return False
    return True
