"""RDMA ports from a sysfs tree: states, increases, what is left out, and what cannot be read."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from collector_fixtures import HangingFile, Rig, Ticking, TurnedClock, rdma_device
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.adapters.netdevs import Pods
from goodput_collector.adapters.rdma_ports import Descriptors
from goodput_collector.adapters.sysfs import RdmaReader
from goodput_collector.application.ports import Absent, Reading
from goodput_collector.domain.pod_devices import pods_of_devices
from goodput_common.contracts.telemetry import Counter, CounterDoubt, Event, Source, SourceStatus, State
from goodput_common.runtime.clock import SystemClock

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "public" / "gpud"


def reader(root: Path, clock: TurnedClock, **more: object) -> RdmaReader:
    made = RdmaReader(host="h0", boot_id="b1", clock=clock, sys_root=root, **more)  # type: ignore[arg-type]
    made.open()
    return made


def counters(reading: Reading) -> dict[str, tuple[int, CounterDoubt]]:
    return {each.name: (each.delta, each.doubt) for each in reading.samples if isinstance(each, Counter)}


def states(reading: Reading) -> dict[str, str]:
    return {each.name: each.value for each in reading.samples if isinstance(each, State)}


def test_a_port_is_told_once_and_then_when_it_changes(tmp_path: Path) -> None:
    clock = TurnedClock()
    port = rdma_device(tmp_path, "mlx5_0", {"link_downed": 3}, {})
    rdma = reader(tmp_path, clock)
    (first,) = rdma.read().samples
    assert isinstance(first, State)
    assert (first.component, first.value, first.attrs["phys_state"]) == ("nic:h0/mlx5_0/1", "ACTIVE", "LinkUp")
    clock.seconds += 5
    assert rdma.read().samples == []
    (port / "state").write_text("1: DOWN\n")
    clock.seconds += 5
    assert states(rdma.read()) == {"port_state": "DOWN"}


def test_increases_of_both_folders_are_told_under_mlx5_names(tmp_path: Path) -> None:
    clock = TurnedClock()
    rdma_device(tmp_path, "bnxt_re0", {"link_downed": 3}, {"to_retransmits": 7, "lifespan": 10})
    rdma = reader(tmp_path, clock)
    rdma.read()
    rdma_device(tmp_path, "bnxt_re0", {"link_downed": 5}, {"to_retransmits": 9, "lifespan": 10})
    clock.seconds += 5
    assert counters(rdma.read()) == {
        "link_downed": (2, CounterDoubt.NONE),
        "local_ack_timeout_err": (2, CounterDoubt.NONE),
    }


def test_a_driver_loaded_again_makes_a_reset(tmp_path: Path) -> None:
    clock = TurnedClock()
    rdma_device(tmp_path, "mlx5_0", {}, {"packet_seq_err": 2**32 - 2})
    rdma = reader(tmp_path, clock)
    rdma.read()
    (tmp_path / "class" / "infiniband" / "mlx5_0").rename(tmp_path / "old")
    rdma_device(tmp_path, "mlx5_0", {}, {"packet_seq_err": 4})
    clock.seconds += 5
    assert counters(rdma.read()) == {"packet_seq_err": (4, CounterDoubt.RESET)}


def test_a_device_can_be_left_out(tmp_path: Path) -> None:
    rdma_device(tmp_path, "mlx5_0", {}, {})
    rdma_device(tmp_path, "mlx5_bond_0", {}, {})
    components = {each.component for each in reader(tmp_path, TurnedClock(), ignore=["mlx5_bond_0"]).read().samples}
    assert components == {"nic:h0/mlx5_0/1"}


def test_a_device_whose_files_cannot_be_read_is_trouble_and_the_others_are_told(tmp_path: Path) -> None:
    rdma_device(tmp_path, "mlx5_0", {}, {})
    broken = rdma_device(tmp_path, "mlx5_1", {}, {})
    (broken / "state").unlink()
    reading = reader(tmp_path, TurnedClock()).read()
    assert "mlx5_1/1" in reading.trouble
    assert len(reading.samples) == 1


def test_a_host_without_such_devices_has_none(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="no RDMA devices"):
        reader(tmp_path, TurnedClock())
    (tmp_path / "class" / "infiniband").mkdir(parents=True)
    with pytest.raises(Absent):
        reader(tmp_path, TurnedClock()).read()


@pytest.mark.skipif(not SHARED.is_dir(), reason="the captures under ../shared are not here")
def test_the_real_h100_tree(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "infiniband").symlink_to(SHARED / "sys-class-infiniband-h100")
    found = [each for each in reader(tmp_path, TurnedClock()).read().samples if isinstance(each, State)]
    ports = {each.component: each.value for each in found if each.name == "port_state"}
    assert len(ports) == 9
    assert ports["nic:h0/mlx5_0/1"] == "ACTIVE"
    saturated = {(each.component, each.name) for each in found if each.value == "saturated"}
    assert ("nic:h0/mlx5_1/1", "counter:link_downed") in saturated


# -- addresses, rates, files ----------------------------------------------------------------------------------------


def events(reading: Reading) -> list[tuple[str, str, str]]:
    return [
        (each.attrs["what"], each.attrs["from"], each.attrs["to"]) for each in reading.samples if isinstance(each, Event)
    ]


def table(port: Path, folder: str, *entries: str) -> None:
    (port / folder).mkdir(exist_ok=True)
    for index, entry in enumerate(entries):
        (port / folder / str(index)).write_text(f"{entry}\n")


GID = "fe80:0000:0000:0000:0ac0:ebff:fe12:{:04x}"
NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def test_addresses_that_change_are_told_with_what_they_were(tmp_path: Path) -> None:
    clock = TurnedClock()
    port = rdma_device(tmp_path, "mlx5_0", {}, {})
    (port / "lid").write_text("0x12\n")
    table(port, "gids", GID.format(1), GID.format(2), NO_GID)
    table(port, "pkeys", "0xffff", "0x0000")
    rdma = reader(tmp_path, clock)
    assert events(rdma.read()) == []
    table(port, "gids", GID.format(1), NO_GID, GID.format(3))
    table(port, "pkeys", "0xffff", "0x8001")
    clock.seconds += 30
    assert events(rdma.read()) == []  # not every second
    clock.seconds += 31
    assert events(rdma.read()) == [("gid", GID.format(2), ""), ("gid", "", GID.format(3)), ("pkey", "", "0x8001")]
    (port / "lid").write_text("0x13\n")
    clock.seconds += 6
    assert events(rdma.read()) == [("lid", "0x12", "0x13")]


def test_an_address_that_cannot_be_read_has_not_changed(tmp_path: Path) -> None:
    clock = TurnedClock()
    port = rdma_device(tmp_path, "mlx5_0", {}, {})
    (port / "lid").write_text("0x12\n")
    table(port, "gids", GID.format(1), GID.format(2), GID.format(3))
    (port / "gids" / "2").unlink()
    (port / "gids" / "2").mkdir()  # there, and not to be read
    rdma = reader(tmp_path, clock)
    assert events(rdma.read()) == []
    (port / "gids" / "1").unlink()
    (port / "gids" / "1").mkdir()
    (port / "gids" / "2").rmdir()
    (port / "lid").write_text("")
    table(port, "gids", GID.format(1))
    (port / "gids" / "2").write_text(GID.format(3) + "\n")  # read for the first time
    clock.seconds += 61
    assert events(rdma.read()) == []
    (port / "gids" / "1").rmdir()
    (port / "lid").write_text("0x12\n")
    table(port, "gids", GID.format(1), GID.format(4), GID.format(5))
    clock.seconds += 61
    assert events(rdma.read()) == [("gid", GID.format(2), GID.format(4)), ("gid", GID.format(3), GID.format(5))]


def test_a_port_of_the_same_board_that_is_meant_for_less_is_not_degraded(tmp_path: Path) -> None:
    for name, rate in (("mlx5_0", "400 Gb/sec (4X NDR)"), ("mlx5_1", "200 Gb/sec (2X NDR)")):
        port = rdma_device(tmp_path, name, {}, {})
        (port / "rate").write_text(f"{rate}\n")
        (port.parents[1] / "board_id").write_text("MT_0000000838\n")
    clock = TurnedClock()
    rdma = reader(tmp_path, clock)
    rdma.read()
    clock.seconds += 60
    found = [each.attrs for each in rdma.read().samples if isinstance(each, State)]
    assert len(found) == 2
    assert not any("degraded" in attrs for attrs in found)


def test_a_port_that_trains_at_half_its_rate_is_told_with_its_best(tmp_path: Path) -> None:
    clock = TurnedClock()
    port = rdma_device(tmp_path, "mlx5_0", {}, {})
    rdma = reader(tmp_path, clock)
    rdma.read()
    for state, rate in (("1: DOWN", "10 Gb/sec (4X SDR)"), ("4: ACTIVE", "200 Gb/sec (2X NDR)")):
        (port / "state").write_text(f"{state}\n")
        (port / "rate").write_text(f"{rate}\n")
        clock.seconds += 1
        (told,) = (each for each in rdma.read().samples if isinstance(each, State))
        assert ("degraded" in told.attrs) == (state == "4: ACTIVE")
    assert told.attrs["rate_max_gbps"] == "400"


def test_a_counter_at_its_ceiling_is_said_and_also_when_it_counts_again(tmp_path: Path) -> None:
    clock = TurnedClock()
    rdma_device(tmp_path, "mlx5_0", {"link_downed": 255}, {})
    rdma = reader(tmp_path, clock)
    assert states(rdma.read())["counter:link_downed"] == "saturated"
    rdma_device(tmp_path, "mlx5_0", {"link_downed": 1}, {})
    clock.seconds += 1
    reading = rdma.read()
    assert states(reading) == {"counter:link_downed": "counting"}
    assert counters(reading) == {"link_downed": (1, CounterDoubt.RESET)}


def test_how_many_there_are_now_is_no_counter_and_its_fall_no_reset(tmp_path: Path) -> None:
    clock = TurnedClock()
    rdma_device(tmp_path, "bnxt_re0", {}, {"active_qps": 50, "to_retransmits": 5})
    rdma = reader(tmp_path, clock)
    rdma.read()
    rdma_device(tmp_path, "bnxt_re0", {}, {"active_qps": 3, "to_retransmits": 6})
    clock.seconds += 1
    assert counters(rdma.read()) == {"local_ack_timeout_err": (1, CounterDoubt.NONE)}


def test_an_efa_device_that_answers_no_commands_is_seen(tmp_path: Path) -> None:
    clock = TurnedClock()
    port = rdma_device(tmp_path, "efa_0", {}, {"retrans_pkts": 1})
    folder = port.parents[1] / "hw_counters"
    folder.mkdir()
    (folder / "no_completion_cmds").write_text("0\n")
    (folder / "alloc_pd_err").write_text("0\n")
    rdma = reader(tmp_path, clock)
    rdma.read()
    (folder / "no_completion_cmds").write_text("2\n")
    (folder / "alloc_pd_err").write_text("1\n")
    clock.seconds += 1
    assert counters(rdma.read()) == {"no_completion_cmds": (2, CounterDoubt.NONE)}


def test_files_stay_open_within_a_bound_and_all_is_read_beyond_it(tmp_path: Path) -> None:
    names = {f"counter_{index}": 0 for index in range(30)}
    rdma_device(tmp_path, "mlx5_0", {}, names)
    for limit in (0, 10, 1000):
        clock, descriptors = TurnedClock(), Descriptors(limit)
        rdma = reader(tmp_path, clock, descriptors=descriptors)
        rdma_device(tmp_path, "mlx5_0", {}, names)
        rdma.read()
        assert descriptors.left >= max(0, limit - 34)
        rdma_device(tmp_path, "mlx5_0", {}, dict.fromkeys(names, 1))
        clock.seconds += 1
        assert len(counters(rdma.read())) == 30
        rdma.close()
        assert descriptors.left == limit


def test_without_a_descriptor_left_a_port_is_read_as_soon_as_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rdma_device(tmp_path, "mlx5_0", {"link_downed": 0}, {})
    clock, opened = TurnedClock(), os.open
    rdma = reader(tmp_path, clock)

    def none_left(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", none_left)
    assert rdma.read().trouble == "cannot read mlx5_0/1"
    monkeypatch.setattr(os, "open", opened)
    clock.seconds += 1
    assert (rdma.read().trouble, rdma.read().covered) == ("", ["nic:h0/mlx5_0/1"])
    rdma_device(tmp_path, "mlx5_0", {"link_downed": 2}, {})
    clock.seconds += 1
    assert len(counters(rdma.read())) == 1


def test_a_counter_that_says_nonsense_is_left_out_and_the_others_are_told(tmp_path: Path) -> None:
    clock = TurnedClock()
    port = rdma_device(tmp_path, "mlx5_0", {"link_downed": 0}, {"out_of_sequence": 0})
    (port / "counters" / "symbol_error").write_text("N/A (no PMA)\n")
    rdma = reader(tmp_path, clock)
    rdma.read()
    rdma_device(tmp_path, "mlx5_0", {"link_downed": 1}, {"out_of_sequence": -5})
    clock.seconds += 1
    assert counters(rdma.read()) == {"link_downed": (1, CounterDoubt.NONE)}


def test_a_counter_that_has_nothing_to_say_at_first_counts_from_when_it_has(tmp_path: Path) -> None:
    clock = TurnedClock()
    port = rdma_device(tmp_path, "mlx5_0", {"link_downed": 0, "symbol_error": 3}, {})
    (port / "counters" / "link_downed").write_text("")
    rdma = reader(tmp_path, clock)
    seen = []
    for text in ("", "5\n", "6\n"):
        (port / "counters" / "link_downed").write_text(text)
        seen.append(counters(rdma.read()))
        clock.seconds += 1
    assert seen == [{}, {}, {"link_downed": (1, CounterDoubt.NONE)}]


def test_devices_that_come_and_go_are_followed(tmp_path: Path) -> None:
    clock = TurnedClock()
    rdma_device(tmp_path, "mlx5_0", {}, {})
    rdma = reader(tmp_path, clock)
    assert rdma.read().covered == ["nic:h0/mlx5_0/1"]
    rdma_device(tmp_path, "mlx5_1", {}, {})
    clock.seconds += 5
    assert rdma.read().covered == ["nic:h0/mlx5_0/1", "nic:h0/mlx5_1/1"]
    (tmp_path / "class" / "infiniband" / "mlx5_0").rename(tmp_path / "gone")
    clock.seconds += 5
    assert rdma.read().covered == ["nic:h0/mlx5_1/1"]


def test_a_virtual_function_says_whose_it_is(tmp_path: Path) -> None:
    pf, vf = tmp_path / "devices" / "0000:3b:00.0", tmp_path / "devices" / "0000:3b:02.1"
    for device in (pf, vf):
        device.mkdir(parents=True)
    (vf / "physfn").symlink_to(pf)
    (pf / "virtfn9").symlink_to("../0000:3b:02.1")
    (pf / "net" / "rail0").mkdir(parents=True)
    rdma_device(tmp_path, "mlx5_4", {}, {})
    (tmp_path / "class" / "infiniband" / "mlx5_4" / "device").symlink_to(vf)
    kubelet, logs = tmp_path / "kubelet", tmp_path / "pods"
    (kubelet / "device-plugins").mkdir(parents=True)
    (kubelet / "device-plugins" / "kubelet_internal_checkpoint").write_text(
        '{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"c","ResourceName":"r",'
        '"DeviceIDs":{"-1":["0000:3b:02.1"]},"AllocResp":"x"}],"RegisteredDevices":{}},"Checksum":1}'
    )
    (logs / "train_llm-7_u1").mkdir(parents=True)
    for pods, pod in ((Pods(kubelet, logs), "train/llm-7"), (Pods(tmp_path / "none", logs), "unknown")):
        (state,) = reader(tmp_path, TurnedClock(), pods=pods).read().samples
        assert isinstance(state, State)
        told = {name: state.attrs[name] for name in ("pf", "vf", "pod", "pf_netdev", "pci")}
        assert told == {"pf": "0000:3b:00", "vf": "9", "pod": pod, "pf_netdev": "rail0", "pci": "0000:3b:02.1"}


def test_a_function_that_gets_a_pod_later_is_told_again(tmp_path: Path) -> None:
    pf, vf = tmp_path / "devices" / "0000:3b:00.0", tmp_path / "devices" / "0000:3b:02.1"
    for device in (pf, vf):
        device.mkdir(parents=True)
    (vf / "physfn").symlink_to(pf)
    rdma_device(tmp_path, "mlx5_4", {}, {})
    (tmp_path / "class" / "infiniband" / "mlx5_4" / "device").symlink_to(vf)
    checkpoint = tmp_path / "kubelet" / "device-plugins" / "kubelet_internal_checkpoint"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_text('{"Data":{"PodDeviceEntries":null}}')
    clock = TurnedClock()
    rdma = reader(tmp_path, clock, pods=Pods(tmp_path / "kubelet", tmp_path / "none"))
    assert [each.attrs["pod"] for each in rdma.read().samples if isinstance(each, State)] == [""]
    checkpoint.write_text('{"Data":{"PodDeviceEntries":[{"PodUID":"u2","DeviceIDs":["0000:3b:02.1"]}]}}')
    clock.seconds += 61
    rdma.read()
    clock.seconds += 1
    rdma.read()
    clock.seconds += 60
    assert [each.attrs["pod"] for each in rdma.read().samples if isinstance(each, State)] == ["u2"]


@given(st.binary(max_size=300))
def test_any_checkpoint_is_read_or_refused(data: bytes) -> None:
    try:
        pods_of_devices(data)
    except ValueError:
        return


# -- from a reading to the bus --------------------------------------------------------------------------------------


async def test_a_changed_counter_reaches_the_bus_and_a_hung_device_disturbs_nobody(tmp_path: Path) -> None:
    port = rdma_device(tmp_path, "mlx5_0", {"link_downed": 0}, {})
    neighbour = Ticking()
    neighbour.source = Source.HOST
    rdma = RdmaReader(host="h0", boot_id="b1", clock=SystemClock(), sys_root=tmp_path, descriptors=Descriptors(0))
    rdma.deadline_s = 0.2
    async with Rig(tmp_path, rdma, neighbour) as rig:
        await rig.until(lambda: rig.condition(Source.RDMA).status is SourceStatus.OK, "the first reading")
        (port / "counters" / "link_downed").write_text("3\n")
        await rig.until(lambda: any(isinstance(each, Counter) for each in rig.samples(Source.RDMA)), "the counter")
        hanging = HangingFile(port / "counters" / "link_downed")
        await rig.until(lambda: "no answer" in rig.condition(Source.RDMA).reason, "the hang")
        before = neighbour.reads
        await rig.until(lambda: neighbour.reads > before + 20, "the neighbour's schedule")
        hanging.release()
        await rig.until(lambda: rig.condition(Source.RDMA).status is SourceStatus.OK, "its return")
        (port / "state").write_bytes(b"\xff\xfe\0garbage\n")
        await rig.until(lambda: any("garbage" in str(each) for each in rig.samples(Source.RDMA)), "what it says")
        (tmp_path / "class" / "infiniband" / "mlx5_0").rename(tmp_path / "gone")
        await rig.until(lambda: rig.condition(Source.RDMA).status is SourceStatus.ABSENT, "its absence")
        (tmp_path / "gone").rename(tmp_path / "class" / "infiniband" / "mlx5_0")
        await rig.until(lambda: rig.condition(Source.RDMA).status is SourceStatus.OK, "its second return")
