"""The netlink source without a kernel: what it makes of messages as they come, and of those that do not make sense."""

from __future__ import annotations

import os
import re
import struct
import threading
from datetime import datetime
from pathlib import Path

import pytest
from collector_fixtures import START, Rig, Ticking, TurnedClock
from network_fixtures import attr, message, text, u8, u32

from goodput_collector.adapters.netlink import NetlinkReader
from goodput_collector.adapters.netlink_arrivals import Arrival
from goodput_collector.application.ports import Reading, Unreadable
from goodput_common.contracts.telemetry import Counter, Event, EventName, Source, SourceStatus, State
from goodput_common.runtime.clock import Clock, SystemClock


def link(
    index: int,
    name: str,
    *,
    downs: int = 0,
    up: bool = True,
    master: int = 0,
    bond: int = -1,
    kind: str = "",
    seq: int = 0,
    flags: int = 0,
    counted: bool = True,
) -> bytes:
    """An RTM_NEWLINK message."""
    info = text(1, kind) if kind else b""
    if bond >= 0:
        info += text(4, "bond") + attr(5, u8(1, bond) + u8(2, 0))
    payload = index.to_bytes(4, "little").rjust(8, b"\0") + (1).to_bytes(4, "little") + bytes(4)
    payload += text(3, name) + u8(16, 6 if up else 3) + u8(33, int(up))
    payload += u32(47, downs + int(up)) + u32(48, downs) if counted else b""
    payload += (u32(10, master) if master else b"") + (attr(18, info) if info else b"")
    return message(16, seq, payload, flags)


def gone(index: int, *more: bytes, family: int = 0) -> bytes:
    """An RTM_DELLINK message."""
    return message(17, 0, struct.pack("=BxHiII", family, 1, index, 1, 0) + b"".join(more))


def answering(data: bytes, seq: bytes) -> bytes:
    return data[:8] + seq + data[12:]


class Kernel:
    """What interfaces there are; answers a dump, and tells what happens when told to."""

    def __init__(self, *links: bytes) -> None:
        self.links = list(links)
        self.fd, self._write = os.pipe()
        self.waiting: list[Arrival] = []
        self.lost = False
        self.first: list[list[bytes]] = []  # what the first dumps are answered, if not `links`
        self.dumps = 0
        self.end, self.error = 3, 0
        self.deaf: threading.Event | None = None
        self.closed = 0
        self.socket = self  # stands in for the socket, too

    def __call__(self, clock: Clock) -> Kernel:
        self.clock = clock
        return self

    @property
    def wake_fd(self) -> int:
        return self.fd

    def tells(self, data: bytes, at: datetime | None = None) -> None:
        self.waiting.append(Arrival(data, at or self.clock.now(), self.clock.monotonic_s()))
        os.write(self._write, b"x")

    def send(self, data: bytes) -> int:
        self.dumps += 1
        seq = data[8:12]
        links = self.first.pop(0) if self.first else self.links
        end = message(self.end, 0, struct.pack("=i", -self.error))
        for each in [*links, end]:
            self.tells(answering(each, seq))
        return len(data)

    def take(self) -> tuple[list[Arrival], bool]:
        if self.deaf is not None:
            self.deaf.wait(30)
        taken, self.waiting = self.waiting, []
        if taken:
            os.read(self.fd, 65536)
        lost, self.lost = self.lost, False
        return taken, lost

    def wait(self, _seconds: float) -> bool:
        return bool(self.waiting)

    def close(self) -> None:
        self.closed += 1


def reader(kernel: Kernel, clock: object, sys_root: Path = Path("/nowhere")) -> NetlinkReader:
    made = NetlinkReader(
        host="h0",
        clock=clock,  # type: ignore[arg-type]
        sys_root=sys_root,
        ignore=re.compile("lo"),
        arrivals_of=kernel,  # type: ignore[arg-type]
    )
    made.open()
    return made


def events(reading: Reading) -> list[tuple[EventName, int]]:
    return [(each.name, each.count) for each in reading.samples if isinstance(each, Event)]


def test_an_event_has_the_time_at_which_its_message_came() -> None:
    kernel, clock = Kernel(link(2, "rail0")), TurnedClock()
    netlink = reader(kernel, clock)
    netlink.read()
    came_at = clock.now()
    kernel.tells(link(2, "rail0", downs=1, up=False), came_at)
    clock.seconds += 0.5
    (event,) = (each for each in netlink.read().samples if isinstance(each, Event))
    assert (event.name, event.observed_at) == (EventName.LINK_DOWN, came_at)
    assert came_at == START


