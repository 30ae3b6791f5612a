"""The questions that one GPU is asked through NVML, by group, and its answers as plain values.

Nothing is decided here. A question that this chip or driver does not know is not asked again for a while; a GPU that says
it is lost, or a driver that has gone, ends the round at once, because each further call may take long.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from goodput_collector.adapters.nvml_fields import Fields, Number
from goodput_collector.adapters.nvml_library import Nvml
from goodput_collector.domain import gpu_links, gpu_memory
from goodput_collector.domain.gpu_cadence import Group
from goodput_collector.domain.gpu_return import Meaning, meaning
from goodput_collector.domain.gpu_xid import instance

FIELD_MEMORY_TEMPERATURE = 82
FIELDS_COUNTED = {
    94: "pcie_replays",
    3: gpu_memory.ecc_total_name(0, 0),
    4: gpu_memory.ecc_total_name(1, 0),
    142: "remapped_rows_correctable",
    143: "remapped_rows_uncorrectable",
    74: "throttled_power_ns",
    75: "throttled_thermal_ns",
    269: "throttled_sw_thermal_ns",
    270: "throttled_hw_thermal_ns",
    271: "throttled_power_brake_ns",
    230: "recovery_action",
}
_FORGET_LACKING_AFTER_S = 600.0
_MIG_DEVICES_MAX = 16


@dataclass(slots=True)
class Answers:
    """One round with one GPU. What was not asked or not answered is missing. `codes` are the return codes that are neither
    success nor "there is no such thing", by question; `fine` counts the answers. `clocks` are of the group that is asked
    every second, `values` all others that are no counts."""

    fine: int = 0
    codes: dict[str, int] = field(default_factory=dict)
    forbidden: list[str] = field(default_factory=list)
    took_s: dict[Group, float] = field(default_factory=dict)
    clocks: dict[str, int] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    ecc: dict[str, int] = field(default_factory=dict)
    links: dict[int, dict[str, int]] = field(default_factory=dict)


class Ended(Exception):
    """No further question makes sense in this round."""


class NvmlDevice:
    def __init__(self, nvml: Nvml, handle: object) -> None:
        self._nvml = nvml
        self._handle = handle
        self._lacking: set[str] = set()
        self._lacking_since_s = time.monotonic()
        self._fields_counted = Fields(nvml, [(field, 0) for field in FIELDS_COUNTED])
        self._memory_temperature = Fields(nvml, [(FIELD_MEMORY_TEMPERATURE, 0)])
        self._clock_numbers = [
            ("clock_sm_mhz", "sm", Number(nvml, handle, "nvmlDeviceGetClockInfo", 1)),
            ("clock_memory_mhz", "mem", Number(nvml, handle, "nvmlDeviceGetClockInfo", 2)),
            ("power_mw", "power", Number(nvml, handle, "nvmlDeviceGetPowerUsage")),
            ("temperature_c", "temperature", Number(nvml, handle, "nvmlDeviceGetTemperature", 0)),
            *(
                (
                    "reasons",
                    question,
                    Number(nvml, handle, f"nvmlDeviceGetCurrentClocks{what}Reasons", kind=ctypes.c_ulonglong),
                )
                for question, what in (("reasons", "Event"), ("reasons_old", "Throttle"))
            ),
        ]
        self._wanted: dict[gpu_links.Asked, gpu_links.Wanted] | None = None
        self._link_fields = Fields(nvml, [])
        self._link_values: list[int | None] = []
        self._links_now: dict[int, dict[str, int]] = {}
        self._called_links = 0  # links that must be asked by the older call
        self._answers = Answers()
        self._groups: dict[Group, Callable[[], None]] = {
            Group.CLOCKS: self._clocks,
            Group.COUNTS: self._counted,
            Group.LINKS: self._links,
            Group.PROCESSES: self._processes,
            Group.MEMORY: self._memory,
            Group.FABRIC: self._fabric,
            Group.SETTINGS: self._settings,
        }

    def read(self, groups: Sequence[Group]) -> Answers:
        answers = self._answers = Answers()
        before_s = time.monotonic()
        if before_s - self._lacking_since_s >= _FORGET_LACKING_AFTER_S:
            self._lacking.clear()
            self._wanted = None
            self._lacking_since_s = before_s
        try:
            for group in groups:
                self._groups[group]()
                now_s = time.monotonic()
                answers.took_s[group], before_s = now_s - before_s, now_s
        except Ended:
            pass
        return answers

    def _ask(self, question: str, function: str, *args: object) -> Any:
        """None: no such thing, or no answer now. Raises Ended."""
        if question in self._lacking:
            return None
        nvml = self._nvml
        try:
            answer = getattr(nvml, function)(self._handle, *args)
        except nvml.NVMLError as error:
            self._failed(question, int(error.value))
            return None
        except AttributeError:  # this version of the binding has no such function
            self._lacking.add(question)
            return None
        except UnicodeDecodeError:
            return None  # a garbled text: cannot tell
        self._answers.fine += 1
        return answer

    def _failed(self, question: str, code: int) -> None:
        said = meaning(code)
        if said is Meaning.LACKING:
            self._lacking.add(question)
        elif said is Meaning.FORBIDDEN:
            self._answers.forbidden.append(question)
        else:
            self._answers.codes[question] = code
            if said in (Meaning.LOST, Meaning.DRIVER):
                raise Ended

    def _put(self, name: str, answer: Any) -> None:
        if answer is not None:
            self._answers.values[name] = answer

    def _batch(self, question: str, fields: Fields) -> list[int | None]:
        if question in self._lacking or not fields.count:
            return [None] * fields.count
        code, values, refused = fields.read(self._handle)
        if code:
            self._failed(question, code)
            return [None] * fields.count
        self._answers.fine += fields.count - len(refused)
        for each in refused:
            if meaning(each) is not Meaning.LACKING:
                self._failed(question, each)
        return values

    def _clocks(self) -> None:
        answers, lacking = self._answers, self._lacking
        for name, question, number in self._clock_numbers:
            if question in lacking or (question == "reasons_old" and "reasons" not in lacking):
                continue
            code, value = number.read()
            if code:
                self._failed(question, code)
            else:
                answers.fine += 1
                answers.clocks[name] = value
        temperature = self._batch("memory_temperature", self._memory_temperature)[0]
        if temperature is not None:
            answers.clocks["memory_temperature_c"] = temperature

    def _counted(self) -> None:
        for name, value in zip(FIELDS_COUNTED.values(), self._batch("counts", self._fields_counted), strict=True):
            if value is None:
                continue
            if name == "recovery_action":
                self._put(name, value)
            else:
                self._answers.counts[name] = value
        if "pcie_replays" not in self._answers.counts:
            replays = self._ask("replays", "nvmlDeviceGetPcieReplayCounter")
            if replays is not None:
                self._answers.counts["pcie_replays"] = replays
        for kind in gpu_memory.KINDS:
            self._total(kind, 0, self._answers.counts)
        self._put("pcie_gen", self._ask("pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration"))
        self._put("pcie_width", self._ask("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"))

    def _total(self, kind: int, life: int, counts: dict[str, int]) -> None:
        name = gpu_memory.ecc_total_name(kind, life)
        if name not in counts:
            total = self._ask(name, "nvmlDeviceGetTotalEccErrors", kind, life)
            if total is not None:
                counts[name] = total

    def _links(self) -> None:
        if self._wanted is None:
            self._find_links()
        values_now = self._batch("links", self._link_fields) if self._wanted else []
        if values_now != self._link_values or self._called_links:
            self._link_values = values_now
            self._links_now = gpu_links.by_link(self._wanted or {}, values_now)
        links = self._answers.links = self._links_now
        for link in range(self._called_links):
            values = links.setdefault(link, {})
            if gpu_links.STATE not in values:
                active = self._ask(f"link {link}", "nvmlDeviceGetNvLinkState", link)
                if active is not None:
                    values[gpu_links.STATE] = active
            for number, name in gpu_links.CALLED.items():
                if name not in values:
                    count = self._ask(f"link {link} {name}", "nvmlDeviceGetNvLinkErrorCounter", link, number)
                    if count is not None:
                        values[name] = count

    def _find_links(self) -> None:
        """Which links there are, and what of them this driver tells in one batch."""
        count = self._batch("link_count", Fields(self._nvml, [(gpu_links.LINK_COUNT, 0)]))[0]
        if count is None:
            count = 0
            while count < gpu_links.LINKS_MAX and self._ask(f"link {count}", "nvmlDeviceGetNvLinkState", count) is not None:
                count += 1
        candidates = gpu_links.fields(count)
        values = self._batch("links", Fields(self._nvml, list(candidates))) if candidates else []
        self._wanted = gpu_links.answered(candidates, values)
        self._link_values, self._links_now = [], {}
        self._link_fields = Fields(self._nvml, list(self._wanted))
        told = {name for _, name in self._wanted.values()}
        modern = bool(told & (set(gpu_links.COUNTERS) - set(gpu_links.CALLED.values())))
        complete = modern or told.issuperset(gpu_links.CALLED.values())
        self._called_links = 0 if complete and gpu_links.STATE in told else count

    def _processes(self) -> None:
        running = self._ask("processes", "nvmlDeviceGetComputeRunningProcesses_v3")
        if running is None and "processes" in self._lacking:
            running = self._ask("processes_old", "nvmlDeviceGetComputeRunningProcesses_v2")
        if running is not None:
            processes = {
                int(each.pid): instance(int(each.gpuInstanceId or 0), int(each.computeInstanceId or 0)) for each in running
            }
            self._put("processes", sorted(processes.items()))

    def _memory(self) -> None:
        for kind in gpu_memory.KINDS:
            for life in gpu_memory.LIVES:
                for place in gpu_memory.PLACES:
                    name = gpu_memory.ecc_name(kind, life, place)
                    count = self._ask(name, "nvmlDeviceGetMemoryErrorCounter", kind, life, place)
                    if count is not None:
                        self._answers.ecc[name] = count
            self._total(kind, 1, self._answers.ecc)
        self._put("ecc_mode", self._ask("ecc_mode", "nvmlDeviceGetEccMode"))
        self._put("rows", self._ask("rows", "nvmlDeviceGetRemappedRows"))
        histogram = self._ask("banks", "nvmlDeviceGetRowRemapperHistogram")
        if histogram is not None:
            self._put("banks", [int(getattr(histogram, name)) for name in gpu_memory.BANKS])
        if "rows" in self._lacking:  # chips that remap rows retire no pages
            for cause, name in enumerate(("single", "double")):
                pages = self._ask(f"retired_{name}", "nvmlDeviceGetRetiredPages", cause)
                if pages is not None:
                    self._put(f"retired_{name}", len(pages))
                    self._answers.ecc[f"retired_pages_{name}_bit"] = len(pages)
            self._put("retired_pending", self._ask("retired_pending", "nvmlDeviceGetRetiredPagesPendingStatus"))

    def _fabric(self) -> None:
        info = self._nvml.c_nvmlGpuFabricInfo_v3_t()
        if self._ask("fabric3", "nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info)) is None:
            if "fabric3" not in self._lacking:
                return
            info = self._nvml.c_nvmlGpuFabricInfo_v2_t()
            if self._ask("fabric2", "nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info)) is None:
                return
        self._put(
            "fabric",
            {
                "cluster": bytes(info.clusterUuid),
                "clique": int(info.cliqueId),
                "state": int(info.state),
                "status": int(info.status),
                "mask": int(info.healthMask),
                "summary": int(getattr(info, "healthSummary", 0)),
            },
        )

    def _settings(self) -> None:
        self._put("power_limit_mw", self._ask("limit", "nvmlDeviceGetEnforcedPowerLimit"))
        self._put("clock_sm_max_mhz", self._ask("sm_max", "nvmlDeviceGetMaxClockInfo", 1))
        self._put("clock_memory_max_mhz", self._ask("mem_max", "nvmlDeviceGetMaxClockInfo", 2))
        self._put("pcie_gen_max", self._ask("gen_max", "nvmlDeviceGetMaxPcieLinkGeneration"))
        self._put("pcie_width_max", self._ask("width_max", "nvmlDeviceGetMaxPcieLinkWidth"))
        mode = self._ask("mig", "nvmlDeviceGetMigMode")
        self._put("mig_mode", mode)
        if mode is not None and mode[0]:
            self._put("mig_instances", self._instances())

    def _instances(self) -> dict[str, str]:
        """UUID of each MIG device by `<gi>/<ci>`."""
        found = {}
        count = self._ask("mig_count", "nvmlDeviceGetMaxMigDeviceCount") or 0
        for index in range(min(int(count), _MIG_DEVICES_MAX)):
            try:  # a slot without an instance is no lack of the device: it may be filled later
                device = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(self._handle, index)
                gi = self._nvml.nvmlDeviceGetGpuInstanceId(device)
                ci = self._nvml.nvmlDeviceGetComputeInstanceId(device)
                found[f"{gi}/{ci}"] = str(self._nvml.nvmlDeviceGetUUID(device))
            except self._nvml.NVMLError as error:
                if meaning(int(error.value)) in (Meaning.LOST, Meaning.DRIVER):
                    self._failed("mig_device", int(error.value))
        return found
