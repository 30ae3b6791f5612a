"""What follows from what: whether one finding is only a consequence of another.

A GPU that is lost makes its rank hang or die; a dead rank makes its peers lose connections; a dead link leaves ranks on
either side of it behind. The consequence is often louder than the cause. Rules go by component and placement first; time
decides only between events of one host (one clock), or where host clocks' doubt of 2 s leaves no question.
"""

from __future__ import annotations

from datetime import timedelta

from goodput_common.contracts.ids import ComponentKind
from goodput_common.contracts.verdict import FaultClass
from goodput_correlator.domain.clues import CLOCK_DOUBT_S
from goodput_correlator.domain.finding import Finding

CAUSE_SCORE_MIN = 0.6
GPU_ORDER = (FaultClass.GPU_OFF_BUS, FaultClass.GPU_MEMORY, FaultClass.NVLINK, FaultClass.GPU_DRIVER, FaultClass.PCIE)
SAME_MOMENT_S = 5.0
VICTIM_MAX = 0.3  # an end that has no weight of its own
RANK_LEVEL = frozenset(
    {
        FaultClass.PROCESS_DEAD,
        FaultClass.PROCESS_STALL,
        FaultClass.GPU_DRIVER,
        FaultClass.COLLECTIVE_DESYNC,
        FaultClass.STRAGGLER,
    }
)
OF_PROCESSES = frozenset({FaultClass.PROCESS_DEAD, FaultClass.PROCESS_STALL, FaultClass.COLLECTIVE_DESYNC})
NETWORK = frozenset({FaultClass.LINK_FLAP, FaultClass.NIC_HANG, FaultClass.SWITCH_FAULT, FaultClass.PFC_STORM})


def follows(effect: Finding, cause: Finding) -> str | None:
    """Why `effect` needs no culprit of its own once `cause` is accepted; None when it does not follow from it."""
    if effect is cause or cause.component is None or effect.component is None or cause.score < CAUSE_SCORE_MIN:
        return None
    if effect.aftermath and not cause.aftermath:
        return effect.aftermath
    if cause.fault_class is FaultClass.HOST_DOWN:
        return f"{cause.host} is down with all that it carries" if effect.host == cause.host else None
    if cause.fault_class is FaultClass.STORAGE_STALL:
        return _storage_follows(effect, cause)
    if cause.hardware and not _is_rank(cause):
        if _is_rank(effect):
            return _rank_follows(effect, cause)
        return _device_follows(effect, cause)
    if _is_rank(cause) and _is_rank(effect):
        return _peer_follows(effect, cause)
    return None


def _is_rank(finding: Finding) -> bool:
    return finding.kind is ComponentKind.RANK


def _rank_follows(effect: Finding, cause: Finding) -> str | None:
    mine = set(effect.ranks) <= set(cause.ranks)
    if cause.fault_class in NETWORK:
        if mine and effect.fault_class is not FaultClass.COLLECTIVE_DESYNC:
            return f"its traffic crosses {cause.component}"
        if effect.score < cause.score and effect.fault_class is not FaultClass.COLLECTIVE_DESYNC and not effect.decisive:
            return f"it exchanges data over {cause.component} and was left behind"
        return None
    if mine and effect.fault_class in RANK_LEVEL:
        return f"it runs on {cause.component}"
    if effect.fault_class is FaultClass.PROCESS_DEAD and effect.score <= VICTIM_MAX and cause.ranks:
        return f"it gave up waiting for rank {', '.join(map(str, cause.ranks[:4]))} on {cause.component}, or was ended too"
    return None


def _storage_follows(effect: Finding, cause: Finding) -> str | None:
    """Processes that wait for storage stand still, are late or give up; their hosts look short of it."""
    mine = bool(effect.ranks) and set(effect.ranks) <= set(cause.ranks)
    if not mine or effect.hardware or effect.fault_class is FaultClass.STORAGE_STALL:
        return None
    if effect.fault_class is FaultClass.PROCESS_DEAD and effect.decisive and effect.score > cause.score:
        return None
    return "it waits for storage that does not answer" if effect.fault_class in RANK_LEVEL else None


def of_the_application(effect: Finding, application: Finding) -> str | None:
    """Why a rank needs no blame of its own when it is the application's doing."""
    if effect.hardware or effect.fault_class not in OF_PROCESSES:
        return None
    if application.ranks and set(effect.ranks) <= set(application.ranks):
        return "other ranks end in the same way: it is the application"
    if application.ranks and effect.score <= application.score:
        return "it was left waiting for ranks that the application itself ended"
    return None


