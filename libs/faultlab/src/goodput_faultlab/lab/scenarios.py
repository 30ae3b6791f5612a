"""What can be broken in the lab, how, and what the right verdict is.

A scenario is chosen victim by victim from a seed, entered in the ledger, and only then injected. `inject` may take time
(a link that flaps); `clear` undoes whatever is left of it and may be called at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from goodput_common.contracts import ids
from goodput_common.contracts.verdict import FaultClass
from goodput_faultlab.lab import plan as names
from goodput_faultlab.lab.freezer import Freezer
from goodput_faultlab.lab.job import Job
from goodput_faultlab.lab.network import Network
from goodput_faultlab.lab.plan import LabPlan
from goodput_faultlab.lab.sabotage import Order, Sabotage, give
from goodput_faultlab.ledger import LedgerEntry


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a fault can lay its hands on."""

    plan: LabPlan
    network: Network
    job: Job
    freezer: Freezer
    kernel_logs: dict[str, Path]  # host -> the file that its collector reads as kernel log


@dataclass(frozen=True, kw_only=True)
class Victim:
    """Chosen by the seed: a rank, and with it a host, a rail and a GPU."""

    rank: int
    host: str
    rail: int
    gpu: int
    ranks_of_host: tuple[int, ...]


def choose(seed: int, plan: LabPlan, scenario: str) -> Victim:
    """The same victim for the same scenario and seed. Text is hashed before it seeds: neighbouring numbers alone give
    neighbouring draws."""
    rank = random.Random(f"{scenario}/{seed}").randrange(plan.world_size)
    index, gpu = divmod(rank, plan.ranks_per_host)
    first = index * plan.ranks_per_host
    return Victim(
        rank=rank,
        host=plan.all_hosts[index].name,
        rail=gpu % plan.rails,
        gpu=gpu,
        ranks_of_host=tuple(range(first, first + plan.ranks_per_host)),
    )


class Scenario(ABC):
    """`blames` is False where the right answer names nobody. `observe_s` is how long to look when nothing should happen."""

    name: str
    summary: str
    fault_class: FaultClass
    blames = True
    may_abstain = False  # naming nobody is right too: the lab's devices count nothing that would show this fault
    observe_s = 0.0

    def entry(self, victim: Victim, stage: Stage, *, id: str, at: datetime) -> LedgerEntry:
        component, also, ranks, host = self._truth(victim, stage.job.name)
        return LedgerEntry(
            id=id,
            scenario=self.name,
            fault_class=self.fault_class,
            component=component,
            also_right=also,
            ranks=ranks,
            host=host,
            job=stage.job.name,
            injected_at=at,
            note=self.summary,
        )

    @abstractmethod
    def _truth(self, victim: Victim, job: str) -> tuple[str | None, tuple[str, ...], tuple[int, ...], str | None]:
        """(component, also right, ranks, host)."""

    @abstractmethod
    async def inject(self, victim: Victim, stage: Stage) -> None: ...

    async def clear(self, victim: Victim, stage: Stage) -> None:
        """Idempotent."""
        del victim
        stage.freezer.thaw()
        await asyncio.to_thread(stage.network.heal)


class _RankFault(Scenario):
    def _truth(self, victim: Victim, job: str) -> tuple[str | None, tuple[str, ...], tuple[int, ...], str | None]:
        return ids.rank_id(job, victim.rank), (), (victim.rank,), victim.host


class _LinkFault(Scenario):
    fault_class = FaultClass.LINK_FLAP

    def _truth(self, victim: Victim, job: str) -> tuple[str | None, tuple[str, ...], tuple[int, ...], str | None]:
        del job
        ends = (names.nic(victim.host, victim.rail), names.port(victim.host, victim.rail))
        return names.link(victim.host, victim.rail), ends, victim.ranks_of_host, victim.host


class Healthy(Scenario):
    name = "healthy"
    summary = "nothing is broken: no verdict may name anybody"
    fault_class = FaultClass.NO_HARDWARE_FAULT
    blames = False
    observe_s = 15.0

    def _truth(self, victim: Victim, job: str) -> tuple[str | None, tuple[str, ...], tuple[int, ...], str | None]:
        del victim, job
        return None, (), (), None

    async def inject(self, victim: Victim, stage: Stage) -> None:
        del victim, stage


class LinkDown(_LinkFault):
    name = "link-down"
    summary = "the switch's end of one host's cable is down and stays down"

    async def inject(self, victim: Victim, stage: Stage) -> None:
        await asyncio.to_thread(stage.network.set_port, victim.host, victim.rail, up=False)


