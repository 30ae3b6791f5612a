"""The host's own tables: want of CPU and memory, storage that stops answering, errors that hardware counts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from collector_fixtures import HangingFile, Proc, Rig, Ticking, TurnedClock, register
from host_tree import HostTree
from hypothesis import given, settings
from hypothesis import strategies as st

from goodput_collector.adapters import host_hardware as host_hardware_reader
from goodput_collector.adapters.host_hardware import HostHardwareReader
from goodput_collector.adapters.host_load import HostLoadReader
from goodput_collector.adapters.host_storage import HostStorageReader
from goodput_collector.adapters.process import registered_ranks
from goodput_collector.application.ports import Absent, SourceReader
from goodput_collector.domain import host_hardware, host_pressure, host_storage
from goodput_collector.domain.host_storage import StallWatch, Turn
from goodput_common.contracts.telemetry import (
    Counter,
    Event,
    EventName,
    Gauge,
    Sample,
    Severity,
    Source,
    SourceStatus,
    State,
)


class Host:
    """A host's trees, the three readers on them, and time that is turned by hand."""

    def __init__(self, root: Path) -> None:
        self.tree = HostTree(root)
        self.clock = TurnedClock()
        self.run_dir = root / "run"
        given: dict[str, Any] = {"host": "h0", "boot_id": "b1", "clock": self.clock}
        self.load = HostLoadReader(
            host="h0",
            boot_id="b1",
            clock=self.clock,
            ranks=lambda: registered_ranks(self.run_dir),
            proc_root=self.tree.proc,
            cgroup_root=self.tree.sys / "fs" / "cgroup",
        )
        self.storage = HostStorageReader(**given, proc_root=self.tree.proc, sys_root=self.tree.sys, stalled_after_s=20)
        self.hardware = HostHardwareReader(**given, sys_root=self.tree.sys)

    def read(self, reader: SourceReader, *, after_s: float = 0.0) -> Sequence[Sample]:
        self.clock.seconds += after_s
        return reader.read().samples


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def gauges(samples: Sequence[Sample]) -> dict[str, float]:
    return {each.name: each.value for each in samples if isinstance(each, Gauge)}


def counted(samples: Sequence[Sample]) -> dict[tuple[str, str], int]:
    return {(each.component, each.name): each.delta for each in samples if isinstance(each, Counter)}


def events(samples: Sequence[Sample]) -> list[Event]:
    return [each for each in samples if isinstance(each, Event)]


# -- load ------------------------------------------------------------------------------------------------------------


def test_pressure_is_told_as_shares_when_it_moves_and_as_microseconds_now_and_then(host: Host) -> None:
    first = gauges(host.read(host.load))
    assert first["pressure_memory_full_share"] == 0
    assert host.read(host.load, after_s=1) == []
    host.tree.pressure("memory", some=12.5, full=40.0, some_us=9_000_000)
    told = host.read(host.load, after_s=1)
    assert gauges(told) == {"pressure_memory_some_share": 0.125, "pressure_memory_full_share": 0.4}
    assert counted(host.read(host.load, after_s=9)) == {("host:h0", "pressure_memory_some_us"): 9_000_000}


def test_swapping_and_out_of_memory_kills_are_counted(host: Host) -> None:
    host.read(host.load)
    host.tree.vmstat(swap_in=300, oom=1)
    host.tree.available(100_000)
    told = host.read(host.load, after_s=10)
    assert counted(told) == {("host:h0", "swap_in_pages"): 300, ("host:h0", "oom_kills"): 1}
    assert gauges(told)["memory_available_share"] == 0.1