def test_messages_that_were_lost_are_made_up_for_by_asking() -> None:
    kernel, clock = Kernel(link(2, "rail0")), TurnedClock()
    netlink = reader(kernel, clock)
    netlink.read()
    kernel.links = [link(2, "rail0", downs=3)]
    kernel.lost = True
    assert events(netlink.read()) == [(EventName.LINK_DOWN, 3), (EventName.LINK_UP, 3)]


def test_a_message_that_makes_no_sense_is_trouble_and_all_is_asked_for() -> None:
    kernel, clock = Kernel(link(2, "rail0")), TurnedClock()
    netlink = reader(kernel, clock)
    netlink.read()
    kernel.links = [link(2, "rail0", downs=1, up=False)]
    kernel.tells(b"\x03\0\0\0" * 9)
    reading = netlink.read()
    assert "no sense" in reading.trouble
    assert events(reading) == [(EventName.LINK_DOWN, 1)]


def test_the_interval_of_what_moved_begins_when_it_was_last_heard_of_unmoved() -> None:
    kernel, clock = Kernel(link(2, "rail0")), TurnedClock()
    netlink = reader(kernel, clock)
    netlink.read()
    clock.seconds += 30
    assert events(netlink.read()) == []
    assert kernel.dumps == 2
    clock.seconds += 4
    kernel.tells(link(2, "rail0", downs=1))
    (interval_s,) = {each.interval_s for each in netlink.read().samples if isinstance(each, Counter)}
    assert interval_s == 4


def test_an_interface_that_comes_back_as_it_was_is_there_again() -> None:
    kernel, clock = Kernel(link(2, "rail0")), TurnedClock()
    netlink = reader(kernel, clock)
    netlink.read()
    kernel.tells(gone(2))
    assert "removed" in values(netlink.read())
    kernel.tells(link(2, "rail0"))
    reading = netlink.read()
    assert (values(reading), reading.covered) == (["up"], ("nic:h0/rail0/1",))


def test_the_device_of_an_interface_is_found_when_its_driver_is_loaded_later(tmp_path: Path) -> None:
    kernel, clock = Kernel(link(2, "rail0")), TurnedClock()
    netlink = reader(kernel, clock, tmp_path)
    device = tmp_path / "class" / "net" / "rail0" / "device"
    device.mkdir(parents=True)
    assert netlink.read().covered == ("nic:h0/rail0/1",)
    (device / "infiniband" / "mlx5_0").mkdir(parents=True)
    (tmp_path / "class" / "infiniband" / "mlx5_0").mkdir(parents=True)
    clock.seconds += 30
    assert netlink.read().covered == ("nic:h0/mlx5_0/1",)


def values(reading: Reading) -> list[str]:
    return [each.value for each in reading.samples if isinstance(each, State)]


def test_what_a_bridge_says_of_its_port_is_no_news_of_its_carrier() -> None:
    kernel, clock = Kernel(link(2, "rail0")), TurnedClock()
    netlink = reader(kernel, clock)
    netlink.read()
    as_a_port = struct.pack("=BxHiII", 7, 1, 2, 1, 0) + text(3, "rail0") + u8(16, 2)
    kernel.tells(message(16, 0, as_a_port))
    kernel.tells(gone(2, text(3, "rail0"), family=7))
    kernel.tells(link(2, "rail0", downs=1, up=False))
    reading = netlink.read()
    assert events(reading) == [(EventName.LINK_DOWN, 1)]
    assert values(reading) == ["lowerlayerdown"]


def test_counts_that_were_not_told_before_are_not_subtracted_from() -> None:
    kernel, clock = Kernel(link(2, "rail0", counted=False)), TurnedClock()
    netlink = reader(kernel, clock)
    netlink.read()
    kernel.tells(link(2, "rail0", downs=700))
    assert events(netlink.read()) == []
    kernel.tells(link(2, "rail0", up=False, counted=False))
    assert events(netlink.read()) == [(EventName.LINK_DOWN, 1)]


def test_an_interface_that_a_pod_was_given_has_not_lost_its_carrier() -> None:
    kernel, clock = Kernel(link(2, "rail0"), link(3, "rail1")), TurnedClock()
    netlink = reader(kernel, clock)
    netlink.read()
    kernel.tells(gone(2, text(3, "rail0"), u32(45, 4), u32(49, 2)))
    reading = netlink.read()
    assert (events(reading), values(reading)) == ([], ["moved"])
    kernel.tells(gone(3, text(3, "rail1")))
    reading = netlink.read()
    assert (events(reading), values(reading)) == ([(EventName.LINK_DOWN, 1)], ["removed"])


