"""Commands to ranks: what is asked of whom, and what silence and refusal become."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest

from goodput_common.bus.memory import MemoryBus
from goodput_common.bus.ports import Message
from goodput_common.contracts import subjects
from goodput_common.contracts.recovery import AgentCommand, AgentCommandKind, AgentReply, AgentReplyStatus
from goodput_common.runtime.clock import SystemClock
from goodput_recovery.adapters.agent import AgentCommander
from goodput_recovery.application.ports import AskStatus
from goodput_recovery.domain.incident import heard
from goodput_recovery.domain.plan import Plan
from goodput_recovery.testing import make_context, make_verdict

KIND = AgentCommandKind


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus(SystemClock())


@pytest.fixture
def plan() -> Plan:
    return msgspec.structs.replace(heard(None, make_verdict(), make_context()).incident.plans[0], fencing_token=7)


class Rank:
    """An agent that answers the same id with the same answer, as the real one does."""

    def __init__(self, rank: int, status: AgentReplyStatus = AgentReplyStatus.DONE, *, slow: bool = False) -> None:
        self.rank, self.status, self.slow = rank, status, slow
        self.commands: list[AgentCommand] = []

    async def __call__(self, message: Message) -> msgspec.Struct:
        self.commands.append(message.data)
        if self.slow:
            await asyncio.sleep(30)
        return AgentReply(id=message.data.id, status=self.status, rank=self.rank, at=datetime.now(UTC), step=41)


async def serve(bus: MemoryBus, *ranks: Rank) -> None:
    for rank in ranks:
        await bus.serve(subjects.agent("default", "job-1", rank.rank), rank)


async def test_answers_refusals_and_silence_are_told_apart(bus: MemoryBus, plan: Plan) -> None:
    await serve(bus, Rank(0), Rank(1, AgentReplyStatus.ACCEPTED), Rank(2, AgentReplyStatus.REFUSED), Rank(3, slow=True))
    commander = AgentCommander(bus, "default", SystemClock(), answer_within_s=0.2)
    asked = await commander.ask(plan, KIND.DUMP, [0, 1, 2, 3, 4], within_s=2.0)
    assert {each.rank: each.status for each in asked} == {
        0: AskStatus.DONE,
        1: AskStatus.ACCEPTED,
        2: AskStatus.REFUSED,
        3: AskStatus.TIMEOUT,
        4: AskStatus.NO_RESPONDER,
    }
    assert {each.rank for each in asked if each.took} == {0, 1}
    assert asked[0].step == 41


async def test_a_command_carries_the_token_and_an_id_that_is_the_same_when_asked_again(bus: MemoryBus, plan: Plan) -> None:
    rank = Rank(0)
    await serve(bus, rank)
    commander = AgentCommander(bus, "default", SystemClock())
    for _ in range(2):
        await commander.ask(plan, KIND.PAUSE, [0], within_s=2.0)
    first, second = rank.commands
    assert first.id == second.id == f"{plan.id}/pause/0"
    assert first.fencing_token == 7
    assert first.expires_at is not None, "a paused rank goes on by itself if nobody comes back"
    await commander.ask(plan, KIND.RESUME, [0], within_s=2.0)
    assert rank.commands[-1].id != first.id


async def test_the_time_for_all_ranks_together_is_bounded(bus: MemoryBus, plan: Plan) -> None:
    await serve(bus, *(Rank(n, slow=True) for n in range(200)))
    commander = AgentCommander(bus, "default", SystemClock(), answer_within_s=10.0)
    asked = await asyncio.wait_for(commander.ask(plan, KIND.DUMP, range(200), within_s=0.3), timeout=5.0)
    assert len(asked) == 200
    assert {each.status for each in asked} == {AskStatus.TIMEOUT}


async def test_nobody_to_ask_is_no_error(bus: MemoryBus, plan: Plan) -> None:
    assert await AgentCommander(bus, "default", SystemClock()).ask(plan, KIND.DUMP, [], within_s=1.0) == []
