"""It is the application: nothing under it is broken, and to blame the GPU that logged an error, or the rank that died first,
would be wrong.

More than half of the watchdog time-outs in one large operator's fleet began on the CPU. What shows it:

- several ranks, on several hosts, *raise the same exception*, and it is not about a lost peer. Broken hardware makes one
  rank raise; a bug, a bad batch or a store that is waited for makes them all;
- GPUs of several ranks log errors *that applications cause* (Xid 13, 31, 43: reads out of bounds, a channel that was
  stopped), each at another unit;
- the communication library says that its own *CPU side* was stuck (the watchdog itself, the interpreter's lock) while every
  device is seen to be well;
- all ranks are in a *long phase that the trainer marks*, nobody in a collective.

"Seen to be well" means that collectors speak and can read. What nobody looks at is unknown, and the certainty less.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta

from goodput_common.contracts.ids import ComponentId, job_id
from goodput_common.contracts.job import RankExited, RankProgress
from goodput_common.contracts.telemetry import CollectorHeartbeat, Event, EventName, Source, SourceStatus
from goodput_common.contracts.verdict import Action, ActionKind, Evidence, FaultClass
from goodput_correlator.domain.blame import analysis
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import CLOCK_DOUBT_S, canonical, cite, events, happened_at, ranks_on, symptoms_of
from goodput_correlator.domain.deaths import CONSEQUENCE, ENDED, Death, deaths
from goodput_correlator.domain.finding import Finding
from goodput_correlator.domain.timeline import LONG_PHASES

ENGINE = "no_hardware_fault"
APPLICATION_XIDS = frozenset({"13", "31", "43"})
HARDWARE_WORDS = re.compile(r"ECC|uncorrectable|hardware|unspecified launch failure|GPU is lost", re.IGNORECASE)
# ranks wait for a key of the store: nothing of a GPU or a network
STORE = re.compile(r"(?:DistStoreError.*?)?wait timeout after (?P<ms>\d+) ?ms, keys|DistStoreError")
CPU_SIDE = frozenset({"stuck", "gil"})
LOOKS = frozenset({Source.KERNEL_LOG, Source.RDMA, Source.NETLINK, Source.NVML, Source.DCGM})
SAME_MIN = 2
FEW, ALL = 0.75, 0.94  # how sure the same exception of two ranks, and of all, makes it
STORE_FACTOR = 0.85  # a store that is not answered may be a rank that died without a word
XID_FEW, XID_MANY = 0.8, 0.93
LONG_PHASE, STUCK = 0.85, 0.7
NEARLY_ALL = 0.9
UNSEEN_FACTOR = 0.8  # where no collector speaks


def diagnose(case: Case) -> tuple[Finding, ...]:
    if case.placement is None or not case.stalled or not case.placement.ranks:
        return ()
    found = [_same_exception(case), _application_errors(case), _cpu_side(case), _long_phase(case)]
    return tuple(each for each in found if each is not None)


def seen_share(case: Case) -> float:
    """The share of the job's hosts whose collector speaks and could read its sources of hardware errors lately."""
    if case.placement is None or not case.placement.hosts:
        return 0.0
    well = set()
    for each in case.observed:
        if isinstance(each.fact, CollectorHeartbeat) and each.host not in case.silent_hosts:
            looked = [source for source in each.fact.sources if source.source in LOOKS]
            if looked and all(source.status is not SourceStatus.UNKNOWN for source in looked):
                well.add(each.host)
    return len(well & set(case.placement.hosts)) / len(case.placement.hosts)


def _certainty(case: Case, score: float) -> float:
    return score * (UNSEEN_FACTOR + (1.0 - UNSEEN_FACTOR) * seen_share(case))


# ---------------------------------------------------------------------------------------------- the same exception


def shape_of(reason: str) -> str:
    """An exception without what differs from rank to rank: numbers, addresses, names of devices."""
    text = re.sub(r"0x[0-9a-f]+|\d+(?:\.\d+)?", "#", reason.strip().lower())
    return re.sub(r"\brank\b.*?(?=[,;:]|$)", "rank", text)[:120]


