"""Adapters through ethtool: which statistics are told, pauses as a share of time, link settings, modules."""

from __future__ import annotations

import errno
import os
import re
import struct
import threading
from pathlib import Path

import pytest
from collector_fixtures import Rig, Ticking, TurnedClock
from hypothesis import given
from hypothesis import strategies as st
from network_fixtures import MLX5, Adapter, FakeNetlink, Kernel, attr, generic, net_device, text, u8, u32
from test_module_eeprom import osfp, qsfp28

from goodput_collector.adapters.ethtool import EthtoolReader
from goodput_collector.adapters.ethtool_ioctl import STATS_MAX
from goodput_collector.adapters.ethtool_netlink import EthtoolNetlink
from goodput_collector.application.ports import Absent, Reading
from goodput_collector.domain.ethtool_link import reason_of
from goodput_collector.domain.ethtool_stats import chosen
from goodput_collector.domain.rdma_counters import Width
from goodput_common.contracts.telemetry import (
    Counter,
    CounterDoubt,
    Event,
    EventName,
    Gauge,
    Severity,
    Source,
    SourceStatus,
    State,
)
from goodput_common.runtime.clock import SystemClock

NOTHING = FakeNetlink(lambda _kind, _payload: errno.EOPNOTSUPP)  # a kernel without ethtool's netlink family


def reader(root: Path, kernel: Kernel, clock: object, netlink: FakeNetlink = NOTHING, **more: object) -> EthtoolReader:
    made = EthtoolReader(
        host="h0",
        boot_id="b1",
        clock=clock,  # type: ignore[arg-type]
        ignore=re.compile("lo"),
        sys_root=root,
        ioctl=kernel.through(),
        netlink=EthtoolNetlink(socket_of=netlink),
        **more,  # type: ignore[arg-type]
    )
    made.open()
    return made


def counters(reading: Reading) -> dict[str, tuple[int, CounterDoubt]]:
    return {each.name: (each.delta, each.doubt) for each in reading.samples if isinstance(each, Counter)}


def gauges(reading: Reading, name: str) -> dict[str, float]:
    found = (each for each in reading.samples if isinstance(each, Gauge) and each.name == name)
    return {
        each.attrs.get("direction", "") + each.attrs.get("priority", each.attrs.get("lane", "")): each.value
        for each in found
    }


def events(reading: Reading) -> list[Event]:
    return [each for each in reading.samples if isinstance(each, Event)]


def states(reading: Reading, name: str) -> list[State]:
    return [each for each in reading.samples if isinstance(each, State) and each.name == name]


# -- which statistics -----------------------------------------------------------------------------------------------


def test_statistics_per_ring_are_not_told_and_the_fabrics_are() -> None:
    names = {stat.name: stat for stat in chosen(MLX5)}
    assert "rx0_packets" not in names
    assert names["rx_out_of_buffer"].width is Width.WRAPS_32
    assert names["outbound_pci_stalled_rd_percent"].gauge
    assert names["outbound_pci_stalled_wr_events"].width is Width.WRAPS_32
    assert names["rx_prio3_pause_duration"].place == MLX5.index("rx_prio3_pause_duration")


def test_other_drivers_statistics_have_mlx5s_names_where_they_mean_the_same() -> None:
    theirs = "rx_pfc_ena_frames_pri3 pfc_pri3_rx_duration_us pfc_pri3_tx_transitions link_down_events rx_fcs_err_frames"
    theirs += " rx_discard_packets_cos2 tx_priority_5_xoff.nic link_xoff_rx.nic bw_in_allowance_exceeded"
    theirs += " conntrack_allowance_available"
    assert [stat.name for stat in chosen(theirs.split())] == [
        "rx_prio3_pause",
        "rx_prio3_pause_duration",
        "tx_prio3_pause_transition",
        "link_down_events_phy",
        "rx_crc_errors_phy",
        "rx_discard_packets_cos2",
        "tx_prio5_pause",
        "rx_pause_ctrl_phy",
        "bw_in_allowance_exceeded",
        "conntrack_allowance_available",
    ]


