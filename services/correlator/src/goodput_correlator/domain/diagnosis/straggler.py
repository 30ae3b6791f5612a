"""A straggler: one rank, or the ranks of one host, is late in every step, and all others wait for it. Nothing times out.

Own times say *who* is late (`lateness`); what the GPU, the host and the network adapter tell says *why* (`hindrances`), and
with that which component is to blame: the GPU that is too hot or short of power, the host whose CPUs or memory others want,
the adapter whose link came back slower, the rank itself where its input comes late or nothing is known. Either half alone is
weak: throttled GPUs that hold nobody up are common, and so are ranks with a longer sequence now and then.

A slow adapter is seen otherwise than the rest: as all wait for the slowest transfer, nobody's own work takes longer.
"""

from __future__ import annotations

from dataclasses import dataclass

from goodput_common.contracts.ids import ComponentId, host_id, host_of
from goodput_common.contracts.verdict import Action, ActionKind, Evidence, FaultClass
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.clues import cite, gpu_of, nics_of_job, ranks_on, symptoms_of
from goodput_correlator.domain.finding import Finding
from goodput_correlator.domain.hindrances import Hindrance, Kind, of_gpu, of_host, of_nic, strongest, throttled_gpus
from goodput_correlator.domain.lateness import Late, Lateness, lateness

ENGINE = "straggler"
DATA_PHASES = frozenset({"data", "dataloader", "data_loading", "load", "loading", "input", "fetch", "next_batch"})
WHOLE_HOST = 0.75  # of its ranks
GROUPS_MAX = 4  # places that are late at once: with more of them it is something that they share
SURE_MAX = 0.97
WITHOUT_OWN_TIME = 0.55  # how far a hindrance alone goes where agents cannot tell who is late
NETWORK_SHOWN = 0.6  # how sure own times make it that the time passes in the network
SUSPECTS_MAX = 3
CITED_RANKS = 4


@dataclass(frozen=True, slots=True)
class Group:
    """Late ranks in one place: those of a host, or one alone."""

    host: str | None
    late: tuple[Late, ...]
    whole_host: bool

    @property
    def in_data(self) -> bool:
        return all(each.phase in DATA_PHASES for each in self.late)

    @property
    def sure(self) -> float:
        """Ranks of one host that are late together confirm each other."""
        best = max(each.sure for each in self.late)
        return min(0.88, best + (0.04 if self.whole_host else 0.0))


def diagnose(case: Case) -> tuple[Finding, ...]:
    if case.slow is None or case.placement is None:
        return ()
    seen = lateness(case)
    groups = late_groups(case, seen)
    if groups:
        return tuple(_late(case, seen, group) for group in groups) if len(groups) <= GROUPS_MAX else ()
    if seen.in_network:
        return _slow_adapters(case, seen, NETWORK_SHOWN)
    if not seen.known:
        return (*_by_hindrance_alone(case), *_slow_adapters(case, seen, 0.0))
    return ()


def late_groups(case: Case, seen: Lateness) -> list[Group]:
    """The late ranks by where they run."""
    by_host: dict[str | None, list[Late]] = {}
    for rank, late in sorted(seen.late.items()):
        by_host.setdefault(case.host_of_rank(rank), []).append(late)
    found = []
    for host, late_ranks in by_host.items():
        all_of = len(case.placement.on_host(host)) if case.placement is not None and host is not None else 0
        if all_of and len(late_ranks) >= WHOLE_HOST * all_of:
            found.append(Group(host, tuple(late_ranks), whole_host=True))
        else:
            found += [Group(host, (each,), whole_host=False) for each in late_ranks]
    return found


def _late(case: Case, seen: Lateness, group: Group) -> Finding:
    reason, component = _reason(case, group)
    ranks = tuple(each.rank for each in group.late)
    score = group.sure
    if reason is not None:
        score = 1.0 - (1.0 - score) * (1.0 - 0.85 * reason.strength)
    share = min(1.0, max(each.extra_ms for each in group.late) / seen.slower_ms) if seen.slower_ms else 1.0
    score = min(SURE_MAX, score) * (0.8 + 0.2 * share)
    why = reason.words if reason is not None else "its input comes late" if group.in_data else "nothing seen says why"
    names = ", ".join(map(str, ranks[:8]))
    evidence = [_cite_late(case, each, seen) for each in group.late[:CITED_RANKS]]
    if reason is not None:
        evidence += _cite(reason)
    evidence += _waiting(case, seen, set(ranks))
    return Finding(
        fault_class=FaultClass.STRAGGLER,
        component=component,
        score=score,
        evidence=tuple(evidence),
        engine=ENGINE,
        ranks=ranks,
        host=group.host,
        explains=symptoms_of(case),
        because=f"all wait for rank {names}, whose own work takes longer: {why}",
        decisive=reason is not None,
        hardware=component.startswith(("gpu:", "nic:")),
        action=_action(component, why),
    )


