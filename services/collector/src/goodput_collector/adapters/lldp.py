"""Hearing LLDP: what switches say on each interface, from the wire or from `lldpd`.

Listening needs a packet socket (CAP_NET_RAW) and asks the adapters for one multicast group; nothing is sent, and nobody
else is kept from hearing. Some adapters answer LLDP in firmware and keep the frames to themselves (mlx5 with `DCBX` by
firmware, Intel's ice until `fw-lldp-agent` is off): then nothing comes, which is *unheard*, not *uncabled*. Where `lldpd`
runs, it can be asked instead.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

from goodput_collector.application.ports import Unreadable
from goodput_collector.domain.lldp import ETHERTYPE, Neighbour, NotLldp, parse, parse_lldpctl

FRAMES_A_READ = 512
OUTPUT_MAX = 4 << 20
LLDPCTL_WITHIN_S = 3.0
_GROUP = bytes.fromhex("0180c200000e")
_SOL_PACKET, _ADD_MEMBERSHIP, _MULTICAST, _OUTGOING = 263, 1, 0, 4


class LldpEar:
    """Frames since the last look. `interfaces` gives those to ask for the multicast group."""

    def __init__(self, interfaces: Callable[[], frozenset[str]]) -> None:
        self._interfaces = interfaces
        self._joined: set[str] = set()
        self._socket: socket.socket | None = None
        self.garbage = 0

    def open(self) -> None:
        """Raises Unreadable."""
        family = getattr(socket, "AF_PACKET", None)
        if family is None:
            raise Unreadable("this system has no packet sockets")
        try:
            kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            self._socket = socket.socket(family, kind, socket.htons(ETHERTYPE))
        except PermissionError:
            remedy = "give the collector CAP_NET_RAW, or run lldpd and set GOODPUT_LLDP=lldpctl"
            raise Unreadable("not allowed to listen for LLDP", remedy=remedy) from None
        except OSError as error:
            raise Unreadable(f"cannot listen for LLDP: {error.strerror or error}") from None
        self._joined.clear()
        self.join()

    def join(self) -> None:
        """Ask new interfaces for the group; those that refuse give what they give."""
        if self._socket is None:
            return
        for name in self._interfaces() - self._joined:
            with contextlib.suppress(OSError):
                request = struct.pack("=iHH8s", socket.if_nametoindex(name), _MULTICAST, len(_GROUP), _GROUP)
                self._socket.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, request)
                self._joined.add(name)

    def heard(self) -> list[tuple[str, Neighbour]]:
        """(interface, who spoke) in the order of arrival; what this host itself sends is not heard."""
        found: list[tuple[str, Neighbour]] = []
        if self._socket is None:
            return found
        for _ in range(FRAMES_A_READ):
            try:
                frame, address = self._socket.recvfrom(2048)
            except BlockingIOError:
                break
            except OSError:  # an interface went away under the socket
                continue
            if address[2] == _OUTGOING:
                continue
            try:
                neighbour = parse(frame)
            except NotLldp:
                self.garbage += 1
                continue
            found.append((str(address[0]), neighbour))
        return found

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None


def ask_lldpd(how: str) -> dict[str, list[Neighbour]]:
    """`lldpctl`'s neighbours, by running it (`lldpctl`) or from a file with its JSON. Raises Unreadable."""
    text = _run_lldpctl() if how == "lldpctl" else _file(Path(how))
    try:
        return parse_lldpctl(text)[0]
    except NotLldp as error:
        raise Unreadable(f"{how} gave no LLDP neighbours: {error}") from None


def _run_lldpctl() -> str:
    program = shutil.which("lldpctl")
    if program is None:
        raise Unreadable("there is no lldpctl here", remedy="install lldpd, or set GOODPUT_LLDP=listen")
    try:
        done = subprocess.run([program, "-f", "json"], capture_output=True, timeout=LLDPCTL_WITHIN_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unreadable(f"lldpctl did not answer within {LLDPCTL_WITHIN_S:g} s") from None
    except OSError as error:
        raise Unreadable(f"lldpctl cannot be run: {error.strerror or error}") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()[:200]
        raise Unreadable(f"lldpctl failed: {said}", remedy="is lldpd running?")
    return done.stdout[:OUTPUT_MAX].decode("utf-8", "replace")


def _file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(OUTPUT_MAX).decode("utf-8", "replace")
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror or error}") from None
