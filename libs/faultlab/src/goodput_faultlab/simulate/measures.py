"""Readings at intervals: what all hosts measure while the job runs, and what faults add to it.

Every host is read every few seconds, each at its own moments, and only then is anything made up: a fabric of 9,000 hosts
costs a heap entry a host. What is read follows the job. Traffic is proportional to the steps carried out since the last
reading, so it stops when the job does and slows when its steps do; a GPU that waits in a collective polls and draws less.

A fault moves counters (`Rise`) and measurements (`Level`) through the same readings. What a fault tells by itself (a
state, a measurement in an emission) holds until the fault is gone: the usual value is not told over it. Of a GPU from which
NVML has no answer nothing is measured.

The real collector reads every second, tells error counters at once and traffic and measurements every 5 s. Here all is read
every 5 s: intervals say so, and rates come out the same.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Counter, Gauge, Sample, Source, State
from goodput_faultlab.simulate import baseline
from goodput_faultlab.simulate.clockwork import Clockwork
from goodput_faultlab.simulate.collectors import Collectors
from goodput_faultlab.simulate.flows import Flows
from goodput_faultlab.simulate.healthy import HostReadings
from goodput_faultlab.simulate.moments import FULL_EVERY_S, Batch, Moment, grains
from goodput_faultlab.simulate.spec import SimulationSpec
from goodput_faultlab.simulate.switches import SwitchReadings

if TYPE_CHECKING:
    from goodput_faultlab.simulate.faults.model import Fault, Level, Rise
    from goodput_faultlab.simulate.training import Training

READ_EVERY_S = 5.0  # of hosts that are read for what faults do only
NO_ANSWER = frozenset({("gpu", "lost"), ("gpu", "unreadable"), ("gpu", "unseen")})
Key = tuple[ComponentId, str]
LevelKey = tuple[ComponentId, str, tuple[tuple[str, str], ...]]


class Usual(Protocol):
    """What a host or switch reads when nothing is wrong."""

    every_s: float
    everywhere: bool  # it carries the job's traffic whichever hosts the job runs on

    @property
    def covered(self) -> dict[Source, tuple[ComponentId, ...]]: ...
    def read(self, moment: Moment) -> dict[Source, Batch]: ...
    def shares(self, told: Batch, moment: Moment) -> list[Gauge]: ...
    def stands(self, component: ComponentId, name: str) -> float | None: ...


class _Rising(NamedTuple):
    number: int  # of the fault
    rise: Rise
    began_s: float


@dataclass(slots=True)
class _Standing:
    """A measurement that a fault has moved."""

    number: int
    level: Level
    began_s: float
    usual: float  # where it comes from
    told: float = math.nan
    told_s: float = -math.inf


@dataclass(slots=True)
class _Said:
    """A state or measurement that a fault told by itself."""

    number: int
    source: Source
    sample: State | Gauge
    told_s: float


@dataclass(slots=True)
class _Watched:
    """A host whose readings are taken. `usual` is None where only faults are told of."""

    usual: Usual | None
    at_s: float
    at: datetime
    work: float
    first: bool = True


class Measures:
    """`watch` begins a host's readings; `begin`, `end` and `told` say what faults do."""

    def __init__(
        self,
        spec: SimulationSpec,
        clockwork: Clockwork,
        collectors: Collectors,
        training: Training,
        flows: Flows,
        seed: int,
    ) -> None:
        self._spec = spec
        self._clockwork = clockwork
        self._collectors = collectors
        self._training = training
        self._flows = flows
        self._seed = seed
        self._table = grains(clockwork.rng("measures"))
        self._watched: dict[str, _Watched] = {}
        self._rising: dict[str, list[_Rising]] = defaultdict(list)
        self._standing: dict[str, dict[LevelKey, _Standing]] = defaultdict(dict)
        self._said: dict[str, dict[Key, _Said]] = defaultdict(dict)
        self._carriers: tuple[int, frozenset[str]] = (-1, frozenset())

    def start(self, hosts: tuple[str, ...], switches: tuple[str, ...] = ()) -> None:
        """Read these from now on, each at its own moments."""
        rng = self._clockwork.rng("counters")
        for host in hosts:
            self._clockwork.after(rng.uniform(1.0, HostReadings.every_s), partial(self._begin_host, host))
        for switch in switches:
            self._clockwork.after(rng.uniform(1.0, SwitchReadings.every_s), partial(self._begin_switch, switch))

    # ------------------------------------------------------------------------------------------------- faults

    def begin(self, number: int, fault: Fault) -> None:
        """A fault takes effect. Hosts that nobody reads otherwise are read for what it does there."""
        now_s = self._clockwork.elapsed_s
        for rise in fault.rises:
            self._rising[rise.host].append(_Rising(number, rise, now_s))
            self._watch_for(rise.host, rise.source)
        for level in fault.levels:
            key = (level.component, level.name, tuple(sorted(level.attrs.items())))
            self._standing[level.host][key] = _Standing(number, level, now_s, self._stands(level))
            self._watch_for(level.host, level.source)

    def end(self, number: int) -> None:
        """What a fault did is over; what it has counted stays counted, up to now."""
        now_s = self._clockwork.elapsed_s
        for host, rising in self._rising.items():
            self._rising[host] = [
                each._replace(rise=_until(each.rise, now_s - each.began_s)) if each.number == number else each
                for each in rising
            ]
        for host, standing in self._standing.items():
            self._standing[host] = {key: each for key, each in standing.items() if each.number != number}
        for host, said in self._said.items():
            self._said[host] = {key: each for key, each in said.items() if each.number != number}

    def told(self, host: str, number: int, source: Source, sample: Sample | None) -> None:
        """A fault has told this by itself."""
        if isinstance(sample, State | Gauge):
            said = _Said(number, source, sample, self._clockwork.elapsed_s)
            self._said[host][sample.component, sample.name] = said

    def reboot(self, host: str) -> None:
        """The host's counters have begun anew: the next reading is a first one."""
        if host in self._watched:
            self._watched[host].first = True

    def _stands(self, level: Level) -> float:
        if level.from_value is not None:
            return level.from_value
        watched = self._watched.get(level.host)
        usual = watched.usual.stands(level.component, level.name) if watched is not None and watched.usual else None
        return level.value if usual is None else usual

    def _watch_for(self, host: str, source: Source) -> None:
        """Without switch telemetry, what a switch counts is told by nobody."""
        if source is Source.SWITCH and not self._spec.switches:
            return
        if host not in self._watched:
            self._begin(host, None)

    # ------------------------------------------------------------------------------------------------- readings

    def _begin_host(self, host: str) -> None:
        counts = self._collectors.counts
        self._usually(host, HostReadings(self._spec.fabric, host, counts, self._table, self._spec.step_s, self._seed))

    def _begin_switch(self, switch: str) -> None:
        counts, spec = self._collectors.counts, self._spec
        self._usually(switch, SwitchReadings(spec.fabric, switch, counts, self._table, spec.step_s, self._seed, self._flows))

    def _usually(self, host: str, usual: Usual) -> None:
        self._collectors.covers(host, usual.covered)
        if host in self._watched:  # a fault was quicker
            self._watched[host].usual = usual
        else:
            self._begin(host, usual)

    def _begin(self, host: str, usual: Usual | None) -> None:
        now_s, at = self._clockwork.elapsed_s, self._collectors.clock(host)
        self._watched[host] = _Watched(usual, now_s, at, self._training.work)
        if usual is not None:
            self._read(host)
        else:
            self._watched[host].first = False
            self._clockwork.after(READ_EVERY_S, lambda: self._read(host))

    def _read(self, host: str) -> None:
        watched = self._watched[host]
        usual = watched.usual
        self._clockwork.after(READ_EVERY_S if usual is None else usual.every_s, lambda: self._read(host))
        now_s, at, work = self._clockwork.elapsed_s, self._collectors.clock(host), self._training.work
        active = (usual is not None and usual.everywhere) or host in self._hosts()
        interval_s = round(now_s - watched.at_s, 3)
        moment = Moment(
            at, now_s, interval_s, work - watched.work if active else 0.0, interval_s / self._spec.step_s, active,
            self._training.waiting == "checkpoint", watched.first,
        )  # fmt: skip
        batches: dict[Source, Batch] = usual.read(moment) if usual is not None else {}
        if self._said.get(host) or self._rising.get(host) or self._standing.get(host):
            self._with_faults(host, batches, watched, moment)
        if usual is not None and (ethtool := batches.get(Source.ETHTOOL)):
            ethtool += usual.shares(ethtool, moment)
        since = watched.at
        watched.at_s, watched.at, watched.work, watched.first = now_s, at, work, self._collectors.is_silent(host)
        for source, batch in batches.items():
            if batch:
                self._collectors.send(host, source, batch, since)

    def _hosts(self) -> frozenset[str]:
        layout = self._training.layout
        if self._carriers[0] != layout.generation:
            self._carriers = (layout.generation, frozenset(layout.hosts))
        return self._carriers[1]

    def _with_faults(self, host: str, batches: dict[Source, Batch], watched: _Watched, moment: Moment) -> None:
        standing, said = self._standing.get(host, {}), self._said.get(host, {})
        overruled = {key[:2] for key in standing} | said.keys()
        if overruled:
            for source, batch in batches.items():
                batches[source] = [each for each in batch if not _is_any_of(each, overruled)]
        if (mute := _mute(said.values())) and (nvml := batches.get(Source.NVML)):
            batches[Source.NVML] = [each for each in nvml if not _of_gpu(each) & mute]
        for each in said.values():
            if moment.now_s - each.told_s >= FULL_EVERY_S:
                each.told_s = moment.now_s
                again = msgspec.structs.replace(each.sample, observed_at=moment.at)
                batches.setdefault(each.source, []).append(again)
        for level in standing.values():
            if (gauge := _stands(level, moment, self._clockwork.rng("levels").gauss)) is not None:
                batches.setdefault(level.level.source, []).append(gauge)
        if not moment.first:
            self._rise(host, batches, watched, moment)
        self._rising[host] = [each for each in self._rising[host] if each.began_s + each.rise.until_s > moment.now_s]

    def _rise(self, host: str, batches: dict[Source, Batch], watched: _Watched, moment: Moment) -> None:
        """Add what faults count to what is counted anyway: one increase a counter and reading."""
        for each in self._rising[host]:
            rise, since_s = each.rise, each.began_s
            from_s, until_s = max(watched.at_s, since_s + rise.from_s), min(moment.now_s, since_s + rise.until_s)
            if until_s <= from_s:
                continue
            wanted = rise.per_s * (until_s - from_s)
            rng = self._clockwork.rng("rises")
            delta = int(wanted) + (rng.random() < wanted - int(wanted))
            counted = self._collectors.counts.add(rise.component, rise.name, delta) if delta > 0 else None
            if counted is None:
                continue
            batch = batches.setdefault(rise.source, [])
            n = _place(batch, rise.component, rise.name)
            made = Counter(
                component=rise.component, name=rise.name, observed_at=moment.at, delta=counted.delta,
                interval_s=moment.interval_s, value=counted.value, doubt=counted.doubt,
            )  # fmt: skip
            if n is None:
                batch.append(made)
            else:
                before = batch[n]
                assert isinstance(before, Counter)
                batch[n] = msgspec.structs.replace(made, delta=before.delta + made.delta)


