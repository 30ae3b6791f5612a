"""How long a step lasts, and what each rank does in it.

A step is work of its own in four phases, and waiting for the others inside collectives. All ranks finish a step together,
so one that needs longer for its own work makes every other wait: it has the longest own time and the shortest wait. A
slow network makes all of them wait alike.

Where the figures come from: the shares are those of a large model's step with most communication overlapped (a round
guess; the ByteDance traces give compute but not what a trainer would mark). `STEP_SPREAD` and `RANK_SPREAD` are measured:
the steps of `bytedance-straggler/trace-AR.parquet` (end less start of each `step`) spread by 0.5 % about their mean and the
iterations of `superbenchmark/megatron_deepspeed.log` ("elapsed time per iteration") by 0.4 %; summed `*-compute` durations
of the data-parallel ranks of one stage and step in `trace-ST.parquet` by 0.3 to 0.7 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from goodput_faultlab.simulate.faults.model import Slowdown

STEP_SPREAD = 0.006
RANK_SPREAD = 0.005


class Phase(NamedTuple):
    """`lasts`: its share of a usual step. `own`: the share in which the rank works and waits for nobody."""

    name: str
    lasts: float
    own: float


PHASES = (
    Phase("data", 0.03, 0.03),
    Phase("forward", 0.37, 0.34),
    Phase("backward", 0.38, 0.33),
    Phase("optimizer", 0.22, 0.08),
)
LAST = PHASES[-1].name
_OWN = tuple((phase.name, phase.own) for phase in PHASES)


@dataclass(frozen=True, slots=True)
class Pace:
    """What makes steps longer now. `factor` is the step's; `late[rank][phase]` in shares of a usual step."""

    factor: float = 1.0
    late: Mapping[int, Mapping[str, float]] = field(default_factory=dict)


USUAL = Pace()


class Step(NamedTuple):
    """A finished step: how long it took, and what it took so long for."""

    lasted_s: float
    pace: Pace


def pace_of(slowdowns: Iterable[tuple[Slowdown, float]]) -> Pace:
    """All that slows the job down now, each with the seconds since its fault began. What they cost adds up."""
    factor, late = 1.0, dict[int, dict[str, float]]()
    for each, since_s in slowdowns:
        into_s = since_s - each.after_s
        if into_s < 0:
            continue
        share = min(1.0, into_s / each.ramp_s) if each.ramp_s > 0 else 1.0
        factor += (each.factor - 1.0) * share
        for rank, by in each.late.items():
            phases = late.setdefault(rank, {})
            phases[each.phase] = phases.get(each.phase, 0.0) + by * share
    longest = max((sum(phases.values()) for phases in late.values()), default=0.0)
    factor = max(factor, 1.0 + longest)  # nobody finishes before the last one
    return Pace(factor, late) if factor != 1.0 or late else USUAL


def own_ms(rank: int, recent: Iterable[Step], step_s: float, grain: float) -> dict[str, float]:
    """Mean own time of a rank in each phase of the recent steps. `grain` is how far from 1 it came out this time."""
    steps = list(recent)
    if not any(step.pace.late for step in steps):
        usual_ms = 1000 * step_s
        return {name: int(10 * (usual_ms * (share * grain)) + 0.5) / 10 for name, share in _OWN}  # `round` takes far longer
    own = {phase.name: phase.own * grain for phase in PHASES}
    for step in steps:
        for name, by in step.pace.late.get(rank, {}).items():
            own[name] = own.get(name, 0.0) + by / len(steps)
    return {name: round(1000 * step_s * share, 1) for name, share in own.items()}


def whereabouts(into_s: float, step_s: float, late: Mapping[str, float]) -> tuple[str, float]:
    """The phase that a rank's main thread is in `into_s` after its step began, and for how long. In the last one it waits
    for whoever is late."""
    before_s = 0.0
    for name, lasts in _LASTS:
        until_s = before_s + step_s * (lasts + late.get(name, 0.0) if late else lasts)
        if into_s < until_s:
            return name, into_s - before_s
        before_s = until_s
    return LAST, into_s - before_s


_LASTS = tuple((phase.name, phase.lasts) for phase in PHASES[:-1])