def test_a_jobs_own_memory_limit_is_seen_in_its_control_group(host: Host) -> None:
    register(host.run_dir, 0, 77)
    register(host.run_dir, 1, 78)
    for pid in (77, 78):
        Proc(host.tree.proc).put(pid, cgroup="/pod/job")
    group = host.tree.sys / "fs" / "cgroup" / "pod" / "job" / "memory.pressure"
    host.tree.put(group, (host.tree.proc / "pressure" / "memory").read_text())
    reading = host.load.read()
    assert "rank:j1/0" in (reading.covered or ())
    host.tree.put(group, "some avg10=80.00 avg60=0 avg300=0 total=5\nfull avg10=60.00 avg60=0 avg300=0 total=4\n")
    told = host.read(host.load, after_s=1)
    assert {(each.component, each.name, each.value) for each in told if isinstance(each, Gauge)} == {
        ("rank:j1/0", "cgroup_memory_some_share", 0.8),
        ("rank:j1/0", "cgroup_memory_full_share", 0.6),
    }


def test_numbers_that_run_out_are_shares_of_their_limit(host: Host) -> None:
    host.tree.put(host.tree.proc / "sys" / "fs" / "file-nr", "900\t0\t1000\n")
    host.tree.put(host.tree.proc / "sys" / "kernel" / "pid_max", "1000\n")
    host.tree.put(host.tree.proc / "loadavg", "1 1 1 5/250 99\n")
    told = gauges(host.read(host.load))
    assert (told["files_open_share"], told["tasks_share"]) == (0.9, 0.25)
    assert "connections_tracked_share" not in told


def test_a_kernel_without_pressure_tables_says_so_and_tells_the_rest(host: Host) -> None:
    for name in ("cpu", "memory", "io"):
        (host.tree.proc / "pressure" / name).unlink()
    reading = host.load.read()
    assert "psi=1" in reading.trouble
    assert "memory_available_share" in gauges(reading.samples)


def test_a_host_without_these_tables_is_absent(host: Host) -> None:
    (host.tree.proc / "meminfo").unlink()
    (host.tree.proc / "diskstats").unlink()
    for reader in (host.load, host.storage):
        with pytest.raises(Absent):
            reader.open()


# -- storage ---------------------------------------------------------------------------------------------------------


def test_a_disk_that_completes_nothing_while_it_is_asked_has_stalled_once(host: Host) -> None:
    host.read(host.storage)
    host.tree.disks(done=110, in_flight=4)
    assert events(host.read(host.storage, after_s=2)) == []
    told = [event for _ in range(30) for event in events(host.read(host.storage, after_s=2))]
    (event,) = told
    assert (event.name, event.severity) == (EventName.STORAGE_STALL, Severity.ERROR)
    assert (event.attrs["device"], event.attrs["in_flight"], event.attrs["for_s"]) == ("nvme0n1", "4", "20")
    host.tree.disks(done=111, in_flight=0)
    (event,) = events(host.read(host.storage, after_s=2))
    assert (event.attrs["state"], event.severity) == ("restored", Severity.INFO)


