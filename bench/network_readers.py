"""What one reading of each network source costs: a host of 9 adapters, RoCE, with everything that a busy host moves.

    python bench/network_readers.py

CPU time of the reading thread over 200 readings: the least (as on a machine to itself), the median, the 95th percentile.
RDMA devices are a tree of files (on tmpfs, so that a file costs one system call and nothing of a driver: a file of sysfs
costs about 1 us more); statistics of drivers, link settings and netlink's answers come from kernels in this process, whose
own work is taken off. What a real driver and its firmware do for a reading comes on top.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _report import Report

from goodput_collector.adapters.devlink import DevlinkReader
from goodput_collector.adapters.ethtool import EthtoolReader
from goodput_collector.adapters.ethtool_ioctl import EthtoolIoctl
from goodput_collector.adapters.ethtool_netlink import EthtoolNetlink
from goodput_collector.adapters.netlink import NetlinkReader
from goodput_collector.adapters.rdma_netlink import RdmaStatistics
from goodput_collector.adapters.sysfs import RdmaReader
from goodput_collector.application.ports import SourceReader
from goodput_collector.domain.rdma_counters import PORT_COUNTERS, QUEUE_COUNTERS
from goodput_common.runtime.clock import SystemClock

ADAPTERS = 9
READINGS = 200
STATISTICS_OF_RINGS = 1100
_MOVING = ("port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets", "rx_write_requests", "np_cnp_sent")
_TOLD = (
    *(f"{way}_prio{n}_{what}" for way in ("rx", "tx") for n in range(8) for what in ("pause", "pause_duration")),
    *("rx_discards_phy", "tx_discards_phy", "link_down_events_phy", "rx_symbol_err_phy", "rx_pcs_symbol_err_phy"),
    *("rx_corrected_bits_phy", "outbound_pci_stalled_rd", "outbound_pci_stalled_wr", "tx_pause_storm_warning_events"),
)


class Counting:
    """Takes the time that a stand-in for the kernel spends off that of the reader."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def off(self, function: Callable[..., object]) -> Callable[..., object]:
        def called(*args: object) -> object:
            began = time.thread_time()
            try:
                return function(*args)
            finally:
                self.spent_s += time.thread_time() - began

        return called


