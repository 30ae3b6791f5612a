"""The GPU sources on a driver's library that is none: the real nvidia-ml-py on a table-driven double in C.

From a changed answer to the published message; a GPU that is lost, hangs, comes back; a driver that is reloaded, refuses or
does not fit; MIG; old and new chips. The double is built here: without a C compiler these tests are left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "collector" / "tests"))

from collector_fixtures import Proc, TurnedClock, register
from fake_nvml import table as fake

from goodput_collector.adapters.nvml import RENEW_FIRST_S, NvmlReader
from goodput_collector.adapters.nvml_library import NvmlLibrary
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_common.contracts.telemetry import (
    Counter,
    CounterDoubt,
    Event,
    EventName,
    Gauge,
    Severity,
    State,
)

pytestmark = pytest.mark.skipif(
    fake.compiler() is None, reason="needs a C compiler (cc) to build the double of libnvidia-ml"
)

GPU0, GPU1 = "gpu:h0/0000:10:00", "gpu:h0/0000:11:00"


@pytest.fixture
def table(tmp_path: Path) -> Iterator[fake.Table]:
    """A driver with two H100."""
    with fake.double(tmp_path) as table:
        table.gpus(2)
        yield table


class Host:
    """One sampling reader on a clock that is turned by hand."""

    def __init__(self, folder: Path) -> None:
        self.clock = TurnedClock()
        self.folder = folder
        self.library = NvmlLibrary(sys_root=folder / "sys")
        self.reader = NvmlReader(
            self.library,
            host="h0",
            boot_id="b1",
            clock=self.clock,
            run_dir=folder / "run",
            sys_root=folder / "sys",
            proc_root=folder / "proc",
            call_s=2.0,
        )

    def read(self, after_s: float = 0.0) -> Reading:
        self.clock.seconds += after_s
        return self.reader.read()

    def device(self, gpu: int, driver: str = "nvidia") -> None:
        """On the PCI bus."""
        device = self.folder / "sys" / "bus" / "pci" / "devices" / f"{fake.pci(gpu)}.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
        folder = self.folder / "sys" / "bus" / "pci" / "drivers" / driver
        folder.mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(folder)


@pytest.fixture
def host(table: fake.Table, tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    table.unhang()
    patience_s = time.monotonic() + 10
    while host.reader.hung and time.monotonic() < patience_s:
        time.sleep(0.01)
    host.reader.close()


def states(reading: Reading, name: str, component: str = GPU0) -> list[State]:
    return [
        each for each in reading.samples if isinstance(each, State) and each.name == name and each.component == component
    ]


def state(reading: Reading, name: str, component: str = GPU0) -> State:
    (found,) = states(reading, name, component)
    return found


def counters(reading: Reading) -> dict[tuple[str, str], int]:
    return {(each.component, each.name): each.delta for each in reading.samples if isinstance(each, Counter)}


def events(reading: Reading, name: EventName) -> list[Event]:
    return [each for each in reading.samples if isinstance(each, Event) and each.name is name]


def gauges(reading: Reading, component: str = GPU0) -> dict[str, float]:
    return {each.name: each.value for each in reading.samples if isinstance(each, Gauge) and each.component == component}


# -- what a GPU is and measures --------------------------------------------------------------------------------------


def test_the_first_reading_tells_what_every_gpu_is_and_measures(host: Host) -> None:
    host.reader.open()
    reading = host.read()
    assert reading.trouble == ""
    assert state(reading, "gpu").value == "present"
    assert state(reading, "gpu").attrs == {
        "index": "0",
        "pci": "0000:10:00",
        "uuid": "GPU-00000000",
        "model": "NVIDIA H100 80GB HBM3",
    }
    assert gauges(reading) == {
        "clock_sm_mhz": 1980,
        "clock_sm_max_mhz": 1980,
        "clock_memory_mhz": 2619,
        "clock_memory_max_mhz": 2619,
        "power_w": 650,
        "power_limit_w": 700,
        "temperature_c": 55,
        "memory_temperature_c": 70,
    }
    assert state(reading, "pcie_link").value == "gen5 x16"
    assert state(reading, "ecc").value == "on"
    assert state(reading, "row_remap").value == "ok"
    assert state(reading, "row_remap").attrs["banks_max"] == "1280"
    assert state(reading, "fabric").attrs["cluster_uuid"] == "abababab-abab-abab-abab-abababababab"
    assert state(reading, "mig").value == "off"
    assert state(reading, "nvlink", "nvlink:h0/0000:11:00/17").value == "active"
    assert set(reading.covered or ()) >= {GPU0, GPU1, "nvlink:h0/0000:10:00/0"}
    assert len(reading.covered or ()) == 2 + 2 * 18


def test_nothing_is_told_twice_while_nothing_changes_and_all_states_again_at_the_full_interval(host: Host) -> None:
    host.reader.open()
    host.read()
    assert not [each for second in range(55) for each in host.read(1).samples]
    told = [each for second in range(20) for each in host.read(1).samples]
    assert len([each for each in told if isinstance(each, State) and each.name == "nvlink"]) == 36
    assert len([each for each in told if isinstance(each, State) and each.name == "gpu"]) == 2


def test_a_power_draw_within_its_noise_is_no_news(host: Host, table: fake.Table) -> None:
    host.reader.open()
    host.read()
    table.set({"gpu0.GetPowerUsage": 660_000})
    assert gauges(host.read(1)) == {}
    table.set({"gpu0.GetPowerUsage": 690_000})
    assert gauges(host.read(1)) == {"power_w": 690}


# -- what it counts --------------------------------------------------------------------------------------------------


def test_errors_on_one_nvlink_are_counted_on_that_link(host: Host, table: fake.Table) -> None:
    host.reader.open()
    host.read()
    table.set({"gpu1.Field.161.7": 3, "gpu1.Field.162.7": 1, "gpu1.Field.163.7": 40, "gpu1.Field.97.0": 11})
    found: dict[tuple[str, str], int] = {}
    for _ in range(6):
        found |= counters(host.read(1))
    link = "nvlink:h0/0000:11:00/7"
    assert found == {
        (link, "nvlink_replay_errors"): 3,
        (link, "nvlink_recovery_errors"): 1,
        (link, "nvlink_crc_errors"): 40,
        (link, "nvlink_crc_flit_errors"): 11,
    }


def test_a_link_that_goes_down_is_told(host: Host, table: fake.Table) -> None:
    host.reader.open()
    host.read()
    table.set({"gpu0.Field.165.3": 0})
    told = [each for _ in range(6) for each in states(host.read(1), "nvlink", "nvlink:h0/0000:10:00/3")]
    assert [each.value for each in told] == ["inactive"]


def test_an_ecc_total_that_grows_has_the_places_read_at_once(host: Host, table: fake.Table) -> None:
    host.reader.open()
    host.read()
    for _ in range(10):
        host.read(1)
    table.set({"gpu0.Field.4.0": 2, "gpu0.GetMemoryErrorCounter.1.0.2": 2, "gpu0.GetMemoryErrorCounter.1.1.2": 2})
    found: dict[tuple[str, str], int] = {}
    for _ in range(7):
        found |= counters(host.read(1))
    assert found == {
        (GPU0, "ecc_uncorrected_volatile_total"): 2,
        (GPU0, "ecc_uncorrected_volatile_dram"): 2,
        (GPU0, "ecc_uncorrected_aggregate_dram"): 2,
    }


def test_a_reset_starts_the_volatile_counts_anew_and_leaves_the_kept_ones(host: Host, table: fake.Table) -> None:
    volatile, kept = "gpu0.GetMemoryErrorCounter.0.0.2", "gpu0.GetMemoryErrorCounter.0.1.2"
    table.set({volatile: 90, kept: 1000})
    host.reader.open()
    host.read()
    table.set({volatile: 4, kept: 1004})
    told = [each for _ in range(35) for each in host.read(1).samples if isinstance(each, Counter)]
    assert {each.name: (each.delta, each.doubt) for each in told} == {
        "ecc_corrected_volatile_dram": (4, CounterDoubt.RESET),
        "ecc_corrected_aggregate_dram": (4, CounterDoubt.NONE),
    }


def test_rows_that_are_remapped_and_a_remapping_that_failed_are_told(host: Host, table: fake.Table) -> None:
    host.reader.open()
    host.read()
    table.set({"gpu0.Field.143.0": 1, "gpu0.GetRemappedRows": "0 1 0 1", "gpu0.GetRowRemapperHistogram": "1279 0 0 0 1"})
    readings = [host.read(1) for _ in range(7)]
    (told,) = [each for reading in readings for each in states(reading, "row_remap")]
    assert told.value == "failed"
    assert told.attrs["banks_none"] == "1"
    assert any(counters(reading).get((GPU0, "remapped_rows_uncorrectable")) == 1 for reading in readings)


def test_time_lost_to_a_power_brake_is_counted_though_no_reading_saw_it(host: Host, table: fake.Table) -> None:
    host.reader.open()
    host.read()
    table.set({"gpu0.Field.271.0": 250_000_000})
    found: dict[tuple[str, str], int] = {}
    for _ in range(6):
        found |= counters(host.read(1))
    assert found == {(GPU0, "throttled_power_brake_us"): 250_000}


# -- throttling ------------------------------------------------------------------------------------------------------


def test_heat_that_holds_the_clocks_down_is_an_event_at_its_start_and_its_end(host: Host, table: fake.Table) -> None:
    host.reader.open()
    host.read()
    table.set({"gpu0.GetCurrentClocksEventReasons": 0x4 | 0x8 | 0x40})
    started = host.read(1)
    (start,) = events(started, EventName.THROTTLED)
    assert (start.component, start.severity) == (GPU0, Severity.ERROR)
    assert start.attrs["reason"] == "hw_thermal_slowdown"
    assert start.attrs["state"] == "start"
    assert start.attrs["reasons"] == "sw_power_cap hw_slowdown hw_thermal_slowdown"
    assert state(started, "clocks_held_down_by").value == "hw_thermal_slowdown"
    for _ in range(9):
        assert not events(host.read(1), EventName.THROTTLED)
    table.set({"gpu0.GetCurrentClocksEventReasons": 0x4})
    ends = [each for _ in range(8) for each in events(host.read(1), EventName.THROTTLED)]
    assert [(each.attrs["state"], each.attrs["lasted_s"]) for each in ends] == [("end", "9.0")]


def test_a_power_cap_is_no_throttling(host: Host, table: fake.Table) -> None:
    host.reader.open()
    host.read()
    table.set({"gpu0.GetCurrentClocksEventReasons": 0x2})
    reading = host.read(1)
    assert not events(reading, EventName.THROTTLED)
    assert not states(reading, "clocks_held_down_by")


# -- lost, hung, back ------------------------------------------------------------------------------------------------


def test_a_gpu_that_is_lost_is_told_once_and_the_others_go_on(host: Host, table: fake.Table) -> None:
    host.reader.open()
    host.read()
    table.set({"gpu0.*": "!15", "gpu1.GetTemperature.0": 80})
    reading = host.read(1)
    (lost,) = events(reading, EventName.GPU_LOST)
    assert (lost.component, lost.severity) == (GPU0, Severity.FATAL)
    assert lost.attrs["uuid"] == "GPU-00000000"
    assert state(reading, "gpu").value == "lost"
    assert gauges(reading, GPU1) == {"temperature_c": 80}
    assert GPU0 not in (reading.covered or ())
    assert "nvlink:h0/0000:10:00/0" not in (reading.covered or ())
    assert reading.trouble == f"{GPU0}: lost"
    for _ in range(30):
        assert not events(host.read(1), EventName.GPU_LOST)


def test_unknown_error_is_cannot_tell_once_and_lost_twice(host: Host, table: fake.Table) -> None:
    host.reader.open()
    host.read()
    table.set({"gpu0.*": "!999"})
    first = host.read(1)
    assert state(first, "gpu").value == "unreadable"
    assert not events(first, EventName.GPU_LOST)
    second = host.read(1)
    assert state(second, "gpu").value == "lost"
    assert len(events(second, EventName.GPU_LOST)) == 1


@pytest.mark.parametrize("code", [20, 27, 28])
def test_errors_of_no_memory_or_not_ready_are_never_a_loss(host: Host, table: fake.Table, code: int) -> None:
    host.reader.open()
    host.read()
    table.set({"gpu0.*": f"!{code}"})
    for _ in range(5):
        assert not events(host.read(1), EventName.GPU_LOST)
    table.drop("gpu0.*")
    assert GPU0 in (host.read(1).covered or ())


@pytest.mark.parametrize("code", [20, 999])
def test_errors_of_all_gpus_at_once_are_the_drivers_and_no_gpu_is_lost(host: Host, table: fake.Table, code: int) -> None:
    host.reader.open()
    host.read()
    table.set({"gpu0.*": f"!{code}", "gpu1.*": f"!{code}"})
    for _ in range(3):
        with pytest.raises(Unreadable, match="2 of 2 GPUs give no clear answer") as raised:
            host.read(1)
        assert "/dev/nvidia" in raised.value.remedy
    host.reader.close()
    table.set({"gpu0.Handle": f"!{code}", "gpu1.Handle": f"!{code}"})
    with pytest.raises(Unreadable, match="2 of 2 GPUs give no clear answer"):
        host.reader.open()
    table.drop("gpu0.*", "gpu1.*", "gpu0.Handle", "gpu1.Handle")
    host.reader.open()
    reading = host.read(1)
    assert {GPU0, GPU1} <= set(reading.covered or ())
    assert not events(reading, EventName.GPU_LOST)


def test_one_call_with_unknown_error_is_trouble_and_no_loss(host: Host, table: fake.Table) -> None:
    host.reader.open()
    host.read()
    table.set({"gpu0.GetTemperature.0": "!999"})
    for _ in range(3):
        reading = host.read(1)
        assert reading.trouble == f"{GPU0}: cannot read temperature (999)"
        assert not events(reading, EventName.GPU_LOST)


def test_a_lost_gpu_that_was_reset_is_seen_again_by_an_nvml_that_is_started_anew(host: Host, table: fake.Table) -> None:
    host.reader.open()
    host.read()
    table.set({"gpu0.*": "!15"})
    host.read(1)
    table.drop("gpu0.*")
    back = [each for _ in range(int(RENEW_FIRST_S) + 3) for each in states(host.read(1), "gpu")]
    assert [each.value for each in back if each.value == "present"]
    reading = host.read(1)
    assert GPU0 in (reading.covered or ())
    assert reading.trouble == ""


def test_a_gpu_that_hangs_is_unreadable_and_the_others_are_read_all_the_same(host: Host, table: fake.Table) -> None:
    host.reader.open()
    host.read()
    table.set({"gpu0.GetPowerUsage": "hang", "gpu1.GetTemperature.0": 80})
    reading = host.read(1)
    assert gauges(reading, GPU1) == {"temperature_c": 80}
    assert state(reading, "gpu").value == "unreadable"
    assert reading.trouble.startswith(f"{GPU0}: no answer from the driver for")
    assert GPU0 not in (reading.covered or ())
    assert GPU1 in (reading.covered or ())
    table.set({"gpu0.GetPowerUsage": 650_000})
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and GPU0 not in (reading.covered or ()):
        reading = host.read(1)
    assert state(reading, "gpu").value == "present"
    assert reading.trouble == ""


def test_a_gpu_that_hangs_when_asked_who_it_is_keeps_no_other_from_being_read(host: Host, table: fake.Table) -> None:
    table.set({"gpu0.PciInfo": "hang"})
    host.reader.open()
    reading = host.read(1)
    assert state(reading, "gpu", GPU1).value == "present"
    assert state(reading, "gpu", "gpu:h0/0").value == "unreadable"
    assert "not answered" in state(reading, "gpu", "gpu:h0/0").attrs["why"]
    table.set({"gpu0.PciInfo": f"0000{fake.pci(0)}.0"})
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and GPU0 not in (reading.covered or ()):
        reading = host.read(1)
    assert {GPU0, GPU1} <= set(reading.covered or ())


def test_a_renewal_on_a_driver_that_hangs_on_the_lost_gpu_leaves_the_others_known(host: Host, table: fake.Table) -> None:
    host.reader.open()
    host.read()
    table.set({"gpu0.*": "!15"})
    host.read(1)
    table.drop("gpu0.*")
    table.set({"gpu0.PciInfo": "hang"})
    host.read(RENEW_FIRST_S + 1)
    host.read(1)
    reading = host.read(1)
    assert GPU1 in (reading.covered or ())
    assert GPU0 not in (reading.covered or ())
    assert f"{GPU0}: lost" in reading.trouble


def test_an_nvml_that_does_not_start_anew_is_said_and_waited_for(host: Host, table: fake.Table) -> None:
    host.reader.open()
    host.read()
    table.set({"gpu0.*": "!15"})
    host.read(1)
    table.drop("gpu0.*")
    table.set({"sys.Init": "hang"})
    with pytest.raises(Unreadable, match="has not let NVML start"):
        host.read(RENEW_FIRST_S + 1)
    host.reader.close()
    with pytest.raises(Unreadable, match="has not let NVML start"):
        host.reader.open()
    table.drop("sys.Init")
    patience_s = time.monotonic() + 20
    while host.reader.hung and time.monotonic() < patience_s:
        time.sleep(0.01)
    host.reader.open()
    host.read(1)  # goes on with the new start
    assert GPU0 in (host.read(1).covered or ())


def test_a_driver_that_answers_for_no_gpu_is_unknown(host: Host, table: fake.Table) -> None:
    host.reader.open()
    host.read()
    table.set({"gpu0.GetPowerUsage": "hang", "gpu1.GetPowerUsage": "hang"})
    with pytest.raises(Unreadable, match=r"has not answered for .* on any GPU"):
        for _ in range(3):  # one that is not reached in time is not counted yet
            host.read(1)


def test_a_gpu_that_the_bus_has_and_the_driver_does_not_list_is_unseen(host: Host, table: fake.Table) -> None:
    for gpu in range(3):
        host.device(gpu)
    host.reader.open()
    reading = host.read()
    missing = state(reading, "gpu", "gpu:h0/0000:12:00")
    assert missing.value == "unseen"
    assert not events(reading, EventName.GPU_LOST)
    assert "gpu:h0/0000:12:00" not in (reading.covered or ())


def test_a_gpu_that_nvml_refuses_from_the_start_is_told_with_the_reason(host: Host, table: fake.Table) -> None:
    for gpu in range(2):
        host.device(gpu)
    table.set({"gpu1.Handle": "!15"})
    host.reader.open()
    told = state(host.read(), "gpu", GPU1)
    assert told.value == "unseen"
    assert "fallen off the bus" in told.attrs["why"]


# -- the driver ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason", "remedy"),
    [
        (9, "the NVIDIA driver is not loaded", "modprobe"),
        (18, "of different versions", "reload the driver"),
        (4, "not allowed", "/dev/nvidiactl"),
        (999, "Unknown Error", "kernel log"),
    ],
)
def test_a_driver_that_cannot_be_used_is_unreadable_with_the_reason_and_a_remedy(
    host: Host, table: fake.Table, code: int, reason: str, remedy: str
) -> None:
    host.device(0)
    table.set({"sys.Init": f"!{code}"})
    with pytest.raises(Unreadable, match=reason) as raised:
        host.reader.open()
    assert remedy in raised.value.remedy
    assert not isinstance(raised.value, Absent)


def test_a_library_without_a_gpu_on_the_bus_is_absent(host: Host, table: fake.Table) -> None:
    table.set({"sys.Init": "!9"})
    with pytest.raises(Absent, match="no NVIDIA GPU"):
        host.reader.open()


def test_no_gpu_at_all_is_absent(host: Host, table: fake.Table) -> None:
    table.set({"sys.Count": 0})
    with pytest.raises(Absent):
        host.reader.open()


def test_a_driver_that_is_reloaded_is_found_again_and_no_count_is_invented(host: Host, table: fake.Table) -> None:
    table.set({"gpu0.Field.161.2": 500, "gpu0.GetMemoryErrorCounter.0.1.2": 40})
    host.reader.open()
    host.read()
    table.set({"*": "!1"})
    with pytest.raises(Unreadable, match="not initialised"):
        host.read(1)
    host.reader.close()
    table.set({"sys.Init": "!9"})
    host.device(0)
    with pytest.raises(Unreadable):
        host.reader.open()
    table.drop("*", "sys.Init")
    table.set({"gpu0.Field.161.2": 2})
    host.reader.open()
    readings = [host.read(1) for _ in range(40)]
    told = [each for reading in readings for each in reading.samples if isinstance(each, Counter)]
    assert [(each.name, each.delta, each.doubt) for each in told] == [("nvlink_replay_errors", 2, CounterDoubt.RESET)]


def test_without_the_library_the_source_is_absent_and_the_binding_is_not_loaded(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from goodput_collector.adapters.nvml_library import NvmlLibrary
from goodput_collector.application.ports import Absent
try:
    NvmlLibrary(sys_root=Path("/nowhere")).acquire("test")
except Absent as error:
    print(error)
print("pynvml" in sys.modules)
"""
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment)
    if "no NVIDIA driver" not in done.stdout:
        pytest.skip("this machine has the driver's library")
    assert done.stdout.splitlines()[-1] == "False"