def _device_follows(effect: Finding, cause: Finding) -> str | None:
    if any(each.component == effect.component for each in cause.victims):
        return next(each.because for each in cause.victims if each.component == effect.component)
    if cause.fault_class is FaultClass.GPU_DRIVER and cause.kind is ComponentKind.HOST and effect.host == cause.host:
        return f"the driver of {cause.host} is gone for all its GPUs" if effect.fault_class in GPU_ORDER else None
    if cause.fault_class in NETWORK and effect.fault_class is FaultClass.STRAGGLER and effect.kind is ComponentKind.NIC:
        return _late_adapter_follows(effect, cause)
    if effect.host != cause.host or effect.host is None:
        return None
    if effect.component == cause.component:
        if FaultClass.PCIE in (cause.fault_class, effect.fault_class):
            return _pcie_follows(effect, cause)
        return "the same device, after its first failure" if _comes_first(cause, effect) else None
    if cause.fault_class is FaultClass.NIC_HANG and effect.fault_class is FaultClass.LINK_FLAP:
        return "a hung adapter drops its link" if set(effect.ranks) <= set(cause.ranks) else None
    gpu_fault = cause.fault_class in GPU_ORDER and cause.kind is ComponentKind.GPU
    louder = cause.fault_class is not FaultClass.NVLINK or cause.score > effect.score + 0.2
    if gpu_fault and louder and effect.fault_class is FaultClass.NVLINK:
        return f"its NVLink partner {cause.component} failed"
    return None


def _late_adapter_follows(effect: Finding, cause: Finding) -> str | None:
    """An adapter that sends again and again may be the other end of a transfer over what is broken."""
    if effect.component == cause.component or cause.score < effect.score:
        return None
    return f"it sends again what is lost at {cause.component}"


def _pcie_follows(effect: Finding, cause: Finding) -> str | None:
    """Of one device, whose PCIe link is in trouble as well."""
    if effect.fault_class is FaultClass.PCIE:
        if cause.fault_class is FaultClass.GPU_OFF_BUS:
            return "a GPU that falls off the bus leaves errors on it"
        if cause.fault_class in (FaultClass.PFC_STORM, FaultClass.STRAGGLER):
            return None
        return "the same device, after its first failure" if _comes_first(cause, effect) else None
    if effect.fault_class is FaultClass.PFC_STORM:
        return "an adapter that its PCIe link starves tells its switch to stop"
    if effect.fault_class is FaultClass.STRAGGLER:
        return "its PCIe link makes it late" if cause.score >= effect.score - 0.05 else None
    if effect.fault_class is FaultClass.GPU_OFF_BUS:
        return None
    return "the same device, after its first failure" if _comes_first(cause, effect) else None


def _comes_first(cause: Finding, effect: Finding) -> bool:
    """Between two failures of one device: the earlier one; within a few seconds, the one that explains more."""
    began, later = min(e.observed_at for e in cause.evidence), min(e.observed_at for e in effect.evidence)
    if abs((later - began).total_seconds()) > SAME_MOMENT_S:
        return began < later
    if cause.fault_class in GPU_ORDER and effect.fault_class in GPU_ORDER:
        return GPU_ORDER.index(cause.fault_class) < GPU_ORDER.index(effect.fault_class)
    return cause.score >= effect.score


def _peer_follows(effect: Finding, cause: Finding) -> str | None:
    if set(effect.ranks) == set(cause.ranks):
        return "the same rank" if cause.score >= effect.score else None
    dead = cause.fault_class is FaultClass.PROCESS_DEAD  # its end alone is enough for those who are sure to have ended later
    if (
        effect.fault_class is FaultClass.PROCESS_DEAD
        and effect.score <= VICTIM_MAX
        and cause.score >= (CAUSE_SCORE_MIN if dead else 0.7)
    ):
        return f"it gave up waiting for rank {', '.join(map(str, cause.ranks))}, or was ended with the job"
    if cause.fault_class is not FaultClass.PROCESS_DEAD or cause.score < 0.8:
        return None
    if effect.fault_class is FaultClass.PROCESS_DEAD:
        if effect.score <= 0.5:
            return "it lost its connection to the rank that died first"
        began, later = min(e.observed_at for e in cause.evidence), min(e.observed_at for e in effect.evidence)
        return "it died later" if later - began > timedelta(seconds=CLOCK_DOUBT_S * 2) else None
    if effect.fault_class in (FaultClass.PROCESS_STALL, FaultClass.COLLECTIVE_DESYNC) and effect.score < 0.75:
        return "it was left waiting for the rank that died"
    return None
