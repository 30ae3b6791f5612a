"""Which commands are obeyed: idempotence, fencing, expiry."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from goodput_agent.commands import ANSWERS_KEPT, Commands
from goodput_agent.gate import PauseGate
from goodput_agent.identity import identify
from goodput_common.contracts.recovery import AgentCommand, AgentCommandKind, AgentReplyStatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ME = identify({"RANK": "3", "WORLD_SIZE": "4", "GOODPUT_HOST": "h1"}, job="j")


def command(id: str = "c1", kind: AgentCommandKind = AgentCommandKind.DUMP, token: int = 1, **more: Any) -> AgentCommand:
    return AgentCommand(
        **{"id": id, "kind": kind, "fabric": "default", "job": "j", "rank": 3, "fencing_token": token, **more}
    )


class Harness:
    def __init__(self, why_not: str = "") -> None:
        self.dumps = 0
        self.gate = PauseGate()
        self.why_not = why_not
        self.commands = Commands(ME, self.gate, self._dump, lambda: 41)

    def _dump(self) -> str:
        self.dumps += 1
        return self.why_not

    def ask(self, asked: AgentCommand) -> tuple[AgentReplyStatus, str]:
        reply = self.commands.handle(asked, NOW)
        return reply.status, reply.reason


def test_dump_is_done_at_once_and_says_the_step() -> None:
    harness = Harness()
    reply = harness.commands.handle(command(), NOW)
    assert (reply.status, reply.step, harness.dumps) == (AgentReplyStatus.DONE, 41, 1)


def test_the_same_id_is_answered_alike_and_done_once() -> None:
    harness = Harness()
    assert harness.ask(command()) == harness.ask(command())
    assert harness.dumps == 1


def test_answers_are_forgotten_only_beyond_the_bound() -> None:
    harness = Harness()
    for number in range(ANSWERS_KEPT + 1):
        harness.ask(command(id=f"c{number}"))
    harness.ask(command(id="c1"))
    assert harness.dumps == ANSWERS_KEPT + 1
    harness.ask(command(id="c0"))
    assert harness.dumps == ANSWERS_KEPT + 2


def test_a_token_below_one_already_seen_is_refused() -> None:
    harness = Harness()
    harness.ask(command(id="a", token=7))
    status, reason = harness.ask(command(id="b", token=6))
    assert status is AgentReplyStatus.REFUSED
    assert "older than 7" in reason
    assert harness.ask(command(id="c", token=7))[0] is AgentReplyStatus.DONE


def test_an_expired_command_is_refused_and_not_done() -> None:
    harness = Harness()
    assert harness.ask(command(expires_at=NOW))[0] is AgentReplyStatus.REFUSED
    assert harness.dumps == 0


def test_a_command_for_another_rank_is_refused() -> None:
    harness = Harness()
    assert harness.ask(command(rank=2))[0] is AgentReplyStatus.REFUSED
    assert harness.ask(command(id="c2", job="k"))[0] is AgentReplyStatus.REFUSED
    assert harness.dumps == 0


def test_a_dump_that_cannot_be_taken_is_refused_with_the_reason() -> None:
    assert Harness(why_not="torch is not in use").ask(command()) == (AgentReplyStatus.REFUSED, "torch is not in use")


def test_pause_holds_the_next_boundary_until_resume() -> None:
    harness = Harness()
    status, _ = harness.ask(command(kind=AgentCommandKind.PAUSE, expires_at=NOW + timedelta(seconds=60)))
    assert status is AgentReplyStatus.ACCEPTED
    passed = threading.Event()
    thread = threading.Thread(target=lambda: (harness.gate.passage(), passed.set()))
    thread.start()
    assert not passed.wait(0.05)
    assert harness.gate.waiting
    harness.ask(command(id="c2", kind=AgentCommandKind.RESUME))
    thread.join(10)
    assert passed.is_set()
    assert not harness.gate.requested


def test_a_pause_that_nobody_ends_expires() -> None:
    gate = PauseGate()
    gate.pause(0.02)
    assert gate.passage()
    assert not gate.requested


def test_a_pause_whose_time_is_over_before_the_boundary_does_not_hold() -> None:
    gate = PauseGate()
    gate.pause(0.0)
    began = time.monotonic()
    assert not gate.passage()
    assert time.monotonic() - began < 5
    assert not gate.requested


def test_a_pause_that_no_boundary_is_reached_for_is_called_off() -> None:
    gate = PauseGate()
    gate.pause(0.0)
    assert gate.expire()
    assert not gate.requested
