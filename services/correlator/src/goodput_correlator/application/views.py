"""What readers are shown besides verdicts: incidents, jobs, evidence, rejected messages. The JSON form is that of REST
and SSE."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Any

import msgspec

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord
from goodput_common.contracts.verdict import FaultClass, Verdict, VerdictState


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


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job in its newest generation. Steps are -1 before the first; `step_min` is that of the slowest rank."""

    job: str
    fabric: str
    state: JobState
    generation: int
    world_size: int
    first_seen_at: datetime
    last_seen_at: datetime
    step_min: int
    step_max: int
    step_at: datetime | None
    exited_clean: int
    exited_failed: int


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank runs and what it said last; `heard_at` None: no report is kept any more."""

    rank: int
    host: str
    pid: int
    gpu: int | None = None
    gpu_uuid: str | None = None
    local_rank: int | None = None
    step: int = -1
    step_at: datetime | None = None
    phase: str = ""
    heard_at: datetime | None = None


class JobDetail(msgspec.Struct, frozen=True, kw_only=True):
    job: Job
    ranks: tuple[Rank, ...]


class EvidenceItem(msgspec.Struct, frozen=True, kw_only=True):
    """One fact as it was received. `kind` says which of the contract's structs `fact` is."""

    id: str
    host: str
    source: str
    kind: str
    component: ComponentId
    job: str | None
    observed_at: datetime
    received_at: datetime
    fact: Any


class IncidentDetail(msgspec.Struct, frozen=True, kw_only=True):
    """An incident, the newest version of its verdict, and all evidence that any version cites."""

    incident: Incident
    verdict: Verdict
    evidence: tuple[EvidenceItem, ...]


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the graph, or a neighbourhood: components (links included) and edges. `graph` names the version it was read
    from; `next` is the cursor of the next page, null on the last. `truncated`: the neighbourhood had more components than
    were asked for."""

    fabric: str
    components: tuple[ComponentRecord, ...]
    edges: tuple[EdgeRecord, ...]
    graph: str
    truncated: bool = False
    next: str | None = None


class RejectedItem(msgspec.Struct, frozen=True, kw_only=True):
    """A message that nobody could use. `head` is the beginning of its body as text."""

    id: str
    type: str
    source: str
    stream: str
    subject: str
    sequence: int
    durable: str
    deliveries: int
    reason: str
    received_at: datetime
    rejected_at: datetime | None
    size_bytes: int
    head: str


class EventKind(enum.StrEnum):
    """What the event stream tells: a version of a verdict, or that an incident opened, changed or ended."""

    VERDICT = "verdict"
    INCIDENT = "incident"