def test_an_idle_disk_and_a_slow_one_have_not_stalled(host: Host) -> None:
    for second in range(100):
        host.tree.disks(done=100 + second // 8, in_flight=1 if second > 50 else 0)
        assert events(host.read(host.storage, after_s=2)) == []


def test_a_disk_is_told_by_its_load_and_its_mean_wait(host: Host) -> None:
    host.read(host.storage)
    host.tree.disks(done=200, ms=550, busy_ms=5_010, in_flight=3)
    told = host.read(host.storage, after_s=10)
    assert gauges(told) == {"disk_busy_share": 0.5, "disk_in_flight": 3, "disk_await_ms": 5.0}
    assert {each.attrs["device"] for each in told if isinstance(each, Gauge)} == {"nvme0n1"}


def test_a_mount_that_is_sent_requests_and_answers_none_has_stalled(host: Host) -> None:
    host.tree.mount(sent=103, received=100)  # three were lost with an old connection
    host.read(host.storage)
    for _ in range(20):
        assert events(host.read(host.storage, after_s=2)) == []  # idle
    host.tree.mount(sent=105, received=100)
    told = [event for _ in range(20) for event in events(host.read(host.storage, after_s=2))]
    (event,) = told
    assert event.name is EventName.STORAGE_STALL
    assert (event.attrs["mount"], event.attrs["server"], event.attrs["state"]) == ("/data", "nas:/export", "stalled")
    states = [each for each in host.read(host.storage, after_s=60) if isinstance(each, State)]
    assert ("mount:/data", "stalled") in {(each.name, each.value) for each in states}


def test_requests_lost_with_a_connection_are_no_stall(host: Host) -> None:
    host.tree.mount(sent=100, received=100)
    host.read(host.storage)
    host.tree.mount(sent=120, received=110, connects=2)
    for _ in range(40):
        assert events(host.read(host.storage, after_s=2)) == []


def test_answers_to_a_killed_process_are_no_stall(host: Host) -> None:
    host.tree.mount(sent=100, received=100)
    host.read(host.storage)
    host.tree.mount(sent=105, received=103, unasked=2)
    for _ in range(40):
        assert events(host.read(host.storage, after_s=2)) == []


def test_a_request_that_newer_ones_pass_over_is_taken_for_a_stall_once_at_most(host: Host) -> None:
    host.tree.mount(sent=100, received=100)
    host.read(host.storage)
    told = []
    for use in range(1, 6):
        host.tree.mount(sent=101 + 10 * use, received=100 + 10 * use)  # one is never answered
        told += [event.attrs["state"] for _ in range(20) for event in events(host.read(host.storage, after_s=2))]
    assert told == ["stalled", "restored"]
    host.tree.mount(sent=155, received=150)
    assert [event.attrs["state"] for _ in range(20) for event in events(host.read(host.storage, after_s=2))] == ["stalled"]
    host.tree.mount(sent=155, received=155)
    host.read(host.storage, after_s=2)
    host.tree.mount(sent=156, received=155)
    assert [event.attrs["state"] for _ in range(20) for event in events(host.read(host.storage, after_s=2))] == ["stalled"]


def test_retransmits_time_outs_and_round_trips_of_a_mount_are_told(host: Host) -> None:
    host.tree.mount(sent=100, received=100)
    host.read(host.storage)
    host.tree.mount(sent=205, received=200, retransmitted=5, timeouts=2, rtt_ms=3_000, backlog=1_050)
    told = host.read(host.storage, after_s=10)
    assert counted(told) == {("host:h0", "nfs_retransmits:/data"): 5, ("host:h0", "nfs_timeouts:/data"): 2}
    assert gauges(told) | {"disk_busy_share": 0, "disk_in_flight": 0} == {
        "nfs_rtt_ms": 30.0,
        "nfs_backlog": 10.0,
        "disk_busy_share": 0,
        "disk_in_flight": 0,
    }


def test_a_part_of_a_table_is_parsed_when_it_has_moved() -> None:
    parsed: list[str] = []

    def parse(part: str) -> str | None:
        parsed.append(part)
        return part.upper() if part != "nothing" else None

    table = host_storage.PartByPart(parse)
    assert table.of(["a", "nothing", "b"]) == ["A", "B"]
    assert table.of(["a", "nothing", "c"]) == ["A", "C"]
    assert parsed == ["a", "nothing", "b", "c"]
    assert table.of(["b"]) == ["B"]
    assert parsed[4:] == ["b"]  # what was gone is not kept


def test_operations_of_a_mount_are_summed_and_idle_ones_are_none() -> None:
    block = (
        "device nas:/export mounted on /data with fstype nfs4 statvers=1.1\n"
        "\txprt:\ttcp 875 1 2 0 0 50 48 1 50 7 2 30 40\n\tper-op statistics\n"
        "\t        NULL: 0 0 0 0 0 0 0 0 0\n\t        READ: 10 12 1 100 200 3 40 900 0\n"
        "\t       WRITE: 5 5 0 100 200 3 60 900 0\n\t      broken: 7 7\n"
    )
    mount = host_storage.parse_mount(block)
    assert mount is not None
    assert (mount.sent, mount.received, mount.unasked, mount.connects, mount.backlog) == (50, 48, 1, 2, 7)
    assert (mount.ops, mount.retransmits, mount.timeouts, mount.rtt_ms) == (15, 2, 1, 100)


def test_a_mount_that_another_server_serves_now_is_told_again(host: Host) -> None:
    host.tree.mount(sent=1, received=1)
    host.read(host.storage)
    table = host.tree.proc / "self" / "mountstats"
    table.write_text(table.read_text().replace("device nas:", "device nas2:"))
    told = host.read(host.storage, after_s=2)
    states = [each for each in told if isinstance(each, State)]
    assert [(each.name, each.attrs["server"]) for each in states] == [("mount:/data", "nas2:/export")]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0.1, 9)), max_size=60))
