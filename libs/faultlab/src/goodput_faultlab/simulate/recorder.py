"""What a rank's flight recorder holds at a given position: the newest entries of its groups."""

from __future__ import annotations

from datetime import datetime, timedelta

from goodput_common.contracts.job import Collective, CollectiveState
from goodput_faultlab.simulate.layout import PER_STEP, SCHEDULE, Layout
from goodput_faultlab.simulate.stall import Position


def recorded(
    layout: Layout,
    rank: int,
    done: int,
    position: Position,
    *,
    at: datetime,
    step_s: float,
    skipped: int | None,
    mismatch: tuple[str, tuple[int, ...]] | None,
    timeout_ms: int,
) -> tuple[Collective, ...]:
    """The entries of the last finished step and of the one in hand. `at` is when the latter began, by the host's clock."""
    out = []
    first_wrong = next((n for n, op in enumerate(SCHEDULE) if op.scope == "data"), 0)
    for step in range(max(0, done - 1), done + 1):
        in_hand = step == done
        began = at if in_hand else at - timedelta(seconds=step_s)
        seqs = {scope: step * each for scope, each in PER_STEP.items()}
        for number, op in enumerate(SCHEDULE):
            if in_hand and number >= position.enqueued:
                break
            if in_hand and number == skipped:
                continue
            seqs[op.scope] += 1
            name, sizes = op.op, op.sizes
            if in_hand and mismatch is not None and number == first_wrong:
                name, sizes = mismatch
            if not in_hand or number < position.completed:
                state = CollectiveState.COMPLETED
            elif number == position.completed:
                state = CollectiveState.STARTED
            else:
                state = CollectiveState.SCHEDULED
            out.append(
                Collective(
                    group=layout.group(rank, op.scope).name,
                    seq=seqs[op.scope],
                    op=name,
                    state=state,
                    op_id=step * len(SCHEDULE) + number + 1,
                    created_at=began + timedelta(seconds=op.at * step_s),
                    input_sizes=(sizes,),
                    output_sizes=(sizes,),
                    dtypes=("BFloat16",),
                    timeout_ms=timeout_ms,
                    frames=(op.frame,),
                )
            )
    return tuple(out)