@given(st.lists(st.text(max_size=40), max_size=60))
def test_any_names_are_taken_or_left(names: list[str]) -> None:
    told = chosen(names)
    assert len({stat.name for stat in told}) == len(told)
    assert all(0 <= stat.place < len(names) for stat in told)


# -- readings -------------------------------------------------------------------------------------------------------


def test_increases_are_told_of_the_port_behind_the_interface(tmp_path: Path) -> None:
    net_device(tmp_path, "rail0", pci="0000:9b:00.0", rdma="mlx5_0")
    kernel, clock = Kernel(rail0=Adapter(MLX5)), TurnedClock()
    ethtool = reader(tmp_path, kernel, clock)
    assert counters(ethtool.read()) == {}
    kernel.adapters["rail0"].stats |= {"link_down_events_phy": 2, "rx_discards_phy": 7, "rx0_packets": 100}
    clock.seconds += 1
    reading = ethtool.read()
    assert counters(reading) == {
        "link_down_events_phy": (2, CounterDoubt.NONE),
        "rx_discards_phy": (7, CounterDoubt.NONE),
    }
    assert reading.covered == ("nic:h0/mlx5_0/1",)
    assert {each.component for each in reading.samples} == {"nic:h0/mlx5_0/1"}


def test_names_are_asked_for_once_and_anew_when_there_are_others(tmp_path: Path) -> None:
    net_device(tmp_path, "rail0", pci="0000:9b:00.0")
    kernel, clock = Kernel(rail0=Adapter(MLX5)), TurnedClock()
    ethtool = reader(tmp_path, kernel, clock)
    for _ in range(5):
        ethtool.read()
        clock.seconds += 1
    assert kernel.calls[0x1B] == 1
    kernel.adapters["rail0"].stats = {"rx1_packets": 5} | kernel.adapters["rail0"].stats | {"rx_discards_phy": 3}
    clock.seconds += 1
    assert counters(ethtool.read()) == {"rx_discards_phy": (3, CounterDoubt.NONE)}
    assert kernel.calls[0x1B] == 2


def test_an_interface_made_anew_counts_at_least_what_it_shows_beyond_before(tmp_path: Path) -> None:
    folder = net_device(tmp_path, "rail0", pci="0000:9b:00.0", index=2)
    kernel, clock = Kernel(rail0=Adapter(MLX5)), TurnedClock()
    kernel.adapters["rail0"].stats["rx_discards_phy"] = 5
    ethtool = reader(tmp_path, kernel, clock)
    ethtool.read()
    (folder / "ifindex").write_text("9\n")
    kernel.adapters["rail0"].error = errno.ENODEV
    ethtool.read()
    kernel.adapters["rail0"].error = 0
    kernel.adapters["rail0"].stats["rx_discards_phy"] = 8
    clock.seconds += 1
    assert counters(ethtool.read()) == {"rx_discards_phy": (3, CounterDoubt.RESET)}


def test_a_pause_is_told_as_a_share_of_time_and_when_it_is_over(tmp_path: Path) -> None:
    net_device(tmp_path, "rail0", pci="0000:9b:00.0")
    kernel, clock = Kernel(rail0=Adapter(MLX5)), TurnedClock()
    ethtool = reader(tmp_path, kernel, clock)
    assert gauges(ethtool.read(), "pause_share") == {}
    clock.seconds += 2
    kernel.adapters["rail0"].stats["rx_prio3_pause_duration"] += 500_000
    assert gauges(ethtool.read(), "pause_share") == {"rx3": 0.25}
    clock.seconds += 1
    kernel.adapters["rail0"].stats["rx_prio3_pause_duration"] += 250_000
    assert gauges(ethtool.read(), "pause_share") == {}  # as before
    clock.seconds += 1
    assert gauges(ethtool.read(), "pause_share") == {"rx3": 0.0}