# -- what differs ----------------------------------------------------------------------------------------------------


def test_an_old_chip_is_asked_by_the_older_calls(host: Host, table: fake.Table) -> None:
    table.gpus(1, fake.volta)
    for key in [key for key in table.entries if key.startswith("gpu0.") and key not in fake.volta(0)]:
        table.drop(key)
    host.reader.open()
    reading = host.read()
    assert state(reading, "retired_pages").value == "ok"
    assert state(reading, "retired_pages").attrs == {"single_bit": "2", "double_bit": "1"}
    assert not states(reading, "row_remap")
    assert not states(reading, "fabric")
    assert len([each for each in reading.samples if isinstance(each, State) and each.name == "nvlink"]) == 6
    assert state(reading, "clocks_held_down_by").value == "nothing"
    table.set({"gpu0.GetNvLinkErrorCounter.2.3": 9, "gpu0.GetPcieReplayCounter": 4, "gpu0.GetRetiredPages.1": 2})
    found: dict[tuple[str, str], int] = {}
    for _ in range(35):
        found |= counters(host.read(1))
    assert found == {
        ("nvlink:h0/0000:10:00/2", "nvlink_crc_data_errors"): 9,
        (GPU0, "pcie_replays"): 4,
        (GPU0, "retired_pages_double_bit"): 1,
    }


