"""Hangs of parallel training jobs, as their flight recorders would show them: a small honest simulation.

Each rank executes a program of collectives (tensor, expert, pipeline, data parallel) of a random layout. Its host issues
operations in order, at most `ahead` before the oldest is finished: 1 is a loop that waits for each, 30 a host that runs
ahead of its GPU as NCCL lets it. Its device executes them in order; a collective ends when all members have it at the head
of their queue. Then some ranks break at a random point of their program and the rest goes on until nothing can move:

* *host*: the rank issues nothing any more (a lock held, a frozen process); what it has issued still completes;
* *device*: the GPU completes nothing any more while the host goes on issuing; the watchdog saw its last completion up to
  `lag` operations earlier, as a poll does.

Who is at fault is known by construction: a broken rank that reached its breaking point. The dumps hold unfinished operations
only, in torch's own form, so that whatever reads them reads these as it reads real ones.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MICROSECOND_NS = 1_000
EPOCH_NS = 1_700_000_000_000_000_000


class Break(enum.StrEnum):
    HOST = "host"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of one rank's program. `peer` is a global rank for send and recv."""

    group: int
    name: str
    peer: int | None = None
    size: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """`tensor` x `pipeline` x `data` ranks; `expert` consecutive ranks of a stage share an expert group (1: none)."""

    tensor: int = 2
    pipeline: int = 2
    data: int = 2
    expert: int = 1
    microbatches: int = 2
    layers: int = 2
    steps: int = 2

    @property
    def world(self) -> int:
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`at` is an index into the rank's program: the first operation that it does not issue (or execute)."""

    rank: int
    kind: Break
    at: int
    lag: int = 0


@dataclass(slots=True)
class _Rank:
    program: list[Op]
    issued: int = 0
    done: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """The end state. `culprits` broke; `hidden` broke too but still wait for another culprit, so that no recorder can tell
    them from victims; `visible_lag` are broken devices whose watchdog missed a completion that their peers saw."""

    layout: Layout
    faults: tuple[Fault, ...]
    groups: tuple[tuple[int, ...], ...]
    descriptions: tuple[str, ...]
    programs: tuple[tuple[Op, ...], ...]
    issued: tuple[int, ...]
    done: tuple[int, ...]
    seen_done: tuple[int, ...]
    culprits: frozenset[int] = field(default_factory=frozenset)
    hidden: frozenset[int] = field(default_factory=frozenset)
    visible_lag: frozenset[int] = field(default_factory=frozenset)

    @property
    def finished(self) -> bool:
        """Nothing hangs: no broken rank ever came to its breaking point."""
        return all(done == len(program) for done, program in zip(self.done, self.programs, strict=True))

    def raw(self, rank: int) -> dict[str, Any]:
        """What torch would have written for `rank`, as plain data."""
        return _raw(self, rank)


def simulate(layout: Layout, faults: Sequence[Fault], *, ahead: int = 1) -> Hang:
    """Run every rank until nothing can move. The same arguments give the same hang."""
    groups, descriptions = _groups(layout)
    programs = [_program(layout, groups, rank) for rank in range(layout.world)]
    ranks = [_Rank(program) for program in programs]
    broken = {fault.rank: fault for fault in faults}
    _settle(ranks, groups, broken, ahead)
    seen_done = [each.done for each in ranks]
    culprits, hidden, visible = set(), set(), set()
    for fault in faults:
        each = ranks[fault.rank]
        if fault.kind is Break.HOST and each.issued == fault.at and each.done == fault.at < len(each.program):
            culprits.add(fault.rank)
        elif fault.kind is Break.HOST and each.issued == fault.at < len(each.program):
            hidden.add(fault.rank)
        elif fault.kind is Break.DEVICE and each.done == fault.at < each.issued:
            culprits.add(fault.rank)
            seen_done[fault.rank] = max(0, each.done - fault.lag)
            missed = each.program[seen_done[fault.rank] : each.done]
            if any(op.peer is None and op.name != "broadcast" and len(groups[op.group]) > 1 for op in missed):
                visible.add(fault.rank)
    return Hang(
        layout=layout,
        faults=tuple(faults),
        groups=groups,
        descriptions=descriptions,
        programs=tuple(tuple(program) for program in programs),
        issued=tuple(each.issued for each in ranks),
        done=tuple(each.done for each in ranks),
        seen_done=tuple(seen_done),
        culprits=frozenset(culprits),
        hidden=frozenset(hidden),
        visible_lag=frozenset(visible),
    )


