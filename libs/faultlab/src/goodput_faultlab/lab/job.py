"""The job's launcher, as torchrun or a scheduler is in real life: starts the ranks, and starts them again when told to.

It keeps which host carries which ranks. A restart is a new *generation*: every rank of the old one is killed (a rank that
waits in a collective hears nothing else), thawed where it was frozen, and all are started again from the last checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from goodput_faultlab.lab.forge import RankForge
from goodput_faultlab.lab.forkserver import StartRank
from goodput_faultlab.lab.plan import LabPlan, rail_device
from goodput_faultlab.lab.trainer import TrainerSpec

FIRST_PORT = 29_500  # rendezvous ports stay below the ephemeral ones
KILLED_WITHIN_S = 10.0


@dataclass
class RankProcess:
    rank: int
    host: str
    local_rank: int
    pid: int
    generation: int
    exit_code: int | None = None

    @property
    def alive(self) -> bool:
        return self.exit_code is None


class NoSpareHost(RuntimeError):
    """A host is to be swapped and none stands ready."""


class Job:
    def __init__(
        self,
        name: str,
        plan: LabPlan,
        forge: RankForge,
        namespaces: dict[str, int],
        *,
        folder: Path,
        run_folder: Path,
        bus_url: str,
        number: int,
    ) -> None:
        """`run_folder` holds a folder per host (its GOODPUT_RUN_DIR); `number` keeps rendezvous ports of jobs apart."""
        self.name = name
        self.generation = 0
        self.ranks: dict[int, RankProcess] = {}
        self.exits: list[str] = []
        self._plan = plan
        self._forge = forge
        self._namespaces = namespaces
        self._folder = folder
        self._run_folder = run_folder
        self._bus_url = bus_url
        self._number = number
        self._hosts = [host.name for host in plan.training_hosts]
        self._spares = [host.name for host in plan.spare_hosts]
        self._changed = asyncio.Event()

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each block of ranks, in the order of the ranks."""
        return tuple(self._hosts)

    def ranks_of(self, host: str) -> tuple[int, ...]:
        return tuple(rank for rank, process in sorted(self.ranks.items()) if process.host == host)

    def order_file(self, rank: int) -> Path:
        return self._folder / f"order-{rank}-{self.generation}"

    @property
    def stop_file(self) -> Path:
        return self._folder / f"stop-{self.generation}"

    async def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        per_host = self._plan.ranks_per_host
        for rank in range(self._plan.world_size):
            host, local_rank = self._hosts[rank // per_host], rank % per_host
            pid = await self._forge.launch(self._request(rank, host, local_rank))
            self.ranks[rank] = RankProcess(rank, host, local_rank, pid, self.generation)

    def rank_ended(self, pid: int, exit_code: int) -> None:
        for process in self.ranks.values():
            if process.pid == pid and process.alive:
                process.exit_code = exit_code
                self.exits.append(f"rank {process.rank} generation {process.generation}: exit code {exit_code}")
        self._changed.set()

    async def restart(self) -> None:
        """All ranks again, where they are placed now, as the next generation."""
        await self.kill()
        self.generation += 1
        await self.start()

    def swap(self, host: str) -> str:
        """Put a spare in the host's place, from the next generation on. Returns the spare's name."""
        if not self._spares:
            raise NoSpareHost(f"no spare host stands ready for {host}")
        spare = self._spares.pop(0)
        self._hosts[self._hosts.index(host)] = spare
        return spare

    async def kill(self) -> None:
        for process in self.ranks.values():
            if process.alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        await self._wait_until_ended(KILLED_WITHIN_S)

    async def finish(self, within_s: float) -> bool:
        """Ask the ranks to agree on an end; kill those that do not come to one in time. True when all ended by
        themselves."""
        self.stop_file.touch()
        clean = await self._wait_until_ended(within_s)
        if not clean:
            await self.kill()
        return clean

    async def _wait_until_ended(self, within_s: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while any(process.alive for process in self.ranks.values()):
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - loop.time())
            except TimeoutError:
                return False
        return True

    def _request(self, rank: int, host: str, local_rank: int) -> StartRank:
        plan = self._plan
        environment = {
            "GOODPUT_FABRIC": plan.fabric,
            "GOODPUT_HOST": host,
            "GOODPUT_GPU": str(local_rank),
            "GOODPUT_GENERATION": str(self.generation),
            "GOODPUT_RUN_DIR": str(self._run_folder / host),
            "GOODPUT_NATS_URL": self._bus_url,
            "RANK": str(rank),
            "WORLD_SIZE": str(plan.world_size),
            "LOCAL_RANK": str(local_rank),
            "MASTER_ADDR": plan.host(self._hosts[0]).rail_address(0),
            "MASTER_PORT": str(FIRST_PORT + (self._number % 400) * 8 + self.generation % 8),
            "GLOO_SOCKET_IFNAME": ",".join(rail_device(rail) for rail in range(plan.rails)),
        }
        spec = TrainerSpec(
            job=self.name,
            generation=self.generation,
            rank=rank,
            world_size=plan.world_size,
            small_groups=plan.small_groups,
            checkpoint_folder=str(self._folder / "checkpoints"),
            order_file=str(self.order_file(rank)),
            stop_file=str(self.stop_file),
        )
        log = self._folder / f"rank-{rank}.log"
        return StartRank(network=self._namespaces[host], environment=environment, log=str(log), spec=spec)
