"""From the answers of one GPU to its samples: the one place that names them.

The names are the same whoever measured (NVML, or DCGM in `dcgm`), so that a reader needs one name for one thing. A state
stays as it was read until it is read again; a GPU that is gone has none but that it is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from goodput_collector.domain import gpu_links, gpu_memory
from goodput_collector.domain.deltas import Deltas, Reading
from goodput_collector.domain.gauges import Gauges, Key
from goodput_collector.domain.gpu_clocks import Throttling
from goodput_collector.domain.gpu_fabric import fabric_state
from goodput_collector.domain.gpu_presence import Gpu
from goodput_collector.domain.gpu_ranks import Process, ranks_state
from goodput_collector.domain.rdma_counters import Width
from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.telemetry import Counter, Event, Gauge, State

NOISE = {
    "temperature_c": 2.0,
    "memory_temperature_c": 2.0,
    "power_w": 25.0,
    "clock_sm_mhz": 60.0,
    "clock_memory_mhz": 60.0,
    "power_limit_w": 1.0,
}
_WIDTHS = {"pcie_replays": Width.WRAPS_32}
_MEASURED = {  # answer -> gauge, and how many of its units make one of the gauge's
    "clock_sm_mhz": ("clock_sm_mhz", 1),
    "clock_memory_mhz": ("clock_memory_mhz", 1),
    "temperature_c": ("temperature_c", 1),
    "memory_temperature_c": ("memory_temperature_c", 1),
    "clock_sm_max_mhz": ("clock_sm_max_mhz", 1),
    "clock_memory_max_mhz": ("clock_memory_max_mhz", 1),
    "power_mw": ("power_w", 1000),
    "power_limit_mw": ("power_limit_w", 1000),
}
_NS_PER_US = 1000


@dataclass(slots=True)
class _Quiet:
    """A set of counters that stand still: the usual thing. They are looked at often and handed on only when one moved."""

    values: Mapping[str, int]
    incarnation: str
    told_s: float
    seen_s: float


class GpuSamples:
    """What one GPU has told so far. `incarnation` is another one after each load of the driver."""

    def __init__(self, gpu: Gpu, host: str) -> None:
        self.gpu = gpu
        self._host = host
        self._throttling = Throttling(gpu)
        self._throttling_key = (gpu.component, "clocks_held_down_by")
        self._measured: dict[str, tuple[Key, int, float]] = {
            answer: ((gpu.component, name, ()), units, NOISE.get(name, 0.0)) for answer, (name, units) in _MEASURED.items()
        }
        self._deltas: dict[tuple[ComponentId, str], Deltas] = {}
        self._quiet: dict[tuple[ComponentId, str], _Quiet] = {}
        self._states: dict[tuple[ComponentId, str], State] = {}
        self._seen_at: dict[tuple[ComponentId, str], datetime] = {}
        self._mask: int | None = None
        self._links: Mapping[int, Mapping[str, int]] = {}
        self._links_at: tuple[datetime, float, str] | None = None
        self._max: dict[str, Any] = {}
        self._counted_before: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self.links: tuple[ComponentId, ...] = ()
        self.version = 0  # another one after each change of a state, and of `links`

    def states(self) -> list[State]:
        """As of when each was last seen to be so."""
        links_at = self._links_at[0] if self._links_at is not None else None
        found = []
        for key, state in self._states.items():
            at = links_at if state.name == "nvlink" and links_at is not None else self._seen_at[key]
            found.append(state if state.observed_at == at else msgspec.structs.replace(state, observed_at=at))
        return found

    def forget(self) -> None:
        """It is gone: nothing that it said still holds."""
        self.version += bool(self._states or self.links)
        self._states.clear()
        self._throttling = Throttling(self.gpu)
        self._mask = None
        self._links, self.links = {}, ()

    def gauges(self, values: Mapping[str, Any], at: datetime, now_s: float, told: Gauges) -> list[Gauge]:
        """What has moved by more than its noise since it was `told`: most have not, and nothing is made of them."""
        found = []
        for answer, value in values.items():
            if (measured := self._measured.get(answer)) is None:
                continue
            key, units, band = measured
            value = value / units
            if told.due(key, value, now_s, band):
                found.append(Gauge(component=self.gpu.component, name=key[1], observed_at=at, value=value))
        return found

    def throttling(self, values: Mapping[str, Any], at: datetime, now_s: float) -> list[Event]:
        mask = values.get("reasons")
        if mask is None:
            return []
        self._seen_at[self._throttling_key] = at
        if mask == self._mask and self._throttling.quiet:
            return []
        if mask != self._mask:
            self._mask = mask
            self._put(self._throttling.state(mask, at))
        return self._throttling.update(mask, at, now_s)

    def counters(self, counts: Mapping[str, int], at: datetime, now_s: float, incarnation: str) -> list[Counter]:
        """What grew. Those that the board keeps are counted apart from those that a reload sets to zero."""
        kept, reset = {}, {}
        for name, value in counts.items():
            if name.endswith("_ns"):
                reset[f"{name[:-3]}_us"] = value // _NS_PER_US
            elif gpu_memory.outlives_reset(name):
                kept[name] = value
            else:
                reset[name] = value
        self._counts.update(counts)
        found: list[Counter] = []
        for series, values, born in (("kept", kept, ""), ("reset", reset, incarnation)):
            if values:
                found += self._moved(self.gpu.component, series, values, at, now_s, born)
        return found

    def ecc(self, counts: Mapping[str, int], at: datetime, now_s: float, incarnation: str) -> list[Counter]:
        """By place: read together, at another time than the totals."""
        kept = {name: value for name, value in counts.items() if gpu_memory.outlives_reset(name)}
        volatile = {name: value for name, value in counts.items() if name not in kept}
        self._counts.update(counts)
        found: list[Counter] = []
        for series, values, born in (("ecc kept", kept, ""), ("ecc", volatile, incarnation)):
            if values:
                found += self._moved(self.gpu.component, series, values, at, now_s, born)
        return found

    def more_errors(self, counts: Mapping[str, int]) -> bool:
        """Whether a total that is cheap to read says that there is more to know about the memory."""
        names = [name for name in counts if name.startswith(("ecc_", "remapped_rows"))]
        grew = any(counts[name] != self._counted_before.get(name, counts[name]) for name in names)
        self._counted_before.update({name: counts[name] for name in names})
        return grew

    def nvlinks(self, links: Mapping[int, Mapping[str, int]], at: datetime, now_s: float, incarnation: str) -> list[Counter]:
        before = self._links_at
        self._links_at = (at, now_s, incarnation)
        if before is not None and links == self._links and incarnation == before[2]:
            return []  # hundreds of links that are as they were
        found: list[Counter] = []
        place = self.gpu.attrs.get("pci") or self.gpu.attrs.get("index", "")
        covered = []
        for link, values in links.items():
            component = ids.nvlink_id(self._host, place, link)
            covered.append(component)
            counts = {name: value for name, value in values.items() if name != gpu_links.STATE}
            if counts:
                if before is not None and (quiet := self._quiet.get((component, "link"))) is not None:
                    quiet.seen_s = before[1]
                found += self._moved(component, "link", counts, at, now_s, incarnation)
            if gpu_links.STATE in values:
                self._put(gpu_links.link_state(component, self.gpu.component, values[gpu_links.STATE], at))
        self._links = links
        if self.links != tuple(covered):
            self.links = tuple(covered)
            self.version += 1
        return found

    def describe(self, values: Mapping[str, Any], at: datetime) -> None:
        """The states that `values` tell of."""
        self._max |= {name: values[name] for name in ("pcie_gen_max", "pcie_width_max") if name in values}
        if "pcie_gen" in values and "pcie_width" in values:
            self._put(self._pcie(values, at))
        if "ecc_mode" in values:
            ecc = {name: count for name, count in self._counts.items() if name.startswith("ecc_")}
            self._put(gpu_memory.ecc_state(self.gpu, tuple(values["ecc_mode"]), ecc, at))
        if "rows" in values:
            self._put(gpu_memory.row_remap_state(self.gpu, values["rows"], values.get("banks"), at))
        elif "retired_single" in values or "retired_double" in values:
            single, double, pending = (values.get(f"retired_{name}") for name in ("single", "double", "pending"))
            self._put(gpu_memory.retired_pages_state(self.gpu, single, double, pending, at))
        if "recovery_action" in values:
            self._put(gpu_memory.recovery_action_state(self.gpu, values["recovery_action"], at))
        if "fabric" in values:
            self._put(fabric_state(self.gpu, at=at, **values["fabric"]))
        if "mig_mode" in values:
            self._put(_mig_state(self.gpu, values["mig_mode"], values.get("mig_instances", {}), at))

    def ranks(self, processes: Sequence[Process], ranks: Sequence[RankRegistered], at: datetime) -> None:
        self._put(ranks_state(self.gpu, processes, ranks, at))

    def _put(self, state: State) -> None:
        key = (state.component, state.name)
        known = self._states.get(key)
        if known is None or known.value != state.value or known.attrs != state.attrs:
            self.version += 1
            self._states[key] = state
        self._seen_at[key] = state.observed_at

    def _moved(
        self, component: ComponentId, series: str, values: Mapping[str, int], at: datetime, now_s: float, incarnation: str
    ) -> tuple[Counter, ...]:
        key = (component, series)
        quiet = self._quiet.get(key)
        if quiet is None:
            self._deltas[key] = Deltas(component, _WIDTHS)
            self._quiet[key] = _Quiet(values, incarnation, now_s, now_s)
        else:
            if values == quiet.values and incarnation == quiet.incarnation:
                quiet.seen_s = now_s
                return ()
            if quiet.seen_s > quiet.told_s:  # up to then nothing had happened: what grew did so since
                self._count(key, quiet.values, at, quiet.seen_s, quiet.incarnation)
            self._quiet[key] = _Quiet(values, incarnation, now_s, now_s)
        return self._count(key, values, at, now_s, incarnation)

    def _count(
        self, key: tuple[ComponentId, str], values: Mapping[str, int], at: datetime, now_s: float, incarnation: str
    ) -> tuple[Counter, ...]:
        return self._deltas[key].update(Reading(values=values, at=at, monotonic_s=now_s, incarnation=incarnation))

    def _pcie(self, values: Mapping[str, Any], at: datetime) -> State:
        """An idle GPU lowers its generation to save power; a width below its maximum is no saving."""
        attrs = {"gen": str(values["pcie_gen"]), "width": str(values["pcie_width"])}
        attrs |= {name.removeprefix("pcie_"): str(value) for name, value in self._max.items()}
        return State(
            component=self.gpu.component,
            name="pcie_link",
            observed_at=at,
            value=f"gen{values['pcie_gen']} x{values['pcie_width']}",
            attrs=attrs,
        )


def _mig_state(gpu: Gpu, mode: Sequence[int], instances: Mapping[str, str], at: datetime) -> State:
    """`instances`: UUID by `<gpu instance>/<compute instance>`."""
    now, pending = ("on" if each else "off" for each in mode)
    attrs = {f"instance:{place}": uuid for place, uuid in sorted(instances.items())}
    if pending != now:
        attrs["pending"] = pending
    return State(component=gpu.component, name="mig", observed_at=at, value=now, attrs=attrs)
