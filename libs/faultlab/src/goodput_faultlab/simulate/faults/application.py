"""Stalls and ends that are nobody's hardware, though they look like it: more than half of the watchdog time-outs in one
large operator's fleet began on the CPU.

The right answer is that no hardware is at fault; to blame the GPU that logged an Xid 13, or the first rank that died, is
wrong.
"""

from __future__ import annotations

import random

from goodput_common.contracts.telemetry import Source
from goodput_common.contracts.verdict import ActionKind
from goodput_faultlab.simulate import fault_lines
from goodput_faultlab.simulate.faults import traces
from goodput_faultlab.simulate.faults.model import Emission, Exit, Fault, Maker, count_between
from goodput_faultlab.simulate.layout import Layout
from goodput_faultlab.simulate.spec import FaultSpec
from goodput_faultlab.simulate.stall import Obstacle
from goodput_topology.graph import Fabric

NAN_LOSS = "FloatingPointError: loss is nan at step 4121 on all ranks"
STORE_TIMEOUT = "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//barrier"
ILLEGAL_ACCESS = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
EVALUATES = ("evaluate.py:88 in score", "train.py:219 in validate")
HELPS = frozenset({ActionKind.RESTART_JOB, ActionKind.RESTART_RANK, ActionKind.SWAP_NODE, ActionKind.DRAIN_AND_RESUME})


def _fault(
    fabric: Fabric,
    spec: FaultSpec,
    flavour: str,
    note: str,
    layout: Layout,
    emissions: list[traces.Trace],
    exits: list[Exit],
    at_op_0: bool,
) -> Fault:
    everybody = range(layout.world_size)

    def obstacle(op: int) -> Obstacle:
        if at_op_0 and op:
            return Obstacle()  # this step still comes through; the next does not begin
        return Obstacle(stops_at=dict.fromkeys(everybody, op))

    return Fault(
        spec=spec,
        flavour=flavour,
        component=None,
        note=note,
        obstacle=obstacle,
        emissions=traces.left(emissions).emissions,
        exits=tuple(exits),
        symptoms=traces.symptoms_of(emissions, (), fabric),
        cured_by=lambda kind, target: kind in HELPS,
    )


def _raises(flavour: str, reason: str, spread_s: float) -> Maker:
    """Every rank raises the same exception, within a moment: what they have in common is the program."""

    def make(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
        exits = [Exit(rng.uniform(0.05, spread_s), rank, reason=reason) for rank in range(layout.world_size)]
        return _fault(
            fabric, spec, flavour, f"every rank ends with {reason.partition(':')[0]}", layout, [], exits, at_op_0=True
        )

    return make


def _xids(number: int) -> Maker:
    """A kernel of the program reads where it must not: Xids on several GPUs, at other units each time; those ranks raise."""

    def make(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
        count = min(layout.world_size, count_between(2, 8, spec.severity))
        ranks = rng.sample(range(layout.world_size), count)
        found: list[traces.Trace] = []
        exits = []
        for rank in ranks:
            place, at_s = layout.places[rank], rng.uniform(0.0, 0.8)
            made = fault_lines.application_xid(fabric, place.gpu, place.pid, number, rng.randrange(1, 64))
            found.append(Emission(at_s, place.host, Source.KERNEL_LOG, made))
            if number != 43:
                after = fault_lines.application_xid(fabric, place.gpu, place.pid, 43, rng.randrange(1, 64))
                found.append(Emission(at_s + 0.05, place.host, Source.KERNEL_LOG, after))
            exits.append(Exit(at_s + rng.uniform(0.3, 1.5), rank, reason=ILLEGAL_ACCESS))
        note = f"the program reads out of bounds on {count} ranks (Xid {number})"
        return _fault(fabric, spec, f"xid_{number}", note, layout, found, exits, at_op_0=False)

    return make


def _evaluates(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
    """Every rank works on its CPU for far longer than a step lasts (evaluation, a tokeniser): no collective is under way."""
    fault = _fault(fabric, spec, "cpu_section", "every rank evaluates on its CPU", layout, [], [], at_op_0=True)
    fault.ranks, fault.phase, fault.frames = tuple(range(layout.world_size)), "evaluation", EVALUATES
    return fault


FLAVOURS: dict[str, Maker] = {
    "nan_loss": _raises("nan_loss", NAN_LOSS, 0.4),
    "store_timeout": _raises("store_timeout", STORE_TIMEOUT, 2.5),
    "xid_13": _xids(13),
    "xid_31": _xids(31),
    "xid_43": _xids(43),
    "cpu_section": _evaluates,
}
