"""Ranks that no longer agree on what to do next, and a stall that leaves no trace at all."""

from __future__ import annotations

import random

from goodput_common.contracts import ids
from goodput_common.contracts.verdict import ActionKind
from goodput_faultlab.simulate.faults.model import Fault, Maker, first_of, victim_place
from goodput_faultlab.simulate.layout import OPS, SCHEDULE, Layout
from goodput_faultlab.simulate.spec import FaultSpec
from goodput_faultlab.simulate.stall import Obstacle
from goodput_topology.graph import Fabric

RESTARTS = frozenset({ActionKind.RESTART_JOB, ActionKind.RESTART_RANK, ActionKind.SWAP_NODE, ActionKind.DRAIN_AND_RESUME})


def _desync(flavour: str) -> Maker:
    def make(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
        place = victim_place(spec, layout, rng)
        number = first_of("data") + (1 if flavour == "skips" else 0)
        mismatch = None
        if flavour == "skips":
            note, obstacle = "leaves out the parameter all-gather", Obstacle(skips={place.rank: number})
        else:
            op, following = SCHEDULE[number], SCHEDULE[number + 1]
            mismatch, note = {
                "other_op": (("all_reduce", op.sizes), "calls another collective than its group"),
                "other_size": ((op.op, (op.sizes[0] - 8192,)), "calls it with another size"),
                "order": ((following.op, following.sizes), "calls two collectives in the other order"),
                "uneven_data": (("all_reduce", (1,)), "has run out of data and waits for the others at the end"),
            }[flavour]
            obstacle = Obstacle(differs={place.rank: number})
        return Fault(
            spec=spec,
            flavour=flavour,
            component=ids.rank_id(layout.job, place.rank),
            ranks=(place.rank,),
            host=place.host,
            note=f"rank {place.rank} {note}",
            obstacle=lambda op: obstacle,
            mismatch=mismatch,
            cured_by=lambda kind, target: kind in RESTARTS,
        )

    return make


def _no_trace(flavour: str) -> Maker:
    """All ranks (or those of one group) wait in the same collective and nothing anywhere says why: the right answer is to
    blame nobody."""

    def make(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
        whole = flavour == "no_trace"
        group = layout.world if whole else rng.choice(layout.data)
        begins = OPS - 1 if whole else first_of("data")
        return Fault(
            spec=spec,
            flavour=flavour,
            component=None,
            ranks=(),
            note=f"every rank of {group.desc} waits in the same collective, no evidence",
            obstacle=lambda op: Obstacle(broken=frozenset((group.name,)), broken_from=begins if whole else max(op, begins)),
            cured_by=lambda kind, target: kind in RESTARTS or kind is ActionKind.REINIT_COMMUNICATORS,
        )

    return make


DESYNC: dict[str, Maker] = {each: _desync(each) for each in ("skips", "other_op", "other_size", "order", "uneven_data")}
UNDETERMINED: dict[str, Maker] = {each: _no_trace(each) for each in ("no_trace", "no_trace_group")}
