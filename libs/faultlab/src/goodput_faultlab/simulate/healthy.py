"""One host's readings when nothing is wrong: RDMA ports, NIC statistics, GPUs, the host's own tables.

A host is laid out once, when it is first read; each reading after that is a few dozen samples made straight from that.
"""

from __future__ import annotations

import math
import random
import zlib

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Counter, Gauge, Source, State
from goodput_faultlab.simulate import baseline, lines
from goodput_faultlab.simulate.boards import Boards
from goodput_faultlab.simulate.counts import Counts
from goodput_faultlab.simulate.moments import FULL_EVERY_S, GRAINS, Batch, Moment, Walk
from goodput_topology.graph import Fabric

_SOURCES = (Source.RDMA, Source.ETHTOOL, Source.NVML, Source.HOST)


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
        mark = zlib.crc32(f"{seed}/{host}".encode())
        self._walk = Walk(table, mark)
        self._boards = Boards(fabric, host, counts, self._walk)
        self._words_a_step = baseline.WORDS_S * step_s
        self._rng = random.Random(mark)
        self._nics: list[_Nic] = []
        self._host_counts = counts.of(self.component)
        self._host_told: list[float | None] = [None] * len(baseline.HOST_GAUGES)
        self._host_told_s = [-math.inf] * len(baseline.HOST_GAUGES)
        self._full_at_s = -math.inf
        self._pauses: dict[tuple[ComponentId, str], _Paused] = {}  # of every port that ever was
        self._paused_now = False
        for nic in fabric.nics_of_host(host):
            if fabric.carries_traffic(nic) is True and fabric.attr(nic, "rdma"):
                self._nics.append(self._nic(fabric, nic))
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

    @property
    def covered(self) -> dict[Source, tuple[ComponentId, ...]]:
        nics = tuple(nic.component for nic in self._nics)
        gpus = tuple(gpu.component for gpu in self._boards.gpus)
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
        self._boards.read(found[Source.NVML], moment, full)
        self._tables(found[Source.HOST], moment, full)
        return found

    def stands(self, component: ComponentId, name: str) -> float | None:
        """Where a measurement stood when it was last told; None where it is none of this host's."""
        if component == self.component:
            names = [each[0] for each in baseline.HOST_GAUGES]
            return self._host_told[names.index(name)] if name in names else None
        return self._boards.stands(component, name)

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

    def _ports(self, rdma: Batch, ethtool: Batch, moment: Moment) -> None:
        """Traffic in proportion to the work done, corrected bits whether there is any or not."""
        at, interval_s, walk = moment.at, moment.interval_s, self._walk
        table, stride, grain_at = walk.table, walk.stride, walk.at
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
        walk.at = grain_at

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
        kinds += [(each, each.an_hour * len(self._boards.gpus), Source.NVML) for each in baseline.RARE_GPU]
        total = sum(rate for _, rate, _ in kinds)
        if total <= 0:
            return self.component, baseline.RARE_NIC[0], Source.RDMA
        self._rare_s = after_s + self._rng.expovariate(total / 3600)
        rare, _, source = self._rng.choices(kinds, [rate for _, rate, _ in kinds])[0]
        where: list[ComponentId] = [each.component for each in (self._nics if source is Source.RDMA else self._boards.gpus)]
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

    def _tables(self, host: Batch, moment: Moment, full: bool) -> None:
        at, component = moment.at, self.component
        for n, (name, attrs, usual, checkpoint, wavers) in enumerate(baseline.HOST_GAUGES):
            value = (checkpoint if moment.checkpoint else usual) + (wavers * self._walk.next() if wavers else 0.0)
            before = self._host_told[n]
            moved = before is None or abs(value - before) > baseline.NOISE.get(name, baseline.SHARE_NOISE)
            if moved or moment.now_s - self._host_told_s[n] >= FULL_EVERY_S:
                self._host_told_s[n] = moment.now_s
                value = self._host_told[n] = round(max(0.0, value), 4)
                host.append(Gauge(component=component, name=name, observed_at=at, value=value, attrs=attrs))
        if not moment.first:
            for name, usual, checkpoint in baseline.HOST_COUNTERS:
                rate = (checkpoint if moment.checkpoint else usual) * math.exp(0.2 * self._walk.next())
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
