"""What a training process says about itself, and the flight-recorder dumps taken of it.

Published by the agent inside the process (`goodput_agent`); dumps also by the collector, which finds them as files, and
reports of a host's ranks together, when its agents hand them to the collector.
"""

from __future__ import annotations

import enum
from datetime import datetime

import msgspec


class RankRegistered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rank has started (again). `generation` grows with every restart or re-init of the job."""

    fabric: str
    job: str
    rank: int
    world_size: int
    host: str
    pid: int
    at: datetime
    generation: int = 0
    local_rank: int | None = None
    gpu: int | None = None  # device index on the host; None on CPU
    gpu_uuid: str | None = None
    backend: str = ""
    boot_id: str = ""
    process_start: int = 0  # start time of the pid in clock ticks since boot, tells a reused pid from the same process
    steps_published_s: float = 1.0  # how often this rank reports


class GroupProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far one rank has come in one process group. Counts are of collectives since the group was made; -1 is never."""

    group: str  # name that all members share
    ranks: tuple[int, ...]  # global ranks; empty when the source does not know
    last_enqueued: int = -1
    last_started: int = -1
    last_completed: int = -1
    desc: str = ""
    p2p: bool = False  # counts point-to-point operations (the group's last one was): comparable between the two peers only


class RankProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank's report, every second or so, sent whether or not steps move: a report that shows no new step is a stall seen
    from inside; no report at all is silence. `phases_ms` are means over the steps since the last report: the phases that the
    trainer marks, own work only where that can be told. Who is late has the longest own time and waits least.
    """

    fabric: str
    job: str
    rank: int
    host: str
    seq: int
    at: datetime
    generation: int = 0
    step: int = -1  # last finished step; -1 before the first
    step_at: datetime | None = None  # when it finished
    steps: int = 0  # finished since the last report
    step_ms_mean: float = 0.0
    step_ms_max: float = 0.0
    phases_ms: dict[str, float] = {}
    waiting_ms: float = -1.0  # mean a step that this rank waited for others, inside collectives; -1: cannot tell
    phase: str = ""  # where the rank is now
    phase_for_ms: float = 0.0
    in_collective: str = ""  # collective that the main thread is inside now, where the agent can tell
    groups: tuple[GroupProgress, ...] = ()
    paused: bool = False


class HostProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reports that ranks of one job on one host made within a fraction of a second, in one message: each exactly as the
    rank would have sent it by itself, with its own `seq` and `at`. Report n is cited as `<message id>#<n>`. Ranks go back to
    reporting by themselves when nobody takes their reports: a missing message says nothing of its ranks.
    """

    fabric: str
    job: str
    host: str
    at: datetime  # when they were put together, by the clock of the host: reports may have waited until then
    reports: tuple[RankProgress, ...] = ()


class StallSuspected(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The agent saw its own steps stop for much longer than a step takes; a dump follows."""

    fabric: str
    job: str
    rank: int
    host: str
    at: datetime
    generation: int = 0
    step: int = -1
    stalled_for_ms: float = 0.0
    usual_step_ms: float = 0.0
    phase: str = ""
    in_collective: str = ""  # collective that the main thread is inside, where the agent can tell
    frames: tuple[str, ...] = ()  # where the main thread is, innermost first: "train.py:41 in step"


class RankExited(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rank left on its own: `clean` after the loop ended, else with the exception's one-line text."""

    fabric: str
    job: str
    rank: int
    host: str
    at: datetime
    generation: int = 0
    clean: bool = True
    reason: str = ""


class CollectiveState(enum.StrEnum):
    SCHEDULED = "scheduled"
    STARTED = "started"
    COMPLETED = "completed"


class Collective(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of a flight recorder."""

    group: str
    seq: int
    op: str  # all_reduce, _all_gather_base, send ... without the backend's prefix
    state: CollectiveState
    p2p: bool = False
    p2p_seq: int = 0
    op_id: int = 0
    created_at: datetime | None = None
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    timeout_ms: int = 0
    peer: int | None = None
    frames: tuple[str, ...] = ()  # user-most first: "train.py:41 in step"


class FlightRecorderDump(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rank's flight recorder, normalised by `goodput_common.flight_recorder` from any version, backend and format.

    `collectives` are the newest entries, bounded; `truncated` says that older ones were left out.
    """

    fabric: str
    job: str
    rank: int
    host: str
    at: datetime
    backend: str = ""
    version: str = ""
    generation: int = 0
    reason: str = ""  # asked, stall, file
    origin: str = ""  # file path, or "memory"
    groups: tuple[GroupProgress, ...] = ()
    collectives: tuple[Collective, ...] = ()
    truncated: bool = False
