"""A driver's statistics and its name, by ioctl: the only way to the numbers that are the driver's own.

    GDRVINFO    who drives the interface
    GSSET_INFO  how many statistics there are
    GSTRINGS    their names: once a driver incarnation
    GSTATS      their values, as 64-bit numbers

The kernel writes as many numbers as the driver has *now*, however many were asked for; somebody may change the number of
rings at any moment. So the number is asked before each reading, the buffer has room for that many and far more, and an
interface with more than anybody reads is refused, never read into a buffer that is too small. An answer with another number
than was asked for raises EAGAIN: which value has which name is not known then.
"""

from __future__ import annotations

import array
import errno
import fcntl
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

_SIOCETHTOOL = 0x8946
_GDRVINFO, _GSTRINGS, _GSTATS, _GSSET_INFO, _GMODULEINFO, _GMODULEEEPROM = 0x03, 0x1B, 0x1D, 0x37, 0x42, 0x43
_SS_STATS = 1
_NAME_BYTES = 32
STATS_MAX = 16384
_ROOM = 4096  # numbers beyond those there are
_EEPROM_MAX = 640
Ioctl = Callable[[int, int, bytes], object]


class Driver(NamedTuple):
    name: str
    bus: str


class EthtoolIoctl:
    """All calls raise OSError: EOPNOTSUPP where the driver has nothing, ENODEV where the interface is gone, EOVERFLOW where
    there are too many statistics, EAGAIN where their number changed meanwhile."""

    def __init__(self, ioctl: Ioctl = fcntl.ioctl) -> None:
        self._ioctl = ioctl
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._values = array.array("Q", bytes(8 * (1 + _ROOM)))

    def driver(self, interface: str) -> Driver:
        buffer = array.array("B", struct.pack("=I", _GDRVINFO) + bytes(192))
        self._call(interface, buffer)
        data = buffer.tobytes()
        return Driver(_text(data[4:36]), _text(data[100:132]))

    def count(self, interface: str) -> int:
        """How many statistics there are now."""
        buffer = array.array("B", struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _SS_STATS, 0))
        self._call(interface, buffer)
        _, _, mask, count = struct.unpack("=IIQI", buffer.tobytes())
        return int(count) if mask else 0

    def names(self, interface: str, count: int) -> tuple[str, ...]:
        _refuse_too_many(count)
        buffer = array.array("B", struct.pack("=III", _GSTRINGS, _SS_STATS, count) + bytes(_NAME_BYTES * (count + _ROOM)))
        self._call(interface, buffer)
        data = buffer.tobytes()
        _same(count, struct.unpack_from("=I", data, 8)[0])
        return tuple(_text(data[12 + _NAME_BYTES * at : 12 + _NAME_BYTES * (at + 1)]) for at in range(count))

    def values(self, interface: str, count: int) -> array.array[int]:
        """Number 0 is at index 1 of what is returned, which is good until the next call."""
        _refuse_too_many(count)
        if len(self._values) < 1 + count + _ROOM:
            self._values = array.array("Q", bytes(8 * (1 + count + _ROOM)))
        self._values[0] = _header(_GSTATS, count)
        self._call(interface, self._values)
        _same(count, struct.unpack("=II", struct.pack("=Q", self._values[0]))[1])
        return self._values

    def eeprom(self, interface: str) -> bytes:
        """A module's memory, pages one after the other, for drivers that do not know pages."""
        info = array.array("B", struct.pack("=III", _GMODULEINFO, 0, 0) + bytes(32))
        self._call(interface, info)
        size = min(struct.unpack_from("=I", info.tobytes(), 8)[0], _EEPROM_MAX)
        buffer = array.array("B", struct.pack("=IIII", _GMODULEEEPROM, 0, 0, size) + bytes(size))
        self._call(interface, buffer)
        return buffer.tobytes()[16:]

    def close(self) -> None:
        self._socket.close()

    def _call(self, interface: str, buffer: array.array[int]) -> None:
        request = struct.pack("16sP16x", interface.encode()[:15], buffer.buffer_info()[0])
        self._ioctl(self._socket.fileno(), _SIOCETHTOOL, request)


def _refuse_too_many(count: int) -> None:
    """Before the kernel writes them."""
    if count > STATS_MAX:
        raise OSError(errno.EOVERFLOW, f"its driver has {count} statistics, more than the {STATS_MAX} that are read")


def _same(asked: int, told: int) -> None:
    if told != asked:
        raise OSError(errno.EAGAIN, f"its driver has {told} statistics now, and had {asked} a moment ago")


def _header(command: int, count: int) -> int:
    """Two 32-bit numbers in the place of one of 64."""
    return int(struct.unpack("=Q", struct.pack("=II", command, count))[0])


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("ascii", "replace").strip()
