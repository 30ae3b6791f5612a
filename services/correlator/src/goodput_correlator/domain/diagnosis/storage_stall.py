"""Storage that does not answer: ranks stand in a checkpoint or wait for input, and every GPU is fine.

The host tells of it (a mount or a disk with requests under way and none completed, the kernel's NFS client that gets no
answer, tasks that wait for storage), the rank tells where it stands. Both together name the host; either alone is weak:
mounts that nobody of the job uses hang as well, and a long checkpoint is no fault. Where the mount of *several* hosts hangs
it is not theirs but the server's: then the job is named, whose storage it is (the server is no component of the fabric; it
is told in words). It is never the hardware of a rank.

Where a host's collector is silent, nobody tells of its storage: see `_storage_unseen`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from goodput_common.contracts.ids import ComponentId, host_id, job_id
from goodput_common.contracts.job import RankProgress, StallSuspected
from goodput_common.contracts.telemetry import Event, EventName, Gauge, State
from goodput_common.contracts.verdict import Action, ActionKind, Evidence, FaultClass
from goodput_correlator.domain.blame import agreement
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import cite, events, states, symptoms_of
from goodput_correlator.domain.diagnosis._storage_unseen import ENGINE, unseen_storage
from goodput_correlator.domain.diagnosis.straggler import DATA_PHASES
from goodput_correlator.domain.finding import Finding
from goodput_correlator.domain.hindrances import BEFORE_S
from goodput_correlator.domain.lateness import Lateness, lateness

CHECKPOINT_PHASES = frozenset({"checkpoint", "save", "saving", "load_checkpoint", "restore"})
STORAGE_PHASES = CHECKPOINT_PHASES | DATA_PHASES
_FRAMES = re.compile(r"checkpoint|save|dataset|dataloader|read_shard|\bread\b|open\b|fetch", re.IGNORECASE)
SHARED_SHARE = 0.5  # of the job's hosts: the server behind them, not each of them
SHARED_MIN = 2
WAITED, BACKLOG_MIN, RTT_MS_MIN = 0.08, 2.0, 40.0
RETRANSMITS_PER_S = 0.1
TOLD_SCORE, MEASURED_SCORE = 0.9, 0.72
ELSEWHERE = 0.55  # a factor where no rank of the host is known to be at its storage
PLACE_UNKNOWN = 0.85  # where ranks do not say in which phase they are


@dataclass(slots=True)
class Trouble:
    """What one host says of its storage. `told` in words (an event, a state), else only measured."""

    host: str
    score: float = 0.0
    told: bool = False
    where: str = ""  # the mount or the disk
    server: str = ""
    evidence: list[Evidence] = field(default_factory=list)

    def add(self, score: float, why: str, seen: Observed, attrs: dict[str, str]) -> None:
        self.score = max(self.score, score) + (0.03 if self.score else 0.0)
        self.where = self.where or attrs.get("mount", "") or attrs.get("device", "")
        self.server = self.server or attrs.get("server", "").partition(":")[0]
        self.evidence.append(cite(seen, why, score, host_id(self.host)))


def diagnose(case: Case) -> tuple[Finding, ...]:
    if case.placement is None or not (case.stalled or case.slow is not None):
        return ()
    troubles = [each for host in case.placement.hosts if (each := _trouble(case, host)) is not None]
    if not troubles:
        return unseen_storage(case)
    shared = _shared(case, troubles)
    if shared:
        return (_whole_job(case, shared),)
    return tuple(finding for each in troubles if (finding := _of_host(case, each)) is not None)


# ------------------------------------------------------------------------------------------------------- what is seen


def _trouble(case: Case, host: str) -> Trouble | None:
    found = Trouble(host)
    for seen, event in _stalls(case).get(host, ()):
        found.told = True
        found.add(TOLD_SCORE, f"its storage does not answer: {event.attrs.get('what', 'stalled')}", seen, event.attrs)
    component = host_id(host)
    for name, seen in _stalled_states(case).get(component, ()):
        found.told = True
        attrs = seen.fact.attrs if isinstance(seen.fact, State) else {}
        found.add(TOLD_SCORE, f"{name} has requests under way and completes none", seen, attrs)
    _measured(case, component, found)
    found.score = min(0.95, found.score)
    return found if found.score else None


def _stalls(case: Case) -> dict[str, list[tuple[Observed, Event]]]:
    """Of each host: the stalls of its storage that have not ended."""
    found: dict[str, list[tuple[Observed, Event]]] | None = case.memo.get("storage_stalls")
    if found is None:
        under_way: dict[tuple[str, str], tuple[Observed, Event]] = {}
        for seen, event in events(case, EventName.STORAGE_STALL):
            key = (seen.host, event.attrs.get("mount") or event.attrs.get("device") or event.attrs.get("server", ""))
            if event.attrs.get("state") == "restored":
                under_way.pop(key, None)
            else:
                under_way.setdefault(key, (seen, event))
        found = case.memo["storage_stalls"] = {}
        for (host, _), each in sorted(under_way.items()):
            found.setdefault(host, []).append(each)
    return found


def _stalled_states(case: Case) -> dict[ComponentId, list[tuple[str, Observed]]]:
    found: dict[ComponentId, list[tuple[str, Observed]]] | None = case.memo.get("storage_states")
    if found is None:
        found = case.memo["storage_states"] = {}
        for (component, name), seen in sorted(states(case).items()):
            if name.startswith(("mount:", "disk:")) and isinstance(seen.fact, State) and seen.fact.value == "stalled":
                found.setdefault(component, []).append((name, seen))
    return found


def _measured(case: Case, component: ComponentId, found: Trouble) -> None:
    """Signs that storage is slow: none of them is a stall by itself."""
    since = _since(case)
    for name, least, words in (
        ("nfs_backlog", BACKLOG_MIN, "{:.0f} requests wait for each that is sent to the server"),
        ("nfs_rtt_ms", RTT_MS_MIN, "an answer of the server takes {:.0f} ms"),
    ):
        seen = case.measurements.newest(component, name)
        if seen is not None and isinstance(seen.fact, Gauge) and seen.fact.value >= least and seen.received_at >= since:
            found.add(MEASURED_SCORE, words.format(seen.fact.value), seen, seen.fact.attrs)
    busy = case.measurements.newest(component, "disk_busy_share")
    waits = case.measurements.newest(component, "disk_in_flight")
    if (
        busy is not None
        and waits is not None
        and isinstance(busy.fact, Gauge)
        and isinstance(waits.fact, Gauge)
        and busy.fact.value >= 0.99
        and waits.fact.value >= 4
        and busy.received_at >= since
    ):
        words = f"a disk is busy all the time, {waits.fact.value:.0f} requests wait"
        found.add(MEASURED_SCORE - 0.1, words, busy, busy.fact.attrs)
    if not found.score:
        return  # tasks that wait for storage say only that something reads a lot
    for name in ("pressure_io_full_share", "pressure_io_some_share"):
        seen = case.measurements.newest(component, name)
        if seen is not None and isinstance(seen.fact, Gauge) and seen.fact.value >= WAITED and seen.received_at >= since:
            found.add(0.4, f"its tasks wait for storage {seen.fact.value:.0%} of the time", seen, {})
    for name in sorted(case.measurements.names(component)):
        if name.startswith(("nfs_retransmits", "nfs_timeouts")):
            rise = case.measurements.rise(component, name, since)
            if rise.facts and rise.per_s >= RETRANSMITS_PER_S:
                mount = {"mount": name.partition(":")[2]}
                found.add(0.5, f"requests to the server are sent again ({name})", rise.facts[-1], mount)


def _since(case: Case) -> datetime:
    return (case.since or case.now) - timedelta(seconds=BEFORE_S)


# -------------------------------------------------------------------------------------------------- where ranks stand


def _at_storage(case: Case, ranks: Iterable[int]) -> tuple[list[tuple[int, Observed]], bool]:
    """(ranks that say that they are at their storage, whether any of these ranks says where it is)."""
    found, speaks = [], False
    for rank in ranks:
        for seen in (case.stalls.get(rank), case.progress.get(rank)):
            fact = seen.fact if seen is not None else None
            if seen is None or not isinstance(fact, StallSuspected | RankProgress):
                continue
            frames = " ".join(fact.frames[:3]) if isinstance(fact, StallSuspected) else ""
            speaks = speaks or bool(fact.phase or frames)
            if fact.phase in STORAGE_PHASES or (not fact.in_collective and _FRAMES.search(frames)):
                found.append((rank, seen))
                break
    return found, speaks


def _late_in_data(case: Case, seen: Lateness, ranks: Iterable[int]) -> list[tuple[int, Observed]]:
    return [(rank, seen.late[rank].told[-1]) for rank in ranks if rank in seen.late and _of_data(seen.late[rank].phase)]


def _of_data(phase: str) -> bool:
    return phase in STORAGE_PHASES


def _weight(case: Case, ranks: tuple[int, ...]) -> tuple[float, list[Evidence], str]:
    """How well what these ranks do fits to storage that hangs: a factor, evidence, words."""
    if case.slow is not None:
        seen = lateness(case)
        late = _late_in_data(case, seen, ranks)
        if late:
            words = "rank {} is late in reading its input"
            return (
                1.05,
                [cite(each, words.format(r), 0.6, case.rank_component(r)) for r, each in late[:3]],
                "its ranks are late",
            )
        return (0.35 if seen.known else 0.6), [], ""
    standing, speak = _at_storage(case, ranks)
    if standing:
        evidence = [cite(each, f"rank {r} stands at its storage", 0.6, case.rank_component(r)) for r, each in standing[:3]]
        return 1.02, evidence, f"rank {standing[0][0]} stands at its storage"
    return (ELSEWHERE if speak else PLACE_UNKNOWN), [], ""


# ----------------------------------------------------------------------------------------------------------- findings


def _shared(case: Case, troubles: list[Trouble]) -> list[Trouble]:
    """The hosts whose trouble is one: they are many of the job's, at the same server or mount, as far as that is told."""
    assert case.placement is not None
    groups: dict[str, list[Trouble]] = {}
    for each in troubles:
        groups.setdefault(_mount_of(each), []).append(each)
    hosts = len(case.placement.hosts)
    best = max((group for name, group in sorted(groups.items()) if name), key=len, default=[])
    return best if len(best) >= max(SHARED_MIN, SHARED_SHARE * hosts) else []


