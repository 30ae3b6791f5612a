"""What NVML tells of a healthy host's GPUs: clocks, power, heat, and states that all say that nothing is wrong."""

from __future__ import annotations

import math
import zlib

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Counter, Gauge, State
from goodput_faultlab.simulate import baseline, lines
from goodput_faultlab.simulate.counts import Counts
from goodput_faultlab.simulate.moments import FULL_EVERY_S, Batch, Moment, Walk
from goodput_topology.graph import Fabric

_NAMES = ("clock_sm_mhz", "power_w", "temperature_c", "memory_temperature_c")
_NOISE = tuple(baseline.NOISE[name] for name in _NAMES)


class Board:
    """One GPU, and what was told of it last."""

    __slots__ = ("attrs", "component", "counts", "heat", "links", "model", "offset", "told", "told_s")

    def __init__(self, component: ComponentId, model: baseline.Gpu, attrs: dict[str, str], counts: dict[str, int]) -> None:
        self.component = component
        self.model = model
        self.attrs = attrs
        self.counts = counts
        self.offset = (zlib.crc32(component.encode()) % 1000 - 500) / 500  # boards differ: -1 to 1
        self.heat = 0.0  # 0 cool, 1 hot
        self.told = [0.0, 0.0, 0.0, 0.0]  # clock, power, temperature, memory's temperature
        self.told_s = [-math.inf] * 4  # when each was
        host, _, pci = component.partition(":")[2].partition("/")
        self.links = tuple(ids.nvlink_id(host, pci, n) for n in range(model.nvlinks))


class Boards:
    """The GPUs of one host whose model is known."""

    def __init__(self, fabric: Fabric, host: str, counts: Counts, walk: Walk) -> None:
        self._walk = walk
        self.gpus = [
            _board(fabric, gpu, model, counts)
            for gpu in fabric.gpus_of_host(host)
            if (model := baseline.GPUS.get(fabric.attr(gpu, "chip"))) is not None
        ]

    def stands(self, component: ComponentId, name: str) -> float | None:
        """Where a measurement stood when it was last told; None where it is none of these."""
        gpu = next((each for each in self.gpus if each.component == component), None)
        if gpu is None:
            return None
        if name in _NAMES:
            return gpu.told[_NAMES.index(name)]
        return gpu.model.limit_w if name == "power_limit_w" else None

    def read(self, nvml: Batch, moment: Moment, full: bool) -> None:
        at, now_s, walk = moment.at, moment.now_s, self._walk
        busy = min(1.0, moment.steps / moment.usual_steps) if moment.usual_steps > 0 else 0.0
        warms = 1.0 - math.exp(-moment.interval_s / baseline.HEATS_OVER_S) if not moment.first else 1.0
        noise = _NOISE
        for gpu in self.gpus:
            model, told, told_s, component = gpu.model, gpu.told, gpu.told_s, gpu.component
            grain = walk.next()
            if moment.active:
                clock = model.clock_mhz - 15.0 * (grain > 1.0)
                power = model.spins_w + (model.busy_w - model.spins_w) * busy + 12.0 * gpu.offset + 6.0 * grain
                gpu.heat += (0.35 + 0.65 * busy - gpu.heat) * warms
            else:
                clock, power = baseline.IDLE_CLOCK_MHZ, model.idle_w + 4.0 * gpu.offset
                gpu.heat += (0.0 - gpu.heat) * warms
            heat = model.cool_c + (model.hot_c - model.cool_c) * gpu.heat + 2.0 * gpu.offset + 0.4 * grain
            for n, value in enumerate((clock, power, heat, heat + 9.0)):
                if abs(value - told[n]) > noise[n] or now_s - told_s[n] >= FULL_EVERY_S:
                    told_s[n] = now_s
                    value = told[n] = float(round(value, 1 if n == 1 else 0))
                    nvml.append(Gauge(component=component, name=_NAMES[n], observed_at=at, value=value))
            if busy > 0 and not moment.first:
                self._count_power(nvml, gpu, moment, busy, grain)
            if full:
                self._in_full(nvml, gpu, moment)

    def _count_power(self, nvml: Batch, gpu: Board, moment: Moment, busy: float, grain: float) -> None:
        delta = int(baseline.AT_POWER_CAP * busy * moment.interval_s * 1e6 * max(0.1, 1.0 + 0.3 * grain))
        value = gpu.counts["throttled_power_us"] = gpu.counts["throttled_power_us"] + delta
        nvml.append(
            Counter(
                component=gpu.component, name="throttled_power_us", observed_at=moment.at, delta=delta,
                interval_s=moment.interval_s, value=value,
            )
        )  # fmt: skip

    def _in_full(self, nvml: Batch, gpu: Board, moment: Moment) -> None:
        at, component, model = moment.at, gpu.component, gpu.model
        for name, value in (
            ("power_limit_w", model.limit_w),
            ("clock_sm_max_mhz", model.clock_mhz),
            ("clock_memory_mhz", model.memory_clock_mhz),
        ):
            nvml.append(Gauge(component=component, name=name, observed_at=at, value=float(value)))
        reasons = "sw_power_cap" if moment.steps > 0 else "gpu_idle"
        gen, _, width = model.pcie.partition(" ")
        pcie = {"gen": gen[3:], "width": width[1:], "gen_max": gen[3:], "width_max": width[1:]}
        for name, said, attrs in (
            ("gpu", "present", gpu.attrs),
            ("clocks_held_down_by", "nothing", {"reasons": reasons}),
            ("pcie_link", model.pcie, pcie),
            ("ecc", "on", {}),
            ("row_remap", "ok", {"correctable": "0", "uncorrectable": "0", "pending": "0"}),
            ("recovery_action", "none", {}),
        ):
            nvml.append(State(component=component, name=name, observed_at=at, value=said, attrs=attrs))
        attrs = {"gpu": component}
        nvml += (State(component=link, name="nvlink", observed_at=at, value="active", attrs=attrs) for link in gpu.links)


def _board(fabric: Fabric, gpu: ComponentId, model: baseline.Gpu, counts: Counts) -> Board:
    pci = lines.pci_of(fabric, gpu)
    component = ids.gpu_id(ids.host_of(gpu) or "", pci)
    attrs = {"index": gpu.rpartition("/")[2], "pci": pci, "uuid": fabric.attr(gpu, "uuid")}
    attrs["model"] = f"NVIDIA {fabric.attr(gpu, 'chip')}"
    mine = counts.of(component)
    mine.setdefault("throttled_power_us", counts.start(component, "throttled_power_us"))
    return Board(component, model, attrs, mine)