class LinkFlap(_LinkFault):
    """Downs of a second or so with short ups between: TCP backs off and the job stands although the link is up again."""

    name = "link-flap"
    summary = "one host's cable goes down and up several times within seconds"
    downs_s = (0.6, 1.4, 0.8, 1.8, 1.2, 1.6)
    up_s = 0.15

    async def inject(self, victim: Victim, stage: Stage) -> None:
        for down_s in self.downs_s:
            await asyncio.to_thread(stage.network.set_port, victim.host, victim.rail, up=False)
            await asyncio.sleep(down_s)
            await asyncio.to_thread(stage.network.set_port, victim.host, victim.rail, up=True)
            await asyncio.sleep(self.up_s)


class PacketLoss(_LinkFault):
    name = "packet-loss"
    summary = "a third of the packets on one host's cable is lost, both ways; no counter of the lab's devices shows it"
    may_abstain = True
    per_mille = 350
    observe_s = 20.0

    async def inject(self, victim: Victim, stage: Stage) -> None:
        await asyncio.to_thread(stage.network.lose_packets, victim.host, victim.rail, self.per_mille)


class RankKilled(_RankFault):
    name = "rank-killed"
    summary = "one rank is killed (SIGKILL)"
    fault_class = FaultClass.PROCESS_DEAD

    async def inject(self, victim: Victim, stage: Stage) -> None:
        os.kill(stage.job.ranks[victim.rank].pid, signal.SIGKILL)


class RankFrozen(_RankFault):
    name = "rank-frozen"
    summary = "one rank is frozen from outside (cgroup freezer, else SIGSTOP)"
    fault_class = FaultClass.PROCESS_STALL

    async def inject(self, victim: Victim, stage: Stage) -> None:
        stage.freezer.freeze(stage.job.ranks[victim.rank].pid)


class _Sabotaged(_RankFault):
    what: Sabotage

    async def inject(self, victim: Victim, stage: Stage) -> None:
        give(stage.job.order_file(victim.rank), Order(what=self.what))

    async def clear(self, victim: Victim, stage: Stage) -> None:
        with contextlib.suppress(FileNotFoundError):
            stage.job.order_file(victim.rank).unlink()
        await super().clear(victim, stage)


class GilHeld(_Sabotaged):
    name = "gil-held"
    summary = "C code in one rank keeps the interpreter lock for good"
    fault_class = FaultClass.PROCESS_STALL
    what = Sabotage.HOLD_GIL


class CollectiveSkipped(_Sabotaged):
    name = "collective-skipped"
    summary = "one rank leaves out one all-reduce and goes on"
    fault_class = FaultClass.COLLECTIVE_DESYNC
    what = Sabotage.SKIP_COLLECTIVE


class GpuOffBus(_Sabotaged):
    name = "gpu-off-bus"
    summary = "Xid 79 for the GPU of one rank, whose main thread then waits for it for ever"
    fault_class = FaultClass.GPU_OFF_BUS
    what = Sabotage.HANG

    def _truth(self, victim: Victim, job: str) -> tuple[str | None, tuple[str, ...], tuple[int, ...], str | None]:
        del job
        return ids.gpu_id(victim.host, victim.gpu), (), (victim.rank,), victim.host

    async def inject(self, victim: Victim, stage: Stage) -> None:
        pci = stage.plan.host(victim.host).gpu_pci(victim.gpu)
        pid = stage.job.ranks[victim.rank].pid
        text = f"NVRM: Xid (PCI:{pci}): 79, pid={pid}, name=python3, GPU has fallen off the bus."
        line = kernel_log_line(datetime.now().astimezone(), victim.host, text)
        with stage.kernel_logs[victim.host].open("a") as log:
            log.write(line)
        await super().inject(victim, stage)

    async def clear(self, victim: Victim, stage: Stage) -> None:
        """A lost GPU comes back only by a reset of its machine, which then logs a boot."""
        await super().clear(victim, stage)
        log = stage.kernel_logs[victim.host]
        if "Xid" in log.read_text().rpartition("Linux version")[2]:
            with log.open("a") as boot:
                boot.write(kernel_log_line(datetime.now().astimezone(), victim.host, f"Linux version {os.uname().release}"))


def kernel_log_line(at: datetime, host: str, text: str) -> str:
    """As `journalctl -k -o short-iso-precise` prints it."""
    return f"{at.isoformat(timespec='microseconds')} {host} kernel: {text}\n"


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        LinkDown(),
        LinkFlap(),
        PacketLoss(),
        RankKilled(),
        RankFrozen(),
        GilHeld(),
        CollectiveSkipped(),
        GpuOffBus(),
        Healthy(),
    )
}
