"""Uncorrectable memory errors of a GPU: Xid 48, 64, 94, 95, 140, 171, 172, and 63 where an application died of it.

63 (a row will be remapped at the next reset) is routine by itself. It counts when the rank on that GPU ended with an ECC
error. A contained error (94) kills the application and leaves the GPU usable; the others ask for a reset.

The board counts such errors as well, and remembers a row that it could not put out of use: that is told by NVML, where the
kernel's line was not seen.
"""

from __future__ import annotations

import re
from datetime import timedelta

from goodput_common.contracts.ids import ComponentId, gpu_id
from goodput_common.contracts.job import RankExited
from goodput_common.contracts.telemetry import Event, EventName, State
from goodput_common.contracts.verdict import Action, ActionKind, FaultClass
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.clues import cite, events, gpus_of_job, ranks_on, states
from goodput_correlator.domain.diagnosis._device import by_component, device_finding
from goodput_correlator.domain.finding import Finding

ENGINE = "gpu_memory"
SCORES = {"48": 0.92, "64": 0.92, "95": 0.93, "140": 0.92, "171": 0.9, "172": 0.9, "94": 0.85, "63": 0.3}
MEANINGS = {
    "48": "Xid 48: an uncorrectable (double bit) ECC error",
    "63": "Xid 63: a memory row is to be remapped at the next reset",
    "64": "Xid 64: a memory row could not be remapped",
    "94": "Xid 94: an uncorrectable memory error, contained to the application",
    "95": "Xid 95: an uncorrectable memory error that could not be contained",
    "140": "Xid 140: an unrecovered ECC error",
    "171": "Xid 171: uncorrectable DRAM error",
    "172": "Xid 172: uncorrectable SRAM error",
}
COUNTED = 0.82  # by the board's own counts alone
BECAUSE = "an uncorrectable memory error stops the application on that GPU, so its rank finishes nothing"
COUNTED_BEFORE_S = 8.0  # boards are read every few seconds
COUNTERS = ("ecc_uncorrected_volatile_total", "ecc_uncorrected_aggregate_total", "remapped_rows_uncorrectable")
_ECC = re.compile(r"ECC error|uncorrectable", re.IGNORECASE)


def diagnose(case: Case) -> tuple[Finding, ...]:
    seen = [(each, event) for each, event in events(case, EventName.XID) if event.attrs.get("xid") in SCORES]
    complaints = {rank: left for rank, left in case.exits.items() if _is_ecc(left.fact)}
    grouped = by_component(case, seen)
    found: list[Finding | None] = []
    explained: set[int] = set()
    for gpu, errors in grouped.items():
        ranks = ranks_on(case, gpu)
        score = max(SCORES[event.attrs["xid"]] for _, event in errors)
        told = [rank for rank in ranks if rank in complaints]
        explained.update(told)
        if told:
            score = 0.95
        elif score < 0.5 and not case.offline:
            continue
        more = tuple(cite(complaints[r], "its process ended with this very error", 0.6, gpu) for r in told)
        found.append(
            device_finding(
                case,
                gpu,
                errors,
                fault_class=FaultClass.GPU_MEMORY,
                engine=ENGINE,
                score=score,
                why=_why,
                because=BECAUSE,
                action=_action(gpu),
                decisive=score >= 0.8,
                more=more,
                repeated=bool(told),
            )
        )
    found.extend(_without_log(case, rank) for rank in sorted(complaints.keys() - explained))
    named = {each.component for each in found if each is not None}
    found.extend(_counted(case, gpu) for gpu in gpus_of_job(case) if gpu not in named)
    return tuple(each for each in found if each is not None)


def _without_log(case: Case, rank: int) -> Finding | None:
    """The process says ECC, the kernel log (not seen, or late) says nothing yet."""
    place = case.placement.ranks.get(rank) if case.placement else None
    if place is None or place.device is None:
        return None
    gpu = gpu_id(place.host, place.device)
    return Finding(
        fault_class=FaultClass.GPU_MEMORY,
        component=gpu,
        score=0.8,
        evidence=(cite(case.exits[rank], "the CUDA runtime names an uncorrectable memory error", 0.8, gpu),),
        engine=ENGINE,
        ranks=(rank,),
        host=place.host,
        hardware=True,
        because="its process was ended by an uncorrectable memory error",
        action=Action(
            kind=ActionKind.DRAIN_AND_RESUME, target=gpu, reason="drain the node and resume from the last checkpoint"
        ),
    )


def _counted(case: Case, gpu: ComponentId) -> Finding | None:
    """The board has counted an error, or failed to put a row out of use, since shortly before the job stands still: whether
    or not the kernel's line was seen."""
    if case.stalled_since is None:
        return None
    since = case.stalled_since - timedelta(seconds=COUNTED_BEFORE_S)
    more = [
        cite(rise.facts[-1], "its own count of errors that could not be corrected rose", COUNTED, gpu)
        for name in COUNTERS
        if name in case.measurements.names(gpu) and (rise := case.measurements.rise(gpu, name, since)).facts
    ]
    row = states(case).get((gpu, "row_remap"))
    if row is not None and isinstance(row.fact, State) and row.received_at >= since and row.fact.value == "failed":
        more.append(cite(row, "a row of its memory could not be put out of use", COUNTED, gpu))
    if not more:
        return None
    return device_finding(
        case,
        gpu,
        [],
        fault_class=FaultClass.GPU_MEMORY,
        engine=ENGINE,
        score=COUNTED,
        why=_why,
        because=BECAUSE,
        action=_action(gpu),
        more=tuple(more),
    )


def _action(gpu: ComponentId) -> Action:
    reason = "results since the error cannot be trusted: drain the node and resume from the last checkpoint"
    return Action(kind=ActionKind.DRAIN_AND_RESUME, target=gpu, reason=reason)


def _is_ecc(fact: object) -> bool:
    return isinstance(fact, RankExited) and not fact.clean and bool(_ECC.search(fact.reason))


def _why(event: Event) -> str:
    return MEANINGS[event.attrs["xid"]]