def _same_exception(case: Case) -> Finding | None:
    assert case.placement is not None
    shapes: dict[str, dict[int, Observed]] = {}
    for rank, left in sorted(case.exits.items()):
        fact = left.fact
        if isinstance(fact, RankExited) and not fact.clean and fact.reason and _own(fact.reason):
            shapes.setdefault(shape_of(fact.reason), {})[rank] = left
    if not shapes:
        return None
    shape, same = max(sorted(shapes.items()), key=lambda each: len(each[1]))
    hosts = {case.host_of_rank(rank) for rank in same}
    if len(same) < SAME_MIN or (len(hosts) < 2 and len(case.placement.hosts) > 1):
        return None
    share = len(same) / len(case.placement.ranks)
    score = FEW + (ALL - FEW) * min(1.0, (len(same) - 1) / max(3.0, 0.5 * len(case.placement.ranks)))
    text = next(iter(same.values())).fact
    reason = text.reason if isinstance(text, RankExited) else shape
    waited = STORE.search(reason)
    if waited:
        score *= STORE_FACTOR
    ended_too = _ended_in_the_wait(case, same, int(waited["ms"]) / 1000) if waited and waited["ms"] else {}
    words = "all ranks raise" if share >= NEARLY_ALL else f"{len(same)} ranks on {len(hosts)} hosts raise"
    evidence = [
        cite(left, f"rank {rank} raised what others raise, too", 0.6, case.rank_component(rank))
        for rank, left in same.items()
    ]
    evidence = evidence[:8]
    evidence += [
        cite(death.at, f"rank {rank} ended when the others had long waited already", 0.3, case.rank_component(rank))
        for rank, death in ended_too.items()
    ][:2]
    return _finding(
        case,
        _certainty(case, score),
        evidence,
        f"{words} the same: {reason[:160]}",
        ranks=tuple(sorted({*same, *ended_too})),
        settled=share >= NEARLY_ALL or len(same) >= 4,
        action=Action(
            kind=ActionKind.RESTART_JOB,
            target=job_id(case.job or ""),
            reason="the program ended itself: from the last checkpoint it may come through; if it raises this again, it"
            " needs a person, not other hardware",
        ),
    )


def _ended_in_the_wait(case: Case, same: Mapping[int, Observed], waited_s: float) -> dict[int, Death]:
    """The ranks that ended without a word while those that gave up had been waiting: a wait says how long it has lasted, and
    who was there when it began is not the reason for it. Their last words got lost, or they were ended with the others."""
    began_at = min(happened_at(case, left) for left in same.values()) - timedelta(seconds=waited_s - CLOCK_DOUBT_S)
    return {rank: d for rank, d in deaths(case).items() if rank not in same and d.wordless and d.died_at >= began_at}


def _own(reason: str) -> bool:
    """Whether an exception is the program's own: no lost peer, no order to go, no word of hardware."""
    if STORE.search(reason):
        return True
    return not (CONSEQUENCE.search(reason) or ENDED.search(reason) or HARDWARE_WORDS.search(reason))


# -------------------------------------------------------------------------------------- errors that applications cause


def _application_errors(case: Case) -> Finding | None:
    told: dict[ComponentId, list[tuple[Observed, Event]]] = {}
    for seen, event in events(case, EventName.XID):
        if event.attrs.get("xid") in APPLICATION_XIDS and _by_a_rank(case, event):
            told.setdefault(canonical(case, event.component), []).append((seen, event))
    on = {gpu: ranks for gpu in sorted(told) if (ranks := ranks_on(case, gpu))}
    if len(on) < SAME_MIN or _same_unit(told):
        return None
    ranks = tuple(sorted({rank for each in on.values() for rank in each}))
    score = XID_FEW + (XID_MANY - XID_FEW) * min(1.0, (len(on) - SAME_MIN) / 4.0)
    raised = [rank for rank in ranks if rank in case.exits]
    score += 0.03 if raised else 0.0
    numbers = sorted({event.attrs["xid"] for gpu in on for _, event in told[gpu]}, key=int)
    evidence = [
        cite(seen, f"Xid {event.attrs['xid']}: an error that applications cause", 0.6, gpu)
        for gpu in on
        for seen, event in told[gpu][:1]
    ][:6]
    evidence += [cite(case.exits[r], "and its rank raised", 0.4, case.rank_component(r)) for r in raised[:3]]
    return _finding(
        case,
        _certainty(case, score),
        evidence,
        f"{len(on)} GPUs log errors that applications cause (Xid {', '.join(numbers)}), at different units",
        ranks=ranks,
        settled=len(on) >= 3,
        action=Action(
            kind=ActionKind.RESTART_JOB,
            target=job_id(case.job or ""),
            reason="the catalogue asks to restart the application, and several GPUs at once are not broken alike",
        ),
    )


