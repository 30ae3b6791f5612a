"""What an engine hands in (`Finding`) and what comes out of weighing them all (`Diagnosis`).

A finding is one hypothesis: this component is at fault in this way, here is what was seen, and these symptoms would follow
from it. Engines do not know of each other; `ranking` compares what their findings explain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from goodput_common.contracts.ids import ComponentId, ComponentKind, host_of, kind_of
from goodput_common.contracts.verdict import Action, Affected, Alternative, Culprit, Evidence, Explained, FaultClass
from goodput_correlator.domain.calibration import Grounds

ENGINE_VERSION = "1"


class Symptom(NamedTuple):
    """Something wrong that was observed and that a cause has to account for: what, and where."""

    what: str
    component: ComponentId


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`score` is how likely the hypothesis is on its own evidence, 0..1. `decisive` evidence tells a fault from a pause at
    once (an Xid 79 on a GPU whose rank stands still); `settled` means that nothing more is to be waited for, once it is
    clear that the job does not merely pause. `explains` are the symptoms that would follow from it; `because` says in
    words how they follow. `aftermath`, where it is not "", says why this is an effect of whatever else stopped the job;
    `history` that the job ran on over it for long. `victims` are what else looks broken because of it."""

    fault_class: FaultClass
    component: ComponentId | None
    score: float
    evidence: tuple[Evidence, ...]
    engine: str
    ranks: tuple[int, ...] = ()
    host: str | None = None
    explains: frozenset[Symptom] = frozenset()
    because: str = ""
    decisive: bool = False
    settled: bool = False
    hardware: bool = False
    action: Action | None = None
    aftermath: str = ""
    history: str = ""
    victims: tuple[Explained, ...] = ()

    @property
    def culprit(self) -> Culprit:
        if self.component is None:
            return Culprit(component=None, kind=None, host=self.host, ranks=self.ranks)
        return Culprit(
            component=self.component,
            kind=kind_of(self.component),
            host=self.host or host_of(self.component),
            ranks=self.ranks,
        )

    @property
    def kind(self) -> ComponentKind | None:
        return kind_of(self.component) if self.component else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The answer for one case. `culprits` holds all independent roots, the most certain first; empty means undetermined, or
    no hardware fault. `grounds`: what `confidence` was made from. `unexplained`: alerts that follow from nothing here;
    `ways`: in which alerts follow, in words."""

    fault_class: FaultClass
    culprits: tuple[Culprit, ...]
    confidence: float
    alternatives: tuple[Alternative, ...]
    evidence: tuple[Evidence, ...]
    explained: tuple[Explained, ...]
    affected: Affected
    action: Action
    first_evidence_at: datetime
    engine: str
    decisive: bool = False
    settled: bool = False
    unknown: tuple[str, ...] = field(default=())
    grounds: Grounds | None = None
    unexplained: tuple[str, ...] = ()
    ways: frozenset[str] = frozenset()
