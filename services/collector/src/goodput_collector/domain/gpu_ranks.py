"""Which rank runs on which GPU: the driver's list of processes, joined with the ranks that registered on this host.

The driver gives pids as the collector's own namespace has them. A rank in a container registered under the pid that it
sees itself. The two are the same process when the start time fits (it counts from boot and is the same everywhere) and the
pid is either the outer one or the innermost that /proc tells. A pid without a registration is somebody else's; a rank that
says it uses this GPU and is not in the list is told as `registered`, for then the list cannot tell (another pid namespace,
or it has just ended).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from goodput_collector.domain.gpu_presence import Gpu
from goodput_common.contracts import ids
from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.telemetry import State

OTHERS_NAMED_MAX = 8


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a GPU. `inner_pid` is its pid in its own namespace; 0 and -1 where /proc does not tell. `mig` is the
    instance that it runs on, `<gpu instance>/<compute instance>`."""

    pid: int
    start_ticks: int = 0
    inner_pid: int = -1
    mig: str = ""


def rank_of(process: Process, ranks: Iterable[RankRegistered]) -> RankRegistered | None:
    for rank in ranks:
        if rank.pid not in (process.pid, process.inner_pid):
            continue
        if rank.process_start and process.start_ticks:
            if rank.process_start == process.start_ticks:
                return rank
        elif rank.pid == process.pid:
            return rank  # nothing to tell a reused pid by
    return None


def ranks_state(gpu: Gpu, processes: Sequence[Process], ranks: Sequence[RankRegistered], at: datetime) -> State:
    """Value: the ranks on this GPU, separated by blanks; `none`, or `others` where only strangers use it."""
    found: dict[str, Process] = {}
    others = []
    for process in processes:
        rank = rank_of(process, ranks)
        if rank is None:
            others.append(process.pid)
        else:
            found[ids.rank_id(rank.job, rank.rank)] = process
    uuid = gpu.attrs.get("uuid")
    claims = {ids.rank_id(rank.job, rank.rank) for rank in ranks if uuid and rank.gpu_uuid == uuid} - found.keys()
    attrs: dict[str, str] = {key: value for key, value in gpu.attrs.items() if key in ("uuid", "pci")}
    attrs |= {f"pid:{rank}": str(process.pid) for rank, process in sorted(found.items())}
    attrs |= {f"mig:{rank}": process.mig for rank, process in sorted(found.items()) if process.mig}
    if others:
        attrs["others"] = str(len(others))
        attrs["other_pids"] = " ".join(str(pid) for pid in sorted(others)[:OTHERS_NAMED_MAX])
    if claims:
        attrs["registered"] = " ".join(sorted(claims))
    value = " ".join(sorted(found)) or ("others" if others else "none")
    return State(component=gpu.component, name="ranks", observed_at=at, value=value, attrs=attrs)
