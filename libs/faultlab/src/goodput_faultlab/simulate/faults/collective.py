"""Ranks that no longer agree on what to do next, and a stall that leaves no trace at all."""

from __future__ import annotations

import random

from goodput_common.contracts import ids
from goodput_common.contracts.verdict import ActionKind
from goodput_faultlab.simulate.faults.model import Fault, Maker, first_of, victim_place
from goodput_faultlab.simulate.layout import OPS, SCHEDULE, WORLD_GROUP, Layout
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
            op = SCHEDULE[number]
            mismatch = ("all_reduce", op.sizes) if flavour == "other_op" else (op.op, (op.sizes[0] - 8192,))
            note = "calls another collective than its group" if flavour == "other_op" else "calls it with another size"
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


def _no_trace(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
    """All ranks wait in the same collective and nothing anywhere says why: the right answer is to blame nobody."""
    return Fault(
        spec=spec,
        flavour="no_trace",
        component=None,
        ranks=(),
        note="every rank waits in the same collective, no evidence",
        obstacle=lambda op: Obstacle(broken=frozenset((WORLD_GROUP,)), broken_from=OPS - 1),
        cured_by=lambda kind, target: kind in RESTARTS or kind is ActionKind.REINIT_COMMUNICATORS,
    )


DESYNC: dict[str, Maker] = {each: _desync(each) for each in ("skips", "other_op", "other_size")}
UNDETERMINED: dict[str, Maker] = {"no_trace": _no_trace}