def test_a_dump_that_was_interrupted_is_asked_for_again_before_anything_is_taken_for_gone() -> None:
    both = [link(2, "rail0"), link(3, "rail1")]
    kernel, clock = Kernel(*both), TurnedClock()
    netlink = reader(kernel, clock)
    netlink.read()
    clock.seconds += 60
    kernel.first = [[link(2, "rail0", flags=0x10)]]
    reading = netlink.read()
    assert (events(reading), reading.trouble, kernel.dumps) == ([], "", 3)
    clock.seconds += 60
    kernel.links = both[:1]
    assert events(netlink.read()) == [(EventName.LINK_DOWN, 1)]


@pytest.mark.parametrize("flags", [0x10, -1])
def test_what_is_never_told_whole_removes_nothing_and_is_trouble(flags: int) -> None:
    kernel, clock = Kernel(link(2, "rail0"), link(3, "rail1")), TurnedClock()
    netlink = reader(kernel, clock)
    netlink.read()
    clock.seconds += 60
    kernel.links = [link(2, "rail0", flags=flags)] if flags >= 0 else [link(2, "rail0"), message(16, 0, b"\0\0")]
    reading = netlink.read()
    assert events(reading) == []
    assert reading.trouble
    assert "nic:h0/rail1/1" in reading.covered
    kernel.links = [link(2, "rail0"), link(3, "rail1")]
    assert netlink.read().trouble == ""  # asked again at once, not in half a minute


@pytest.mark.parametrize("end", [2, 3])
def test_a_dump_that_the_kernel_refuses_is_unreadable(end: int) -> None:
    kernel, clock = Kernel(link(2, "rail0")), TurnedClock()
    netlink = reader(kernel, clock)
    netlink.read()
    clock.seconds += 60
    kernel.tells(link(2, "rail0", downs=1, up=False))
    kernel.links, kernel.end, kernel.error = [], end, 12
    with pytest.raises(Unreadable, match="Cannot allocate memory"):
        netlink.read()
    kernel.links, kernel.end, kernel.error = [link(2, "rail0", downs=1, up=False)], 3, 0
    assert events(netlink.read()) == [(EventName.LINK_DOWN, 1)]  # a reading that failed has lost nothing


def test_a_bond_says_who_belongs_to_it_and_who_is_in_use() -> None:
    kernel = Kernel(
        link(2, "p0", master=4, bond=0), link(3, "p1", master=4, bond=1), link(4, "bond0", kind="bond"), link(5, "alone")
    )
    reading = reader(kernel, TurnedClock()).read()
    states = {each.attrs["netdev"]: each.attrs for each in reading.samples if isinstance(each, State)}
    assert (states["p0"]["bond"], states["p0"]["master"], states["p1"]["bond"]) == ("active", "bond0", "backup")
    assert (states["bond0"]["members"], states["bond0"]["active"]) == ("p0,p1", "p0")
    assert "master" not in states["alone"]
    assert reading.covered == ("nic:h0/p0/1", "nic:h0/p1/1", "nic:h0/bond0/1", "nic:h0/alone/1")


def test_a_kernel_that_does_not_answer_is_unreadable() -> None:
    kernel = Kernel()
    kernel.send = lambda data: len(data)  # type: ignore[method-assign]
    with pytest.raises(Unreadable, match="did not answer"):
        reader(kernel, TurnedClock()).read()


async def test_a_lost_carrier_reaches_the_bus_and_a_hung_kernel_disturbs_nobody(tmp_path: Path) -> None:
    kernel, neighbour = Kernel(link(2, "rail0")), Ticking()
    netlink = NetlinkReader(
        host="h0",
        clock=SystemClock(),
        sys_root=tmp_path,
        ignore=re.compile("lo"),
        arrivals_of=kernel,  # type: ignore[arg-type]
    )
    netlink.deadline_s = 0.1
    async with Rig(tmp_path, netlink, neighbour) as rig:
        await rig.until(lambda: rig.condition(Source.NETLINK).status is SourceStatus.OK, "the first reading")
        kernel.links = [link(2, "rail0", downs=1, up=False)]
        kernel.tells(kernel.links[0])
        await rig.until(lambda: any(isinstance(each, Event) for each in rig.samples(Source.NETLINK)), "the event")
        kernel.deaf = threading.Event()
        kernel.tells(kernel.links[0])
        await rig.until(lambda: "no answer" in rig.condition(Source.NETLINK).reason, "the hang")
        before = neighbour.reads
        await rig.until(lambda: neighbour.reads > before + 20, "the neighbour's schedule")
        released, kernel.deaf = kernel.deaf, None
        released.set()
        await rig.until(lambda: rig.condition(Source.NETLINK).status is SourceStatus.OK, "its return")
        kernel.tells(b"garbage, garbage, garbage")
        await rig.until(lambda: rig.condition(Source.NETLINK).status is SourceStatus.OK, "it going on")
    assert kernel.closed > 0
