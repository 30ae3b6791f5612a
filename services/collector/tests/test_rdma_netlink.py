"""Statistics of RDMA ports over netlink: the same counters as in sysfs, and what happens where it has none."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

from collector_fixtures import TurnedClock, rdma_device
from hypothesis import given
from hypothesis import strategies as st
from network_fixtures import FakeNetlink, attr, text, u32, u64

from goodput_collector.adapters.rdma_netlink import RdmaStatistics
from goodput_collector.adapters.sysfs import RdmaReader
from goodput_collector.domain.netlink_wire import Malformed
from goodput_collector.domain.rdma_counters import Width
from goodput_collector.domain.rdma_netlink import Layout
from goodput_common.contracts.telemetry import Counter

GET, STAT_GET = 5 << 10 | 1, 5 << 10 | 17


def statistics(values: dict[str, int]) -> bytes:
    entries = b"".join(attr(81 | 0x8000, text(82, name) + u64(83, value)) for name, value in values.items())
    return u32(1, 0) + u32(3, 1) + attr(80 | 0x8000, entries)


class Rdma:
    """A kernel with RDMA devices: name -> counters."""

    def __init__(self, **devices: dict[str, int]) -> None:
        self.devices = devices
        self.error = 0
        self.asked = 0

    def answer(self, kind: int, payload: bytes) -> list[bytes] | int:
        if kind == GET:
            return [u32(1, index) + text(2, name) for index, name in enumerate(self.devices)]
        assert kind == STAT_GET
        self.asked += 1
        if self.error:
            return self.error
        index, port = struct.unpack_from("=4xI4xI", payload)
        assert port == 1
        return [statistics(list(self.devices.values())[index])]


def test_counters_are_those_of_the_device_asked_for_under_mlx5s_names() -> None:
    kernel = Rdma(
        mlx5_0={"out_of_sequence": 3, "lifespan": 1},
        bnxt_re0={"to_retransmits": 2**40, "active_qps": 7, "oos_drop_count": 1},
    )
    read = RdmaStatistics(socket_of=FakeNetlink(kernel.answer))
    assert read.counters("mlx5_0", 1) == {"out_of_sequence": 3}
    assert read.counters("bnxt_re0", 1) == {"local_ack_timeout_err": 2**40, "out_of_sequence": 1}
    assert read.widths("mlx5_0", 1)["out_of_sequence"] is Width.WRAPS_32
    assert read.widths("bnxt_re0", 1)["out_of_sequence"] is Width.WRAPS_64
    assert read.counters("mlx5_9", 1) == {}


def test_other_counters_under_the_same_device_are_seen() -> None:
    kernel = Rdma(mlx5_0={"out_of_sequence": 3})
    read = RdmaStatistics(socket_of=FakeNetlink(kernel.answer))
    read.counters("mlx5_0", 1)
    kernel.devices["mlx5_0"] = {"packet_seq_err": 4}
    assert read.counters("mlx5_0", 1) == {"packet_seq_err": 4}


def test_a_driver_without_statistics_is_asked_once() -> None:
    kernel = Rdma(mlx5_0={})
    kernel.error = errno.EOPNOTSUPP
    read = RdmaStatistics(socket_of=FakeNetlink(kernel.answer))
    for _ in range(3):
        assert read.counters("mlx5_0", 1) == {}
    assert kernel.asked == 1


def test_a_kernel_that_does_not_answer_is_left_alone() -> None:
    netlink = FakeNetlink(lambda _kind, _payload: [])
    netlink._reply = lambda *_: []  # type: ignore[method-assign]
    read = RdmaStatistics(socket_of=netlink)
    assert read.counters("mlx5_0", 1) == {}
    assert read.counters("mlx5_0", 1) == {}
    read.close()
    assert netlink.open_now == 0


def counters(rdma: RdmaReader) -> dict[str, int]:
    return {each.name: each.delta for each in rdma.read().samples if isinstance(each, Counter)}


def test_a_port_is_read_over_netlink_where_it_tells_all_that_the_files_do(tmp_path: Path) -> None:
    rdma_device(tmp_path, "mlx5_0", {"link_downed": 1}, {"out_of_sequence": 3, "lifespan": 10})
    kernel, clock = Rdma(mlx5_0={"out_of_sequence": 3, "packet_seq_err": 0}), TurnedClock()
    rdma = RdmaReader(
        host="h0",
        boot_id="b1",
        clock=clock,
        sys_root=tmp_path,
        statistics=RdmaStatistics(socket_of=FakeNetlink(kernel.answer)),
    )
    rdma.open()
    assert counters(rdma) == {}
    kernel.devices["mlx5_0"] = {"out_of_sequence": 5, "packet_seq_err": 1}
    clock.seconds += 1
    assert counters(rdma) == {"out_of_sequence": 2, "packet_seq_err": 1}


def test_a_port_goes_back_to_its_files_when_netlink_fails(tmp_path: Path) -> None:
    rdma_device(tmp_path, "mlx5_0", {}, {"out_of_sequence": 3})
    kernel, clock = Rdma(mlx5_0={"out_of_sequence": 3}), TurnedClock()
    rdma = RdmaReader(
        host="h0",
        boot_id="b1",
        clock=clock,
        sys_root=tmp_path,
        statistics=RdmaStatistics(socket_of=FakeNetlink(kernel.answer)),
    )
    rdma.open()
    rdma.read()
    kernel.error = errno.EINVAL
    rdma_device(tmp_path, "mlx5_0", {}, {"out_of_sequence": 7})
    clock.seconds += 1
    rdma.read()
    clock.seconds += 1
    assert counters(rdma) == {"out_of_sequence": 4}


@given(
    st.dictionaries(st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1), st.integers(0, 2**64 - 1))
)
def test_a_layout_gives_each_value_under_its_name(values: dict[str, int]) -> None:
    layout = Layout(statistics(values))
    found = layout.values(statistics(values))
    assert found is not None
    assert dict(zip(layout.names, found, strict=True)) == values
    assert layout.values(statistics(values | {"one more": 1})) is None or "one more" in values


@given(st.binary(max_size=120))
def test_any_bytes_are_laid_out_or_refused(data: bytes) -> None:
    try:
        Layout(data)
    except Malformed:
        return
