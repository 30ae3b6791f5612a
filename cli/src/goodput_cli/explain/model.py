"""What a story is made of. `Story` as JSON is the output of `goodput explain --json`; fields are only ever added."""

from __future__ import annotations

import enum
from datetime import datetime

import msgspec

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.recovery import NotChosen, PlanState
from goodput_common.contracts.verdict import ActionKind, FaultClass, VerdictState


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """Who told a cited fact, and when it arrived."""

    source: str
    host: str
    received_at: datetime


class RecoveryStep(msgspec.Struct, frozen=True, kw_only=True):
    """One state that a plan of recovery reached."""

    at: datetime
    action: ActionKind
    target: ComponentId | None
    state: PlanState
    reason: str
    not_chosen: tuple[NotChosen, ...] = ()


class MomentKind(enum.StrEnum):
    STEP = "step"  # where the job stood
    EVIDENCE = "evidence"  # the newest version cites it, or an earlier one about the same culprit
    SYMPTOM = "symptom"  # only an earlier version cites it, about somebody else: explained, or outweighed, since
    VERDICT = "verdict"
    RECOVERY = "recovery"


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One thing on the time line. `after_s` is relative to the first evidence."""

    after_s: float
    at: datetime
    kind: MomentKind
    component: ComponentId | None
    what: str


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of evidence. `heard` is "" where nobody says who told it."""

    after_s: float
    component: ComponentId | None
    excerpt: str
    why: str
    weight: float
    event_id: str
    heard: str = ""


class Rival(msgspec.Struct, frozen=True, kw_only=True):
    component: ComponentId | None
    fault_class: FaultClass
    confidence: float
    because: str


class ExplainedAway(msgspec.Struct, frozen=True, kw_only=True):
    """Equal symptoms that follow from the same thing; `who` names their components shortly (`rank:job/0-23`)."""

    who: str
    symptom: str
    because: str
    count: int


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The recommended action: what it does, why it, and what was passed over (where recovery has told)."""

    kind: ActionKind
    target: ComponentId | None
    what: str
    reason: str
    not_chosen: tuple[NotChosen, ...] = ()


class Story(msgspec.Struct, frozen=True, kw_only=True):
    verdict: str
    version: int
    state: VerdictState
    fabric: str
    job: str | None
    fault_class: FaultClass
    component: ComponentId | None
    confidence: float
    headline: str  # one line, for a list or a title
    summary: str  # who and how sure, in one sentence
    began_at: datetime
    timeline: tuple[Moment, ...]
    evidence: tuple[Line, ...]
    why_this: tuple[str, ...]
    rivals: tuple[Rival, ...]
    explained: tuple[ExplainedAway, ...]
    not_seen: tuple[str, ...]
    would_change: tuple[str, ...]
    advice: Advice
    recovery: str  # what became of it, or why that is not known
