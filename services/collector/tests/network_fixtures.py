"""Kernels of our own making, at the system call: an adapter's statistics behind an ioctl, answers behind a netlink socket.

They write the bytes that a kernel writes, with `struct` alone: what reads them is the code under test.
"""

from __future__ import annotations

import collections
import ctypes
import errno
import struct
from collections.abc import Callable
from pathlib import Path

from goodput_collector.adapters.ethtool_ioctl import EthtoolIoctl

_MLX5 = (
    "rx_packets tx_packets rx0_packets rx_out_of_buffer rx_prio3_pause rx_prio3_pause_duration rx_prio3_pause_transition"
    " tx_prio3_pause tx_prio3_pause_duration tx_pause_storm_warning_events tx_pause_storm_error_events rx_discards_phy"
    " link_down_events_phy rx_symbol_err_phy rx_err_lane_0_phy outbound_pci_stalled_rd outbound_pci_stalled_wr_events"
)
MLX5 = _MLX5.split()


class Adapter:
    """One interface as an ioctl sees it: a driver, and its statistics in the driver's order."""

    def __init__(self, names: list[str], *, driver: str = "mlx5_core", bus: str = "0000:9b:00.0") -> None:
        self.stats = dict.fromkeys(names, 0)
        self.driver = driver
        self.bus = bus
        self.error = 0
        self.more = 0  # statistics that the driver has by the time that their values are asked for
        self.says = -1  # how many it says that it has, if not as many as there are
        self.eeprom = b""


class Kernel:
    """Answers SIOCETHTOOL; `calls` counts the commands."""

    def __init__(self, **adapters: Adapter) -> None:
        self.adapters = adapters
        self.calls: collections.Counter[int] = collections.Counter()

    def ioctl(self, _fd: int, request: int, data: bytes) -> int:
        assert request == 0x8946
        name, address = struct.unpack("16sP16x", data)
        adapter = self.adapters.get(name.partition(b"\0")[0].decode())
        if adapter is None:
            raise OSError(errno.ENODEV, "No such device")
        if adapter.error:
            raise OSError(adapter.error, "as told")
        command = struct.unpack("=I", ctypes.string_at(address, 4))[0]
        self.calls[command] += 1
        answer = self._answer(adapter, command, address)
        ctypes.memmove(address, answer, len(answer))
        return 0

    def _answer(self, adapter: Adapter, command: int, address: int) -> bytes:
        if command == 0x03:
            return struct.pack("=I32s32s32s32s", command, adapter.driver.encode(), b"1", b"28.41", adapter.bus.encode())
        if command == 0x37:
            return struct.pack("=IIQI", command, 0, 2, adapter.says if adapter.says >= 0 else len(adapter.stats))
        if command == 0x1B:
            names = b"".join(name.encode().ljust(32, b"\0") for name in adapter.stats)
            return struct.pack("=III", command, 1, len(adapter.stats)) + names
        if command == 0x1D:
            values = struct.pack(f"={len(adapter.stats)}Q", *adapter.stats.values()) + bytes(8 * adapter.more)
            return struct.pack("=II", command, len(adapter.stats) + adapter.more) + values
        if command == 0x42 and adapter.eeprom:
            return struct.pack("=III", command, 3, len(adapter.eeprom))
        if command == 0x43 and adapter.eeprom:
            return struct.pack("=IIII", command, 0, 0, len(adapter.eeprom)) + adapter.eeprom
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    def through(self) -> EthtoolIoctl:
        return EthtoolIoctl(self.ioctl)


def net_device(root: Path, name: str, *, pci: str, rdma: str = "", index: int = 2) -> Path:
    """An interface with a device behind it, as sysfs has it."""
    device = root / "devices" / pci
    device.mkdir(parents=True, exist_ok=True)
    folder = root / "class" / "net" / name
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(device)
    (folder / "ifindex").write_text(f"{index}\n")
    (device / "net" / name).mkdir(parents=True)
    if rdma:
        (device / "infiniband" / rdma).mkdir(parents=True, exist_ok=True)
    bus = root / "bus" / "pci" / "devices"
    bus.mkdir(parents=True, exist_ok=True)
    if not (bus / pci).exists():
        (bus / pci).symlink_to(device)
    return folder


# -- netlink --------------------------------------------------------------------------------------------------------


def attr(kind: int, payload: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


def text(kind: int, value: str) -> bytes:
    return attr(kind, value.encode() + b"\0")


def u32(kind: int, value: int) -> bytes:
    return attr(kind, struct.pack("=I", value))


def u64(kind: int, value: int) -> bytes:
    return attr(kind, struct.pack("=Q", value))


def u8(kind: int, value: int) -> bytes:
    return attr(kind, struct.pack("=B", value))


def generic(command: int, *parts: bytes) -> bytes:
    return struct.pack("=BBH", command, 1, 0) + b"".join(parts)


def message(kind: int, seq: int, payload: bytes, flags: int = 0) -> bytes:
    body = struct.pack("=IHHII", 16 + len(payload), kind, flags, seq, 0) + payload
    return body + bytes(-len(body) % 4)


Answer = Callable[[int, bytes], "list[bytes] | int"]


class FakeNetlink:
    """A netlink socket whose kernel is `answer(kind, payload)`: payloads of the answer, or an errno. Counts what is open."""

    FAMILY = 33

    def __init__(self, answer: Answer, families: tuple[str, ...] = ()) -> None:
        self._answer = answer
        self._families = families
        self.open_now = 0
        self.raw: bytes | None = None  # sent instead of any answer

    def __call__(self, protocol: int) -> FakeNetlink._Socket:
        self.open_now += 1
        return self._Socket(self)

    class _Socket:
        def __init__(self, kernel: FakeNetlink) -> None:
            self._kernel = kernel
            self._waiting: list[bytes] = []

        def send(self, data: bytes, /) -> int:
            _, kind, flags, seq, _ = struct.unpack_from("=IHHII", data)
            self._waiting = self._kernel._reply(kind, flags, seq, data[16:])
            return len(data)

        def recv(self, size: int, /) -> bytes:
            if not self._waiting:
                raise TimeoutError
            return self._waiting.pop(0)[:size]

        def fileno(self) -> int:
            return -1

        def close(self) -> None:
            self._kernel.open_now -= 1

    def _reply(self, kind: int, flags: int, seq: int, payload: bytes) -> list[bytes]:
        if self.raw is not None:
            return [self.raw]
        found = self._families_or_answer(kind, payload)
        if isinstance(found, int):
            return [message(2, seq, struct.pack("=i", -found) + bytes(16))]
        told = [message(kind, seq, each) for each in found]
        return [*told, message(3, seq, struct.pack("=i", 0))] if flags & 0x300 == 0x300 else told

    def _families_or_answer(self, kind: int, payload: bytes) -> list[bytes] | int:
        if kind != 16:
            return self._answer(kind, payload)
        wanted = payload[8:].partition(b"\0")[0].decode()
        if wanted not in self._families:
            return errno.ENOENT
        return [generic(1, text(2, wanted), attr(1, struct.pack("=H", self.FAMILY)))]
