"""Made-up verdicts, contexts and jobs for tests of this service. No fixtures; a `FakeJob` speaks only through the bus."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from goodput_common.bus.errors import BusUnavailable
from goodput_common.bus.ports import Bus, Consumer, Message, Subscription
from goodput_common.contracts import subjects
from goodput_common.contracts.ids import ComponentId, host_of, kind_of, link_id
from goodput_common.contracts.job import RankProgress, RankRegistered
from goodput_common.contracts.recovery import (
    AgentCommand,
    AgentCommandKind,
    AgentReply,
    AgentReplyStatus,
    PlanState,
    RecoveryUpdate,
)
from goodput_common.contracts.verdict import (
    Action,
    ActionKind,
    Affected,
    Culprit,
    Evidence,
    FaultClass,
    Trouble,
    Verdict,
    VerdictState,
)
from goodput_recovery.domain.budget import Usage
from goodput_recovery.domain.facts import Facts
from goodput_recovery.domain.gate import Context
from goodput_recovery.domain.policy import Policy

START = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
EVERYTHING = frozenset(ActionKind)
LINK = link_id("nic:h1/rail0/1", "port:leaf0/h1")


def make_verdict(
    fault_class: FaultClass = FaultClass.GPU_OFF_BUS,
    component: ComponentId | None = "gpu:h1/3",
    *,
    version: int = 1,
    state: VerdictState = VerdictState.OPEN,
    confidence: float = 0.95,
    recommended: ActionKind = ActionKind.OBSERVE,
    ranks: tuple[int, ...] = (3,),
    host: str | None = None,
    job: str | None = "job-1",
    incident: str = "incident-1",
    at: datetime = START,
    fabric: str = "default",
    **more: Any,
) -> Verdict:
    """A verdict as the correlator would write it; `at` is its publication. A straggler slows a job down, if not said
    otherwise."""
    more.setdefault("trouble", Trouble.SLOW if fault_class is FaultClass.STRAGGLER else Trouble.STALLED)
    culprit = Culprit(
        component=component,
        kind=kind_of(component) if component else None,
        host=host or (host_of(component) if component else None),
        ranks=ranks if component else (),
    )
    evidence = Evidence(
        event_id="e#1", component=component, excerpt="NVRM: Xid 79", observed_at=at, why="it says so", weight=1.0
    )
    verdict = Verdict(
        id=f"verdict-of-{fabric}-{incident}" if fabric != "default" else f"verdict-of-{incident}",
        version=version,
        incident=incident,
        fabric=fabric,
        job=job,
        state=state,
        fault_class=fault_class,
        culprit=culprit,
        confidence=confidence,
        alternatives=(),
        evidence=(evidence,),
        explained=(),
        affected=Affected(jobs=(job,) if job else (), ranks=tuple(range(8)), hosts=("h0", "h1")),
        action=Action(kind=recommended, target=component, reason="the correlator's word"),
        first_evidence_at=at - timedelta(seconds=3),
        detected_at=at,
        published_at=at,
        diagnosed_by="test/1",
        resolution="steps resumed" if state is VerdictState.RESOLVED else "",
    )
    return msgspec.structs.replace(verdict, **more)


def make_context(
    at: datetime = START,
    *,
    policy: Policy | None = None,
    facts: Facts | None = None,
    usage: Usage | None = None,
    token: int = 1,
    **more: Any,
) -> Context:
    return Context(
        now=at,
        policy=policy or Policy(),
        facts=facts or make_facts(),
        usage=usage or Usage(hosts_known=4),
        token=token,
        actuator="dry_run",
        **more,
    )


def make_facts(**changes: Any) -> Facts:
    known: dict[str, Any] = {
        "offered": EVERYTHING,
        "world_size": 8,
        "moving": False,
        "spare_nodes": 1,
        "capacity_left": True,
    }
    return Facts(**(known | changes))


class FakeJob:
    """A job as the bus sees it: ranks that register and report, agents that answer, a launcher that carries out what is
    announced. It stalls when told and moves again, in a new generation, once an action for it is `executing`."""

    def __init__(self, bus: Bus, fabric: str, job: str = "job-1", *, world_size: int = 4, report_s: float = 0.2) -> None:
        self._bus, self._fabric, self._job, self._world_size, self._report_s = bus, fabric, job, world_size, report_s
        self.moving, self.heals = True, True
        self.generation, self.step = 0, 100
        self.updates: list[RecoveryUpdate] = []
        self.acted_on: list[str] = []
        self.commands: list[AgentCommand] = []
        self._seq = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._subscriptions: list[Subscription] = []

    async def start(self, *, silent: tuple[int, ...] = ()) -> None:
        """`silent` ranks answer no commands."""
        await self._register()
        for rank in range(self._world_size):
            if rank not in silent:
                subject = subjects.agent(self._fabric, self._job, rank)
                self._subscriptions.append(await self._bus.serve(subject, self._answer))
        listen = Consumer(
            durable=f"launcher-{self._fabric}-{self._job}",
            stream="RECOVERY",
            subjects=(subjects.of_fabric("RECOVERY", self._fabric),),
        )
        self._subscriptions.append(await self._bus.consume(listen, self._hear))
        self._tasks.append(asyncio.create_task(self._report(), name="fake job"))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(each.drain() for each in self._subscriptions), return_exceptions=True)

    def states(self, plan: str | None = None) -> list[str]:
        return [str(each.state) for each in self.updates if plan is None or each.plan == plan]

    async def _hear(self, message: Message) -> None:
        update: RecoveryUpdate = message.data
        if (update.plan, update.state) in {(each.plan, each.state) for each in self.updates}:
            return
        self.updates.append(update)
        if update.state is PlanState.EXECUTING and update.job == self._job:
            self.acted_on.append(update.plan)
            if self.heals:
                self.generation += 1
                self.step -= 10
                self.moving = True
                await self._register()

    async def _register(self) -> None:
        for rank in range(self._world_size):
            registered = RankRegistered(
                fabric=self._fabric,
                job=self._job,
                rank=rank,
                world_size=self._world_size,
                host=f"h{rank}",
                pid=1000 + rank,
                at=_now(),
                generation=self.generation,
            )
            await self._publish("rank_registered", registered, f"{rank}/{self.generation}")

    async def _report(self) -> None:
        while True:
            self._seq += 1
            if self.moving:
                self.step += 1
            for rank in range(self._world_size):
                report = RankProgress(
                    fabric=self._fabric,
                    job=self._job,
                    rank=rank,
                    host=f"h{rank}",
                    seq=self._seq,
                    at=_now(),
                    generation=self.generation,
                    step=self.step,
                    steps=int(self.moving),
                )
                with contextlib.suppress(BusUnavailable):
                    await self._publish("rank_progress", report, f"{rank}/{self._seq}")
            await asyncio.sleep(self._report_s)

    async def _publish(self, event: str, data: msgspec.Struct, id: str) -> None:
        subject = subjects.job(self._fabric, self._job, event)
        await self._bus.publish(subject, data, id=f"{self._fabric}/{self._job}/{event}/{id}", source="fake-job")

    async def _answer(self, message: Message) -> msgspec.Struct:
        command: AgentCommand = message.data
        self.commands.append(command)
        status = AgentReplyStatus.ACCEPTED if command.kind is AgentCommandKind.PAUSE else AgentReplyStatus.DONE
        return AgentReply(id=command.id, status=status, rank=command.rank, at=_now(), step=self.step)


async def publish_verdict(bus: Bus, verdict: Verdict, *, doubled: str = "") -> None:
    """As the correlator's outbox does; `doubled` makes it another message with the same content."""
    subject = subjects.verdict(verdict.fabric, verdict.job, verdict.fault_class)
    await bus.publish(subject, verdict, id=f"{verdict.id}/{verdict.version}{doubled}", source="test")


def _now() -> datetime:
    return datetime.now(UTC)
