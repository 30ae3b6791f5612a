"""What readers are shown besides verdicts: incidents, jobs, evidence, rejected messages. The JSON form is that of REST
and SSE."""

from __future__ import annotations

import enum
from datetime import datetime

import msgspec

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.verdict import FaultClass, VerdictState


class IncidentState(enum.StrEnum):
    OPEN = "open"
    RESOLVED = "resolved"


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One fault and its chain of verdict versions. `component` is the culprit that the newest version names."""

    id: str
    fabric: str
    job: str | None
    state: IncidentState
    fault_class: FaultClass
    component: ComponentId | None
    verdict: str
    version: int
    first_evidence_at: datetime
    opened_at: datetime
    updated_at: datetime
    resolved_at: datetime | None = None


def incident_state(state: VerdictState) -> IncidentState:
    return IncidentState.RESOLVED if state is VerdictState.RESOLVED else IncidentState.OPEN


class JobState(enum.StrEnum):
    """`unknown`: nobody has reported for a while, which says nothing about the job itself."""

    STARTING = "starting"
    RUNNING = "running"
    STALLED = "stalled"
    FINISHED = "finished"
    FAILED = "failed"
    UNKNOWN = "unknown"


class EventKind(enum.StrEnum):
    """What the event stream tells: a version of a verdict, or that an incident opened, changed or ended."""

    VERDICT = "verdict"
    INCIDENT = "incident"
