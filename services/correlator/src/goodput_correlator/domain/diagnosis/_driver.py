"""Whether a GPU that does not answer is gone from the bus, or its driver is: the same few words are said of both.

Off the bus are GPUs of which somebody says so: Xid 79, NVML's "GPU is lost", a root port with a fatal error of that very
address. A GPU that merely failed to come up (`RmInitAdapter failed`) is there, and held by its driver, where its firmware
had timed out before (Xid 119, 120) or NVML answers that it wants a reset: what is off the bus answers nothing.

A driver that is unloaded or exchanged takes all GPUs of its host at once. GPUs are lost one by one; so if half of those that
the job uses on a host, two at least, stop answering together, it is what they share. The processes themselves may say so:
the CUDA runtime ends them with "driver shutting down". Readings that time out are no proof: a driver that waits for one
hung GPU lets all wait that ask it, so there must be a word of the driver, too, and none of a hung firmware.

Log lines get lost, and what NVML says is told again. A GPU that it calls lost is lost, with or without a line. One GPU alone
that it has no answer from, since the job stands still, is a GPU that the driver waits for - unless the process was handed
an error instead of being let wait: then the driver knows that the GPU is gone.
"""

from __future__ import annotations

import re
from datetime import timedelta

from goodput_common.contracts.ids import ComponentId, host_of, normal_pci
from goodput_common.contracts.job import RankExited
from goodput_common.contracts.telemetry import Event, EventName, State
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import canonical, events, gpu_of, gpus_of_job, ranks_on, states
from goodput_correlator.domain.diagnosis._device import Seen, by_component

GSP = frozenset({"119", "120"})
TOGETHER_MIN = 2
TOGETHER_SHARE = 0.5  # of the GPUs that the job uses on the host
TOLD_BEFORE_S = 5.0  # a reading may be this much older than the first step that did not come
DEVICE_ERROR = re.compile(r"CUDA (?:driver )?error|AcceleratorError|GPU is lost", re.IGNORECASE)
_MEMORY = re.compile(r"ECC|uncorrectable", re.IGNORECASE)
_NO_INIT = re.compile(r"rm_?init_?adapter", re.IGNORECASE)
_DRIVER_GONE = re.compile(r"driver shutting down|CUDA driver initiali[sz]ation failed|driver not loaded", re.IGNORECASE)


def lost_lines(case: Case) -> dict[ComponentId, list[Seen]]:
    """What was said of GPUs that are gone, or seem to be, by GPU."""
    found: dict[ComponentId, list[Seen]] | None = case.memo.get("gpus_lost")
    if found is None:
        said = events(case, EventName.XID, EventName.GPU_LOST)
        found = case.memo["gpus_lost"] = by_component(
            case, ((seen, e) for seen, e in said if e.name is EventName.GPU_LOST or e.attrs.get("xid") == "79")
        )
    return found


def not_initialised(event: Event) -> bool:
    return event.name is EventName.GPU_LOST and bool(_NO_INIT.search(event.attrs.get("what", "") or event.excerpt))


def held_by_driver(case: Case) -> frozenset[ComponentId]:
    """GPUs that failed to come up and are on the bus."""
    found: frozenset[ComponentId] | None = case.memo.get("gpus_held_by_driver")
    if found is None:
        hung = _hung(case)
        found = case.memo["gpus_held_by_driver"] = frozenset(
            gpu
            for gpu, seen in lost_lines(case).items()
            if not _off_bus(case, gpu, seen) and (gpu in hung or _presence(case, gpu) == "reset_required")
        )
    return found


def hosts_without_driver(case: Case) -> dict[str, tuple[ComponentId, ...]]:
    """Hosts of the job whose driver is gone, with the GPUs that show it."""
    found: dict[str, tuple[ComponentId, ...]] | None = case.memo.get("hosts_without_driver")
    if found is None:
        found = case.memo["hosts_without_driver"] = dict(_without_driver(case))
    return found


def driver_words(case: Case) -> dict[int, Observed]:
    """Ranks whose process was ended because the driver went away, by its own last words."""
    return {
        rank: left
        for rank, left in case.exits.items()
        if isinstance(left.fact, RankExited) and not left.fact.clean and _DRIVER_GONE.search(left.fact.reason)
    }


