"""The state machine of one plan: exactly the documented moves."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from goodput_common.contracts.recovery import PlanState
from goodput_common.contracts.verdict import ActionKind, FaultClass
from goodput_recovery.domain.incident import heard
from goodput_recovery.domain.plan import ACTIVE, PASSIVE, TERMINAL, IllegalTransition, Plan, move, plan_id, update_of
from goodput_recovery.testing import START, make_context, make_verdict

P = PlanState


def a_plan(*, passive: bool = False) -> Plan:
    verdict = make_verdict(FaultClass.UNDETERMINED, None) if passive else make_verdict()
    return heard(None, verdict, make_context()).incident.plans[0]


@pytest.mark.parametrize("passive", [False, True])
@pytest.mark.parametrize(("state", "to"), list(itertools.product(P, P)))
def test_only_listed_moves_are_possible(passive: bool, state: PlanState, to: PlanState) -> None:
    plan = msgspec.structs.replace(a_plan(passive=passive), state=state)
    allowed = (PASSIVE if passive else ACTIVE).get(state, frozenset())
    if to in allowed:
        moved = move(plan, to, at=START, reason="why", fencing_token=7)
        assert (moved.state, moved.reason, moved.changed_at) == (to, "why", START)
    else:
        with pytest.raises(IllegalTransition, match=f"it cannot become {to}"):
            move(plan, to, at=START, reason="why", fencing_token=7)


def test_an_ended_plan_goes_nowhere_and_an_open_one_somewhere() -> None:
    for table in (ACTIVE, PASSIVE):
        assert TERMINAL.isdisjoint(table)
        reachable, frontier = {P.PROPOSED}, [P.PROPOSED]
        while frontier:
            for to in table.get(frontier.pop(), frozenset()):
                if to not in reachable:
                    reachable.add(to)
                    frontier.append(to)
        assert set(table) <= reachable


def test_a_passive_plan_never_executes() -> None:
    assert all(P.EXECUTING not in tos and P.APPROVED not in tos for tos in PASSIVE.values())
    plan = a_plan(passive=True)
    assert plan.passive and plan.action is ActionKind.OBSERVE


def test_nothing_executes_without_a_token() -> None:
    plan = move(a_plan(), P.APPROVED, at=START, reason="")
    with pytest.raises(ValueError, match="fencing token"):
        move(plan, P.EXECUTING, at=START, reason="")


def test_ids_follow_from_verdict_and_place_in_the_chain() -> None:
    assert plan_id("v", 1) == plan_id("v", 1)
    assert len({plan_id("v", 1), plan_id("v", 2), plan_id("w", 1)}) == 3


def test_a_plan_survives_its_json_form() -> None:
    plan = a_plan()
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan
    assert update_of(plan, None).plan == plan.id
