"""One host's readings when nothing is wrong: RDMA ports, NIC statistics, GPUs, the host's own tables.

A host is laid out once, when it is first read; each reading after that is a few dozen samples made straight from that. The
small irregularities come from a table of normal deviates that every host walks through in its own stride: the same seed
gives the same readings, and drawing anew for each would cost more than all the rest.
"""

from __future__ import annotations

import math
import random
import zlib
from datetime import datetime
from typing import NamedTuple

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Counter, Gauge, Sample, Source, State
from goodput_faultlab.simulate import baseline, lines
from goodput_faultlab.simulate.counts import Counts
from goodput_topology.graph import Fabric

FULL_EVERY_S = 60.0
GRAINS = 4096
_SOURCES = (Source.RDMA, Source.ETHTOOL, Source.NVML, Source.HOST)
Batch = list[Sample]


def grains(rng: random.Random) -> tuple[float, ...]:
    return tuple(rng.gauss(0.0, 1.0) for _ in range(GRAINS))


class Moment(NamedTuple):
    """When and over what a reading is taken. `steps`: of the job on this host, since the last reading."""

    at: datetime  # by the host's clock
    now_s: float
    interval_s: float
    steps: float
    usual_steps: float  # as many as there would be if nothing were wrong
    active: bool  # the host carries the job now
    checkpoint: bool
    first: bool  # no increases can be told yet


class _Nic:
    __slots__ = ("component", "counts", "errors_s", "netdev", "stalled_attrs")

    def __init__(self, component: ComponentId, netdev: str, counts: dict[str, int], errors_s: float) -> None:
        self.component = component
        self.netdev = netdev
        self.counts = counts
        self.errors_s = errors_s
        self.stalled_attrs = {"netdev": netdev}


class _Paused:
    """The share of time that was told last, of one port and direction."""

    __slots__ = ("attrs", "told", "told_s")

    def __init__(self, attrs: dict[str, str]) -> None:
        self.attrs = attrs
        self.told = -1.0
        self.told_s = -math.inf


class _Gpu:
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


