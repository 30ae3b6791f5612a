"""What engines share in reading evidence: which events count, which ranks a component carries, how a fact is cited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from goodput_common.contracts.ids import (
    ComponentId,
    ComponentKind,
    InvalidComponentId,
    gpu_id,
    host_of,
    link_ends,
    parse,
    rank_of,
)
from goodput_common.contracts.job import FlightRecorderDump, RankExited, RankProgress, RankRegistered, StallSuspected
from goodput_common.contracts.telemetry import Counter, Event, EventName, Gauge, Probe, State
from goodput_common.contracts.verdict import Evidence
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.finding import Symptom

CLOCK_DOUBT_S = 2.0
LOOK_BACK_S = 300.0
EXCERPT_MAX = 400
EVIDENCE_PER_FINDING = 12
OWN_CLOCK = frozenset({"agent", "process", "heartbeat"})  # sources that stamp with the host's clock as they speak


def events(case: Case, *names: EventName) -> list[tuple[Observed, Event]]:
    """The events of these names that may have to do with the present trouble: not older than `LOOK_BACK_S` before it by the
    clock of the host that saw them."""
    found = [(each, each.fact) for each in case.events if isinstance(each.fact, Event) and each.fact.name in names]
    if case.offline or case.since is None:
        return found
    limit = case.since - timedelta(seconds=LOOK_BACK_S + CLOCK_DOUBT_S)
    booted = _booted(case, case.since)
    return [
        (each, event)
        for each, event in found
        if (event.last_at or event.observed_at) >= max(limit, booted.get(_host_of_event(event), limit))
    ]


def _host_of_event(event: Event) -> str:
    try:
        return host_of(event.component) or ""
    except InvalidComponentId:
        return ""


def _booted(case: Case, before: datetime) -> dict[str, datetime]:
    """When each host last booted before the stall: an error from before a reset after which the job still ran is history. A
    reboot during the stall excuses nothing."""
    found: dict[str, datetime] | None = case.memo.get("booted")
    if found is None:
        found = case.memo["booted"] = {}
        for each in case.events:
            if isinstance(each.fact, Event) and each.fact.name is EventName.BOOT and each.fact.observed_at < before:
                host = _host_of_event(each.fact)
                found[host] = max(found.get(host, each.fact.observed_at), each.fact.observed_at)
    return found


def happened_at(case: Case, seen: Observed) -> datetime:
    """When something happened, by the broker's clock. The error of a host's clock cancels out against its promptest message;
    where none is known, the host's clock may be `CLOCK_DOUBT_S` slow. Never later than the broker heard of it."""
    lag = _lags(case).get(seen.host, timedelta(seconds=CLOCK_DOUBT_S))
    return min(seen.received_at, seen.observed_at + lag)


def _lags(case: Case) -> dict[str, timedelta]:
    """Of each host: its clock's error and the shortest way to the broker, together."""
    found: dict[str, timedelta] | None = case.memo.get("lags")
    if found is None:
        found = case.memo["lags"] = {}
        for each in case.observed:
            if each.source in OWN_CLOCK:
                lag = each.received_at - each.observed_at
                found[each.host] = min(found.get(each.host, lag), lag)
    return found


def canonical(case: Case, component: ComponentId) -> ComponentId:
    """The topology's own name for a component that a log knows by address or interface."""
    return case.topology.canonical(component)


def ranks_on(case: Case, component: ComponentId) -> tuple[int, ...]:
    """The ranks of the job whose work runs over `component`, by topology and placement; () when that is not known."""
    if case.placement is None:
        return ()
    try:
        kind, path = parse(component)
    except InvalidComponentId:
        return ()
    if kind is ComponentKind.RANK:
        return (rank_of(component)[1],)
    if kind is ComponentKind.HOST:
        return case.placement.on_host(path)
    if kind is ComponentKind.JOB:
        return tuple(case.placement.ranks)
    if kind is ComponentKind.NVLINK:
        host, gpu, *_ = path.split("/")
        return ranks_on(case, f"gpu:{host}/{gpu}")
    if kind is ComponentKind.GPU:
        return _on_gpu(case, component)
    if kind is ComponentKind.NIC:
        return _on_nic(case, component)
    if kind is ComponentKind.LINK:
        ends = case.topology.ends_of(component) or link_ends(component)
        nics = [end for end in ends if end.startswith("nic:")]
        behind = nics or list(case.topology.nics_behind(component))
    else:
        behind = list(case.topology.nics_behind(component)) or list(case.topology.gpus_behind(component))
    return tuple(sorted({rank for each in behind for rank in ranks_on(case, each)}))


def _on_gpu(case: Case, gpu: ComponentId) -> tuple[int, ...]:
    assert case.placement is not None
    host = host_of(gpu) or ""
    uuid = case.topology.attr(gpu, "uuid")
    if uuid:
        by_uuid = tuple(rank for rank, place in case.placement.ranks.items() if place.gpu_uuid == uuid)
        if by_uuid:
            return by_uuid
    index = gpu.rpartition("/")[2]
    if index.isdigit():
        return case.placement.on_gpu(host, int(index))
    alone = case.placement.on_host(host)
    return alone if len(alone) == 1 else ()


def _on_nic(case: Case, nic: ComponentId) -> tuple[int, ...]:
    assert case.placement is not None
    if case.topology.carries_traffic(nic) is False:
        return ()
    gpus = case.topology.gpus_of_nic(nic)
    if gpus:
        return tuple(sorted({rank for gpu in gpus for rank in _on_gpu(case, gpu)}))
    host = host_of(nic) or ""
    known = [each for each in case.topology.nics_of_host(host) if case.topology.carries_traffic(each) is not False]
    if nic in known and len(known) > 1:
        return ()  # the fabric knows several and does not say which ranks use this one
    return case.placement.on_host(host)


