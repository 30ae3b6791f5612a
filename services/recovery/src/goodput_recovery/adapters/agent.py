"""Commands to the agents inside the ranks: dump, pause at the next step boundary, resume.

Request and reply over the bus, in no stream: a command that nobody hears must fail at once. Ids are made of plan, command
and rank, so a rank that is asked again after a crash answers what it answered before; every command carries the plan's
fencing token, and a rank refuses a lower one than it has seen. Silence is an answer: it is recorded and stops nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from goodput_common.bus.errors import BusError, BusUnavailable, NoResponders, RequestTimeout
from goodput_common.bus.ports import Bus
from goodput_common.contracts import subjects
from goodput_common.contracts.recovery import AgentCommand, AgentCommandKind, AgentReply, AgentReplyStatus
from goodput_common.runtime.clock import Clock
from goodput_recovery.application.ports import Asked, AskStatus
from goodput_recovery.domain.plan import Plan

SOURCE = "goodput-recovery"
AT_ONCE = 64
PAUSE_S_MAX = 120.0  # the agent goes on by itself after that, should we never come back to say so
_STATUS = {
    AgentReplyStatus.DONE: AskStatus.DONE,
    AgentReplyStatus.ACCEPTED: AskStatus.ACCEPTED,
    AgentReplyStatus.REFUSED: AskStatus.REFUSED,
}


class AgentCommander:
    def __init__(self, bus: Bus, fabric: str, clock: Clock, *, answer_within_s: float = 1.0) -> None:
        self._bus, self._fabric, self._clock, self._answer_within_s = bus, fabric, clock, answer_within_s

    async def ask(self, plan: Plan, kind: AgentCommandKind, ranks: Sequence[int], *, within_s: float) -> Sequence[Asked]:
        """One command to each rank, `AT_ONCE` at a time. Ranks not reached within `within_s` count as timed out."""
        slots = asyncio.Semaphore(AT_ONCE)
        tasks = {rank: asyncio.create_task(self._ask(plan, kind, rank, slots), name=f"ask rank {rank}") for rank in ranks}
        if not tasks:
            return []
        _, late = await asyncio.wait(tasks.values(), timeout=within_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
        return [
            self._asked(plan, kind, rank, AskStatus.TIMEOUT, f"not reached within {within_s:g} s")
            if task in late
            else task.result()
            for rank, task in tasks.items()
        ]

    async def _ask(self, plan: Plan, kind: AgentCommandKind, rank: int, slots: asyncio.Semaphore) -> Asked:
        job = plan.job or ""
        command = AgentCommand(
            id=f"{plan.id}/{kind}/{rank}",
            kind=kind,
            fabric=self._fabric,
            job=job,
            rank=rank,
            fencing_token=plan.fencing_token,
            reason=f"{plan.action} of {plan.target or job}",
            expires_at=self._expires_at(kind),
        )
        async with slots:
            try:
                reply = await self._bus.request(
                    subjects.agent(self._fabric, job, rank),
                    command,
                    id=command.id,
                    source=SOURCE,
                    timeout_s=self._answer_within_s,
                )
            except NoResponders as error:
                return self._asked(plan, kind, rank, AskStatus.NO_RESPONDER, str(error))
            except RequestTimeout as error:
                return self._asked(plan, kind, rank, AskStatus.TIMEOUT, str(error))
            except BusUnavailable as error:
                return self._asked(plan, kind, rank, AskStatus.UNAVAILABLE, str(error))
            except BusError as error:
                return self._asked(plan, kind, rank, AskStatus.REFUSED, f"unreadable answer: {error}")
        if not isinstance(reply, AgentReply):
            return self._asked(plan, kind, rank, AskStatus.REFUSED, f"answered with {type(reply).__name__}")
        return self._asked(plan, kind, rank, _STATUS[reply.status], reply.reason, reply.step)

    def _asked(self, plan: Plan, kind: AgentCommandKind, rank: int, status: AskStatus, reason: str, step: int = -1) -> Asked:
        return Asked(
            id=f"{plan.id}/{kind}/{rank}",
            plan=plan.id,
            rank=rank,
            kind=kind,
            fencing_token=plan.fencing_token,
            at=self._clock.now(),
            status=status,
            reason=reason,
            step=step,
        )

    def _expires_at(self, kind: AgentCommandKind) -> datetime | None:
        return self._clock.now() + timedelta(seconds=PAUSE_S_MAX) if kind is AgentCommandKind.PAUSE else None