def test_the_adapters_own_watchdog_is_an_event(tmp_path: Path) -> None:
    net_device(tmp_path, "rail0", pci="0000:9b:00.0")
    kernel, clock = Kernel(rail0=Adapter(MLX5)), TurnedClock()
    ethtool = reader(tmp_path, kernel, clock)
    ethtool.read()
    kernel.adapters["rail0"].stats["tx_pause_storm_error_events"] = 1
    clock.seconds += 1
    (storm,) = events(ethtool.read())
    assert (storm.name, storm.severity, storm.attrs["state"]) == (EventName.PAUSE_STORM, Severity.ERROR, "stormed")


def test_waiting_for_pcie_is_a_measurement_in_percent(tmp_path: Path) -> None:
    net_device(tmp_path, "rail0", pci="0000:9b:00.0")
    kernel, clock = Kernel(rail0=Adapter(MLX5)), TurnedClock()
    ethtool = reader(tmp_path, kernel, clock)
    ethtool.read()
    kernel.adapters["rail0"].stats["outbound_pci_stalled_rd"] = 40
    clock.seconds += 1
    assert gauges(ethtool.read(), "outbound_pci_stalled_rd_percent") == {"": 40.0}


def test_representors_ignored_and_foreign_interfaces_are_left_out(tmp_path: Path) -> None:
    net_device(tmp_path, "rail0", pci="0000:9b:00.0")
    (net_device(tmp_path, "rail0_3", pci="0000:9b:00.1") / "phys_port_name").write_text("pf0vf3\n")
    net_device(tmp_path, "elsewhere", pci="0000:9c:00.0")  # in another network namespace
    (tmp_path / "class" / "net" / "br0").mkdir()
    reading = reader(tmp_path, Kernel(rail0=Adapter(MLX5)), TurnedClock()).read()
    assert reading.covered == ("nic:h0/rail0/1",)
    assert reading.trouble == ""


def test_more_statistics_than_there_is_room_for_are_refused_before_the_kernel_writes_them(tmp_path: Path) -> None:
    net_device(tmp_path, "rail0", pci="0000:9b:00.0")
    kernel = Kernel(rail0=Adapter(MLX5))
    kernel.adapters["rail0"].says = STATS_MAX + 1
    reading = reader(tmp_path, kernel, TurnedClock()).read()
    assert f"{STATS_MAX + 1} statistics" in reading.trouble
    assert (kernel.calls[0x1B], kernel.calls[0x1D]) == (0, 0)


def test_values_of_which_there_are_others_than_asked_for_are_left_out(tmp_path: Path) -> None:
    net_device(tmp_path, "rail0", pci="0000:9b:00.0")
    kernel, clock = Kernel(rail0=Adapter(MLX5)), TurnedClock()
    adapter, ethtool = kernel.adapters["rail0"], reader(tmp_path, kernel, clock)
    ethtool.read()
    adapter.stats["rx_discards_phy"], adapter.more = 5, 16
    clock.seconds += 1
    reading = ethtool.read()
    assert (counters(reading), reading.trouble) == ({}, "")
    adapter.more = 0
    clock.seconds += 1
    assert counters(ethtool.read()) == {"rx_discards_phy": (5, CounterDoubt.NONE)}


def test_an_interface_that_cannot_be_read_is_trouble_and_the_others_are_told(tmp_path: Path) -> None:
    net_device(tmp_path, "rail0", pci="0000:9b:00.0")
    net_device(tmp_path, "rail1", pci="0000:9c:00.0")
    kernel, clock = Kernel(rail0=Adapter(MLX5), rail1=Adapter(MLX5)), TurnedClock()
    ethtool = reader(tmp_path, kernel, clock)
    ethtool.read()
    kernel.adapters["rail0"].error = errno.EIO
    kernel.adapters["rail1"].stats["rx_discards_phy"] = 1
    clock.seconds += 1
    reading = ethtool.read()
    assert "rail0" in reading.trouble
    assert counters(reading) == {"rx_discards_phy": (1, CounterDoubt.NONE)}


