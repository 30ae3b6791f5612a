"""The ladder of recoveries and the table of remedies, as data.

A *rung* is one thing that can be done: what it costs, how far its blast reaches, what must be true before it may be done
(`needs`), and what the ranks are asked before it (`prepare`) and after it (`release`). A *remedy* says for one fault class
which rungs cure it at all, the smallest first, and why anything smaller does not. The planner walks a remedy from its
smallest rung and takes the first whose needs hold; it never invents a step.

A fault class of the contract without a remedy would be a hole: a test checks that there is none.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from goodput_common.contracts.recovery import AgentCommandKind
from goodput_common.contracts.verdict import ActionKind, FaultClass


class Blast(enum.StrEnum):
    """Who is disturbed by a rung."""

    NOTHING = "nothing"
    PROCESSES = "processes"  # the job's processes stay, their communicators go
    RANK = "rank"
    LINK = "link"
    NODE = "node"
    JOB = "job"


class Restore(enum.StrEnum):
    """Where training state comes back from, which decides how much work is done twice."""

    NONE = "none"  # state stays where it is
    PEER = "peer"  # a peer's in-memory copy, else the last durable checkpoint
    CHECKPOINT = "checkpoint"  # the last durable checkpoint
    BOUNDARY = "boundary"  # done right at a checkpoint: nothing is lost


class Need(enum.StrEnum):
    """What must hold before a rung may be done. Each is judged true, false or unknown; unknown does not hold."""

    JOB = "job"  # the verdict names a job
    COMPONENT = "component"  # the verdict names a component
    ONE_HOST = "one_host"  # all culprits are on one known host
    ONE_RANK = "one_rank"  # the culprit carries exactly one rank
    LINK_UP = "link_up"  # the link carries traffic again
    PROCESSES_ALIVE = "processes_alive"  # no rank of the job is known to be gone
    SPARE_NODE = "spare_node"
    CAPACITY = "capacity"  # enough paths and rails stay after the link is taken out
    ACTUATOR = "actuator"  # somebody here can carry it out


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One step. `downtime_s` is how long the job stands still for it; `nodes_out` how many nodes leave the pool.

    `passive` rungs touch nothing: they watch, or ask a person. They take no budget and no fencing token.
    """

    kind: ActionKind
    what: str
    downtime_s: float
    blast: Blast
    restore: Restore = Restore.NONE
    nodes_out: int = 0
    needs: tuple[Need, ...] = ()
    prepare: tuple[AgentCommandKind, ...] = ()
    release: tuple[AgentCommandKind, ...] = ()
    passive: bool = False


_RUNGS = (
    Rung(
        kind=ActionKind.OBSERVE,
        what="watch whether steps resume by themselves",
        downtime_s=0.0,
        blast=Blast.NOTHING,
        passive=True,
    ),
    Rung(
        kind=ActionKind.REINIT_COMMUNICATORS,
        what="tear down and rebuild the communicators in the same processes",
        downtime_s=10.0,
        blast=Blast.PROCESSES,
        needs=(Need.JOB, Need.LINK_UP, Need.PROCESSES_ALIVE, Need.ACTUATOR),
        prepare=(AgentCommandKind.DUMP,),
    ),
    Rung(
        kind=ActionKind.RESTART_RANK,
        what="restart the one rank and let it rejoin",
        downtime_s=45.0,
        blast=Blast.RANK,
        restore=Restore.PEER,
        needs=(Need.JOB, Need.ONE_RANK, Need.ACTUATOR),
        prepare=(AgentCommandKind.DUMP,),
    ),
    Rung(
        kind=ActionKind.EXCLUDE_NIC,
        what="go on without this NIC or rail",
        downtime_s=20.0,
        blast=Blast.LINK,
        needs=(Need.JOB, Need.COMPONENT, Need.CAPACITY, Need.ACTUATOR),
        prepare=(AgentCommandKind.PAUSE,),
        release=(AgentCommandKind.RESUME,),
    ),
    Rung(
        kind=ActionKind.ISOLATE_LINK,
        what="take the link or port out of the fabric",
        downtime_s=5.0,
        blast=Blast.LINK,
        needs=(Need.COMPONENT, Need.CAPACITY, Need.ACTUATOR),
        prepare=(AgentCommandKind.PAUSE,),
        release=(AgentCommandKind.RESUME,),
    ),
    Rung(
        kind=ActionKind.RESET_GPU,
        what="stop the node's ranks, reset the GPU, start them again",
        downtime_s=120.0,
        blast=Blast.NODE,
        restore=Restore.PEER,
        needs=(Need.JOB, Need.ONE_HOST, Need.ACTUATOR),
        prepare=(AgentCommandKind.DUMP,),
    ),
    Rung(
        kind=ActionKind.SWAP_NODE,
        what="put a spare in the node's place and restore from peer memory",
        downtime_s=90.0,
        blast=Blast.NODE,
        restore=Restore.PEER,
        nodes_out=1,
        needs=(Need.JOB, Need.ONE_HOST, Need.SPARE_NODE, Need.ACTUATOR),
        prepare=(AgentCommandKind.DUMP,),
    ),
    Rung(
        kind=ActionKind.CORDON_AT_CHECKPOINT,
        what="take the node out at the next checkpoint boundary",
        downtime_s=120.0,
        blast=Blast.NODE,
        restore=Restore.BOUNDARY,
        nodes_out=1,
        needs=(Need.JOB, Need.ONE_HOST, Need.ACTUATOR),
    ),
    Rung(
        kind=ActionKind.DRAIN_AND_RESUME,
        what="drain the node and resume from the last durable checkpoint",
        downtime_s=300.0,
        blast=Blast.JOB,
        restore=Restore.CHECKPOINT,
        nodes_out=1,
        needs=(Need.JOB, Need.ONE_HOST, Need.ACTUATOR),
        prepare=(AgentCommandKind.DUMP,),
    ),
    Rung(
        kind=ActionKind.RESTART_JOB,
        what="restart the whole job from the last durable checkpoint",
        downtime_s=420.0,
        blast=Blast.JOB,
        restore=Restore.CHECKPOINT,
        needs=(Need.JOB, Need.ACTUATOR),
        prepare=(AgentCommandKind.DUMP,),
    ),
    Rung(
        kind=ActionKind.HAND_TO_PERSON,
        what="hand the incident to a person, with the evidence",
        downtime_s=0.0,
        blast=Blast.NOTHING,
        passive=True,
    ),
)

