"""What the application needs from outside, as protocols. The adapters implement them; the tests implement some again."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.recovery import AgentCommandKind
from goodput_common.contracts.verdict import ActionKind, Verdict
from goodput_recovery.domain.budget import Usage
from goodput_recovery.domain.incident import Decision, Incident
from goodput_recovery.domain.plan import Plan
from goodput_recovery.domain.policy import Retention


class StoreUnavailable(Exception):
    """The database did not answer; nothing of the transaction happened. Try again later."""


class NotLeading(Exception):
    """Another replica leads this fabric now: stop acting."""


class Fenced(Exception):
    """A plan with a higher token has acted on the same job: this one must not act any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The fabric's row: the newest fencing token, and who paused recovery (empty: nobody)."""

    last_token: int = 0
    paused_by: str = ""
    paused_why: str = ""
    paused_at: datetime | None = None

    @property
    def paused(self) -> str:
        return f"by {self.paused_by}" + (f": {self.paused_why}" if self.paused_why else "") if self.paused_by else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One executed action, as it was recorded before it was carried out. `done` is None until the actuator has answered."""

    plan: str
    incident: str
    job: str | None
    action: ActionKind
    target: str | None
    actuator: str
    fencing_token: int
    at: datetime
    finished_at: datetime | None = None
    done: bool | None = None
    result: str = ""


class AskStatus(enum.StrEnum):
    """What became of one command to one rank."""

    DONE = "done"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    NO_RESPONDER = "no_responder"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"  # the bus is away


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One command to one rank and its answer."""

    id: str
    plan: str
    rank: int
    kind: AgentCommandKind
    fencing_token: int
    at: datetime
    status: AskStatus
    reason: str = ""
    step: int = -1

    @property
    def took(self) -> bool:
        return self.status in (AskStatus.DONE, AskStatus.ACCEPTED)


class Reader(Protocol):
    """What can be asked both inside a transaction and, as of some recent moment, outside."""

    async def usage(self, since: datetime) -> Usage: ...

    async def control(self) -> Control: ...

    async def job_recovered_at(self, job: str, other_than: str) -> datetime | None:
        """When a plan of another incident last brought this job back by an action."""


class Unit(Reader, Protocol):
    """One transaction, alone on its fabric."""

    async def first_time(self, consumer: str, message_id: str) -> bool: ...

    async def incident(self, id: str) -> Incident | None: ...

    async def incident_of_plan(self, plan: str) -> Incident | None: ...

    async def keep_verdict(self, verdict: Verdict, at: datetime) -> None:
        """Store this version; the same version again changes nothing."""

    async def save(self, decision: Decision, inputs: dict[str, Any], at: datetime) -> None:
        """Store the incident and its plans, write every event to the audit log, queue the announcements. The announcement of
        `executing` waits for `release`."""

    async def release(self, plan: Plan, at: datetime) -> bool:
        """Record that the action is carried out from now on, and queue its announcement. Returns False if that was done
        before. Raises Fenced."""

    async def finish(self, plan: str, *, done: bool, result: str, at: datetime) -> None: ...

    async def set_paused(self, who: str, why: str, at: datetime, *, paused: bool) -> Control: ...


class Store(Reader, Protocol):
    def transaction(self, *, leading: bool = True) -> AbstractAsyncContextManager[Unit]:
        """Begin; commit at the end, roll back on any exception. With `leading`, raises NotLeading once another replica has
        taken over. Raises StoreUnavailable."""

    async def open_incidents(self) -> Sequence[Incident]:
        """Those with an open plan, oldest first."""

    async def deed(self, plan: str) -> Deed | None: ...

    async def keep_asked(self, asked: Sequence[Asked]) -> None: ...

    async def asked(self, plan: str) -> Sequence[Asked]: ...

    async def place(self, rank: RankRegistered) -> None:
        """Remember where a rank runs, unless something newer is known."""

    async def places(self, job: str) -> dict[int, RankPlace]: ...

    async def still_there(self, jobs: Sequence[str], now: datetime) -> None:
        """These jobs were heard just now: their newest ranks are where they are known to be."""

    async def prune(self, keep: Retention, now: datetime) -> bool:
        """Let go of what ended longer ago than `keep` says, a bounded number of rows; returns whether more may be waiting.
        Raises NotLeading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    rank: int
    host: str
    generation: int
    world_size: int


@dataclass(frozen=True, slots=True)
class Observation:
    """`applied`: the action's effect is in place; None is cannot tell."""

    applied: bool | None
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    done: bool
    text: str


class Actuator(Protocol):
    """Carries out actions. Everything is idempotent by plan id: after a crash the same plan comes again, with the same
    fencing token. An exception means "not known": the plan comes again, too."""

    @property
    def name(self) -> str: ...

    @property
    def offers(self) -> frozenset[ActionKind]: ...

    async def observe(self, plan: Plan) -> Observation:
        """Before acting: is the effect in place already?"""

    async def act(self, plan: Plan) -> Outcome: ...

    async def verify(self, plan: Plan) -> Observation:
        """After acting: is the effect in place now? (Whether it *helped* is seen on the ranks, not here.)"""


class Commander(Protocol):
    """Talks to the agents inside the ranks."""

    async def ask(self, plan: Plan, kind: AgentCommandKind, ranks: Sequence[int], *, within_s: float) -> Sequence[Asked]:
        """One command to each rank, at most `within_s` in all; silence and refusals are answers, not errors."""
