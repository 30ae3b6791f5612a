"""What a verifier may carry from one look to the next, and what a new term must not inherit."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, cast

import msgspec

from goodput_common.runtime.clock import Clock
from goodput_recovery.application.ports import Store
from goodput_recovery.application.verify import Ranks, Verifier
from goodput_recovery.domain.incident import Incident, heard
from goodput_recovery.domain.plan import Plan
from goodput_recovery.domain.policy import Policy
from goodput_recovery.domain.progress import Outcome
from goodput_recovery.testing import START, make_context, make_verdict

POLICY = Policy(verify_hold_s=3.0, verify_within_s=100.0, verify_watch_s_min=20.0)


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


class _NoPlaces:
    async def places(self, _job: str) -> dict[int, object]:
        return {}


class _Turned:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return after(self.seconds)


class Watching:
    """A verifier with its clock and its bus in hand."""

    def __init__(self) -> None:
        self.clock, self.bus = _Turned(), True
        self.verifier = Verifier(Ranks(cast(Store, _NoPlaces())), POLICY, cast(Clock, self.clock), self._healthy)

    async def _healthy(self) -> bool:
        return self.bus

    async def at(self, seconds: float, *, bus: bool = True, plan: str = "p-1") -> Outcome:
        self.clock.seconds, self.bus = seconds, bus
        return (await self.verifier.look([verifying(plan)]))[plan].outcome


def verifying(id: str, **more: Any) -> tuple[Incident, Plan]:
    incident = heard(None, make_verdict(), make_context()).incident
    changed = msgspec.structs.replace(incident.plans[0], id=id, stall_step=100, acted_at=START, verify_by=after(100), **more)
    return incident, changed


async def test_the_time_between_two_terms_is_not_counted_as_blind() -> None:
    """An hour as a standby, and the bus away at the first look back: the plan must still meet its deadline."""
    watching = Watching()
    assert await watching.at(0) is Outcome.WAIT
    watching.verifier.forget_all()
    assert await watching.at(3600, bus=False) is Outcome.WAIT
    assert await watching.at(3621) is not Outcome.WAIT


async def test_a_plan_that_came_later_missed_nothing_before_it_came() -> None:
    watching = Watching()
    await watching.at(0, plan="an-earlier-one")
    assert await watching.at(500, bus=False, plan="p-2") is Outcome.WAIT
    assert await watching.at(521, plan="p-2") is not Outcome.WAIT


async def test_a_bus_that_was_away_while_a_plan_was_watched_gives_it_that_time_back() -> None:
    watching = Watching()
    await watching.at(0)
    await watching.at(60, bus=False)
    assert await watching.at(110) is Outcome.WAIT
    assert await watching.at(161) is not Outcome.WAIT