def _by_a_rank(case: Case, event: Event) -> bool:
    """Whether the process that the line names is a rank of the job, as far as it names one by a number known here."""
    pid = event.attrs.get("pid", "")
    if not pid.isdigit() or case.placement is None:
        return True
    known = {place.pid for place in case.placement.ranks.values()} | {outer for outer, _ in case.outer_pids.values()}
    return int(pid) in known or not any(known)


def _same_unit(told: Mapping[ComponentId, list[tuple[Observed, Event]]]) -> bool:
    """Whether all that is told comes again and again from the same unit of one GPU: then that unit is the suspect."""
    often = [gpu for gpu, seen in told.items() if sum(event.count for _, event in seen) > 1]
    units = {(e.attrs.get("gpc"), e.attrs.get("tpc")) for gpu in often for _, e in told[gpu] if e.attrs.get("gpc")}
    return len(told) == 1 and len(often) == 1 and len(units) == 1


# -------------------------------------------------------------------------------------------------------- the CPU side


def _cpu_side(case: Case) -> Finding | None:
    told = [(seen, event) for seen, event in events(case, EventName.NCCL_WATCHDOG) if event.attrs.get("kind") in CPU_SIDE]
    ranks = {event.attrs["rank"] for _, event in told if event.attrs.get("rank", "").isdigit()}
    if len(ranks) < SAME_MIN or seen_share(case) < NEARLY_ALL:
        return None
    evidence = [cite(seen, "the library's own thread was stuck on the CPU", 0.5) for seen, _ in told[:6]]
    return _finding(
        case,
        STUCK,
        evidence,
        f"on {len(ranks)} ranks the library says that its CPU side was stuck, and every device is seen to be well",
        ranks=(),
        settled=False,
        action=_person(case, "look at what the processes do on the CPU (interpreter lock, driver calls) before restarting"),
    )


# --------------------------------------------------------------------------------------------------------- long phases


def _long_phase(case: Case) -> Finding | None:
    assert case.placement is not None
    phases: dict[str, list[int]] = {}
    for rank, seen in sorted(case.progress.items()):
        if isinstance(seen.fact, RankProgress) and not seen.fact.in_collective:
            phases.setdefault(seen.fact.phase, []).append(rank)
    phase, ranks = max(sorted(phases.items()), key=lambda each: len(each[1]), default=("", []))
    if phase not in LONG_PHASES or len(ranks) < NEARLY_ALL * len(case.placement.ranks):
        return None
    blame = analysis(case).blame
    if blame.inside or any(root.certainty >= 0.6 for root in blame.roots):
        return None  # somebody waits for somebody
    evidence = [
        cite(case.progress[rank], f"rank {rank} is in its phase {phase}", 0.5, case.rank_component(rank))
        for rank in ranks[:4]
    ]
    return _finding(
        case,
        _certainty(case, LONG_PHASE),
        evidence,
        f"all ranks are in their phase {phase!r}, and nobody waits in a collective",
        ranks=(),
        settled=False,
        action=Action(
            kind=ActionKind.OBSERVE, target=job_id(case.job or ""), reason="the trainer says that this is what it does now"
        ),
    )


# ------------------------------------------------------------------------------------------------------------- common


def _person(case: Case, reason: str) -> Action:
    return Action(kind=ActionKind.HAND_TO_PERSON, target=job_id(case.job or ""), reason=reason)


def _finding(
    case: Case,
    score: float,
    evidence: Iterable[Evidence],
    because: str,
    *,
    ranks: tuple[int, ...],
    settled: bool,
    action: Action,
) -> Finding:
    return Finding(
        fault_class=FaultClass.NO_HARDWARE_FAULT,
        component=None,
        score=min(0.95, score),
        evidence=tuple(evidence),
        engine=ENGINE,
        ranks=ranks,
        explains=symptoms_of(case),
        because=because,
        decisive=settled,
        settled=settled,
        action=action,
    )