def _until(rise: Rise, seconds: float) -> Rise:
    return replace(rise, until_s=min(rise.until_s, seconds))


def _mute(said: Iterable[_Said]) -> frozenset[ComponentId]:
    """The GPUs from which NVML has no answer: no clock, no power, nothing."""
    return frozenset(each.sample.component for each in said if _of(each.sample) in NO_ANSWER)


def _of(sample: Sample) -> tuple[str, str]:
    return (sample.name, sample.value) if isinstance(sample, State) else ("", "")


def _of_gpu(sample: Sample) -> set[ComponentId]:
    """The components that a sample is about: a GPU, or a link of one and that GPU."""
    return {sample.component, sample.attrs.get("gpu", "")} if isinstance(sample, State) else {sample.component}


def _is_any_of(sample: Sample, keys: set[Key]) -> bool:
    return isinstance(sample, Gauge | State) and (sample.component, sample.name) in keys


def _stands(standing: _Standing, moment: Moment, gauss: Callable[[float, float], float]) -> Gauge | None:
    """The measurement, when it has moved by more than its noise or has not been told for long."""
    level, into_s = standing.level, moment.now_s - standing.began_s
    if not level.from_s <= into_s < level.until_s:
        return None
    share = min(1.0, (into_s - level.from_s) / level.ramp_s) if level.ramp_s > 0 else 1.0
    value = standing.usual + (level.value - standing.usual) * share + (gauss(0.0, level.wavers) if level.wavers else 0.0)
    noise = baseline.NOISE.get(level.name, baseline.SHARE_NOISE)
    if abs(value - standing.told) <= noise and moment.now_s - standing.told_s < FULL_EVERY_S:
        return None
    standing.told, standing.told_s = value, moment.now_s
    return Gauge(
        component=level.component, name=level.name, observed_at=moment.at, value=round(value, 4), attrs=dict(level.attrs)
    )


def _place(batch: Batch, component: ComponentId, name: str) -> int | None:
    return next(
        (
            n
            for n, each in enumerate(batch)
            if isinstance(each, Counter) and each.name == name and each.component == component
        ),
        None,
    )
