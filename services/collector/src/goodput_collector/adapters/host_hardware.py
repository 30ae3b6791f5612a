"""What this host's hardware counts: PCIe errors on the way to GPUs, NICs and disks, memory errors, heat.

    <sys>/bus/pci/devices/<address>/aer_dev_{correctable,nonfatal,fatal}    of those devices and the bridges above them
    <sys>/devices/system/edac/mc/mc*/{ce,ue}_count, dimm*/                  memory errors, by controller and module
    <sys>/devices/system/cpu/cpu*/thermal_throttle/                         one file a core and one a package

A table that reads as it did before is not parsed: of the hundreds of files that this is on a large host none moves on a
good day. Devices are looked for anew once a minute.

A number that is missing is not 0: a counter of which any file cannot be read is left out of that reading, and one whose
files are others than before (a core was switched off) begins anew.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from goodput_collector.adapters.host_files import KeptFile, small_or_none, text_of
from goodput_collector.application.ports import Absent, Reading
from goodput_collector.domain.changes import Changes
from goodput_collector.domain.dedup import Folder
from goodput_collector.domain.deltas import Deltas
from goodput_collector.domain.deltas import Reading as CounterReading
from goodput_collector.domain.host_hardware import Part, parse_aer, parse_count, part_of
from goodput_collector.domain.nic_log import pci_name
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Counter, CounterDoubt, Event, EventName, Sample, Severity, Source, State
from goodput_common.runtime.clock import Clock

LOOK_EVERY_S = 60.0
DEVICES_MAX = 512
CORES_MAX = 1024
_BDF = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_TABLES = ("correctable", "nonfatal", "fatal")


class _Device:
    """The error tables of one PCI device."""

    def __init__(self, folder: Path, component: str, suffix: str, boot_id: str) -> None:
        self.component = component
        self._suffix = suffix
        self._boot_id = boot_id
        self._files = [(name, KeptFile(folder / f"aer_dev_{name}")) for name in _TABLES]
        self._texts: dict[str, bytes] = {}
        self._deltas = Deltas(component, {})
        self._updated_s = float("-inf")

    def read(self, now: datetime, now_s: float) -> list[Counter]:
        moved = now_s - self._updated_s >= LOOK_EVERY_S
        for name, file in self._files:
            text = small_or_none(file)
            if text == self._texts.get(name):
                continue
            moved = True
            if text is None:
                del self._texts[name]
            else:
                self._texts[name] = text
        if not moved:
            return []
        self._updated_s = now_s
        values = {
            f"aer_{name}{self._suffix}" + ("" if error == "total" else f":{error}"): count
            for name, text in self._texts.items()
            for error, count in parse_aer(text).items()
        }
        reading = CounterReading(values=values, at=now, monotonic_s=now_s, incarnation=self._boot_id)
        return list(self._deltas.update(reading))

    def close(self) -> None:
        for _, file in self._files:
            file.close()


class _Count:
    """One counter, and the files whose numbers add up to it."""

    def __init__(self, component: str, paths: list[Path], boot_id: str) -> None:
        self.paths = paths
        self._files = [KeptFile(path) for path in paths]
        self._texts: list[bytes | None] | None = None
        self._values: dict[str, int] | None = None
        self._boot_id = boot_id
        self._deltas = Deltas(component, {})

    def read(self, name: str, now: datetime, now_s: float) -> tuple[Counter, ...]:
        texts = [small_or_none(file) for file in self._files]
        if texts != self._texts:
            self._texts = texts
            numbers = [number for text in texts if (number := parse_count(text or b"")) is not None]
            self._values = {name: sum(numbers)} if len(numbers) == len(texts) else None
        if self._values is None:
            return ()
        reading = CounterReading(values=self._values, at=now, monotonic_s=now_s, incarnation=self._boot_id)
        return self._deltas.update(reading)

    def close(self) -> None:
        for file in self._files:
            file.close()


class HostHardwareReader:
    """See `goodput_collector.application.ports.SourceReader`."""

    source = Source.HOST
    instance = "hardware"
    deadline_s = 10.0

    def __init__(
        self, *, host: str, boot_id: str, clock: Clock, sys_root: Path = Path("/sys"), interval_s: float = 5.0
    ) -> None:
        self.interval_s = interval_s
        self._name = host
        self._host = ids.host_id(host)
        self._boot_id = boot_id
        self._clock = clock
        self._sys = sys_root
        self._looked_s = float("-inf")
        self._devices: dict[str, _Device] = {}
        self._counts: dict[str, _Count] = {}
        self._labels: dict[str, dict[str, str]] = {}
        self._folder = Folder(burst=1, window_s=60.0)
        self._changes = Changes(full_every_s=LOOK_EVERY_S)
        self._limits: list[State] = []

    def open(self) -> None:
        if not (self._sys / "devices").is_dir() and not (self._sys / "bus").is_dir():
            raise Absent(f"there is no {self._sys}/devices")
        self._looked_s = float("-inf")

    def wake_fd(self) -> int | None:
        return None

    def read(self) -> Reading:
        now, now_s = self._clock.now(), self._clock.monotonic_s()
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            self._look(now)
        samples: list[Sample] = []
        for device in self._devices.values():
            samples += device.read(now, now_s)
        counters = [each for name, count in self._counts.items() for each in count.read(name, now, now_s)]
        samples += counters
        for counter in counters:
            if (event := self._event(counter, counters)) is not None:
                samples += self._folder.add(event)
        samples += self._folder.flush(now)
        samples += self._changes.of(self._limits, now_s)
        return Reading(samples=samples, covered=list({self._host, *(each.component for each in self._devices.values())}))

    def close(self) -> None:
        for device in self._devices.values():
            device.close()
        for count in self._counts.values():
            count.close()
        self._devices.clear()

    # -- what there is ----------------------------------------------------------------------------------------------

    def _look(self, now: datetime) -> None:
        found = dict(list(self._find_devices())[:DEVICES_MAX])
        for gone in [address for address in self._devices if address not in found]:
            self._devices.pop(gone).close()
        for address, (folder, component, suffix) in found.items():
            if address not in self._devices:
                self._devices[address] = _Device(folder, component, suffix, self._boot_id)
        wanted = dict(self._find_counts())
        before, self._counts = self._counts, {}
        for name, paths in wanted.items():
            kept = before.get(name)
            same = kept is not None and kept.paths == paths
            self._counts[name] = kept if kept is not None and same else _Count(self._host, paths, self._boot_id)
        for name, count in before.items():
            if self._counts.get(name) is not count:
                count.close()
        self._limits = list(self._find_limits(now))

    def _find_devices(self) -> Iterator[tuple[str, tuple[Path, str, str]]]:
        """(address, (folder, component, what to add to a counter's name)): devices that matter, and the bridges above."""
        bridges: dict[str, Path] = {}
        for folder in _listed(self._sys / "bus" / "pci" / "devices"):
            part = part_of(text_of(folder / "class"), text_of(folder / "vendor"))
            if part is Part.OTHER or not (folder / "aer_dev_correctable").exists():
                continue
            yield folder.name, (folder, *self._component(folder, part))
            with contextlib.suppress(OSError):
                for parent in folder.resolve(strict=True).parents:
                    if _BDF.match(parent.name) and (parent / "aer_dev_correctable").exists():
                        bridges.setdefault(parent.name, parent)
        for address, folder in bridges.items():
            yield address, (folder, self._host, f":{pci_name(address)}")

    def _component(self, folder: Path, part: Part) -> tuple[str, str]:
        name = pci_name(folder.name) if _BDF.match(folder.name) else folder.name
        if part is Part.GPU:
            return ids.gpu_id(self._name, name), ""
        if part is Part.NIC:
            device = _first(folder / "infiniband") or _first(folder / "net") or name
            return ids.nic_id(self._name, device), ""
        return self._host, f":{name}"

    def _find_counts(self) -> Iterator[tuple[str, list[Path]]]:
        cores, packages = _throttle_files(self._sys / "devices" / "system" / "cpu")
        if cores:
            yield "cpu_core_throttles", cores
        if packages:
            yield "cpu_package_throttles", packages
        for controller in _listed(self._sys / "devices" / "system" / "edac" / "mc"):
            if not controller.name.startswith("mc"):
                continue
            yield f"memory_errors_corrected:{controller.name}", [controller / "ce_count"]
            yield f"memory_errors_uncorrected:{controller.name}", [controller / "ue_count"]
            for module in _listed(controller):
                if module.name.startswith("dimm") and (module / "dimm_ce_count").exists():
                    label = f"{controller.name}/{module.name}"
                    self._labels[label] = {"module": text_of(module / "dimm_label") or module.name}
                    yield f"memory_errors_corrected:{label}", [module / "dimm_ce_count"]
                    yield f"memory_errors_uncorrected:{label}", [module / "dimm_ue_count"]

    def _find_limits(self, now: datetime) -> Iterator[State]:
        """Is the processors' clock held below what they could do? By the slowest policy."""
        lowest, most = None, None
        for policy in _listed(self._sys / "devices" / "system" / "cpu" / "cpufreq"):
            limit, could = (
                parse_count(text_of(policy / each).encode()) for each in ("scaling_max_freq", "cpuinfo_max_freq")
            )
            if limit and could and (lowest is None or most is None or limit * most < lowest * could):
                lowest, most = limit, could
        if lowest is not None and most is not None:
            value = "limited" if lowest < 0.95 * most else "free"
            attrs = {"limit_mhz": str(lowest // 1000), "most_mhz": str(most // 1000)}
            yield State(component=self._host, name="cpu_clock", observed_at=now, value=value, attrs=attrs)

    # -- what a count means -----------------------------------------------------------------------------------------

    def _event(self, counter: Counter, moved: Sequence[Counter]) -> Event | None:
        if counter.doubt is CounterDoubt.RESET:
            return None  # it began anew: what it shows may have happened at any time
        name, _, where = counter.name.partition(":")
        if name.startswith("cpu_"):
            attrs = {"reason": "thermal", "what": name.removeprefix("cpu_").removesuffix("_throttles")}
            return self._told(EventName.THROTTLED, counter, Severity.WARNING, "held down for heat", attrs)
        if not name.startswith("memory_errors_"):
            return None
        if "/" not in where and any(each.name.startswith(f"{name}:{where}/") for each in moved):
            return None  # one of its modules says the same, and which
        corrected = name.endswith("_corrected")
        attrs = {"corrected": str(corrected).lower(), "what": "memory", "controller": where} | self._labels.get(where, {})
        severity = Severity.INFO if corrected else Severity.FATAL
        return self._told(EventName.MACHINE_CHECK, counter, severity, f"memory errors of {where}", attrs)

    def _told(self, name: EventName, counter: Counter, severity: Severity, words: str, attrs: dict[str, str]) -> Event:
        return Event(
            component=self._host,
            name=name,
            observed_at=counter.observed_at,
            severity=severity,
            excerpt=f"{counter.name}: {words}, {counter.delta} more",
            attrs=attrs,
            count=counter.delta,
        )


def _throttle_files(root: Path) -> tuple[list[Path], list[Path]]:
    """One file for each core and each package: hyperthreads and cores of one repeat the same number."""
    cores: dict[tuple[str, str], Path] = {}
    packages: dict[str, Path] = {}
    for cpu in _listed(root)[:CORES_MAX]:
        folder = cpu / "thermal_throttle"
        if not cpu.name[3:].isdigit() or not folder.is_dir():
            continue
        package, core = text_of(cpu / "topology" / "physical_package_id"), text_of(cpu / "topology" / "core_id")
        cores.setdefault((package, core or cpu.name), folder / "core_throttle_count")
        packages.setdefault(package, folder / "package_throttle_count")
    return list(cores.values()), list(packages.values())


def _listed(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in sorted(os.listdir(folder))]  # noqa: PTH208 - names only, no stat
    except OSError:
        return []


def _first(folder: Path) -> str:
    names = _listed(folder)
    return names[0].name if names else ""