LADDER: dict[ActionKind, Rung] = {rung.kind: rung for rung in _RUNGS}
ORDER: dict[ActionKind, int] = {rung.kind: place for place, rung in enumerate(_RUNGS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What cures a fault class, smallest first, ending with a person. `smaller_fails` says why nothing else does."""

    steps: tuple[ActionKind, ...]
    smaller_fails: str


_A = ActionKind

REMEDIES: dict[FaultClass, Remedy] = {
    FaultClass.GPU_OFF_BUS: Remedy(
        steps=(_A.SWAP_NODE, _A.DRAIN_AND_RESUME, _A.HAND_TO_PERSON),
        smaller_fails="the GPU is gone from the bus: nothing that keeps this node gives it back",
    ),
    FaultClass.GPU_MEMORY: Remedy(
        steps=(_A.DRAIN_AND_RESUME, _A.HAND_TO_PERSON),
        smaller_fails="memory that failed uncorrectably may have corrupted state: only a durable checkpoint is trusted",
    ),
    FaultClass.NVLINK: Remedy(
        steps=(_A.SWAP_NODE, _A.DRAIN_AND_RESUME, _A.HAND_TO_PERSON),
        smaller_fails="an NVLink fault stays with the node: new communicators would run over the same link",
    ),
    FaultClass.LINK_FLAP: Remedy(
        steps=(_A.REINIT_COMMUNICATORS, _A.SWAP_NODE, _A.DRAIN_AND_RESUME, _A.HAND_TO_PERSON),
        smaller_fails="a communicator that lost its link does not heal by itself",
    ),
    FaultClass.PFC_STORM: Remedy(
        steps=(_A.ISOLATE_LINK, _A.HAND_TO_PERSON),
        smaller_fails="restarting anything changes nothing: the pause frames come from the origin port",
    ),
    FaultClass.STRAGGLER: Remedy(
        steps=(_A.CORDON_AT_CHECKPOINT, _A.HAND_TO_PERSON),
        smaller_fails="the job still moves: nothing sooner than the next checkpoint boundary is worth its price",
    ),
    FaultClass.GPU_DRIVER: Remedy(
        steps=(_A.RESET_GPU, _A.SWAP_NODE, _A.DRAIN_AND_RESUME, _A.HAND_TO_PERSON),
        smaller_fails="the GPU's firmware does not answer: its processes cannot be given back a working device",
    ),
    FaultClass.PCIE: Remedy(
        steps=(_A.SWAP_NODE, _A.DRAIN_AND_RESUME, _A.HAND_TO_PERSON),
        smaller_fails="a PCIe fault stays with the node",
    ),
    FaultClass.NIC_HANG: Remedy(
        steps=(_A.EXCLUDE_NIC, _A.SWAP_NODE, _A.DRAIN_AND_RESUME, _A.HAND_TO_PERSON),
        smaller_fails="the NIC's firmware hangs: new communicators would use the same NIC",
    ),
    FaultClass.SWITCH_FAULT: Remedy(
        steps=(_A.ISOLATE_LINK, _A.HAND_TO_PERSON),
        smaller_fails="the fault lies in the fabric: nothing done to a host cures it",
    ),
    FaultClass.HOST_DOWN: Remedy(
        steps=(_A.SWAP_NODE, _A.DRAIN_AND_RESUME, _A.HAND_TO_PERSON),
        smaller_fails="the host is gone, and its ranks with it",
    ),
    FaultClass.PROCESS_DEAD: Remedy(
        steps=(_A.RESTART_RANK, _A.RESTART_JOB, _A.HAND_TO_PERSON),
        smaller_fails="a dead process does not come back by itself",
    ),
    FaultClass.PROCESS_STALL: Remedy(
        steps=(_A.RESTART_RANK, _A.RESTART_JOB, _A.HAND_TO_PERSON),
        smaller_fails="the process stands still in a place that new communicators do not reach",
    ),
    FaultClass.COLLECTIVE_DESYNC: Remedy(
        steps=(_A.RESTART_JOB, _A.HAND_TO_PERSON),
        smaller_fails="ranks that ran different collectives no longer hold the same state: only a common checkpoint is safe",
    ),
    FaultClass.STORAGE_STALL: Remedy(
        steps=(_A.OBSERVE, _A.HAND_TO_PERSON),
        smaller_fails="",
    ),
    FaultClass.NO_HARDWARE_FAULT: Remedy(
        steps=(_A.OBSERVE, _A.HAND_TO_PERSON),
        smaller_fails="",
    ),
    FaultClass.UNDETERMINED: Remedy(
        steps=(_A.OBSERVE, _A.HAND_TO_PERSON),
        smaller_fails="",
    ),
}

STOPPED = Remedy(
    steps=(_A.SWAP_NODE, _A.DRAIN_AND_RESUME, _A.HAND_TO_PERSON),
    smaller_fails="what held its rank back stays with the node, and the job that stands reaches no checkpoint",
)
"""For a straggler that has brought the job to a standstill."""