def test_a_stall_begins_only_after_its_time_and_ends_with_the_next_completion(steps: list[tuple[int, int, float]]) -> None:
    watch, done, now_s, quiet_since, stalled = StallWatch(after_s=20), 0, 0.0, 0.0, False
    watch.see(done=0, waiting=0, now_s=0)
    for completed, waiting, after_s in steps:
        now_s += after_s
        done += completed
        turn = watch.see(done=done, waiting=waiting, now_s=now_s)
        if completed or not waiting:
            quiet_since = now_s
        if turn is Turn.STALLED:
            assert not stalled and now_s - quiet_since >= 20
        if turn is Turn.RESTORED:
            assert stalled and quiet_since == now_s
        stalled = watch.stalled
        assert stalled == (now_s - quiet_since >= 20)


# -- hardware --------------------------------------------------------------------------------------------------------


def test_errors_are_counted_on_the_device_and_on_the_bridges_above_it(host: Host) -> None:
    port = host.tree.pci("0000:15:01.0", "0x060400", "0x1000")
    gpu = host.tree.pci("0000:9b:00.0", "0x030200", "0x10de", under="0000:15:01.0")
    nic = host.tree.pci("0000:17:00.0", "0x020000", "0x15b3", infiniband="mlx5_0")
    host.tree.pci("0000:03:00.0", "0x030000", "0x1a03")  # the screen of the management controller
    reading = host.hardware.read()
    assert set(reading.covered or ()) == {"host:h0", "gpu:h0/0000:9b:00", "nic:h0/mlx5_0/1"}
    host.tree.aer(gpu, bad_tlp=12)
    host.tree.aer(nic, fatal=1)
    host.tree.aer(port, bad_tlp=3)
    assert counted(host.read(host.hardware, after_s=5)) == {
        ("gpu:h0/0000:9b:00", "aer_correctable"): 12,
        ("gpu:h0/0000:9b:00", "aer_correctable:BadTLP"): 12,
        ("nic:h0/mlx5_0/1", "aer_fatal"): 1,
        ("nic:h0/mlx5_0/1", "aer_fatal:DLP"): 1,
        ("host:h0", "aer_correctable:0000:15:01"): 3,
        ("host:h0", "aer_correctable:0000:15:01:BadTLP"): 3,
    }
    assert counted(host.read(host.hardware, after_s=5)) == {}