def told_lost(case: Case) -> dict[ComponentId, Observed]:
    """The GPUs of a job that stands still which NVML calls lost."""
    return _told(case, "lost")


def unanswering(case: Case) -> dict[ComponentId, Observed]:
    """The GPUs of a job that stands still which NVML has had no answer from since then, while others of the same host answer
    it."""
    found: dict[ComponentId, Observed] | None = case.memo.get("gpus_unanswering")
    if found is None:
        told = _told(case, "unreadable")
        hosts = [host_of(gpu) for gpu in told]
        found = case.memo["gpus_unanswering"] = {
            gpu: each for gpu, each in told.items() if hosts.count(host_of(gpu)) == 1 and _others_answer(case, gpu)
        }
    return found


def _others_answer(case: Case, gpu: ComponentId) -> bool:
    others = case.topology.gpus_of_host(host_of(gpu) or "")
    return any(_presence(case, other) == "present" for other in others if other != gpu)


def handed_an_error(case: Case, gpu: ComponentId) -> dict[int, Observed]:
    """The ranks on a GPU that were ended by an error of the device, which is not about its memory."""
    return {
        rank: left
        for rank in ranks_on(case, gpu)
        if (left := case.exits.get(rank)) is not None
        and isinstance(left.fact, RankExited)
        and not left.fact.clean
        and DEVICE_ERROR.search(left.fact.reason)
        and not (_MEMORY.search(left.fact.reason) or _DRIVER_GONE.search(left.fact.reason))
    }


def _told(case: Case, presence: str) -> dict[ComponentId, Observed]:
    if case.stalled_since is None:
        return {}
    since = case.stalled_since - timedelta(seconds=TOLD_BEFORE_S)
    return {
        gpu: told
        for gpu in gpus_of_job(case)
        if _presence(case, gpu) == presence and (told := states(case)[gpu, "gpu"]).received_at >= since
    }


def _without_driver(case: Case) -> list[tuple[str, tuple[ComponentId, ...]]]:
    if case.placement is None:
        return []
    lost, words, hung = lost_lines(case), driver_words(case), _hung(case)
    failed = {gpu for gpu, seen in lost.items() if all(not_initialised(event) for _, event in seen)}
    ended = {gpu for rank in words if (gpu := gpu_of(case, rank)) is not None}
    found = []
    for host in sorted({host for gpu in failed | ended if (host := host_of(gpu)) is not None}):
        mine = [gpu for rank in case.placement.on_host(host) if (gpu := gpu_of(case, rank)) is not None]
        if any(gpu in hung or _off_bus(case, gpu, lost.get(gpu, [])) for gpu in mine):
            continue
        quiet = [gpu for gpu in mine if gpu in failed or gpu in ended or _presence(case, gpu) == "unreadable"]
        if len(quiet) >= max(TOGETHER_MIN, TOGETHER_SHARE * len(mine)):
            found.append((host, tuple(quiet)))
    return found


def _hung(case: Case) -> frozenset[ComponentId]:
    """GPUs whose firmware has timed out."""
    said = events(case, EventName.XID)
    return frozenset(canonical(case, event.component) for _, event in said if event.attrs.get("xid") in GSP)


def _off_bus(case: Case, gpu: ComponentId, seen: list[Seen]) -> bool:
    if any(not not_initialised(event) for _, event in seen) or _presence(case, gpu) == "lost":
        return True
    address = _address(case.topology.attr(gpu, "pci"))
    return bool(address) and any(
        event.attrs.get("severity") == "fatal"
        and _address(event.attrs.get("pci", "")) == address
        and each.host == host_of(gpu)
        for each, event in events(case, EventName.AER)
    )


def _address(text: str) -> str:
    try:
        return normal_pci(text)
    except ValueError:
        return ""


def _presence(case: Case, gpu: ComponentId) -> str:
    """What NVML last said of it; "" where it was not heard of."""
    told = states(case).get((gpu, "gpu"))
    return told.fact.value if told is not None and isinstance(told.fact, State) else ""
