"""Commands from recovery: which are obeyed, which refused.

A command's `id` makes it idempotent: asked again it gets the answer it had, and nothing is done twice. The fencing token
grows with every plan for the job; a token below one already seen comes from a planner that has been overtaken, and is
refused. The last `ANSWERS_KEPT` answers are remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime

import msgspec

from goodput_agent.gate import PAUSE_S_MAX, PauseGate
from goodput_agent.identity import Identity
from goodput_common.contracts.recovery import AgentCommand, AgentCommandKind, AgentReply, AgentReplyStatus

ANSWERS_KEPT = 256


class Commands:
    """`dump` takes a dump and returns "" or why it could not; `step` is the last finished step."""

    def __init__(self, identity: Identity, gate: PauseGate, dump: Callable[[], str], step: Callable[[], int]) -> None:
        self._identity = identity
        self._gate = gate
        self._dump = dump
        self._step = step
        self._answers: OrderedDict[str, AgentReply] = OrderedDict()
        self._token_max = -1

    def handle(self, command: AgentCommand, now: datetime) -> AgentReply:
        if (known := self._answers.get(command.id)) is not None:
            return known
        status, reason = self._decide(command, now)
        reply = AgentReply(id=command.id, status=status, rank=self._identity.rank, at=now, reason=reason, step=self._step())
        self._answers[command.id] = reply
        while len(self._answers) > ANSWERS_KEPT:
            self._answers.popitem(last=False)
        return reply

    def _decide(self, command: AgentCommand, now: datetime) -> tuple[AgentReplyStatus, str]:
        mine = self._identity
        if (command.fabric, command.job, command.rank) != (mine.fabric, mine.job, mine.rank):
            return AgentReplyStatus.REFUSED, f"this is rank {mine.rank} of {mine.job} in {mine.fabric}"
        if command.fencing_token < self._token_max:
            return AgentReplyStatus.REFUSED, f"fencing token {command.fencing_token} is older than {self._token_max}"
        self._token_max = command.fencing_token
        if command.expires_at is not None and command.expires_at <= now:
            return AgentReplyStatus.REFUSED, f"expired at {command.expires_at.isoformat()}"
        if command.kind is AgentCommandKind.DUMP:
            why_not = self._dump()
            return (AgentReplyStatus.REFUSED, why_not) if why_not else (AgentReplyStatus.DONE, "")
        if command.kind is AgentCommandKind.PAUSE:
            for_s = PAUSE_S_MAX if command.expires_at is None else (command.expires_at - now).total_seconds()
            self._gate.pause(for_s)
            return (
                AgentReplyStatus.ACCEPTED,
                f"pausing at the next step boundary, for {min(for_s, PAUSE_S_MAX):.0f} s at most",
            )
        self._gate.resume()
        return AgentReplyStatus.DONE, ""


def refusal(identity: Identity, data: msgspec.Struct, now: datetime) -> AgentReply:
    """The answer to a request that is no command."""
    return AgentReply(
        id="", status=AgentReplyStatus.REFUSED, rank=identity.rank, at=now, reason=f"{type(data).__name__} is no command"
    )