def _reason(case: Case, group: Group) -> tuple[Hindrance | None, ComponentId]:
    """Why they are late, and the component that carries the reason."""
    host, ranks = group.host, [each.rank for each in group.late]
    of_this_host = of_host(case, host) if host is not None else None
    alone = len(ranks) == 1
    if group.in_data:
        starved = of_this_host if of_this_host is not None and of_this_host.kind is not Kind.CPU else None
        whole = group.whole_host and not alone
        return starved, host_id(host) if whole and host is not None else case.rank_component(ranks[0])
    if not group.whole_host or alone:
        gpu = gpu_of(case, ranks[0])
        held = of_gpu(case, gpu) if gpu is not None else None
        if held is not None and gpu is not None:
            return held, gpu
        if not group.whole_host:
            return None, case.rank_component(ranks[0])
    if host is None or (alone and of_this_host is None):
        return None, case.rank_component(ranks[0])
    if of_this_host is None:  # several GPUs of a host, each held down: the chassis, its fans or its power
        held_down = strongest(case, [gpu for rank in ranks if (gpu := gpu_of(case, rank)) is not None], of_gpu)
        return (held_down[0] if len(held_down) * 2 > len(ranks) else None), host_id(host)
    return of_this_host, host_id(host)


def _slow_adapters(case: Case, seen: Lateness, shown: float) -> tuple[Finding, ...]:
    """Adapters of the job that are slower than they should be. `shown`: how sure it is that the network is what is slow."""
    suspects = [each for each in strongest(case, nics_of_job(case), of_nic) if each.strength >= 0.35]
    found = []
    for each in suspects[:SUSPECTS_MAX]:
        alone = 1.0 if len(suspects) == 1 else 0.85
        score = 1.0 - (1.0 - shown) * (1.0 - 0.85 * each.strength) if shown else WITHOUT_OWN_TIME + 0.3 * each.strength
        score = min(SURE_MAX, score) * alone * (1.0 if each.strength >= 0.6 else 0.8)
        found.append(
            Finding(
                fault_class=FaultClass.STRAGGLER,
                component=each.component,
                score=score,
                evidence=(*_cite(each), *_waiting(case, seen, set())),
                engine=ENGINE,
                ranks=ranks_on(case, each.component),
                host=host_of(each.component),
                explains=symptoms_of(case),
                because=f"no rank's own work takes longer; transfers wait for {each.component}: {each.words}",
                decisive=bool(shown),
                hardware=True,
                action=_action(each.component, each.words),
            )
        )
    return tuple(found)


def _by_hindrance_alone(case: Case) -> tuple[Finding, ...]:
    """Agents do not tell who is late: a GPU of the job that is held down while its peers are not is a suspect."""
    held = [each for each in strongest(case, throttled_gpus(case), of_gpu) if each.strength >= 0.5]
    return tuple(
        Finding(
            fault_class=FaultClass.STRAGGLER,
            component=each.component,
            score=WITHOUT_OWN_TIME + 0.25 * each.strength,
            evidence=tuple(_cite(each)),
            engine=ENGINE,
            ranks=ranks_on(case, each.component),
            host=host_of(each.component),
            explains=symptoms_of(case),
            because=f"steps are slow, and of the job's GPUs {each.component} is held down: {each.words}",
            hardware=True,
            action=_action(each.component, each.words),
        )
        for each in held[:SUSPECTS_MAX]
    )


def _cite(reason: Hindrance) -> list[Evidence]:
    weight = round(reason.strength * 0.8, 3)
    return [cite(seen, words, weight, reason.component) for seen, words in reason.seen[:6]]


def _cite_late(case: Case, late: Late, seen: Lateness) -> Evidence:
    where = f", most of it in {late.phase}" if late.phase else ""
    words = f"its own work takes {late.extra_ms:.0f} ms longer than usual{where}, a step {seen.slower_ms:.0f} ms"
    return cite(late.told[-1], words, late.sure, case.rank_component(late.rank), _excerpt(case, late.rank))


def _waiting(case: Case, seen: Lateness, late: set[int]) -> list[Evidence]:
    """Two of those that wait."""
    if not seen.tells_waiting:
        return []
    others = [
        pace for rank, pace in sorted(case.paces.items()) if rank not in late and pace.own_ms is not None and pace.told
    ]
    words = "its own work takes no longer than usual: it waits"
    return [cite(p.told[-1], words, 0.2, case.rank_component(p.rank), _excerpt(case, p.rank)) for p in others[:2]]


def _excerpt(case: Case, rank: int) -> str:
    pace = case.paces[rank]
    own = f", own {pace.own_ms:.0f} ms" if pace.own_ms is not None else ""
    usual = f" (usually {pace.usual_own_ms:.0f} ms)" if pace.usual_own_ms is not None and own else ""
    return f"rank {rank}: step {pace.step_ms:.0f} ms{own}{usual}"


def _action(component: ComponentId, why: str) -> Action:
    return Action(
        kind=ActionKind.CORDON_AT_CHECKPOINT,
        target=component,
        reason=f"the job goes on, only slower ({why}): move away from it at the next checkpoint",
    )