def test_a_table_that_cannot_be_read_for_a_while_counts_from_when_it_could(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = host.tree.pci("0000:9b:00.0", "0x030200", "0x10de")
    host.read(host.hardware)
    host.tree.aer(gpu, bad_tlp=2)
    with monkeypatch.context() as unreadable:
        unreadable.setattr(host_hardware_reader, "small_or_none", lambda _: None)
        assert counted(host.read(host.hardware, after_s=5)) == {}
    told = [each for each in host.read(host.hardware, after_s=5) if isinstance(each, Counter)]
    assert {(each.name, each.delta, each.interval_s) for each in told} == {
        ("aer_correctable", 2, 10.0),
        ("aer_correctable:BadTLP", 2, 10.0),
    }


def test_a_device_that_is_gone_stops_nothing_and_is_found_when_it_is_back(host: Host) -> None:
    gpu = host.tree.pci("0000:9b:00.0", "0x030200", "0x10de")
    nic = host.tree.pci("0000:17:00.0", "0x020000", "0x15b3", net="eth0")
    host.read(host.hardware)
    link = host.tree.sys / "bus" / "pci" / "devices" / "0000:9b:00.0"
    link.unlink()
    host.tree.aer(nic, bad_tlp=1)
    assert ("nic:h0/eth0/1", "aer_correctable") in counted(host.read(host.hardware, after_s=61))
    assert "gpu:h0/0000:9b:00" not in (host.hardware.read().covered or ())
    link.symlink_to(gpu)
    host.read(host.hardware, after_s=61)
    assert "gpu:h0/0000:9b:00" in (host.hardware.read().covered or ())


def test_heat_is_counted_once_a_core_and_told_as_an_event(host: Host) -> None:
    for number in range(4):
        host.tree.cpu(number, 0, number % 2)  # two cores, two threads each
    host.read(host.hardware)
    for number in range(4):
        host.tree.cpu(number, 0, number % 2, throttled=5)
    told = host.read(host.hardware, after_s=5)
    assert counted(told) == {("host:h0", "cpu_core_throttles"): 10, ("host:h0", "cpu_package_throttles"): 5}
    assert {(event.name, event.attrs["what"], event.count) for event in events(told)} == {
        (EventName.THROTTLED, "core", 10),
        (EventName.THROTTLED, "package", 5),
    }


def test_memory_errors_name_the_module(host: Host) -> None:
    host.tree.edac()
    host.read(host.hardware)
    host.tree.edac(corrected=3, uncorrected=1)
    told = events(host.read(host.hardware, after_s=5))
    assert {(each.attrs["corrected"], each.attrs["module"], each.severity, each.count) for each in told} == {
        ("true", "CPU_SrcID#0_Chan#1_DIMM#0", Severity.INFO, 3),
        ("false", "CPU_SrcID#0_Chan#1_DIMM#0", Severity.FATAL, 1),
    }


def test_a_count_that_cannot_be_read_for_a_while_is_no_error_that_happened(host: Host) -> None:
    host.tree.edac(uncorrected=2)
    host.read(host.hardware)
    file = host.tree.sys / "devices" / "system" / "edac" / "mc" / "mc0" / "ue_count"
    for content in ("", "\n", "2\n"):
        file.write_text(content)
        assert events(host.read(host.hardware, after_s=5)) == []
    host.tree.edac(uncorrected=3)
    assert [each.count for each in events(host.read(host.hardware, after_s=5))] == [1]


def test_counts_that_begin_anew_are_no_error_that_happened(host: Host) -> None:
    host.tree.edac(uncorrected=5, corrected=9)
    host.read(host.hardware)
    host.tree.edac(uncorrected=2, corrected=1)  # the driver was loaded anew
    assert events(host.read(host.hardware, after_s=5)) == []


def test_a_core_that_goes_and_comes_is_no_heat(host: Host) -> None:
    for number in range(3):
        host.tree.cpu(number, 0, number, throttled=100 * number)
    host.read(host.hardware)
    host.tree.offline(1)
    for after_s in (5, 61, 5):
        assert events(host.read(host.hardware, after_s=after_s)) == []
    host.tree.cpu(2, 0, 2, throttled=201)
    assert [each.count for each in events(host.read(host.hardware, after_s=5))] == [1]
    host.tree.cpu(1, 0, 1, throttled=100)
    for after_s in (5, 61, 5):
        assert events(host.read(host.hardware, after_s=after_s)) == []


def test_a_clock_that_is_held_down_is_a_state(host: Host) -> None:
    for policy, limit in (("policy0", 3_000_000), ("policy1", 1_200_000)):
        folder = host.tree.sys / "devices" / "system" / "cpu" / "cpufreq" / policy
        host.tree.put(folder / "scaling_max_freq", f"{limit}\n")
        host.tree.put(folder / "cpuinfo_max_freq", "3000000\n")
    (state,) = [each for each in host.read(host.hardware) if isinstance(each, State)]
    assert (state.name, state.value, state.attrs["limit_mhz"]) == ("cpu_clock", "limited", "1200")


# -- from a changed reading to the bus -------------------------------------------------------------------------------


async def test_a_changed_reading_is_published(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.tree.edac()
    async with Rig(tmp_path, host.load, host.storage, host.hardware) as rig:
        await rig.until(lambda: len({each.name for each in rig.samples(Source.HOST)}) > 5, "the first readings")
        host.tree.pressure("io", full=90.0)
        host.tree.disks(in_flight=2)
        host.tree.edac(uncorrected=1)
        host.clock.seconds += 5
        await rig.until(lambda: 0.9 in gauges(rig.samples(Source.HOST)).values(), "the pressure")
        host.clock.seconds += 30
        expected = {EventName.STORAGE_STALL, EventName.MACHINE_CHECK}
        await rig.until(lambda: expected <= {each.name for each in events(rig.samples(Source.HOST))}, "the events")


async def test_a_table_that_hangs_is_unknown_until_it_answers_and_stops_nobody_else(tmp_path: Path) -> None:
    host, neighbour = Host(tmp_path), Ticking()
    host.storage.deadline_s = host.storage.interval_s = 0.05
    hanging = HangingFile(host.tree.proc / "diskstats")
    async with Rig(tmp_path, host.load, host.storage, neighbour) as rig:
        storage = rig.condition(Source.HOST, "storage")
        await rig.until(lambda: "no answer within" in storage.reason, "the deadline")
        before = neighbour.reads
        await rig.until(lambda: neighbour.reads > before + 20, "the neighbour's reads")
        assert rig.condition(Source.HOST, "load").status is SourceStatus.OK
        hanging.release()
        await rig.until(lambda: storage.status is SourceStatus.OK, "its answer")


async def test_a_table_that_disappears_is_trouble_with_a_part_until_it_is_back(tmp_path: Path) -> None:
    host, neighbour = Host(tmp_path), Ticking()
    table = host.tree.proc / "diskstats"
    text = table.read_bytes()
    table.unlink()
    host.tree.mount(sent=1, received=1)
    async with Rig(tmp_path, host.storage, neighbour) as rig:
        storage = rig.condition(Source.HOST, "storage")
        await rig.until(lambda: "diskstats" in storage.reason, "the trouble")
        before = neighbour.reads
        await rig.until(lambda: neighbour.reads > before + 20, "the neighbour's reads")
        table.write_bytes(b"\xff garbage 1 2 3\n" + text)
        await rig.until(lambda: storage.reason == "" and storage.status is SourceStatus.OK, "the table")


# -- nothing that a file may hold crashes a parser -------------------------------------------------------------------

NASTY = st.one_of(
    st.binary(max_size=300),
    st.text("some full avg10=total0123456789.\n:xprt: tcp READ device mounted on nfs with fstype-", max_size=300).map(
        str.encode
    ),
)


@given(NASTY)
def test_no_table_crashes_its_parser(text: bytes) -> None:
    for pressure in host_pressure.parse_pressure(text).values():
        assert 0 <= pressure.avg10_share <= 1
    host_pressure.parse_vmstat(text)
    host_pressure.parse_meminfo(text)
    host_pressure.parse_file_share(text)
    host_pressure.parse_task_share(text, text)
    host_pressure.parse_share(text, text)
    for line in text.splitlines():
        host_storage.parse_disk(line)
    for block in host_storage.mount_blocks(text.decode("utf-8", "replace")):
        host_storage.parse_mount(block)
    host_hardware.parse_aer(text)
    host_hardware.parse_count(text)


@settings(deadline=None, max_examples=30)
@given(NASTY)
def test_garbage_in_every_file_stops_no_reader(text: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        host = Host(Path(folder))
        gpu = host.tree.pci("0000:9b:00.0", "0x030200", "0x10de")
        for reader in (host.load, host.storage, host.hardware):
            reader.read()
        (host.tree.proc / "self").mkdir(exist_ok=True)
        for path in (
            *(host.tree.proc / "pressure").iterdir(),
            *(host.tree.proc / name for name in ("meminfo", "vmstat", "diskstats", "self/mountstats")),
            gpu / "aer_dev_fatal",
        ):
            path.write_bytes(text)
        host.clock.seconds = 20
        for reader in (host.load, host.storage, host.hardware):
            reader.read()
            reader.close()