def test_a_host_without_adapters_has_none(tmp_path: Path) -> None:
    (tmp_path / "class" / "net" / "lo").mkdir(parents=True)
    with pytest.raises(Absent, match="no network adapter"):
        reader(tmp_path, Kernel(), TurnedClock()).read()


# -- link settings --------------------------------------------------------------------------------------------------


class LinkKernel:
    """Answers LINKSTATE, LINKMODES, FEC and MODULE_EEPROM of one interface."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = True
        self.pages: dict[tuple[int, int], bytes] = {}
        self.eeprom_error = errno.EOPNOTSUPP
        self.asked = 0

    def plug(self, memory: tuple[bytearray, ...]) -> tuple[bytearray, ...]:
        """A CMIS module: lower page, upper page 00h, pages 11h and 01h."""
        places = ((0, 0), (0, 128), (0x11, 128), (0x01, 128))
        self.pages = {place: bytes(page) for place, page in zip(places, memory, strict=True)}
        return memory

    def answer(self, _kind: int, payload: bytes) -> list[bytes] | int:
        command, header = payload[0], attr(1, text(2, self.name))
        if command == 6:
            more = b"" if self.up else u8(5, 3) + u8(6, 1)
            return [generic(6, header, u8(2, int(self.up)), more)]
        if command == 4:
            return [generic(4, header, u8(2, 1), u32(5, 400_000 if self.up else 0xFFFFFFFF), u8(6, 1), u32(9, 4))]
        if command == 29:
            return [generic(29, header, u8(3, 1), u32(4, 50))]
        self.asked += 1
        found = {}
        at = 4
        while at < len(payload):
            length, kind = struct.unpack_from("=HH", payload, at)
            found[kind & 0x3FFF] = payload[at + 4 : at + length]
            at += length + 3 & ~3
        key = found[4][0], struct.unpack("=I", found[2])[0]
        if key not in self.pages:
            return self.eeprom_error
        return [generic(31, header, attr(7, self.pages[key]))]


def test_link_settings_are_a_state_with_the_reason_when_the_link_is_down(tmp_path: Path) -> None:
    net_device(tmp_path, "rail0", pci="0000:9b:00.0")
    link, clock = LinkKernel("rail0"), TurnedClock()
    ethtool = reader(tmp_path, Kernel(rail0=Adapter(MLX5)), clock, FakeNetlink(link.answer, ("ethtool",)))
    (state,) = states(ethtool.read(), "link")
    told = {name: state.attrs[name] for name in ("speed_mbps", "duplex", "lanes", "autoneg", "fec")}
    assert state.value == "up"
    assert told == {"speed_mbps": "400000", "duplex": "full", "lanes": "4", "autoneg": "on", "fec": "rs"}
    clock.seconds += 11
    assert states(ethtool.read(), "link") == []
    link.up = False
    clock.seconds += 11
    (state,) = states(ethtool.read(), "link")
    assert (state.value, state.attrs["reason"]) == ("down", "bad signal integrity: large number of physical errors")
    assert "speed_mbps" not in state.attrs


def test_reasons_beyond_those_known_are_told_by_number() -> None:
    assert reason_of(200, None) == "state 200"
    assert reason_of(4, 7) == "no cable"
    assert reason_of(None, 1) == ""


def test_link_settings_that_make_no_sense_are_trouble_and_counters_go_on(tmp_path: Path) -> None:
    net_device(tmp_path, "rail0", pci="0000:9b:00.0")
    netlink = FakeNetlink(LinkKernel("rail0").answer, ("ethtool",))
    netlink.raw = b"\x05\0\0\0garbage garbage garbage"
    kernel, clock = Kernel(rail0=Adapter(MLX5)), TurnedClock()
    ethtool = reader(tmp_path, kernel, clock, netlink)
    assert "link settings" in ethtool.read().trouble
    kernel.adapters["rail0"].stats["rx_discards_phy"] = 1
    clock.seconds += 1
    assert counters(ethtool.read()) == {"rx_discards_phy": (1, CounterDoubt.NONE)}


# -- modules --------------------------------------------------------------------------------------------------------


def test_a_module_is_measured_once_a_minute_and_complains_once(tmp_path: Path) -> None:
    net_device(tmp_path, "rail0", pci="0000:9b:00.0", rdma="mlx5_0")
    link, clock = LinkKernel("rail0"), TurnedClock()
    lower, *_ = link.plug(osfp())
    ethtool = reader(tmp_path, Kernel(rail0=Adapter(MLX5)), clock, FakeNetlink(link.answer, ("ethtool",)))
    reading = ethtool.read()
    assert gauges(reading, "module_temperature_c") == {"": -5.0}
    assert gauges(reading, "module_rx_power_dbm") == {str(lane): -1.0 for lane in range(1, 9)}
    (state,) = states(reading, "module")
    assert (state.value, state.attrs["serial"], state.component) == ("ok", "SN002", "nic:h0/mlx5_0/1")
    asked = link.asked
    clock.seconds += 30
    ethtool.read()
    assert link.asked == asked
    lower[9] = 1
    link.pages[0, 0] = bytes(lower)
    clock.seconds += 30
    reading = ethtool.read()
    (complaint,) = events(reading)
    assert (complaint.name, complaint.severity, complaint.attrs["what"]) == (
        EventName.CABLE,
        Severity.ERROR,
        "temperature_high_alarm",
    )
    assert [each.value for each in states(reading, "module")] == ["alarm"]
    clock.seconds += 60
    assert events(ethtool.read()) == []


def test_what_a_module_complained_of_before_it_was_first_read_is_told_only_if_it_does_so_again(tmp_path: Path) -> None:
    net_device(tmp_path, "rail0", pci="0000:9b:00.0")
    link, clock = LinkKernel("rail0"), TurnedClock()
    memory = osfp()
    memory[0][9] = 0b0000_0101
    link.plug(memory)
    ethtool = reader(tmp_path, Kernel(rail0=Adapter(MLX5)), clock, FakeNetlink(link.answer, ("ethtool",)))
    reading = ethtool.read()
    assert (events(reading), [each.value for each in states(reading, "module")]) == ([], ["ok"])
    memory[0][9] = 0b0000_0001
    link.plug(memory)
    clock.seconds += 60
    reading = ethtool.read()
    assert [each.attrs["what"] for each in events(reading)] == ["temperature_high_alarm"]
    memory[1][166 - 128] ^= 1  # another module
    link.plug(memory)
    clock.seconds += 60
    assert events(ethtool.read()) == []


@pytest.mark.parametrize(("error", "value"), [(errno.EIO, "unknown"), (errno.ENODEV, "absent")])
def test_a_module_that_can_be_read_no_more_is_not_ok_until_it_can_be_again(tmp_path: Path, error: int, value: str) -> None:
    net_device(tmp_path, "rail0", pci="0000:9b:00.0")
    link, clock = LinkKernel("rail0"), TurnedClock()
    link.plug(osfp())
    ethtool = reader(tmp_path, Kernel(rail0=Adapter(MLX5)), clock, FakeNetlink(link.answer, ("ethtool",)))
    assert [each.value for each in states(ethtool.read(), "module")] == ["ok"]
    pages, link.pages, link.eeprom_error = link.pages, {}, error
    clock.seconds += 60
    (state,) = states(ethtool.read(), "module")
    assert (state.value, state.attrs["serial"], state.attrs["reason"]) == (value, "SN002", os.strerror(error))
    link.pages = pages
    clock.seconds += 60
    assert [each.value for each in states(ethtool.read(), "module")] == ["ok"]


def test_a_driver_without_pages_gives_the_whole_memory_by_ioctl(tmp_path: Path) -> None:
    net_device(tmp_path, "rail0", pci="0000:9b:00.0")
    kernel = Kernel(rail0=Adapter(MLX5))
    kernel.adapters["rail0"].eeprom = b"".join(bytes(part) for part in qsfp28())
    reading = reader(tmp_path, kernel, TurnedClock()).read()
    assert gauges(reading, "module_temperature_c") == {"": 48.5}


def test_no_right_to_read_modules_is_said(tmp_path: Path) -> None:
    net_device(tmp_path, "rail0", pci="0000:9b:00.0")
    link = LinkKernel("rail0")
    link.eeprom_error = errno.EPERM
    clock = TurnedClock()
    ethtool = reader(tmp_path, Kernel(rail0=Adapter(MLX5)), clock, FakeNetlink(link.answer, ("ethtool",)))
    assert "CAP_NET_ADMIN" in ethtool.read().trouble
    link.plug(osfp())
    clock.seconds += 600
    assert ethtool.read().trouble == ""


def test_an_interface_without_a_module_is_asked_ever_less(tmp_path: Path) -> None:
    net_device(tmp_path, "rail0", pci="0000:9b:00.0")
    link, clock = LinkKernel("rail0"), TurnedClock()
    link.eeprom_error = errno.EINVAL
    ethtool = reader(tmp_path, Kernel(rail0=Adapter(MLX5)), clock, FakeNetlink(link.answer, ("ethtool",)))
    for _ in range(300):
        ethtool.read()
        clock.seconds += 1
    assert link.asked == 1


# -- from a reading to the bus --------------------------------------------------------------------------------------


async def test_a_changed_statistic_reaches_the_bus(tmp_path: Path) -> None:
    net_device(tmp_path, "rail0", pci="0000:9b:00.0", rdma="mlx5_0")
    kernel = Kernel(rail0=Adapter(MLX5))
    async with Rig(tmp_path, reader(tmp_path, kernel, SystemClock())) as rig:
        await rig.until(lambda: rig.condition(Source.ETHTOOL).status is SourceStatus.OK, "the first reading")
        kernel.adapters["rail0"].stats["rx_prio3_pause"] = 9
        await rig.until(
            lambda: any(isinstance(each, Counter) and each.name == "rx_prio3_pause" for each in rig.samples(Source.ETHTOOL)),
            "the counter",
        )
        assert rig.condition(Source.ETHTOOL).covered == ("nic:h0/mlx5_0/1",)


async def test_a_driver_that_hangs_fails_and_comes_back_disturbs_nobody(tmp_path: Path) -> None:
    net_device(tmp_path, "rail0", pci="0000:9b:00.0")
    kernel, release, neighbour = Kernel(rail0=Adapter(MLX5)), threading.Event(), Ticking()
    answer, hang = kernel.ioctl, threading.Event()

    def ioctl(fd: int, request: int, data: bytes) -> int:
        if hang.is_set():
            release.wait(30)
        return answer(fd, request, data)

    kernel.ioctl = ioctl  # type: ignore[method-assign, assignment]
    ethtool = reader(tmp_path, kernel, SystemClock())
    ethtool.deadline_s = 0.1
    async with Rig(tmp_path, ethtool, neighbour) as rig:
        await rig.until(lambda: rig.condition(Source.ETHTOOL).status is SourceStatus.OK, "the first reading")
        hang.set()
        await rig.until(lambda: "no answer" in rig.condition(Source.ETHTOOL).reason, "the hang")
        before = neighbour.reads
        await rig.until(lambda: neighbour.reads > before + 20, "the neighbour's schedule")
        hang.clear()
        release.set()
        await rig.until(lambda: rig.condition(Source.ETHTOOL).status is SourceStatus.OK, "its return")
        kernel.adapters["rail0"].error = errno.EIO
        await rig.until(lambda: "rail0" in rig.condition(Source.ETHTOOL).reason, "the failure")
        kernel.adapters["rail0"].error = 0
        await rig.until(lambda: rig.condition(Source.ETHTOOL).reason == "", "its recovery")
