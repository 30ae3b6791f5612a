"""Which of the job's ranks RAS speaks of, and what is told about them.

RAS names a process by its number and its node's address, and a rank within its communicator. That is a rank of the job
where the process is registered on this host, or where the whole job is in the communicator; else only the job is named,
with what RAS said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from goodput_collector.domain.ras import Communicator, RasRank, RasReport
from goodput_collector.domain.ras_progress import Followed, Progress
from goodput_common.contracts import ids
from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.telemetry import State

NAMED_MAX = 64
COMMUNICATORS_TOLD_MAX = 256
_FIRST = (Progress.STUCK, Progress.STILL, Progress.MOVING, Progress.UNKNOWN)


class Places:
    """`is_local`: is an address one of this host's?"""

    def __init__(self, ranks: Sequence[RankRegistered], is_local: Callable[[str], bool]) -> None:
        self._by_pid = {each.pid: each for each in ranks}
        self._jobs = {each.job: each.world_size for each in ranks}
        self._is_local = is_local
        self._local: dict[str, bool] = {}

    def job_of(self, report: RasReport) -> str | None:
        """The job whose processes are in the answer, else the only one here."""
        for pid, node in _processes(report):
            if (rank := self._here(pid, node)) is not None:
                return rank.job
        return next(iter(self._jobs)) if len(self._jobs) == 1 else None

    def component(self, who: RasRank, communicator: Communicator | None, job: str | None) -> str | None:
        rank = self._here(who.pid, who.node)
        if rank is not None:
            return ids.rank_id(rank.job, rank.rank)
        whole = communicator is not None and job is not None and communicator.size == self._jobs[job]
        return ids.rank_id(job, who.rank) if whole and job is not None and who.rank >= 0 else None

    def _here(self, pid: int, node: str) -> RankRegistered | None:
        rank = self._by_pid.get(pid)
        if rank is None or not node:
            return None
        if node not in self._local:
            self._local[node] = self._is_local(node)
        return rank if self._local[node] else None


def _processes(report: RasReport) -> Iterable[tuple[int, str]]:
    for communicator in report.communicators:
        for numbers in communicator.at.values():
            for ranks in numbers.values():
                yield from ((rank.pid, rank.node) for rank in ranks)
        yield from ((rank.pid, rank.node) for rank in communicator.missing)
    yield from ((process.pid, process.node) for process in report.processes)


def states_of(
    report: RasReport, followed: Sequence[Followed], job: str | None, places: Places, host: str, at: datetime
) -> list[State]:
    """What is told: the job as a whole, each communicator, the ranks that keep one stuck, and who does not answer."""
    whole = ids.job_id(job) if job is not None else ids.host_id(host)
    states = [State(component=whole, name="ras_job", observed_at=at, value=_value(report), attrs=_summary(report, followed))]
    for each in sorted(followed, key=lambda each: _FIRST.index(each.progress))[:COMMUNICATORS_TOLD_MAX]:
        states.append(_communicator(each, whole, at))
        if each.progress is Progress.STUCK and each.lag is not None:
            for who, count in each.lag.behind[:NAMED_MAX]:
                component = places.component(who, each.communicator, job)
                if component is not None:
                    attrs = _attrs(who) | {
                        "communicator": each.communicator.hash,
                        "operation": each.lag.operation,
                        "launched": str(count),
                        "others_launched": str(each.lag.most),
                    }
                    states.append(
                        State(component=component, name="ras_operations", observed_at=at, value="behind", attrs=attrs)
                    )
    missing = {(process.node, process.pid): process for process in report.processes}  # a number is another one elsewhere
    named: set[tuple[str, int]] = set()
    for communicator in report.communicators:
        for who in communicator.missing:
            component = places.component(who, communicator, job)
            process_id = (who.node, who.pid)
            if component is not None and process_id not in named and len(named) < NAMED_MAX:
                named.add(process_id)
                state = missing[process_id].state if process_id in missing else "incomplete"
                states.append(State(component=component, name="ras_process", observed_at=at, value=state, attrs=_attrs(who)))
    for process in report.processes[:NAMED_MAX]:
        if (process.node, process.pid) in named:
            continue
        component = places.component(RasRank(-1, process.pid, process.node, -1), None, job) or whole
        name = "ras_process" if component != whole else f"ras_process:{process.node}/{process.pid}"
        attrs = {"pid": str(process.pid), "node": process.node, "gpu": process.gpus}
        states.append(State(component=component, name=name, observed_at=at, value=process.state, attrs=attrs))
    return list({(state.component, state.name): state for state in states}.values())


def _value(report: RasReport) -> str:
    if any(process.state == "dead" for process in report.processes):
        return "dead"
    if report.processes or any(each.missing for each in report.communicators):
        return "incomplete"
    return "timeout" if report.timeouts else "complete"


def _summary(report: RasReport, followed: Sequence[Followed]) -> dict[str, str]:
    numbers = {
        progress.value: sum(1 for each in followed if each.progress is progress)
        for progress in (Progress.MOVING, Progress.STUCK, Progress.STILL)
    }
    return {"nccl": report.version, "timeouts": str(report.timeouts)} | {name: str(n) for name, n in numbers.items()}


def _communicator(each: Followed, component: str, at: datetime) -> State:
    attrs = {"size": str(each.communicator.size), "for_s": f"{each.unchanged_s:.0f}"}
    if each.communicator.errors:
        attrs["errors"] = ",".join(sorted(each.communicator.errors))
    if each.lag is not None:
        attrs |= {
            "operation": each.lag.operation,
            "most": str(each.lag.most),
            "behind": ",".join(str(who.rank) for who, _ in each.lag.behind[:NAMED_MAX]),
            "behind_ranks": str(each.lag.behind_ranks),
        }
    name = f"ras_communicator:{each.communicator.hash}"
    return State(component=component, name=name, observed_at=at, value=each.progress.value, attrs=attrs)


def _attrs(who: RasRank) -> dict[str, str]:
    return {"pid": str(who.pid), "node": who.node, "gpu": str(who.gpu), "communicator_rank": str(who.rank)}
