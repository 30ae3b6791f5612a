"""Made-up verdicts and contexts for tests of this service. No fixtures, no I/O."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from goodput_common.contracts.ids import ComponentId, host_of, kind_of, link_id
from goodput_common.contracts.verdict import (
    Action,
    ActionKind,
    Affected,
    Culprit,
    Evidence,
    FaultClass,
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
    **more: Any,
) -> Verdict:
    """A verdict as the correlator would write it; `at` is its publication."""
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
        id=f"verdict-of-{incident}",
        version=version,
        incident=incident,
        fabric="default",
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
