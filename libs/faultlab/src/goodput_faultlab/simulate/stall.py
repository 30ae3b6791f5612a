"""How one stuck rank or one dead cable stops everybody: the positions of all ranks once nothing moves any more.

Collectives of a step run on each rank in order. One completes when every member of its group has reached it with all
before it completed, and nothing is broken on its way. The host process enqueues further ahead than the GPU executes, up
to the end of the step, where the loss is read. So peers of a stuck rank show *more* enqueued work than it and as little
completed, while over a dead cable all ranks have enqueued the same and one group's operation never completes: no count
differs, and only the topology can tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from goodput_common.contracts.job import GroupProgress
from goodput_faultlab.simulate.layout import OPS, PER_STEP, SCHEDULE, Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """What stands in the way inside a step, by the numbers of `SCHEDULE`.

    stops_at[rank] = n: the rank's process enqueues n collectives of the step and no more. halts_at[rank] = n: its
    process goes on enqueueing, its GPU executes n and no more. skips[rank] = n: it leaves collective n out.
    differs[rank] = n: it calls something else there. broken: names of groups over whose path no data flows.
    """

    stops_at: Mapping[int, int] = field(default_factory=dict)
    halts_at: Mapping[int, int] = field(default_factory=dict)
    skips: Mapping[int, int] = field(default_factory=dict)
    differs: Mapping[int, int] = field(default_factory=dict)
    broken: frozenset[str] = frozenset()
    broken_from: int = 0  # collectives of the step that came through before it broke


@dataclass(frozen=True, slots=True)
class Position:
    """How far one rank is inside the stalled step: collectives enqueued and completed, by the schedule's numbers."""

    enqueued: int
    completed: int


def settle(layout: Layout, obstacle: Obstacle) -> list[Position]:
    """Where every rank comes to rest."""
    size = layout.world_size
    enqueued = [obstacle.stops_at.get(rank, OPS) for rank in range(size)]
    completed = [0] * size
    for number, op in enumerate(SCHEDULE):
        for group in {"tensor": layout.tensor, "data": layout.data, "world": [layout.world]}[op.scope]:
            skipping = [rank for rank in group.ranks if obstacle.skips.get(rank) == number and completed[rank] == number]
            for rank in skipping:
                completed[rank] = number + 1  # goes on without; its partners wait for it
            blocked = (
                bool(skipping)
                or (group.name in obstacle.broken and number >= obstacle.broken_from)
                or any(obstacle.differs.get(rank) == number for rank in group.ranks)
            )
            if not blocked and all(
                completed[rank] == number and enqueued[rank] > number and obstacle.halts_at.get(rank, OPS) > number
                for rank in group.ranks
            ):
                for rank in group.ranks:
                    completed[rank] = number + 1
    return [Position(enqueued[rank], completed[rank]) for rank in range(size)]


def counts(
    layout: Layout, rank: int, step: int, position: Position, skipped: int | None = None
) -> tuple[GroupProgress, ...]:
    """Progress per group of `rank`, which finished steps 0..step-1 and stands at `position` inside `step`.

    Sequence numbers count from 1, as the flight recorder's do; -1 is never.
    """
    out = []
    for scope in ("world", "tensor", "data"):
        group = layout.group(rank, scope)
        base = step * PER_STEP[scope]
        numbers = [n for n, op in enumerate(SCHEDULE) if op.scope == scope and n != skipped]
        enqueued = base + sum(1 for n in numbers if n < position.enqueued)
        completed = base + sum(1 for n in numbers if n < position.completed)
        started = completed
        if position.completed < position.enqueued and position.completed in numbers:
            started = completed + 1  # its kernel is on the GPU and waits for the others
        out.append(
            GroupProgress(
                group=group.name,
                desc=group.desc,
                ranks=group.ranks,
                last_enqueued=enqueued or -1,
                last_started=started or -1,
                last_completed=completed or -1,
            )
        )
    return tuple(out)
