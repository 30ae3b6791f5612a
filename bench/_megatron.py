"""Flight recorders of a large synthetic training job that hangs, as NCCL's recorder would have written them.

Tensor x pipeline x data parallel in Megatron's order of ranks, all microbatches forward and then all backward: in each, a
rank receives from the stage before, runs its layers (an all-gather and a reduce-scatter in the tensor group for each) and
sends on; a step ends with four all-reduces in the data group (buckets) and one of everybody. Hosts run ahead of their
devices by up to 30 operations. All steps but the last are over; in the last one the culprit stops issuing, and the rest
goes on until nothing can move. Every dump holds the newest 2,000 entries of its rank, as a full ring buffer does: finished
ones, then what is open. Who is at fault is known by construction.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

EPOCH_NS = 1_700_000_000_000_000_000
SPACING_NS = 300_000
AHEAD = 30
MICROBATCHES, LAYERS, BUCKETS = 16, 4, 4
WORLD_PG, TENSOR_PG = "default_pg", "TENSOR_MODEL_PARALLEL_GROUP"
DATA_PG, PIPELINE_PG = "DATA_PARALLEL_GROUP", "PIPELINE_MODEL_PARALLEL_GROUP"
PG_IDS = {WORLD_PG: 0, DATA_PG: 1, TENSOR_PG: 2, PIPELINE_PG: 3}


class Op(NamedTuple):
    """One operation of a stage's program. `toward` is -1 or 1 for an exchange with the stage before or behind."""

    pg: str
    name: str
    toward: int = 0
    size: int = 1


class Made(NamedTuple):
    entries: list[dict[str, Any]]
    enqueued: dict[str, int]
    finished: dict[str, int]


def _layer() -> list[Op]:
    return [Op(TENSOR_PG, "_all_gather_base", size=512), Op(TENSOR_PG, "_reduce_scatter_base", size=512)] * LAYERS


