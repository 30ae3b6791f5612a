"""The verdict: which one component is to blame, how sure we are, and what anyone can check it by.

Verdicts are versioned, never edited: version n+1 of the same id replaces n for a reader, and both are kept. The JSON form is
a promise to scripts; fields are only ever added.
"""

from __future__ import annotations

import enum
from datetime import datetime

import msgspec

from goodput_common.contracts.ids import ComponentId, ComponentKind


class FaultClass(enum.StrEnum):
    GPU_OFF_BUS = "gpu_off_bus"
    GPU_MEMORY = "gpu_memory"
    NVLINK = "nvlink"
    LINK_FLAP = "link_flap"
    PFC_STORM = "pfc_storm"
    STRAGGLER = "straggler"
    GPU_DRIVER = "gpu_driver"
    PCIE = "pcie"
    NIC_HANG = "nic_hang"
    SWITCH_FAULT = "switch_fault"
    HOST_DOWN = "host_down"
    PROCESS_DEAD = "process_dead"
    PROCESS_STALL = "process_stall"
    COLLECTIVE_DESYNC = "collective_desync"
    STORAGE_STALL = "storage_stall"
    NO_HARDWARE_FAULT = "no_hardware_fault"
    UNDETERMINED = "undetermined"


class Trouble(enum.StrEnum):
    """What a verdict is about."""

    STALLED = "stalled"  # the job's steps stand still
    SLOW = "slow"  # they take clearly longer than is usual for it
    IDLE = "idle"  # hardware failed where no job waits for it


class VerdictState(enum.StrEnum):
    """open -> revised* -> resolved. See `goodput_correlator.domain.verdict` for the transitions."""

    OPEN = "open"
    REVISED = "revised"
    RESOLVED = "resolved"


class ActionKind(enum.StrEnum):
    """The ladder of recoveries, cheapest first."""

    OBSERVE = "observe"
    REINIT_COMMUNICATORS = "reinit_communicators"
    RESTART_RANK = "restart_rank"
    EXCLUDE_NIC = "exclude_nic"
    ISOLATE_LINK = "isolate_link"
    RESET_GPU = "reset_gpu"
    SWAP_NODE = "swap_node"
    CORDON_AT_CHECKPOINT = "cordon_at_checkpoint"
    DRAIN_AND_RESUME = "drain_and_resume"
    RESTART_JOB = "restart_job"
    HAND_TO_PERSON = "hand_to_person"


class Culprit(msgspec.Struct, frozen=True, kw_only=True):
    """`component` is None only for undetermined and no_hardware_fault; `ranks` are those that the component carries."""

    component: ComponentId | None
    kind: ComponentKind | None
    host: str | None
    ranks: tuple[int, ...] = ()


class Alternative(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A runner-up. `because` says why it is not the answer: what contradicts it, what it lacks, what it rests on."""

    component: ComponentId | None
    fault_class: FaultClass
    confidence: float
    because: str = ""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was seen. `excerpt` is what a person would look for in the log; `why` is what it means here.

    `weight` is its share in the decision, 0..1.
    """

    event_id: str
    component: ComponentId | None
    excerpt: str
    observed_at: datetime
    why: str
    weight: float = 0.0


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """A symptom that follows from the root and is therefore nobody else's fault."""

    component: ComponentId | None
    symptom: str
    because: str


class Affected(msgspec.Struct, frozen=True, kw_only=True):
    jobs: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """What the correlator recommends; the recovery service decides."""

    kind: ActionKind
    target: ComponentId | None
    reason: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`confidence` is a probability. Times: first sight of the fault, culprit named, queued for the bus."""

    id: str
    version: int
    incident: str
    fabric: str
    job: str | None
    state: VerdictState
    fault_class: FaultClass
    culprit: Culprit
    confidence: float
    alternatives: tuple[Alternative, ...]
    evidence: tuple[Evidence, ...]
    explained: tuple[Explained, ...]
    affected: Affected
    action: Action
    first_evidence_at: datetime
    detected_at: datetime
    published_at: datetime
    diagnosed_by: str
    generation: int = 0
    resolution: str = ""
    unknown: tuple[str, ...] = ()  # sources that were silent, in words
    trouble: Trouble = Trouble.STALLED
    unexplained: tuple[str, ...] = ()  # alerts that follow from nothing here, in words and counted: maybe a second fault
    culprits: tuple[Culprit, ...] = ()  # all, when one incident has several independent ones; culprit is the first
