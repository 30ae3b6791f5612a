"""Health reporters of drivers: what changed, whose it is, and what happens where there are none."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
from collector_fixtures import Rig, Ticking, TurnedClock
from hypothesis import given
from hypothesis import strategies as st
from network_fixtures import FakeNetlink, attr, generic, net_device, text, u8, u32, u64

from goodput_collector.adapters.devlink import DevlinkReader
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.domain import netlink_wire as wire
from goodput_collector.domain.devlink_health import reporters
from goodput_common.contracts.telemetry import Event, EventName, Severity, Source, SourceStatus, State
from goodput_common.runtime.clock import SystemClock


class Drivers:
    """Reporters by (device, name): [state, errors, recoveries]."""

    def __init__(self, **reporters: list[int]) -> None:
        self.reporters = {("0000:9b:00.0", name): numbers for name, numbers in reporters.items()}
        self.hang: threading.Event | None = None

    def answer(self, _kind: int, payload: bytes) -> list[bytes] | int:
        assert payload[0] == 52
        if self.hang is not None:
            self.hang.wait(30)
        return [
            generic(
                52,
                text(1, "pci"),
                text(2, device),
                attr(114 | 0x8000, text(115, name) + u8(116, state) + u64(117, errors) + u64(118, recoveries) + u8(121, 1)),
            )
            for (device, name), (state, errors, recoveries) in self.reporters.items()
        ]


def reader(root: Path, netlink: FakeNetlink, clock: object) -> DevlinkReader:
    made = DevlinkReader(host="h0", clock=clock, sys_root=root, socket_of=netlink)  # type: ignore[arg-type]
    made.open()
    return made


def events(reading: Reading) -> list[tuple[str, str, int, Severity]]:
    return [
        (each.attrs["reporter"], each.attrs["state"], each.count, each.severity)
        for each in reading.samples
        if isinstance(each, Event)
    ]


def test_reporters_are_states_of_the_port_behind_the_device(tmp_path: Path) -> None:
    net_device(tmp_path, "rail0", pci="0000:9b:00.0", rdma="mlx5_0")
    drivers, clock = Drivers(fw=[0, 3, 3], tx=[0, 0, 0]), TurnedClock()
    devlink = reader(tmp_path, FakeNetlink(drivers.answer, ("devlink",)), clock)
    reading = devlink.read()
    assert {(each.name, each.value) for each in reading.samples if isinstance(each, State)} == {
        ("health:fw", "healthy"),
        ("health:tx", "healthy"),
    }
    assert events(reading) == []  # old counts are no news
    assert reading.covered == ("nic:h0/mlx5_0/1",)
    clock.seconds += 5
    assert devlink.read().samples == []


def test_an_error_that_was_recovered_from_between_two_readings_is_told(tmp_path: Path) -> None:
    drivers, clock = Drivers(tx=[0, 3, 3]), TurnedClock()
    devlink = reader(tmp_path, FakeNetlink(drivers.answer, ("devlink",)), clock)
    devlink.read()
    drivers.reporters["0000:9b:00.0", "tx"] = [0, 5, 5]
    clock.seconds += 5
    reading = devlink.read()
    assert events(reading) == [("tx", "healthy", 2, Severity.WARNING)]
    (event,) = (each for each in reading.samples if isinstance(each, Event))
    assert (event.name, event.component, event.attrs["recovered"]) == (EventName.DEVICE_HEALTH, "nic:h0/0000:9b:00/1", "2")


def test_a_dead_firmware_is_fatal_and_its_recovery_told(tmp_path: Path) -> None:
    drivers, clock = Drivers(fw_fatal=[0, 0, 0]), TurnedClock()
    devlink = reader(tmp_path, FakeNetlink(drivers.answer, ("devlink",)), clock)
    devlink.read()
    drivers.reporters["0000:9b:00.0", "fw_fatal"] = [1, 1, 0]
    clock.seconds += 5
    assert events(devlink.read()) == [("fw_fatal", "error", 1, Severity.FATAL)]
    clock.seconds += 5
    assert events(devlink.read()) == []
    drivers.reporters["0000:9b:00.0", "fw_fatal"] = [0, 1, 1]
    clock.seconds += 5
    assert events(devlink.read()) == [("fw_fatal", "healthy", 1, Severity.WARNING)]


def test_a_driver_loaded_again_makes_up_no_errors(tmp_path: Path) -> None:
    drivers, clock = Drivers(tx=[0, 9, 9]), TurnedClock()
    devlink = reader(tmp_path, FakeNetlink(drivers.answer, ("devlink",)), clock)
    devlink.read()
    drivers.reporters["0000:9b:00.0", "tx"] = [0, 0, 0]
    clock.seconds += 5
    assert events(devlink.read()) == []


def test_a_reporter_in_error_at_the_first_look_is_told(tmp_path: Path) -> None:
    devlink = reader(tmp_path, FakeNetlink(Drivers(fw=[1, 4, 3]).answer, ("devlink",)), TurnedClock())
    assert events(devlink.read()) == [("fw", "error", 1, Severity.ERROR)]


def test_a_kernel_without_devlink_or_drivers_without_reporters_have_none(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="devlink"):
        reader(tmp_path, FakeNetlink(lambda _kind, _payload: errno.EOPNOTSUPP), TurnedClock())
    with pytest.raises(Absent, match="no driver"):
        reader(tmp_path, FakeNetlink(Drivers().answer, ("devlink",)), TurnedClock()).read()
    with pytest.raises(Absent, match="no health reporters"):
        reader(tmp_path, FakeNetlink(lambda _kind, _payload: errno.EOPNOTSUPP, ("devlink",)), TurnedClock()).read()


def test_an_answer_that_makes_no_sense_is_unreadable(tmp_path: Path) -> None:
    netlink = FakeNetlink(Drivers(fw=[0, 0, 0]).answer, ("devlink",))
    devlink = reader(tmp_path, netlink, TurnedClock())
    netlink.raw = b"\xff" * 50
    with pytest.raises(Unreadable, match="no sense"):
        devlink.read()


@given(st.binary(max_size=120))
def test_any_bytes_are_reporters_or_refused(data: bytes) -> None:
    try:
        reporters([wire.Message(33, 0, 1, data)])
    except wire.Malformed:
        return


def test_a_port_of_another_bus_is_no_adapter() -> None:
    payload = generic(52, text(1, "netdevsim"), text(2, "netdevsim10"), u32(3, 0), attr(114, text(115, "dummy")))
    assert reporters([wire.Message(33, 0, 1, payload)]) == []


async def test_a_sick_adapter_reaches_the_bus_and_a_hung_driver_disturbs_nobody(tmp_path: Path) -> None:
    drivers, neighbour = Drivers(fw=[0, 0, 0]), Ticking()
    netlink = FakeNetlink(drivers.answer, ("devlink",))
    devlink = DevlinkReader(host="h0", clock=SystemClock(), sys_root=tmp_path, socket_of=netlink)
    devlink.deadline_s = 0.1
    async with Rig(tmp_path, devlink, neighbour) as rig:
        await rig.until(lambda: rig.condition(Source.DEVLINK).status is SourceStatus.OK, "the first reading")
        drivers.reporters["0000:9b:00.0", "fw"] = [1, 1, 0]
        await rig.until(lambda: any(isinstance(each, Event) for each in rig.samples(Source.DEVLINK)), "the event")
        drivers.hang = threading.Event()
        await rig.until(lambda: "no answer" in rig.condition(Source.DEVLINK).reason, "the hang")
        before = neighbour.reads
        await rig.until(lambda: neighbour.reads > before + 20, "the neighbour's schedule")
        released, drivers.hang = drivers.hang, None
        released.set()
        await rig.until(lambda: rig.condition(Source.DEVLINK).status is SourceStatus.OK, "its return")
        netlink.raw = b"\xff" * 50
        await rig.until(lambda: "no sense" in rig.condition(Source.DEVLINK).reason, "garbage")
        netlink.raw = None
        await rig.until(lambda: rig.condition(Source.DEVLINK).status is SourceStatus.OK, "its second return")
    assert netlink.open_now == 0
