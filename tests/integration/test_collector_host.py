"""The tables of the machine that this runs on: whatever they say, they are understood."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from goodput_collector.adapters.host_hardware import HostHardwareReader
from goodput_collector.adapters.host_load import HostLoadReader
from goodput_collector.adapters.host_storage import HostStorageReader
from goodput_collector.domain.host_pressure import parse_pressure
from goodput_common.contracts.telemetry import Gauge, State
from goodput_common.runtime.clock import SystemClock

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tables")


class Later(SystemClock):
    """The same machine, read as if time passed quickly."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic_s(self) -> float:
        return time.monotonic() + self.ahead_s


def test_the_load_of_this_host_is_read() -> None:
    reader = HostLoadReader(host="h0", boot_id="b1", clock=SystemClock(), ranks=tuple)
    reader.open()
    reading = reader.read()
    gauges = {each.name: each.value for each in reading.samples if isinstance(each, Gauge)}
    assert 0 < gauges["memory_available_share"] <= 1
    assert 0 < gauges["tasks_share"] < 1
    if Path("/proc/pressure/memory").exists():
        try:
            kinds = parse_pressure(Path("/proc/pressure/memory").read_bytes())
        except OSError:
            assert "psi=1" in reading.trouble
            return
        assert set(kinds) == {"some", "full"}
        assert "pressure_memory_full_share" in gauges
    reader.close()


def test_the_disks_of_this_host_are_read_and_none_has_stalled() -> None:
    clock = Later()
    reader = HostStorageReader(host="h0", boot_id="b1", clock=clock)
    reader.open()
    states = [each for each in reader.read().samples if isinstance(each, State)]
    disks = {path.name for path in Path("/sys/block").iterdir() if not path.name.startswith(("loop", "ram", "zram", "dm-"))}
    assert {each.attrs["device"] for each in states if each.name.startswith("disk:")} <= disks
    clock.ahead_s = 10
    gauges = {each.name: each.value for each in reader.read().samples if isinstance(each, Gauge)}
    assert all(0 <= value <= 1 for name, value in gauges.items() if name == "disk_busy_share")
    reader.close()


def test_the_hardware_of_this_host_is_read() -> None:
    reader = HostHardwareReader(host="h0", boot_id="b1", clock=SystemClock())
    reader.open()
    assert "host:h0" in (reader.read().covered or ())
    reader.close()
