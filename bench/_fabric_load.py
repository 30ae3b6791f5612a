"""What a whole fabric of GB200 racks says while every GPU of it trains, second by second, as the bus would hand it over.

One job fills a pod (4 racks, 72 hosts, 288 GPUs). Jobs with a fault are simulated each by itself; a healthy one is simulated
once and moved to the other pods: hosts, job, UUIDs and GUIDs are renamed, and each copy is a fraction of a second off. So
every message is one that faultlab's simulator made, and a fabric of 35,000 GPUs takes a minute and not an hour.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from goodput_common.bus.codec import encode
from goodput_common.bus.ports import Message
from goodput_common.contracts.topology import TopologySnapshot
from goodput_common.contracts.verdict import FaultClass
from goodput_faultlab.simulate import FaultSpec, Simulation, scenario
from goodput_faultlab.simulate.spec import START
from goodput_topology.generate import nvl72
from goodput_topology.graph import Fabric

RACKS_A_POD, HOSTS_A_RACK, GPUS_A_HOST = 4, 18, 4
GPUS_A_POD = RACKS_A_POD * HOSTS_A_RACK * GPUS_A_HOST
STEP_S = 0.8
OFF_S = 0.137  # between one copy and the next
FAULTS = (
    (FaultClass.LINK_FLAP, "dead"),
    (FaultClass.GPU_OFF_BUS, "xid"),
    (FaultClass.PROCESS_DEAD, "killed"),
    (FaultClass.GPU_MEMORY, "48"),
    (FaultClass.NVLINK, "xid_149"),
    (FaultClass.PROCESS_DEAD, "raised"),
)
Wire = tuple[str, dict[str, str], bytes, int, str]  # subject, headers, body, received at in us, stream
_NAMES = re.compile(r"\br(\d+)-t(?=\d)|\btrain-\d+\b|GPU-[0-9a-f-]{36}|\b0x[0-9a-f]{16}\b")
_SIZE = struct.Struct("<Q")
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[Wire])


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`faulty` pods have a fault each, of the classes of `FAULTS` in turn."""

    pods: int
    seconds: int
    faulty: int = 0
    together: bool = True  # reports of a host's ranks travel in one message
    fault_at_s: float = 14.0
    seed: int = 1

    @property
    def hosts(self) -> int:
        return self.pods * RACKS_A_POD * HOSTS_A_RACK

    @property
    def gpus(self) -> int:
        return self.pods * GPUS_A_POD

    def fabric(self) -> Fabric:
        return nvl72(racks=self.pods * RACKS_A_POD)

    def write(self, path: Path, progress: Callable[[str], None] = lambda text: None) -> dict[str, int]:
        """Put the run into a file for `seconds_of`; returns what it holds."""
        fabric = self.fabric()
        made = [self._simulated(fabric, pod) for pod in range(min(self.faulty, self.pods))]
        copied = self._simulated(fabric, self.faulty) if self.faulty < self.pods else []
        copies = range(self.faulty, self.pods)
        renamed = {pod: _renamed(fabric, self.faulty, pod) for pod in copies}
        counts = {"messages": 0, "samples": 0, "of_jobs": 0}
        late: list[_Template] = []  # of the second before
        with path.open("wb") as out:
            for second in range(self.seconds):
                wires: list[Wire] = [wire for job in made for wire in job[second][0]]
                samples = sum(job[second][1] for job in made)
                early = [_Template(wire) for wire in copied[second][0]] if copied else []
                begin_us = _us(START) + second * 1_000_000
                for pod in copies:
                    off_us, racks = int(((pod - self.faulty) * OFF_S) % 1.0 * 1e6), (pod - self.faulty) * RACKS_A_POD
                    for each in (*late, *early):
                        at_us = each.at_us + off_us
                        if begin_us <= at_us < begin_us + 1_000_000:
                            wires.append(each.filled(racks, renamed[pod], at_us))
                    samples += copied[second][1]
                late = early
                wires.sort(key=lambda wire: wire[3])
                block = _ENCODER.encode(wires)
                out.write(_SIZE.pack(len(block)))
                out.write(block)
                counts["messages"] += len(wires)
                counts["samples"] += samples
                counts["of_jobs"] += sum(wire[4] == "JOB" for wire in wires)
                progress(f"second {second + 1} of {self.seconds}")
        return counts

    def _simulated(self, fabric: Fabric, pod: int) -> list[tuple[list[Wire], int]]:
        """Of each second: the messages of one pod's job, and how many samples they hold."""
        racks = range(pod * RACKS_A_POD, (pod + 1) * RACKS_A_POD)
        mine = tuple(f"r{rack}-t{tray}" for rack in racks for tray in range(HOSTS_A_RACK))
        base = scenario("healthy", hosts=72, spares=0, others=0, step_s=STEP_S, fabric="nvl72")
        faults: tuple[FaultSpec, ...] = ()
        if pod < self.faulty:
            kind, flavour = FAULTS[pod % len(FAULTS)]
            at_s = self.fault_at_s + (pod * 0.731) % 5.0
            faults = (FaultSpec(fault_class=kind, flavour=flavour, at_s=at_s),)
        spec = replace(
            base, fabric=fabric, hosts=mine, spares=(), faults=faults, job=f"train-{pod}",
            noise=replace(base.noise, other_jobs=False), reports_together=self.together,
        )  # fmt: skip
        simulation = Simulation(spec, self.seed + pod)
        seconds: list[tuple[list[Wire], int]] = [([], 0) for _ in range(self.seconds + 1)]
        for message in simulation.records(spec.start + timedelta(seconds=self.seconds)):
            if isinstance(message.data, TopologySnapshot):
                continue  # the graph is given: see ADR 6 for what joining sources costs
            second = int((message.received_at - spec.start).total_seconds())
            wires, samples = seconds[second]
            wires.append(_wire(message))
            seconds[second] = (wires, samples + len(getattr(message.data, "samples", ())))
        return seconds


