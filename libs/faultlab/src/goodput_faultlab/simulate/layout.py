"""Where the job's ranks run and which process groups they form.

As in large trainings: tensor parallel inside a host (its collectives go over NVLink), data parallel across hosts with
one group per local rank (its collectives stay on one rail), and the world. A step is a fixed list of collectives over
these groups, the same on every rank; a rank's whereabouts are therefore one number, how many of them it has enqueued
and completed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import NamedTuple

from goodput_common.contracts.ids import ComponentId, gpu_id
from goodput_topology.graph import Fabric

TENSOR_OPS = 6  # a step: forward and backward over three layers
WORLD_GROUP = "0"


class Op(NamedTuple):
    """One collective of a step. `at` is the share of the step's time at which it is enqueued."""

    scope: str  # tensor, data, world
    op: str
    sizes: tuple[int, ...]
    at: float
    frame: str


SCHEDULE: tuple[Op, ...] = (
    *(
        Op("tensor", "all_reduce", (4, 4096, 8192), 0.06 + 0.12 * n, f"layers.py:{118 + 31 * n} in forward")
        for n in range(3)
    ),
    *(
        Op("tensor", "all_reduce", (4, 4096, 8192), 0.42 + 0.12 * n, f"layers.py:{131 + 31 * n} in backward")
        for n in range(3)
    ),
    Op("data", "_reduce_scatter_base", (436_207_616,), 0.80, "distributed_optimizer.py:412 in reduce_grads"),
    Op("data", "_all_gather_base", (54_525_952,), 0.88, "distributed_optimizer.py:447 in gather_params"),
    Op("world", "all_reduce", (1,), 0.94, "train.py:203 in reduce_loss"),
)
OPS = len(SCHEDULE)
PER_STEP = {scope: sum(1 for op in SCHEDULE if op.scope == scope) for scope in ("tensor", "data", "world")}


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank runs now."""

    rank: int
    host: str
    local: int
    pid: int
    process_start: int
    gpu: ComponentId
    gpu_uuid: str


class Group(NamedTuple):
    """A process group: its name, what it is for, its members' global ranks."""

    name: str
    desc: str
    ranks: tuple[int, ...]


class Layout:
    """Places and groups of one generation of the job."""

    def __init__(self, fabric: Fabric, job: str, hosts: tuple[str, ...], generation: int) -> None:
        self.job = job
        self.hosts = hosts
        self.generation = generation
        self.local_size = len(fabric.gpus_of_host(hosts[0]))
        self.world_size = self.local_size * len(hosts)
        self.places: list[Place] = []
        for number, host in enumerate(hosts):
            for local in range(self.local_size):
                rank = number * self.local_size + local
                gpu = gpu_id(host, local)
                odd = int.from_bytes(hashlib.sha256(f"{job}/{generation}/{host}/{local}".encode()).digest()[:4], "big")
                self.places.append(
                    Place(
                        rank,
                        host,
                        local,
                        20_000 + odd % 900_000,
                        5_000_000 + odd % 80_000_000,
                        gpu,
                        fabric.attr(gpu, "uuid"),
                    )
                )
        everybody = tuple(range(self.world_size))
        self.world = Group(WORLD_GROUP, "default_pg", everybody)
        self.tensor = [
            Group(str(1 + n), "TENSOR_MODEL_PARALLEL_GROUP", everybody[n * self.local_size : (n + 1) * self.local_size])
            for n in range(len(hosts))
        ]
        self.data = [
            Group(str(1 + len(hosts) + local), "DATA_PARALLEL_GROUP", everybody[local :: self.local_size])
            for local in range(self.local_size)
        ]

    def group(self, rank: int, scope: str) -> Group:
        if scope == "tensor":
            return self.tensor[rank // self.local_size]
        return self.data[rank % self.local_size] if scope == "data" else self.world

    def on_host(self, host: str) -> tuple[int, ...]:
        number = self.hosts.index(host) if host in self.hosts else None
        return () if number is None else tuple(range(number * self.local_size, (number + 1) * self.local_size))

    def moved(self, place: Place, pid: int, process_start: int) -> None:
        """The rank runs in the process that it had before."""
        self.places[place.rank] = replace(place, pid=pid, process_start=process_start)
