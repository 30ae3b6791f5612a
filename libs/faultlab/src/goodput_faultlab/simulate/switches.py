"""One switch's readings when nothing is wrong: what a collector hears of its ports over gNMI, as SONiC tells them.

Only where a specification asks for it: many sites have no telemetry of their switches, and a diagnosis must do without. What
a port carries follows from the job's flows. No capture has a switch's counters; the figures are guesses on the terms of
`baseline`.
"""

from __future__ import annotations

import math
import random
import zlib

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Counter, Gauge, Sample, Source, State
from goodput_faultlab.simulate import baseline
from goodput_faultlab.simulate.counts import Counts
from goodput_faultlab.simulate.flows import Flows
from goodput_faultlab.simulate.moments import FULL_EVERY_S, Batch, Moment
from goodput_topology.graph import Fabric

CORRECTED_FRAMES_S = (5.0, 400.0)  # frames with corrected bits (guess)
PAUSES_SHARE_OF_READINGS = 0.15


class SwitchReadings:
    """As `healthy.HostReadings`, for a switch under its own name."""

    every_s = 10.0  # the collector's `sample_s` by gNMI
    everywhere = True  # carries the job's traffic whichever hosts the job is on

    def __init__(
        self, fabric: Fabric, switch: str, counts: Counts, table: tuple[float, ...], step_s: float, seed: int, flows: Flows
    ) -> None:
        mark = zlib.crc32(f"{seed}/{switch}".encode())
        self._ports = tuple(
            each for each in fabric.ports_of_switch(ids.switch_id(switch)) if fabric.carries_traffic(each) is not False
        )
        self._load = {port: flows.load[port] for port in self._ports if port in flows.load}
        self._octets_a_step = 4 * baseline.WORDS_S * step_s
        self._counts = counts
        self._table = table
        self._grain_at = mark % len(table)
        self._rng = random.Random(mark)
        self._full_at_s = -math.inf

    @property
    def covered(self) -> dict[Source, tuple[ComponentId, ...]]:
        return {Source.SWITCH: self._ports}

    def read(self, moment: Moment) -> dict[Source, Batch]:
        told: list[Sample] = []
        if not moment.first:
            for port in self._ports:
                self._counted(told, port, moment)
        if moment.now_s - self._full_at_s >= FULL_EVERY_S:
            self._full_at_s = moment.now_s
            for port in self._ports:
                up = {"by": "switch", "admin": "up"}
                told.append(State(component=port, name="operstate", observed_at=moment.at, value="up", attrs=up))
                watchdog = State(component=port, name="pfc_watchdog_prio3", observed_at=moment.at, value="operational")
                told.append(watchdog)
        return {Source.SWITCH: told}

    def stands(self, component: ComponentId, name: str) -> float | None:
        """A switch has no measurements that stand anywhere."""
        return None

    def shares(self, told: Batch, moment: Moment) -> list[Gauge]:
        """A switch tells durations, and no shares of time."""
        return []

    def _counted(self, told: list[Sample], port: ComponentId, moment: Moment) -> None:
        self._grain_at = (self._grain_at + 7) % len(self._table)
        grain = self._table[self._grain_at]
        low, high = CORRECTED_FRAMES_S
        corrected_s = low * (high / low) ** (zlib.crc32(port.encode()) % 1000 / 1000)
        self._count(told, port, "in_fec_corrected_frames", corrected_s * moment.interval_s * math.exp(0.1 * grain), moment)
        sends, receives = self._load.get(port, (0.0, 0.0))
        sent = sends * self._octets_a_step * moment.steps * (1.0 + 0.01 * grain)
        if sent <= 0 and receives * moment.steps <= 0:
            return
        received = receives * self._octets_a_step * moment.steps * (1.0 + 0.01 * grain)
        packets = sent / baseline.BYTES_A_PACKET_SENT
        self._count(told, port, "in_octets", received, moment)
        self._count(told, port, "out_octets", sent, moment)
        self._count(told, port, "out_queue3_packets", packets, moment)
        self._count(told, port, "out_queue3_ecn_marked_packets", packets * baseline.MARKED_A_PACKET, moment)
        if self._rng.random() < PAUSES_SHARE_OF_READINGS:
            paused_us = self._rng.expovariate(1 / baseline.PAUSED_US_S) * moment.interval_s
            self._count(told, port, "rx_prio3_pause", paused_us / baseline.US_A_FRAME, moment)
            self._count(told, port, "rx_prio3_pause_duration", paused_us, moment)

    def _count(self, told: list[Sample], port: ComponentId, name: str, amount: float, moment: Moment) -> None:
        counted = self._counts.add(port, name, int(amount)) if amount >= 1 else None
        if counted is not None:
            told.append(
                Counter(
                    component=port, name=name, observed_at=moment.at, delta=counted.delta, interval_s=moment.interval_s,
                    value=counted.value, doubt=counted.doubt,
                )
            )  # fmt: skip