def states(case: Case) -> Mapping[tuple[ComponentId, str], Observed]:
    """What each component is now, by the topology's name for it and the name of the state: the newest that was told."""
    found: dict[tuple[ComponentId, str], Observed] | None = case.memo.get("states")
    if found is None:
        found = case.memo["states"] = {}
        for each in case.observed:
            if isinstance(each.fact, State):
                found[canonical(case, each.fact.component), each.fact.name] = each
    return found


def gpu_of(case: Case, rank: int) -> ComponentId | None:
    """The GPU that a rank drives, as far as placement and topology tell."""
    place = case.placement.ranks.get(rank) if case.placement is not None else None
    if place is None:
        return None
    if place.gpu_uuid:
        for gpu in case.topology.gpus_of_host(place.host):
            if case.topology.attr(gpu, "uuid") == place.gpu_uuid:
                return gpu
    return canonical(case, gpu_id(place.host, place.device)) if place.device is not None else None


def gpus_of_job(case: Case) -> tuple[ComponentId, ...]:
    """The GPUs that the job's ranks drive, in order of rank."""
    found: tuple[ComponentId, ...] | None = case.memo.get("gpus_of_job")
    if found is None:
        gpus = [gpu_of(case, rank) for rank in case.placement.ranks] if case.placement is not None else []
        found = case.memo["gpus_of_job"] = tuple(dict.fromkeys(gpu for gpu in gpus if gpu is not None))
    return found


def nics_of_job(case: Case) -> tuple[ComponentId, ...]:
    """The network adapters that carry the job's traffic, host by host."""
    found: tuple[ComponentId, ...] | None = case.memo.get("nics_of_job")
    if found is None:
        hosts = case.placement.hosts if case.placement is not None else ()
        nics = [nic for host in hosts for nic in case.topology.nics_of_host(host)]
        mine = set(gpus_of_job(case))
        found = case.memo["nics_of_job"] = tuple(
            nic
            for nic in nics
            if case.topology.carries_traffic(nic) is not False
            and (not (gpus := case.topology.gpus_of_nic(nic)) or mine & set(gpus))
        )
    return found


def symptoms_of(case: Case, ranks: Iterable[int] | None = None) -> frozenset[Symptom]:
    """That these ranks (all of the job) stand still."""
    if ranks is not None:
        return frozenset(Symptom("stall", case.rank_component(rank)) for rank in ranks)
    found: frozenset[Symptom] | None = case.memo.get("stall_symptoms")
    if found is None:
        found = case.memo["stall_symptoms"] = symptoms_of(case, case.world)
    return found


def cite(seen: Observed, why: str, weight: float, component: ComponentId | None = None, excerpt: str = "") -> Evidence:
    return Evidence(
        event_id=seen.id,
        component=component if component is not None else getattr(seen.fact, "component", None),
        excerpt=(excerpt or describe(seen))[:EXCERPT_MAX],
        observed_at=seen.observed_at,
        why=why,
        weight=round(weight, 3),
    )


def describe(seen: Observed) -> str:
    """A fact in one line, as a person would look for it."""
    fact = seen.fact
    if isinstance(fact, Event):
        text = fact.excerpt or f"{fact.name.value} {fact.component}"
        return f"{text} (x{fact.count})" if fact.count > 1 else text
    if isinstance(fact, State):
        return f"{fact.component} {fact.name} = {fact.value}"
    if isinstance(fact, Counter):
        return f"{fact.component} {fact.name} +{fact.delta} in {fact.interval_s:g} s"
    if isinstance(fact, Gauge):
        return f"{fact.component} {fact.name} = {fact.value:g}"
    if isinstance(fact, Probe):
        late = f", {fact.late} late" if fact.late else ""
        return f"{fact.component} -> {fact.target} flow {fact.flow}: {fact.lost} of {fact.sent} probes lost{late}"
    if isinstance(fact, RankProgress):
        where = f", in {fact.in_collective}" if fact.in_collective else f", phase {fact.phase}" if fact.phase else ""
        groups = "; ".join(
            f"group {g.group or 'default'}: joined {g.last_enqueued}, finished {g.last_completed}" for g in fact.groups[:4]
        )
        return f"rank {fact.rank}: last step {fact.step}{where}" + (f" [{groups}]" if groups else "")
    if isinstance(fact, FlightRecorderDump):
        still_open = sum(1 for each in fact.collectives if each.state.value != "completed")
        return f"flight recorder of rank {fact.rank} ({fact.origin or 'memory'}): {still_open} operations open"
    if isinstance(fact, StallSuspected):
        where = fact.in_collective or fact.phase or "outside any phase"
        frames = f" at {fact.frames[0]}" if fact.frames else ""
        return f"rank {fact.rank}: no step for {fact.stalled_for_ms / 1000:.1f} s after step {fact.step}, {where}{frames}"
    if isinstance(fact, RankExited):
        return f"rank {fact.rank} left: {fact.reason or ('done' if fact.clean else 'no reason given')}"
    if isinstance(fact, RankRegistered):
        return f"rank {fact.rank} runs on {fact.host} as pid {fact.pid}"
    return f"collector of {fact.host}: heartbeat {fact.seq}"


def first_seen(evidence: Iterable[Evidence], default: datetime) -> datetime:
    return min((each.observed_at for each in evidence), default=default)