def random_layout(rng: random.Random, world_max: int = 32) -> Layout:
    while True:
        tensor, pipeline, data = rng.choice((1, 2, 4)), rng.choice((1, 2, 4)), rng.choice((1, 2, 3, 4))
        if 4 <= tensor * pipeline * data <= world_max:
            break
    stage = tensor * data
    expert = rng.choice([size for size in (1, 2, 4) if stage % size == 0])
    return Layout(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        expert=expert,
        microbatches=rng.randint(1, 3),
        layers=rng.randint(1, 3),
        steps=rng.randint(1, 3),
    )


def random_hang(rng: random.Random, *, kind: Break, culprits: int = 1, world_max: int = 32) -> Hang:
    """A hang of a random layout in which at least one rank is at fault."""
    while True:
        layout = random_layout(rng, world_max)
        groups, _ = _groups(layout)
        ahead = 1 if kind is Break.HOST and rng.random() < 0.5 else rng.randint(2, 24)
        faults = []
        for rank in rng.sample(range(layout.world), min(culprits, layout.world)):
            length = len(_program(layout, groups, rank))
            faults.append(Fault(rank=rank, kind=kind, at=rng.randrange(length // 3, length), lag=rng.randint(0, 8)))
        hang = simulate(layout, faults, ahead=ahead)
        if hang.culprits and not hang.finished:
            return hang


def _groups(layout: Layout) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    """Ranks are numbered tensor first, then data, then pipeline, as Megatron does."""
    t, d, p = layout.tensor, layout.data, layout.pipeline
    groups: list[tuple[int, ...]] = [tuple(range(layout.world))]
    descriptions = ["default_pg"]

    def add(description: str, members: Sequence[Sequence[int]]) -> None:
        groups.extend(tuple(each) for each in members)
        descriptions.extend([description] * len(members))

    stage = t * d
    add("DATA_PARALLEL_GROUP", [[s * stage + k * t + i for k in range(d)] for s in range(p) for i in range(t)])
    add("TENSOR_MODEL_PARALLEL_GROUP", [[base + i for i in range(t)] for base in range(0, layout.world, t)])
    add("PIPELINE_MODEL_PARALLEL_GROUP", [[s * stage + i for s in range(p)] for i in range(stage)])
    if layout.expert > 1:
        add(
            "EXPERT_MODEL_PARALLEL_GROUP",
            [[base + i for i in range(layout.expert)] for base in range(0, layout.world, layout.expert)],
        )
    return tuple(groups), tuple(descriptions)


def _program(layout: Layout, groups: Sequence[tuple[int, ...]], rank: int) -> list[Op]:
    t, d, p, e = layout.tensor, layout.data, layout.pipeline, layout.expert
    stage_size = t * d
    stage, within = divmod(rank, stage_size)
    data = 1 + stage * t + within % t
    tensor = 1 + p * t + rank // t
    pipeline = 1 + p * t + layout.world // t + within
    expert = 1 + p * t + layout.world // t + stage_size + rank // e if e > 1 else None
    before, after = rank - stage_size, rank + stage_size

    def layer() -> list[Op]:
        ops = []
        if t > 1:
            ops += [Op(tensor, "_all_gather_base", size=512), Op(tensor, "_reduce_scatter_base", size=2048)]
        if expert is not None:
            ops += [Op(expert, "all_to_all"), Op(expert, "all_to_all")]
        return ops

    program: list[Op] = []
    for _ in range(layout.steps):
        for _ in range(layout.microbatches):
            if stage > 0:
                program.append(Op(pipeline, "recv", before))
            for _ in range(layout.layers):
                program += layer()
            if stage < p - 1:
                program.append(Op(pipeline, "send", after))
        for _ in range(layout.microbatches):
            if stage < p - 1:
                program.append(Op(pipeline, "recv", after))
            for _ in range(layout.layers):
                program += layer()
            if stage > 0:
                program.append(Op(pipeline, "send", before))
        if d > 1:
            program.append(Op(data, "all_reduce", size=4096))
        program.append(Op(0, "all_reduce", size=1))
    return program


def _settle(ranks: list[_Rank], groups: Sequence[tuple[int, ...]], broken: Mapping[int, Fault], ahead: int) -> None:
    """Issue and execute until nothing moves. A rank is looked at again when its head, or that of a partner, has changed."""
    todo = list(range(len(ranks)))
    queued = set(todo)
    while todo:
        rank = todo.pop()
        queued.discard(rank)
        each = ranks[rank]
        fault = broken.get(rank)
        stop = fault.at if fault is not None and fault.kind is Break.HOST else len(each.program)
        each.issued = max(each.issued, min(stop, len(each.program), each.done + ahead))
        if each.done >= each.issued:
            continue
        op = each.program[each.done]
        partners = groups[op.group] if op.peer is None else (rank, op.peer)
        if all(_at_head(ranks, broken, partner, rank, op) for partner in partners):
            for partner in partners:
                ranks[partner].done += 1
                if partner not in queued:
                    queued.add(partner)
                    todo.append(partner)
        else:
            continue


def _at_head(ranks: list[_Rank], broken: Mapping[int, Fault], partner: int, rank: int, op: Op) -> bool:
    """Whether `partner` executes the operation that `rank` has at its head."""
    each = ranks[partner]
    fault = broken.get(partner)
    if fault is not None and fault.kind is Break.DEVICE and each.done >= fault.at:
        return False
    if each.done >= each.issued:
        return False
    mine = each.program[each.done]
    if op.peer is None or partner == rank:
        return (
            mine.group == op.group and mine.peer == op.peer
            if partner == rank
            else mine.group == op.group and mine.peer is None
        )
    return mine.group == op.group and mine.peer == rank and mine.name != op.name


def _raw(hang: Hang, rank: int) -> dict[str, Any]:
    program, issued, done = hang.programs[rank], hang.issued[rank], hang.seen_done[rank]
    mine = [group for group, members in enumerate(hang.groups) if rank in members]
    local = {group: index for index, group in enumerate(mine)}
    joined = dict.fromkeys(mine, 0)
    finished = dict.fromkeys(mine, 0)
    exchanges = dict.fromkeys(mine, 0)
    last_is_p2p = dict.fromkeys(mine, False)
    entries = []
    for index, op in enumerate(program[:issued]):
        p2p = op.peer is not None
        last_is_p2p[op.group] = p2p
        if p2p:
            exchanges[op.group] += 1
        else:
            joined[op.group] += 1
        if index < done:
            finished[op.group] = exchanges[op.group] if p2p else joined[op.group]
            continue
        members = hang.groups[op.group]
        name = op.name
        if op.peer is not None:
            arrow = "->" if op.name == "send" else "<-"
            name = f"{op.name} {members.index(rank)}{arrow}{members.index(op.peer)}"
        entries.append(
            {
                "record_id": index,
                "pg_id": local[op.group],
                "process_group": (str(op.group), hang.descriptions[op.group]),
                "collective_seq_id": joined[op.group],
                "p2p_seq_id": exchanges[op.group] if p2p else 0,
                "op_id": joined[op.group] + exchanges[op.group],
                "profiling_name": f"nccl:{name}",
                "time_created_ns": EPOCH_NS + index * 100 * MICROSECOND_NS,
                "input_sizes": [[op.size]],
                "input_dtypes": ["BFloat16"],
                "output_sizes": [[op.size]],
                "output_dtypes": ["BFloat16"],
                "state": "scheduled",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None,
                "retired": False,
                "timeout_ms": 600_000,
                "is_p2p": p2p,
                "frames": [],
            }
        )
    return {
        "version": "2.10",
        "nccl_version": "2.27.3",
        "pg_config": {
            str(group): {"name": str(group), "desc": hang.descriptions[group], "ranks": str(list(hang.groups[group]))}
            for group in mine
        },
        "pg_status": {
            str(local[group]): {
                "last_enqueued_collective": exchanges[group] if last_is_p2p[group] else joined[group],
                "last_started_collective": -1,
                "last_completed_collective": finished[group],
            }
            for group in mine
        },
        "entries": entries,
    }