def test_a_new_chip_counts_recoveries_and_symbols(host: Host, table: fake.Table) -> None:
    for key in [key for key in table.entries if key.startswith("gpu")]:
        table.drop(key)
    table.gpus(1, fake.blackwell)
    host.reader.open()
    host.read()
    table.set({"gpu0.Field.215.4": 2, "gpu0.Field.214.4": 1, "gpu0.Field.221.4": 77})
    found: dict[tuple[str, str], int] = {}
    for _ in range(6):
        found |= counters(host.read(1))
    link = "nvlink:h0/0000:10:00/4"
    assert found == {
        (link, "nvlink_recoveries"): 2,
        (link, "nvlink_recoveries_failed"): 1,
        (link, "nvlink_symbol_errors"): 77,
    }


def test_mig_instances_are_told_with_their_ids(host: Host, table: fake.Table) -> None:
    table.set(
        {
            "gpu0.GetMigMode": "1 1",
            "gpu0.GetMaxMigDeviceCount": 7,
            "gpu0.MigDevice.0": 3,
            "gpu0.MigDevice.2": 4,
            "mig3.GetGpuInstanceId": 1,
            "mig3.GetComputeInstanceId": 0,
            "mig3.UUID": "MIG-a",
            "mig4.GetGpuInstanceId": 2,
            "mig4.GetComputeInstanceId": 1,
            "mig4.UUID": "MIG-b",
            "gpu0.Processes": "4000/2/1",
        }
    )
    register(host.folder / "run", 6, 4000)
    Proc(host.folder / "proc").put(4000)
    host.reader.open()
    reading = host.read()
    assert state(reading, "ranks").attrs["mig:rank:j1/6"] == "2/1"
    told = state(reading, "mig")
    assert (told.value, told.attrs) == ("on", {"instance:1/0": "MIG-a", "instance:2/1": "MIG-b"})