def _mount_of(trouble: Trouble) -> str:
    """What two hosts have to have in common; a disk is nobody else's."""
    return trouble.where if trouble.where.startswith("/") else trouble.server


def _of_host(case: Case, trouble: Trouble) -> Finding | None:
    assert case.placement is not None
    ranks = case.placement.on_host(trouble.host)
    fits, standing, words = _weight(case, ranks)
    factor, agrees, extra = agreement(case, ranks, network=False)
    score = min(0.96, trouble.score * fits * factor)
    if score < 0.2:
        return None
    what = trouble.where or trouble.server or "its storage"
    return Finding(
        fault_class=FaultClass.STORAGE_STALL,
        component=host_id(trouble.host),
        score=score,
        evidence=(*trouble.evidence[:6], *standing, *extra)[:12],
        engine=ENGINE,
        ranks=ranks,
        host=trouble.host,
        explains=symptoms_of(case),
        because="; ".join(each for each in (f"{what} does not answer {trouble.host}", words, agrees) if each),
        decisive=trouble.told and bool(standing) and factor >= 0.9,
        action=_action(case, host_id(trouble.host), what),
    )


def _whole_job(case: Case, troubles: list[Trouble]) -> Finding:
    assert case.placement is not None and case.job is not None
    ranks = tuple(sorted(rank for each in troubles for rank in case.placement.on_host(each.host)))
    fits, standing, words = _weight(case, ranks)
    server = next((each.server for each in troubles if each.server), "")
    where = next((each.where for each in troubles if each.where), "")
    what = " of ".join(each for each in (where, server) if each) or "the job's storage"
    told = [each for each in troubles if each.told]
    evidence = [each for trouble in (*told, *(t for t in troubles if not t.told)) for each in trouble.evidence[:2]]
    score = max(each.score for each in troubles) * fits + 0.02 * min(3, len(troubles) - 1)
    return Finding(
        fault_class=FaultClass.STORAGE_STALL,
        component=job_id(case.job),
        score=min(0.96, score),
        evidence=(*evidence[:9], *standing)[:12],
        engine=ENGINE,
        ranks=tuple(case.placement.ranks),
        explains=symptoms_of(case),
        because=f"{what} does not answer {len(troubles)} of the job's {len(case.placement.hosts)} hosts"
        + (f"; {words}" if words else ""),
        decisive=bool(told) and bool(standing),
        action=_action(case, job_id(case.job), what),
    )


def _action(case: Case, component: ComponentId, what: str) -> Action:
    if component.startswith("job:"):
        return Action(
            kind=ActionKind.HAND_TO_PERSON,
            target=component,
            reason=f"{what} is to be mended where it is served: no other node would reach it either",
        )
    if case.slow is not None:
        return Action(
            kind=ActionKind.CORDON_AT_CHECKPOINT, target=component, reason=f"{what} is slow on this host only: use another"
        )
    return Action(
        kind=ActionKind.SWAP_NODE,
        target=component,
        reason=f"{what} does not answer this host, and its processes cannot be ended: continue on another",
    )
