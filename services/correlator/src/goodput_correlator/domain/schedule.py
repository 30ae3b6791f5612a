"""What waits for what in one training step of a pipeline-parallel job, read from the order in which it was recorded.

A step is the same list of operations in every replica, and in every step. On each stage the computations run one after the
other in their recorded order. Around them:

* what is sent forward (or backward) waits for the computation of its microbatch; what is received is waited for by it, and
  is not asked for before the computation of the microbatch before it has ended;
* a send and its receive are one meeting of two neighbouring stages: neither ends before both have begun;
* parameters are gathered before the first computation of the step; behind the last one the gradients' collectives and the
  optimizer follow in a fixed order, some of them meetings of a stage's replicas, one of the first and the last stage
  (shared embeddings), one of everybody (the gradients' norm).

The dependencies are those of Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI
2025), for schedules with one model chunk a stage (1F1B). Interleaved chunks are refused, not guessed at.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

FORWARD, BACKWARD = "forward-compute", "backward-compute"
COMPUTE: Final = frozenset({FORWARD, BACKWARD})
SENDS: Final = {"forward-send": ("forward-recv", 1), "backward-send": ("backward-recv", -1)}
RECEIVES: Final = frozenset({"forward-recv", "backward-recv"})
GATHER = "params-all-gather"
CLIP = "optimizer-clip-main-grad"
EMBEDDING = "embedding-grads-all-reduce"
REDUCE = "grads-reduce-scatter"
LAYERNORM = "layernorm-grads-all-reduce"
OPTIMIZER = "optimizer"
AFTER: Final = ("gc", LAYERNORM, EMBEDDING, REDUCE, CLIP, OPTIMIZER)  # behind the last computation, in this order
OF_REPLICAS: Final = frozenset({GATHER, REDUCE, CLIP})  # meetings that all replicas take part in
TALK: Final = frozenset({*SENDS, *RECEIVES, GATHER, CLIP, EMBEDDING, REDUCE, LAYERNORM})
KNOWN: Final = COMPUTE | TALK | frozenset(AFTER)


class UnknownSchedule(ValueError):
    """The trace has something in it that this model of a step does not cover; the text says what."""


class Work(NamedTuple):
    """One recorded operation. `seq` counts the operations of one kind on one stage in one step; `chunk` is the model chunk
    within the stage, -1 where it has none. Times in seconds, on one clock in each step."""

    step: int
    replica: int
    stage: int
    kind: str
    seq: int
    start_s: float
    duration_s: float
    chunk: int = -1


class Node(NamedTuple):
    """One operation of the step, as every replica and every step has it."""

    stage: int
    kind: str
    seq: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """`order` holds meetings and single operations in an order in which they can be carried out; those of `across` are
    meetings of all replicas, too. `needs` are the operations whose end each waits for before it begins."""

    nodes: tuple[Node, ...]
    needs: tuple[tuple[int, ...], ...]
    order: tuple[tuple[int, ...], ...]
    across: frozenset[int]
    meets: frozenset[int]


def schedule(works: Iterable[Work]) -> Schedule:
    """From the operations of one replica in one step. Raises UnknownSchedule."""
    stages: dict[int, dict[Node, Work]] = defaultdict(dict)
    for work in works:
        if work.kind not in KNOWN:
            raise UnknownSchedule(
                f"step {work.step}: an operation of kind {work.kind!r}, known are {', '.join(sorted(KNOWN))}"
            )
        if work.chunk > 0:
            raise UnknownSchedule(f"step {work.step}: model chunk {work.chunk} on stage {work.stage}; one a stage is known")
        stages[work.stage][Node(work.stage, work.kind, work.seq)] = work
    if sorted(stages) != list(range(len(stages))):
        raise UnknownSchedule(f"stages {sorted(stages)} are not 0 .. {len(stages) - 1}: the trace lacks some")
    nodes = tuple(sorted(node for mine in stages.values() for node in mine))
    at = {node: index for index, node in enumerate(nodes)}
    needs: dict[Node, list[Node]] = {node: [] for node in nodes}
    for mine in stages.values():
        _within(mine, needs)
    groups = _meetings(nodes, len(stages) - 1)
    return Schedule(
        nodes=nodes,
        needs=tuple(tuple(sorted({at[each] for each in needs[node]})) for node in nodes),
        order=_in_order(nodes, needs, groups, at),
        across=frozenset(at[node] for node in nodes if node.kind in OF_REPLICAS),
        meets=frozenset(at[node] for group in groups for node in group),
    )


def _within(mine: dict[Node, Work], needs: dict[Node, list[Node]]) -> None:
    """What waits for what on one stage."""
    compute = sorted((n for n in mine if n.kind in COMPUTE), key=lambda n: (mine[n].start_s, n.seq, n.kind))
    if not compute:
        raise UnknownSchedule(f"stage {next(iter(mine)).stage} computes nothing")
    _chain(compute, needs)
    for node in mine:
        direction = node.kind.partition("-")[0]
        lane, before = node._replace(seq=node.seq - 1), Node(node.stage, f"{direction}-compute", node.seq - 1)
        partner = before._replace(seq=node.seq)
        if node.kind in SENDS or node.kind in RECEIVES:
            if lane in mine:
                needs[node].append(lane)
            if partner not in mine:
                raise UnknownSchedule(f"stage {node.stage}: {node.kind} {node.seq} belongs to no computation")
        if node.kind in SENDS:
            needs[node].append(partner)
        elif node.kind in RECEIVES:
            needs[partner].append(node)
            if before in mine:
                needs[node].append(before)
    _first_backward(compute, mine, needs)
    gathered = [node for node in mine if node.kind == GATHER]
    needs[min((n for n in compute if n.kind == FORWARD), key=lambda n: mine[n].start_s, default=compute[0])].extend(gathered)
    last = max(compute, key=lambda n: mine[n].start_s + mine[n].duration_s)
    _chain([last, *(node for kind in AFTER for node in sorted(n for n in mine if n.kind == kind))], needs)


def _first_backward(compute: Sequence[Node], mine: dict[Node, Work], needs: dict[Node, list[Node]]) -> None:
    """The first exchange backwards is asked for together with the last send forward of the warm-up: behind the computation
    before that."""
    first = next((index for index, node in enumerate(compute) if node.kind == BACKWARD), 0)
    if first < 2:
        return
    for kind in ("backward-recv", "backward-send"):
        node = Node(compute[0].stage, kind, 0)
        if node in mine:
            needs[node].append(compute[first - 2])


def _chain(nodes: Sequence[Node], needs: dict[Node, list[Node]]) -> None:
    for before, after in itertools.pairwise(nodes):
        needs[after].append(before)


def _meetings(nodes: Sequence[Node], last_stage: int) -> list[list[Node]]:
    present = set(nodes)
    groups: list[list[Node]] = []
    for node in nodes:
        if node.kind in SENDS:
            kind, way = SENDS[node.kind]
            peer = Node(node.stage + way, kind, node.seq)
            if peer not in present:
                raise UnknownSchedule(f"stage {node.stage}: {node.kind} {node.seq} has no {kind} on stage {peer.stage}")
            groups.append([node, peer])
        elif node.kind in (GATHER, REDUCE):
            groups.append([node])
    received = {node for group in groups for node in group if node.kind in RECEIVES}
    alone = [node for node in nodes if node.kind in RECEIVES and node not in received]
    if alone:
        raise UnknownSchedule(f"stage {alone[0].stage}: {alone[0].kind} {alone[0].seq} has no sender")
    groups.append([node for node in nodes if node.kind == EMBEDDING and node.stage in (0, last_stage)])
    groups.append([node for node in nodes if node.kind == CLIP])
    return [group for group in groups if group]


def _in_order(
    nodes: Sequence[Node], needs: dict[Node, list[Node]], groups: list[list[Node]], at: dict[Node, int]
) -> tuple[tuple[int, ...], ...]:
    """Each meeting, and each operation that meets nobody, once all that it waits for is over. Raises UnknownSchedule where
    the recorded order cannot be carried out."""
    together = {node: tuple(group) for group in groups for node in group}
    units = {node: together.get(node, (node,)) for node in nodes}
    waiting = {unit: {units[need] for node in unit for need in needs[node]} - {unit} for unit in units.values()}
    later: dict[tuple[Node, ...], list[tuple[Node, ...]]] = defaultdict(list)
    for unit, before in waiting.items():
        for each in before:
            later[each].append(unit)
    ready = [unit for unit, before in waiting.items() if not before]
    found: list[tuple[int, ...]] = []
    while ready:
        unit = ready.pop()
        found.append(tuple(at[node] for node in unit))
        for each in later[unit]:
            waiting[each].discard(unit)
            if not waiting[each]:
                ready.append(each)
    if len(found) < len(waiting):
        stuck = next(unit for unit, before in waiting.items() if before)
        raise UnknownSchedule(
            f"the recorded order is circular around {stuck[0].kind} {stuck[0].seq} on stage {stuck[0].stage}"
        )
    return tuple(found)
