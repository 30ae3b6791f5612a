"""A device under suspicion: a process was ended by an error of its GPU, and nothing shows the GPU to be well.

"CUDA error: unspecified launch failure" is what the runtime says of a kernel with a bug, and of a GPU that is gone. Which it
was, tells whoever else looks at the GPU. Until it is read again, neither is sure. If it is, it is there, and the error is
the program's own as far as anybody can tell. If the whole host is silent, or this GPU is while its neighbours are read on,
nothing clears it: one rank that ends so, of many that run the same program, is more often a device than a bug, and a process
that is started anew on a broken device ends again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from goodput_common.contracts.ids import ComponentId, host_of
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.clues import gpu_of, states
from goodput_correlator.domain.deaths import Death

# what the runtime says of a device that does not do its work; an illegal address or a failed assertion is the program's
OF_HARDWARE = re.compile(
    r"unspecified launch failure|no CUDA-capable device|device\(?s?\)? (?:is|are|is/are)?[ a-z,]*unavailable|unknown error"
    r"|fallen off the bus|GPU is lost|hardware stack error|system not yet initialized",
    re.IGNORECASE,
)
BLIND, MUTE = 0.62, 0.7  # nothing is seen of the host; of this GPU alone
BY_PROCESSES = frozenset({"agent", "flight_recorder", "job_log"})
BLIND_AFTER_S = 7.0  # a collector says something every second or so, and all it knows every 5 s
MUTE_AFTER_S = 6.0  # neighbours that were read this long after the error: boards are read every few seconds
UNDER_WAY_S = 1.0  # a reading that was made before the error


@dataclass(frozen=True, slots=True)
class Suspected:
    """`why` nothing clears the GPU, in words, and how likely it is to blame; 0.0 as long as that may still come."""

    gpu: ComponentId
    score: float
    why: str


def suspected_device(case: Case, death: Death) -> Suspected | None:
    """The GPU of a rank that was ended by an error of it; None where its reason was another, or it is seen to live."""
    gpu = gpu_of(case, death.rank)
    if gpu is None or case.stalled_since is None or case.offline or not OF_HARDWARE.search(death.reason):
        return None
    host, ended_at = host_of(gpu) or "", death.at.received_at
    last, heard_at = _read_at(case, gpu), _heard_at(case, host)
    if last is not None and last > ended_at + timedelta(seconds=UNDER_WAY_S):
        return None
    if heard_at is None or (case.now - heard_at).total_seconds() > BLIND_AFTER_S:
        return Suspected(gpu, BLIND, f"nothing is seen of {host} since, so nothing clears it")
    others = [at for other in case.topology.gpus_of_host(host) if other != gpu and (at := _read_at(case, other)) is not None]
    if last is not None and others and min(others) > ended_at + timedelta(seconds=MUTE_AFTER_S):
        return Suspected(gpu, MUTE, "it has not been read since, while all its neighbours have")
    return Suspected(gpu, 0.0, "it has not been read since")


def _heard_at(case: Case, host: str) -> datetime | None:
    """When its collector was last heard. What processes say of themselves is no word of the GPU."""
    told = [each.received_at for each in case.observed if each.host == host and each.source not in BY_PROCESSES]
    read = [at for gpu in case.topology.gpus_of_host(host) if (at := _read_at(case, gpu)) is not None]
    return max([*told, *read], default=None)


def _read_at(case: Case, gpu: ComponentId) -> datetime | None:
    """When it was last read, by whoever measures it or looks whether it is there."""
    told = [facts[-1].received_at for facts in case.measurements.names(gpu).values() if facts]
    presence = states(case).get((gpu, "gpu"))
    return max([*told, *([presence.received_at] if presence is not None else [])], default=None)