def test_what_may_not_be_read_is_trouble_and_the_rest_is_read(host: Host, table: fake.Table) -> None:
    table.set({"gpu0.Processes": "!4"})
    host.reader.open()
    reading = host.read()
    assert "not allowed to read processes" in reading.trouble
    assert gauges(reading)["temperature_c"] == 55
    assert not states(reading, "ranks")


def test_the_fabric_manager_that_is_gone_shows_in_the_health_mask(host: Host, table: fake.Table) -> None:
    host.reader.open()
    host.read()
    table.set({"gpu0.GetGpuFabricInfo": f"171 5 3 0 {2 << 14 | 1}"})
    told = [each for _ in range(35) for each in states(host.read(1), "fabric")]
    assert [(each.attrs["fabric_manager"], each.attrs["degraded_bandwidth"]) for each in told] == [("disconnected", "true")]


def test_a_process_on_a_gpu_is_the_rank_that_registered(host: Host, table: fake.Table) -> None:
    proc = Proc(host.folder / "proc")
    proc.put(4000, start=77)
    (host.folder / "proc" / "4000" / "status").write_text("Name:\tpython3\nNSpid:\t4000\t31\n")
    proc.put(5000, start=99)
    register(host.folder / "run", 3, 31, start=77)  # in a container: it knows itself as 31
    table.set({"gpu0.Processes": "4000 5000", "gpu1.Processes": "5000"})
    host.reader.open()
    reading = host.read()
    told = state(reading, "ranks")
    assert told.value == "rank:j1/3"
    assert told.attrs == {
        "uuid": "GPU-00000000",
        "pci": "0000:10:00",
        "pid:rank:j1/3": "4000",
        "others": "1",
        "other_pids": "5000",
    }
    assert state(reading, "ranks", GPU1).value == "others"


def test_garbage_from_the_driver_takes_nobody_down(host: Host, table: fake.Table) -> None:
    table.set(
        {"gpu0.PciInfo": "zz:\x01", "gpu0.UUID": "\x02", "gpu0.Field.91": 4_000_000_000, "gpu0.GetGpuFabricInfo": "1 2 99 3"}
    )
    table.set({"gpu0.GetCurrentClocksEventReasons": 0xFFFF_FFFF_FFFF_FFFF, "gpu0.GetEccMode": "7 9"})
    host.reader.open()
    reading = host.read()
    assert state(reading, "gpu", "gpu:h0/0").value == "present"
    assert gauges(reading, GPU1)["temperature_c"] == 55