@dataclass(frozen=True)
class Job:
    tensor: int
    pipeline: int
    data: int
    culprit: int
    entries: int = 2000

    @property
    def world(self) -> int:
        return self.tensor * self.pipeline * self.data

    @property
    def stage_size(self) -> int:
        return self.tensor * self.data

    def program(self, stage: int) -> list[Op]:
        """One step of a rank of `stage`."""
        last = self.pipeline - 1

        def forward() -> list[Op]:
            before = [Op(PIPELINE_PG, "recv", -1, 4096)] if stage else []
            return [*before, *_layer(), *([Op(PIPELINE_PG, "send", 1, 4096)] if stage < last else [])]

        def backward() -> list[Op]:
            before = [Op(PIPELINE_PG, "recv", 1, 4096)] if stage < last else []
            return [*before, *_layer(), *([Op(PIPELINE_PG, "send", -1, 4096)] if stage else [])]

        ops = [op for _ in range(MICROBATCHES) for op in forward()]
        ops += [op for _ in range(MICROBATCHES) for op in backward()]
        ops += [Op(DATA_PG, "all_reduce", size=1 << 20)] * BUCKETS
        return [*ops, Op(WORLD_PG, "all_reduce")]

    @cached_property
    def programs(self) -> list[list[Op]]:
        return [self.program(stage) for stage in range(self.pipeline)]

    def group(self, rank: int, pg: str) -> tuple[str, list[int]]:
        """Name (a number, as torch gives them) and members of the group that `rank` has for `pg`."""
        stage, within = divmod(rank, self.stage_size)
        if pg == WORLD_PG:
            return "0", list(range(self.world))
        if pg == DATA_PG:
            first = stage * self.stage_size + within % self.tensor
            return str(1 + stage * self.tensor + within % self.tensor), list(
                range(first, first + self.stage_size, self.tensor)
            )
        if pg == TENSOR_PG:
            first = rank - rank % self.tensor
            return str(1 + self.pipeline * self.tensor + rank // self.tensor), list(range(first, first + self.tensor))
        number = 1 + self.pipeline * self.tensor + self.world // self.tensor + within
        return str(number), list(range(within, self.world, self.stage_size))

    @cached_property
    def hang(self) -> tuple[list[int], list[int]]:
        """(issued, done) of each rank in the last step, once nothing can move any more."""
        stop = len(self.programs[self.culprit // self.stage_size]) // 2
        done, arrived = [0] * self.world, [-1] * self.world
        meeting: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        sizes = {WORLD_PG: self.world, DATA_PG: self.data, TENSOR_PG: self.tensor}
        todo = list(range(self.world))
        while todo:
            rank = todo.pop()
            stage, within = divmod(rank, self.stage_size)
            at = done[rank]
            if at >= len(self.programs[stage]) or (rank == self.culprit and at >= stop) or arrived[rank] == at:
                continue
            arrived[rank] = at
            op = self.programs[stage][at]
            key: tuple[Any, ...]
            if op.toward:
                ends = (rank, rank + op.toward * self.stage_size)
                key, size = (ends if op.name == "send" else ends[::-1]), 2
            elif op.pg == WORLD_PG:
                key, size = (op.pg,), sizes[op.pg]
            elif op.pg == DATA_PG:
                key, size = (op.pg, stage, within % self.tensor), sizes[op.pg]
            else:
                key, size = (op.pg, rank // self.tensor), sizes[op.pg]
            here = meeting[key]
            here.append(rank)
            if len(here) == size:
                for each in here:
                    done[each] += 1
                todo += here
                here.clear()
        issued = [
            min(stop if rank == self.culprit else len(self.programs[rank // self.stage_size]), each + AHEAD)
            for rank, each in enumerate(done)
        ]
        return issued, done

    def recorder(self, rank: int) -> dict[str, Any]:
        """What torch would have written for `rank`, as plain data. Its entries are shared with the next call's."""
        made = self._entries(rank // self.stage_size, self.hang[0][rank], self.hang[1][rank])
        groups = {pg: self.group(rank, pg) for pg in PG_IDS}
        names = {PG_IDS[pg]: name for pg, (name, _) in groups.items()}
        for entry in made.entries:  # a pair of its own for each, as torch writes them
            entry["process_group"] = (names[entry["pg_id"]], entry["process_group"][1])
        return {
            "version": "2.10",
            "nccl_version": "2.27.3",
            "pg_config": {name: {"name": name, "desc": pg, "ranks": str(members)} for pg, (name, members) in groups.items()},
            "pg_status": {
                str(PG_IDS[pg]): {
                    "last_enqueued_collective": made.enqueued[pg],
                    "last_started_collective": made.finished[pg],
                    "last_completed_collective": made.finished[pg],
                }
                for pg in PG_IDS
            },
            "entries": made.entries,
        }

    def _entries(self, stage: int, issued: int, done: int) -> Made:
        """The entries of a rank of `stage` that has come so far: alike for all of them but for the names of their groups."""
        key = (stage, issued, done)
        if key not in self._made:
            self._made[key] = self._make(stage, issued, done)
        return self._made[key]

    @cached_property
    def _made(self) -> dict[tuple[int, int, int], Made]:
        return {}

    def _make(self, stage: int, issued: int, done: int) -> Made:
        program = self.programs[stage]
        steps = -(-self.entries // len(program))  # whole steps before the last one, enough to fill the buffer
        joined, exchanged, finished = dict.fromkeys(PG_IDS, 0), dict.fromkeys(PG_IDS, 0), dict.fromkeys(PG_IDS, 0)
        enqueued = dict.fromkeys(PG_IDS, 0)
        total = steps * len(program) + issued
        entries = []
        for index in range(total):
            op = program[index % len(program)]
            pg, over = op.pg, index < steps * len(program) + done
            name = op.name
            if op.toward:
                exchanged[pg] += 1
                name = f"{name} {stage}{'->' if name == 'send' else '<-'}{stage + op.toward}"
            else:
                joined[pg] += 1
            enqueued[pg] = exchanged[pg] if op.toward else joined[pg]
            if over:
                finished[pg] = enqueued[pg]
            if index < total - self.entries:
                continue
            at = EPOCH_NS + index * SPACING_NS
            entries.append(
                {
                    "record_id": index,
                    "pg_id": PG_IDS[pg],
                    "process_group": ("", pg),
                    "thread_name": "python3",
                    "thread_id": "140452496374656",
                    "collective_seq_id": joined[pg],
                    "p2p_seq_id": exchanged[pg] if op.toward else 0,
                    "op_id": joined[pg] + exchanged[pg],
                    "profiling_name": f"nccl:{name}",
                    "time_created_ns": at,
                    "input_sizes": [[op.size * (self.tensor if op.name == "_reduce_scatter_base" else 1), 1, 5120]],
                    "input_dtypes": ["BFloat16"],
                    "output_sizes": [[op.size * (self.tensor if op.name == "_all_gather_base" else 1), 1, 5120]],
                    "output_dtypes": ["BFloat16"],
                    "state": "completed" if over else "scheduled",
                    "time_discovered_started_ns": at + 40_000 if over else None,
                    "time_discovered_completed_ns": at + 90_000 if over else None,
                    "retired": over,
                    "timeout_ms": 600_000,
                    "is_p2p": bool(op.toward),
                }
            )
        return Made(entries, enqueued, finished)

    def write(self, folder: Path) -> Iterator[int]:
        """All dumps as `rank_<n>`; the size of each in bytes as it is written."""
        for rank in range(self.world):
            data = pickle.dumps(self.recorder(rank), protocol=2)
            (folder / f"rank_{rank}").write_bytes(data)
            yield len(data)


def job(world: int, **more: Any) -> Job:
    """A job of `world` ranks: tensor 8, pipeline 8 (4 below 256 ranks), the rest data parallel."""
    pipeline = 8 if world >= 256 else 4
    data = world // (8 * pipeline)
    if data < 1 or 8 * pipeline * data != world:
        raise ValueError(f"{world} ranks are no multiple of tensor 8 x pipeline {pipeline}")
    return Job(tensor=8, pipeline=pipeline, data=data, culprit=world // 2 + world // 16 + 3, **more)