def seconds_of(path: Path) -> Iterator[list[Wire]]:
    with path.open("rb") as file:
        while head := file.read(_SIZE.size):
            yield _DECODER.decode(file.read(_SIZE.unpack(head)[0]))


def at(us: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=us)


def _us(when: datetime) -> int:
    return (when - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def _wire(message: Message) -> Wire:
    encoded = encode(message.data, id=message.id, source=message.source, time=message.time, component=message.component)
    return message.subject, encoded.headers, encoded.body, _us(message.received_at), message.stream


class _Template:
    """A message with gaps where hosts, the job and unique names stand: filling them is quick, finding them is not."""

    def __init__(self, wire: Wire) -> None:
        subject, headers, body, self.at_us, self.stream = wire
        self._names = list(headers)
        text = "\0".join([subject, *headers.values(), body.decode()])
        self._literals: list[str] = []
        self._gaps: list[tuple[int, str]] = []  # the rack, or -1 and the name
        end = 0
        for found in _NAMES.finditer(text):
            self._literals.append(text[end : found.start()])
            self._gaps.append((int(found[1]), "") if found[1] else (-1, found[0]))
            end = found.end()
        self._literals.append(text[end:])

    def filled(self, racks: int, names: dict[str, str], at_us: int) -> Wire:
        """With all racks moved by so many, and names exchanged."""
        out = []
        for literal, (rack, name) in zip(self._literals, self._gaps, strict=False):
            out.append(literal)
            out.append(names.get(name, name) if rack < 0 else f"r{rack + racks}-t")
        out.append(self._literals[-1])
        subject, *headers, body = "".join(out).split("\0")
        return subject, dict(zip(self._names, headers, strict=True)), body.encode(), at_us, self.stream


def _renamed(fabric: Fabric, of: int, to: int) -> dict[str, str]:
    """What one pod's job and parts are called in another."""
    names = {f"train-{of}": f"train-{to}"}
    racks = (to - of) * RACKS_A_POD
    for rack in range(of * RACKS_A_POD, (of + 1) * RACKS_A_POD):
        for tray in range(HOSTS_A_RACK):
            ours, theirs = f"r{rack}-t{tray}", f"r{rack + racks}-t{tray}"
            for a, b in zip(_parts(fabric, ours), _parts(fabric, theirs), strict=True):
                for name in ("uuid", "guid"):
                    if (value := fabric.attr(a, name)) and (other := fabric.attr(b, name)):
                        names[value] = other
    return names


def _parts(fabric: Fabric, host: str) -> tuple[str, ...]:
    return (*fabric.gpus_of_host(host), *fabric.nics_of_host(host))
