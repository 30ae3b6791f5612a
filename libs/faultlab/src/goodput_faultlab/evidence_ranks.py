"""What the ranks of all jobs said of themselves, as far as it tells evidence from mere words: where each ran, whether it did
another step after it said where it stood, and whether it waited less than the others when it was called late.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Protocol

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.job import RankProgress, RankRegistered
from goodput_topology.graph import Fabric

SLACK_S = 2.0  # a report that was under way when the verdict was published
AROUND_S = 2.5  # reports of one moment are this far apart at most: each rank sends one a second, some are lost
OTHERS_MIN = 3
Rank = tuple[str, int]  # job, number
Run = tuple[str, ComponentId]  # host, its GPU or "" where that is not known


class Delivered(Protocol):
    """One fact as it reached the bus."""

    @property
    def id(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def observed_at(self) -> datetime: ...
    @property
    def received_at(self) -> datetime: ...
    @property
    def fact(self) -> Any: ...


class RankWords:
    """Built of everything that was delivered; what is no word of a rank is passed over."""

    def __init__(self, fabric: Fabric, delivered: Iterable[Delivered]) -> None:
        self.runs: defaultdict[Rank, set[Run]] = defaultdict(set)
        self._steps: defaultdict[Rank, list[tuple[datetime, int, int]]] = defaultdict(list)
        self._waits: defaultdict[str, list[tuple[datetime, int, float]]] = defaultdict(list)
        gpus = {uuid: gpu for gpu in fabric.of_kind(ComponentKind.GPU) if (uuid := fabric.attr(gpu, "uuid"))}
        for each in delivered:
            fact = each.fact
            if isinstance(fact, RankRegistered):
                index = fact.gpu if fact.gpu is not None else fact.local_rank
                named = fabric.canonical(ids.gpu_id(fact.host, index)) if index is not None else ""
                self.runs[fact.job, fact.rank].add((fact.host, gpus.get(fact.gpu_uuid or "", named)))
            elif isinstance(fact, RankProgress):
                self.runs[fact.job, fact.rank].add((fact.host, ""))
                self._steps[fact.job, fact.rank].append((each.received_at, fact.generation, fact.step))
                if fact.steps > 0 and fact.waiting_ms >= 0:
                    self._waits[fact.job].append((each.received_at, fact.rank, fact.waiting_ms))
        for waits in self._waits.values():
            waits.sort()

    def hosts_of(self, rank: Rank) -> set[str]:
        return {host for host, _ in self.runs.get(rank, ())}

    def stood(self, seen: Delivered, published_at: datetime) -> bool:
        """Whether the rank did no step more between that word and the verdict."""
        fact = seen.fact
        step, generation = getattr(fact, "step", None), getattr(fact, "generation", 0)
        if step is None:
            return True  # a dump tells of collectives, and of no step
        until = published_at - timedelta(seconds=SLACK_S)
        return not any(
            seen.received_at < at <= until and of == generation and later > step
            for at, of, later in self._steps.get((fact.job, fact.rank), ())
        )

    def late(self, seen: Delivered) -> bool:
        """Whether the rank waited no longer than half of the others did then; True where that cannot be told."""
        fact = seen.fact
        if not isinstance(fact, RankProgress) or fact.steps == 0 or fact.waiting_ms < 0:
            return True
        waits, around = self._waits.get(fact.job, []), timedelta(seconds=AROUND_S)
        first = bisect_left(waits, seen.received_at - around, key=lambda each: each[0])
        last = bisect_right(waits, seen.received_at + around, key=lambda each: each[0])
        others = [waiting_ms for _, rank, waiting_ms in waits[first:last] if rank != fact.rank]
        return len(others) < OTHERS_MIN or fact.waiting_ms <= statistics.median(others)
