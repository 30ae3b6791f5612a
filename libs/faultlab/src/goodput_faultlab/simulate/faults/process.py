"""A rank's process that is gone, and one that is there but makes no progress: no hardware is to blame."""

from __future__ import annotations

import random

from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import EventName, Severity, Source
from goodput_common.contracts.verdict import ActionKind
from goodput_faultlab.simulate import lines
from goodput_faultlab.simulate.faults.model import MOVES_AWAY, Emission, Exit, Fault, Maker, hits, stops, victim_place
from goodput_faultlab.simulate.layout import Layout, Place
from goodput_faultlab.simulate.spec import FaultSpec
from goodput_topology.graph import Fabric


def _cured(place: Place, kind: ActionKind, target: str | None) -> bool:
    """Any action that gives the rank a new process."""
    if kind is ActionKind.RESTART_JOB:
        return True
    return (kind is ActionKind.RESTART_RANK or kind in MOVES_AWAY) and hits(target, place)


def _dead(flavour: str) -> Maker:
    def make(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
        place = victim_place(spec, layout, rng)
        reason = "ValueError: expected a batch of 4 samples, got 3" if flavour == "raised" else ""
        emissions = []
        if flavour == "oom":
            line = (
                f"Memory cgroup out of memory: Killed process {place.pid} (python3) total-vm:91228160kB, anon-rss:61930212kB"
            )
            attrs = {"what": "oom_kill", "pid": str(place.pid), "process": "python3", "scope": "cgroup"}
            killed = lines.event(ids.host_id(place.host), EventName.HOST_STALL, Severity.ERROR, line, attrs)
            emissions.append(Emission(0.1, place.host, Source.KERNEL_LOG, killed))
        return Fault(
            spec=spec,
            flavour=flavour,
            component=ids.rank_id(layout.job, place.rank),
            ranks=(place.rank,),
            host=place.host,
            note=f"process of rank {place.rank} on {place.host} ends ({flavour})",
            obstacle=stops(place.rank),
            emissions=tuple(emissions),
            exits=(Exit(0.0, place.rank, reason),),
            cured_by=lambda kind, target: _cured(place, kind, target),
        )

    return make


def _stall(flavour: str) -> Maker:
    def make(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
        place = victim_place(spec, layout, rng)
        component = ids.rank_id(layout.job, place.rank)
        where = {
            "frozen": ("", ()),
            "gil": ("", ()),
            "data": ("data", ("dataset.py:88 in __next__", "dataloader.py:1284 in _get_data")),
        }[flavour]
        return Fault(
            spec=spec,
            flavour=flavour,
            component=component,
            ranks=(place.rank,),
            host=place.host,
            note={
                "frozen": f"rank {place.rank} on {place.host} is stopped from outside (SIGSTOP)",
                "gil": f"rank {place.rank} on {place.host} holds the interpreter lock for ever",
                "data": f"rank {place.rank} on {place.host} waits for input for ever",
            }[flavour],
            obstacle=stops(place.rank),
            silent=frozenset((place.rank,)) if flavour in ("frozen", "gil") else frozenset(),
            phase=where[0],
            frames=where[1],
            stopped=flavour == "frozen",
            cured_by=lambda kind, target: _cured(place, kind, target),
        )

    return make


DEAD: dict[str, Maker] = {each: _dead(each) for each in ("killed", "segfault", "oom", "raised")}
STALL: dict[str, Maker] = {each: _stall(each) for each in ("frozen", "gil", "data")}