def main() -> int:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    if given.parse_args().inside:
        print(json.dumps(_netlink()))
        return 0
    report = Report("network_readers")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        root = Path(folder)
        tree(root)
        report.add("rdma (files)", **cost(*_rdma(root, netlink=False)))
        report.add("rdma (hardware counters over netlink)", **cost(*_rdma(root, netlink=True)))
        report.add("ethtool", **cost(*_ethtool(root)))
        report.add("devlink", **cost(*_devlink(root)))
    done = subprocess.run(
        ["unshare", "-Urnm", sys.executable, str(Path(__file__).resolve()), "--inside"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        report.add("netlink (9 real veth pairs)", **json.loads(done.stdout))
    report.write()
    return 0


def tree(root: Path) -> None:
    for n in range(ADAPTERS):
        pci = f"0000:{0x10 + n:02x}:00.0"
        device = root / "devices" / pci
        port = root / "class" / "infiniband" / f"mlx5_{n}" / "ports" / "1"
        for folder in (
            device / "net" / f"rail{n}",
            device / "infiniband" / f"mlx5_{n}",
            port,
            root / "class" / "net" / f"rail{n}",
        ):
            folder.mkdir(parents=True)
        (root / "class" / "net" / f"rail{n}" / "device").symlink_to(device)
        (root / "class" / "infiniband" / f"mlx5_{n}" / "device").symlink_to(device)
        for name, text in (
            ("state", "4: ACTIVE"),
            ("phys_state", "5: LinkUp"),
            ("rate", "400 Gb/sec (4X NDR)"),
            ("lid", "0x0"),
        ):
            (port / name).write_text(f"{text}\n")
        (port / "link_layer").write_text("Ethernet\n")
        for counters, names in (("counters", PORT_COUNTERS), ("hw_counters", QUEUE_COUNTERS)):
            (port / counters).mkdir()
            for name in names:
                (port / counters / name).write_text("123456789\n")
        (port / "hw_counters" / "lifespan").write_text("10\n")


def cost(reader: SourceReader, move: Callable[[int], None], counting: Counting) -> dict[str, float]:
    reader.open()
    reader.read()
    us = []
    for number in range(READINGS):
        move(number)
        counting.spent_s = 0.0
        began = time.thread_time()
        reader.read()
        us.append((time.thread_time() - began - counting.spent_s) * 1e6)
    reader.close()
    us.sort()
    return {"min_us": round(us[0]), "median_us": round(statistics.median(us)), "p95_us": round(us[-READINGS // 20])}


def _rdma(root: Path, *, netlink: bool) -> tuple[SourceReader, Callable[[int], None], Counting]:
    counting, names = Counting(), list(QUEUE_COUNTERS)
    values = dict.fromkeys(names, 123456789)
    files = [file for name in _MOVING for file in root.glob(f"class/infiniband/*/ports/1/*/{name}")]

    def move(number: int) -> None:
        for file in files:
            file.write_text(f"{123456789 + 1000 * number}\n")
        values.update(dict.fromkeys(_MOVING[-2:], 123456789 + 1000 * number))

    def answer(kind: int, _: bytes) -> list[bytes]:
        if kind == 5 << 10 | 1:
            return [_u32(1, n) + _text(2, f"mlx5_{n}") for n in range(ADAPTERS)]
        entries = b"".join(
            _attr(81, _text(82, name) + _attr(83, struct.pack("=Q", value))) for name, value in values.items()
        )
        return [_attr(80, entries)]

    statistics_ = RdmaStatistics(socket_of=Netlink(answer, counting) if netlink else _none)  # type: ignore[arg-type]
    reader = RdmaReader(host="h0", boot_id="b", clock=SystemClock(), sys_root=root, statistics=statistics_)
    return reader, move, counting


def _ethtool(root: Path) -> tuple[SourceReader, Callable[[int], None], Counting]:
    counting = Counting()
    names = [f"rx{n}_packets" for n in range(STATISTICS_OF_RINGS)] + list(_TOLD)
    moving = [names.index(name) for name in ("rx_prio3_pause", "rx_prio3_pause_duration", "rx_corrected_bits_phy")]
    values = [7] * len(names)
    strings = struct.pack("=III", 0x1B, 1, len(names)) + b"".join(name.encode().ljust(32, b"\0") for name in names)
    answers = {0x03: bytes(196), 0x37: struct.pack("=IIQI", 0x37, 0, 2, len(names)), 0x1B: strings}

    def move(number: int) -> None:
        for index in moving:
            values[index] += 1000
        answers[0x1D] = struct.pack(f"=II{len(values)}Q", 0x1D, len(values), *values)

    def ioctl(_fd: int, _request: int, data: bytes) -> int:
        (address,) = struct.unpack("16xP16x", data)
        found = answers[struct.unpack("=I", ctypes.string_at(address, 4))[0]]
        ctypes.memmove(address, found, len(found))
        return 0

    def answer(_: int, payload: bytes) -> list[bytes]:
        parts = {6: _attr(2, b"\1"), 4: _u32(5, 400_000) + _attr(6, b"\1"), 29: _u32(4, 50)}[payload[0]]
        return [struct.pack("=BBH", payload[0], 1, 0) + _attr(1, _text(2, f"rail{n}")) + parts for n in range(ADAPTERS)]

    move(0)
    reader = EthtoolReader(
        host="h0",
        boot_id="b",
        clock=SystemClock(),
        ignore=re.compile("lo"),
        sys_root=root,
        modules_every_s=0,
        ioctl=EthtoolIoctl(counting.off(ioctl)),
        netlink=EthtoolNetlink(socket_of=Netlink(answer, counting)),  # type: ignore[arg-type]
    )
    return reader, move, counting


def _devlink(root: Path) -> tuple[SourceReader, Callable[[int], None], Counting]:
    counting = Counting()

    def answer(_: int, __: bytes) -> list[bytes]:
        return [
            struct.pack("=BBH", 52, 1, 0)
            + _text(1, "pci")
            + _text(2, f"0000:{0x10 + n:02x}:00.0")
            + _attr(114, _text(115, name) + _attr(116, b"\0") + _attr(117, bytes(8)) + _attr(118, bytes(8)))
            for n in range(ADAPTERS)
            for name in ("fw", "fw_fatal", "tx", "rx")
        ]

    netlink = Netlink(answer, counting)
    reader = DevlinkReader(host="h0", clock=SystemClock(), sys_root=root, socket_of=netlink)  # type: ignore[arg-type]
    return reader, lambda _: None, counting


def _netlink() -> dict[str, float]:
    for n in range(ADAPTERS):
        subprocess.run(["ip", "link", "add", f"rail{n}", "type", "veth", "peer", "name", f"far{n}"], check=True)
        for name in (f"rail{n}", f"far{n}"):
            subprocess.run(["ip", "link", "set", name, "up"], check=True)
    reader = NetlinkReader(host="h0", clock=SystemClock(), ignore=re.compile("lo|far.*"), full_every_s=0.0)
    found = cost(reader, lambda _: None, Counting())
    return {f"whole_{name}": value for name, value in found.items()}


class Netlink:
    """A netlink socket whose kernel is `answer`."""

    def __init__(self, answer: Callable[[int, bytes], list[bytes]], counting: Counting) -> None:
        self._answer = answer
        self.send = counting.off(self._send)
        self.recv = counting.off(self._recv)
        self._ready = b""

    def __call__(self, _: int) -> Netlink:
        return self

    def close(self) -> None:
        pass

    def _send(self, data: bytes) -> int:
        _, kind, flags, seq, _ = struct.unpack_from("=IHHII", data)
        payloads = [struct.pack("=BBHHH", 1, 1, 0, 6, 1) + b"\x21\0\0\0"] if kind == 16 else self._answer(kind, data[16:])
        parts = [struct.pack("=IHHII", 16 + len(each), kind, 0, seq, 0) + each for each in payloads]
        if flags & 0x300:
            parts.append(struct.pack("=IHHIIi", 20, 3, 0, seq, 0, 0))
        self._ready = b"".join(each + bytes(-len(each) % 4) for each in parts)
        return len(data)

    def _recv(self, _: int) -> bytes:
        return self._ready


def _none(_: int) -> object:
    raise OSError(93, os.strerror(93))


def _attr(kind: int, payload: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


def _text(kind: int, value: str) -> bytes:
    return _attr(kind, value.encode() + b"\0")


def _u32(kind: int, value: int) -> bytes:
    return _attr(kind, struct.pack("=I", value))


if __name__ == "__main__":
    raise SystemExit(main())