class HostReadings:
    """`read` gives what each source of the host has to tell at a moment; `covered` what each looks at."""

    every_s = 5.0
    everywhere = False

    def __init__(
        self, fabric: Fabric, host: str, counts: Counts, table: tuple[float, ...], step_s: float, seed: int
    ) -> None:
        self.host = host
        self.component = ids.host_id(host)
        self._counts = counts
        self._table = table
        self._words_a_step = baseline.WORDS_S * step_s
        mark = zlib.crc32(f"{seed}/{host}".encode())
        self._at = mark % GRAINS
        self._stride = 2 * (mark // GRAINS % (GRAINS // 2)) + 1
        self._rng = random.Random(mark)
        self._nics: list[_Nic] = []
        self._gpus: list[_Gpu] = []
        self._host_counts = counts.of(self.component)
        self._host_told: list[float | None] = [None] * len(baseline.HOST_GAUGES)
        self._host_told_s = [-math.inf] * len(baseline.HOST_GAUGES)
        self._full_at_s = -math.inf
        self._pauses: dict[tuple[ComponentId, str], _Paused] = {}  # of every port that ever was
        self._paused_now = False
        for nic in fabric.nics_of_host(host):
            if fabric.carries_traffic(nic) is True and fabric.attr(nic, "rdma"):
                self._nics.append(self._nic(fabric, nic))
        for gpu in fabric.gpus_of_host(host):
            model = baseline.GPUS.get(fabric.attr(gpu, "chip"))
            if model is not None:
                self._gpus.append(self._gpu(fabric, gpu, model))
        self._rare_s = math.inf
        self._rare = self._next_rare(0.0)

    def _nic(self, fabric: Fabric, nic: ComponentId) -> _Nic:
        component = lines.rdma_port(fabric, nic)
        counts = self._counts.of(component)
        for name in (*_TRAFFIC, *_CONGESTION, "rx_corrected_bits_phy"):
            counts.setdefault(name, self._counts.start(component, name))
        low, high = baseline.PRE_FEC_BITS_S
        share = zlib.crc32(component.encode()) % 10_000 / 10_000
        return _Nic(component, fabric.attr(nic, "netdev"), counts, low * (high / low) ** share)

    def _gpu(self, fabric: Fabric, gpu: ComponentId, model: baseline.Gpu) -> _Gpu:
        pci = lines.pci_of(fabric, gpu)
        component = ids.gpu_id(self.host, pci)
        attrs = {"index": gpu.rpartition("/")[2], "pci": pci, "uuid": fabric.attr(gpu, "uuid")}
        attrs["model"] = f"NVIDIA {fabric.attr(gpu, 'chip')}"
        counts = self._counts.of(component)
        counts.setdefault("throttled_power_us", self._counts.start(component, "throttled_power_us"))
        return _Gpu(component, model, attrs, counts)

    @property
    def covered(self) -> dict[Source, tuple[ComponentId, ...]]:
        nics = tuple(nic.component for nic in self._nics)
        gpus = tuple(gpu.component for gpu in self._gpus)
        found = {Source.RDMA: nics, Source.ETHTOOL: nics, Source.NVML: gpus, Source.HOST: (self.component,)}
        return {source: components for source, components in found.items() if components}

    def read(self, moment: Moment) -> dict[Source, Batch]:
        full = moment.now_s - self._full_at_s >= FULL_EVERY_S
        if full:
            self._full_at_s = moment.now_s
        found: dict[Source, Batch] = {source: [] for source in _SOURCES}
        if not moment.first:
            self._ports(found[Source.RDMA], found[Source.ETHTOOL], moment)
            self._rarely(found, moment)
        self._stalls(found[Source.ETHTOOL], moment, full)
        self._boards(found[Source.NVML], moment, full)
        self._tables(found[Source.HOST], moment, full)
        return found

    def stands(self, component: ComponentId, name: str) -> float | None:
        """Where a measurement stood when it was last told; None where it is none of this host's."""
        if component == self.component:
            names = [each[0] for each in baseline.HOST_GAUGES]
            return self._host_told[names.index(name)] if name in names else None
        gpu = next((each for each in self._gpus if each.component == component), None)
        if gpu is None:
            return None
        if name in _BOARD_NAMES:
            return gpu.told[_BOARD_NAMES.index(name)]
        return gpu.model.limit_w if name == "power_limit_w" else None

    def shares(self, told: Batch, moment: Moment) -> list[Gauge]:
        """The share of time paused, of every port that ever was: made of what the durations grew by."""
        grown = {
            (each.component, each.name): each
            for each in told
            if isinstance(each, Counter) and each.name[-15:] == "_pause_duration"
        }
        full = self._full_at_s == moment.now_s
        for key in grown:
            if key not in self._pauses:
                self._pauses[key] = _Paused(self._pause_attrs(*key))
        found = []
        noise = baseline.NOISE["pause_share"]
        for key, paused in self._pauses.items() if grown or full or self._paused_now else ():
            counter = grown.get(key)
            share = min(1.0, counter.delta / (counter.interval_s * 1e6)) if counter is not None else 0.0
            if abs(share - paused.told) > noise or moment.now_s - paused.told_s >= FULL_EVERY_S:
                paused.told, paused.told_s = round(share, 4), moment.now_s
                found.append(
                    Gauge(
                        component=key[0], name="pause_share", observed_at=moment.at, value=paused.told, attrs=paused.attrs
                    )
                )  # fmt: skip
        self._paused_now = bool(grown)
        return found

    def _pause_attrs(self, component: ComponentId, name: str) -> dict[str, str]:
        netdev = next((nic.netdev for nic in self._nics if nic.component == component), "")
        return {"netdev": netdev, "direction": name[:2], "priority": name.partition("prio")[2][:1] or "global"}

    # ------------------------------------------------------------------------------------------------- parts

    def _grain(self) -> float:
        self._at = (self._at + self._stride) % GRAINS
        return self._table[self._at]

    def _ports(self, rdma: Batch, ethtool: Batch, moment: Moment) -> None:
        """Traffic in proportion to the work done, corrected bits whether there is any or not."""
        at, interval_s, table, stride, grain_at = moment.at, moment.interval_s, self._table, self._stride, self._at
        words_usual = self._words_a_step * moment.steps
        wraps = 1 << 32
        for nic in self._nics:
            component, counts = nic.component, nic.counts
            if words_usual > 0:
                grain_at = (grain_at + stride) % GRAINS
                words = int(words_usual * (1.0 + 0.01 * table[grain_at]))
                marked = int(words * _MARKED_A_WORD * math.exp(0.5 * table[(grain_at + 1) % GRAINS]))
                sent, received = int(words * _SENT_A_WORD), int(words * _RECEIVED_A_WORD)
                cnps = int(marked * baseline.CNPS_A_MARK)
                for name, delta in zip(
                    _MOVED,
                    (words, words, sent, received, sent, received, marked, cnps, cnps),
                    strict=True,
                ):
                    if delta:
                        value = counts[name] = counts[name] + delta
                        rdma.append(
                            Counter(
                                component=component, name=name, observed_at=at, delta=delta, interval_s=interval_s,
                                value=value,
                            )
                        )  # fmt: skip
                delta = int(words * _WRITES_A_WORD)
                if counts["rx_write_requests"] + delta < wraps:
                    value = counts["rx_write_requests"] = counts["rx_write_requests"] + delta
                    if delta:
                        rdma.append(
                            Counter(
                                component=component, name="rx_write_requests", observed_at=at, delta=delta,
                                interval_s=interval_s, value=value,
                            )
                        )  # fmt: skip
                else:
                    self._count(rdma, component, "rx_write_requests", delta, moment)
                if self._rng.random() < baseline.PAUSES_SHARE_OF_READINGS:
                    self._pause(ethtool, nic, moment)
            delta = int(nic.errors_s * interval_s * (1.0 + 0.05 * table[(grain_at + 2) % GRAINS]))
            if delta > 0:
                value = counts["rx_corrected_bits_phy"] = counts["rx_corrected_bits_phy"] + delta
                ethtool.append(
                    Counter(
                        component=component, name="rx_corrected_bits_phy", observed_at=at, delta=delta,
                        interval_s=interval_s, value=value,
                    )
                )  # fmt: skip
        self._at = grain_at

    def _pause(self, ethtool: Batch, nic: _Nic, moment: Moment) -> None:
        """A short pause now and then: that is what PFC is for."""
        paused_us = int(self._rng.expovariate(1 / baseline.PAUSED_US_S) * moment.interval_s) + 1
        frames = max(1, int(paused_us / baseline.US_A_FRAME))
        for name, delta in (
            ("rx_prio3_pause", frames),
            ("rx_prio3_pause_duration", paused_us),
            ("rx_prio3_pause_transition", frames),
        ):
            self._count(ethtool, nic.component, name, delta, moment)

    def _count(self, batch: Batch, component: ComponentId, name: str, delta: int, moment: Moment) -> None:
        counted = self._counts.add(component, name, delta)
        if counted is not None:
            batch.append(
                Counter(
                    component=component, name=name, observed_at=moment.at, delta=counted.delta,
                    interval_s=moment.interval_s, value=counted.value, doubt=counted.doubt,
                )
            )  # fmt: skip

    def _rarely(self, found: dict[Source, Batch], moment: Moment) -> None:
        """Things that happen once in hours or days."""
        while self._rare_s <= moment.now_s:
            component, rare, source = self._rare
            if moment.steps > 0 or source is Source.NVML:
                self._count(found[source], component, rare.name, self._rng.randint(1, rare.most), moment)
            self._rare = self._next_rare(self._rare_s)

    def _next_rare(self, after_s: float) -> tuple[ComponentId, baseline.Rare, Source]:
        kinds: list[tuple[baseline.Rare, float, Source]] = [
            (each, each.an_hour * len(self._nics), Source.RDMA) for each in baseline.RARE_NIC
        ]
        kinds += [(each, each.an_hour * len(self._gpus), Source.NVML) for each in baseline.RARE_GPU]
        total = sum(rate for _, rate, _ in kinds)
        if total <= 0:
            return self.component, baseline.RARE_NIC[0], Source.RDMA
        self._rare_s = after_s + self._rng.expovariate(total / 3600)
        rare, _, source = self._rng.choices(kinds, [rate for _, rate, _ in kinds])[0]
        where: list[ComponentId] = [each.component for each in (self._nics if source is Source.RDMA else self._gpus)]
        return self._rng.choice(where), rare, source

    def _stalls(self, ethtool: Batch, moment: Moment, full: bool) -> None:
        """A NIC that hardly ever waits for PCIe says so once a minute."""
        if full:
            for nic in self._nics:
                ethtool += (
                    Gauge(
                        component=nic.component, name=f"outbound_pci_stalled_{way}_percent", observed_at=moment.at,
                        value=0.0, attrs=nic.stalled_attrs,
                    )
                    for way in ("rd", "wr")
                )  # fmt: skip

    def _boards(self, nvml: Batch, moment: Moment, full: bool) -> None:
        at, now_s, table, stride, grain_at = moment.at, moment.now_s, self._table, self._stride, self._at
        busy = min(1.0, moment.steps / moment.usual_steps) if moment.usual_steps > 0 else 0.0
        warms = 1.0 - math.exp(-moment.interval_s / baseline.HEATS_OVER_S) if not moment.first else 1.0
        noise = _BOARD_NOISE
        for gpu in self._gpus:
            model, told, told_s, component = gpu.model, gpu.told, gpu.told_s, gpu.component
            grain_at = (grain_at + stride) % GRAINS
            grain = table[grain_at]
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
                    nvml.append(Gauge(component=component, name=_BOARD_NAMES[n], observed_at=at, value=value))
            if busy > 0 and not moment.first:
                self._count_power(nvml, gpu, moment, busy, grain)
            if full:
                self._board_in_full(nvml, gpu, moment)
        self._at = grain_at

    def _count_power(self, nvml: Batch, gpu: _Gpu, moment: Moment, busy: float, grain: float) -> None:
        delta = int(baseline.AT_POWER_CAP * busy * moment.interval_s * 1e6 * max(0.1, 1.0 + 0.3 * grain))
        value = gpu.counts["throttled_power_us"] = gpu.counts["throttled_power_us"] + delta
        nvml.append(
            Counter(
                component=gpu.component, name="throttled_power_us", observed_at=moment.at, delta=delta,
                interval_s=moment.interval_s, value=value,
            )
        )  # fmt: skip

    def _board_in_full(self, nvml: Batch, gpu: _Gpu, moment: Moment) -> None:
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

    def _tables(self, host: Batch, moment: Moment, full: bool) -> None:
        at, component = moment.at, self.component
        for n, (name, attrs, usual, checkpoint, wavers) in enumerate(baseline.HOST_GAUGES):
            value = (checkpoint if moment.checkpoint else usual) + (wavers * self._grain() if wavers else 0.0)
            before = self._host_told[n]
            moved = before is None or abs(value - before) > baseline.NOISE.get(name, baseline.SHARE_NOISE)
            if moved or moment.now_s - self._host_told_s[n] >= FULL_EVERY_S:
                self._host_told_s[n] = moment.now_s
                value = self._host_told[n] = round(max(0.0, value), 4)
                host.append(Gauge(component=component, name=name, observed_at=at, value=value, attrs=attrs))
        if not moment.first:
            for name, usual, checkpoint in baseline.HOST_COUNTERS:
                rate = (checkpoint if moment.checkpoint else usual) * math.exp(0.2 * self._grain())
                self._count(host, component, name, int(rate * moment.interval_s), moment)
        if full:
            disk = baseline.DISK_ATTRS | {"in_flight": "0"}
            host.append(State(component=component, name=f"disk:{baseline.DISK}", observed_at=at, value="ok", attrs=disk))
            host.append(
                State(
                    component=component, name=f"mount:{baseline.MOUNT}", observed_at=at, value="ok",
                    attrs=baseline.MOUNT_ATTRS,
                )
            )  # fmt: skip


_TRAFFIC = (
    "port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets", "unicast_xmit_packets",
    "unicast_rcv_packets", "rx_write_requests",
)  # fmt: skip
_CONGESTION = ("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled")
_MOVED = (*_TRAFFIC[:-1], *_CONGESTION)
_SENT_A_WORD = 4 / baseline.BYTES_A_PACKET_SENT
_RECEIVED_A_WORD = 4 / baseline.BYTES_A_PACKET_RECEIVED
_MARKED_A_WORD = _RECEIVED_A_WORD * baseline.MARKED_A_PACKET
_WRITES_A_WORD = 4 / baseline.BYTES_A_WRITE
_BOARD_NAMES = ("clock_sm_mhz", "power_w", "temperature_c", "memory_temperature_c")
_BOARD_NOISE = tuple(baseline.NOISE[name] for name in _BOARD_NAMES)
