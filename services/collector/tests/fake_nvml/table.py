"""Builds the double of libnvidia-ml.so.1 and writes the table that it answers from.

The real nvidia-ml-py is used with it. It opens `libnvidia-ml.so.1` by name: a library with that name (its soname) that this
process has loaded before is the one that it gets.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
LIBRARY = "libnvidia-ml.so.1"
XID, DOUBLE_BIT = 0x8, 0x2
HOPPER_LINKS = 18

Value = int | str


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def build(folder: Path) -> Path:
    """The library in `folder`; needs a compiler."""
    cc = compiler()
    assert cc is not None
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / LIBRARY
    command = [cc, "-O2", "-Wall", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}", "-o", str(library), str(SOURCE)]
    subprocess.run([*command, "-lpthread"], check=True, timeout=60)
    return library


@functools.cache
def built() -> Path:
    """Once for a run of tests."""
    folder = tempfile.mkdtemp(prefix="fake-nvml-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return build(Path(folder))


@contextlib.contextmanager
def double(folder: Path) -> Iterator[Table]:
    """The double, loaded into this process, with a table of its own. Whoever used it must have shut it down in the end."""
    table = Table(folder / "table")
    before = os.environ.get("FAKE_NVML_TABLE")
    os.environ["FAKE_NVML_TABLE"] = str(table.path)
    loaded = preload(built())
    importlib.import_module("pynvml")  # it is large: not in the time that a call into the driver is given
    try:
        yield table
        table.unhang()
        assert loaded.fake_users() == 0, "somebody did not shut NVML down"
    finally:
        table.unhang()
        if before is None:
            del os.environ["FAKE_NVML_TABLE"]
        else:
            os.environ["FAKE_NVML_TABLE"] = before


def preload(library: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def pci(gpu: int) -> str:
    return f"0000:{0x10 + gpu:02x}:00"


class Table:
    """What the driver answers now. A change is written at once, whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Value] = {}
        self._events = 0
        self.write()

    def write(self) -> None:
        spare = self.path.with_suffix(".new")
        spare.write_text("".join(f"{key} {value}\n" for key, value in self.entries.items()))
        spare.replace(self.path)

    def set(self, entries: dict[str, Value] | None = None, **more: Value) -> None:
        self.entries |= (entries or {}) | more
        self.write()

    def drop(self, *keys: str) -> None:
        for key in keys:
            self.entries.pop(key, None)
        self.write()

    def unhang(self) -> None:
        """Let every call return."""
        self.drop(*[key for key, value in self.entries.items() if value == "hang"])

    def add(self, key: str, more: int = 1) -> None:
        self.set({key: int(self.entries.get(key, 0)) + more})

    def event(self, gpu: int, kind: int, data: int, *instance: int) -> None:
        self._events += 1
        self.set({f"event.{self._events}": " ".join(str(each) for each in (gpu, kind, data, *instance))})

    def gpus(self, count: int, kind: Callable[[int], dict[str, Value]] | None = None) -> None:
        for gpu in range(count):
            self.entries |= (kind or hopper)(gpu)
        self.set({"sys.Count": count, "sys.DriverVersion": "575.57.08"})


def environment(table: Path, library: Path) -> dict[str, str]:
    """For a process of its own whose cost is measured: the double looks at its table no more often than it changes."""
    where = {"FAKE_NVML_TABLE": str(table), "LD_LIBRARY_PATH": str(library.parent)}
    return os.environ | where | {"FAKE_NVML_CHECK_MS": "100"}


def hopper(gpu: int) -> dict[str, Value]:
    """A healthy H100 under load: 18 links, counters as fields."""
    entries: dict[str, Value] = {
        "PciInfo": f"0000{pci(gpu).upper()}.0",
        "UUID": f"GPU-{gpu:08d}",
        "Name": "NVIDIA H100 80GB HBM3",
        "GetSupportedEventTypes": 0xFFFF,
        "GetClockInfo.1": 1980,
        "GetClockInfo.2": 2619,
        "GetMaxClockInfo.1": 1980,
        "GetMaxClockInfo.2": 2619,
        "GetCurrentClocksEventReasons": 0x4,
        "GetPowerUsage": 650_000,
        "GetEnforcedPowerLimit": 700_000,
        "GetTemperature.0": 55,
        "Field.82": 70,
        "GetCurrPcieLinkGeneration": 5,
        "GetMaxPcieLinkGeneration": 5,
        "GetCurrPcieLinkWidth": 16,
        "GetMaxPcieLinkWidth": 16,
        "GetEccMode": "1 1",
        "GetMemoryErrorCounter": 0,
        "GetTotalEccErrors": 0,
        "GetRemappedRows": "0 0 0 0",
        "GetRowRemapperHistogram": "1280 0 0 0 0",
        "GetGpuFabricInfo": "171 5 3 0 0",
        "GetMigMode": "0 0",
        "Processes": "",
        "Field.91": HOPPER_LINKS,
    }
    entries |= {f"Field.{field}": 0 for field in (94, 3, 4, 142, 143, 74, 75, 269, 270, 271, 230)}
    for link in range(HOPPER_LINKS):
        entries |= {f"Field.165.{link}": 1, f"Field.161.{link}": 0, f"Field.162.{link}": 0, f"Field.163.{link}": 0}
    for field in (*range(32, 38), *range(96, 102), *range(39, 45), *range(102, 108)):
        entries[f"Field.{field}.0"] = 0
    return {f"gpu{gpu}.{key}": value for key, value in entries.items()}


def volta(gpu: int) -> dict[str, Value]:
    """An old chip under an old driver: counters by call, pages that retire, no row remapper, no fields but a few."""
    entries: dict[str, Value] = {
        "PciInfo": f"0000{pci(gpu).upper()}.0",
        "UUID": f"GPU-{gpu:08d}",
        "Name": "Tesla V100-SXM2-32GB",
        "GetSupportedEventTypes": 0xF,
        "GetClockInfo.1": 1530,
        "GetClockInfo.2": 877,
        "GetCurrentClocksEventReasons": "!13",
        "GetCurrentClocksThrottleReasons": 0,
        "GetPowerUsage": 290_000,
        "GetTemperature.0": 60,
        "GetPcieReplayCounter": 0,
        "GetCurrPcieLinkGeneration": 3,
        "GetCurrPcieLinkWidth": 16,
        "GetEccMode": "1 1",
        "GetTotalEccErrors": 0,
        "GetRetiredPages.0": 2,
        "GetRetiredPages.1": 1,
        "GetRetiredPagesPendingStatus": 0,
        "Processes": "",
    }
    for link in range(6):
        entries[f"GetNvLinkState.{link}"] = 1
        entries |= {f"GetNvLinkErrorCounter.{link}.{counter}": 0 for counter in range(4)}
    return {f"gpu{gpu}.{key}": value for key, value in entries.items()}


def blackwell(gpu: int) -> dict[str, Value]:
    """NVLink5: the old link counters are gone."""
    entries = hopper(gpu)
    for link in range(HOPPER_LINKS):
        for field in (161, 162, 163):
            entries.pop(f"gpu{gpu}.Field.{field}.{link}")
        entries |= {f"gpu{gpu}.Field.{field}.{link}": 0 for field in (208, 214, 215, 219, 221)}
    for field in (*range(32, 38), *range(96, 102), *range(39, 45), *range(102, 108)):
        entries.pop(f"gpu{gpu}.Field.{field}.0")
    return entries
