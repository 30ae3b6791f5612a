"""All incidents of one fabric: messages in, new versions of verdicts out, a function of the log alone.

Time is a grid of quarters of a second. At grid time T everything received by the broker up to T is read in the order
`(received_at, id)`, doubles left out (`arrivals`, `remembered`), and then it is judged (`judging`): at a whole second every
job, between two of them what cannot wait (`pressing`). So the order and the number of deliveries cannot matter, as long as T
is only judged after all that was received by T has been seen (the caller's watermark).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from goodput_common.contracts.job import HostProgress
from goodput_common.contracts.telemetry import TelemetryBatch
from goodput_common.contracts.verdict import Verdict
from goodput_correlator.domain.arrivals import REMEMBER_IDS_S, Arrivals
from goodput_correlator.domain.case import MessageLike, Observed, ordered, unpack
from goodput_correlator.domain.grid import GRID, GRID_S, grid_floor
from goodput_correlator.domain.judging import JOB_FORGET_S, Judging
from goodput_correlator.domain.remembered import KEPT, LOOK_BACK_S, Batch, Remembered
from goodput_correlator.domain.timeline import Noted
from goodput_topology.graph import Fabric

__all__ = ["GRID_S", "JOB_FORGET_S", "LOOK_BACK_S", "REMEMBER_IDS_S", "Incidents", "grid_floor"]

TOPOLOGIES_MAX = 16  # graphs that wait for their grid time; beyond it the oldest is in force at once
JOBS_MAX = 10_000
HOSTS_MAX = 100_000


class Incidents:
    """State of one fabric. `take` gets messages in any order; `tick` judges every grid time up to `now`."""

    def __init__(self, fabric: Fabric, *, jobs_max: int = JOBS_MAX, hosts_max: int = HOSTS_MAX) -> None:
        self._arrivals: Arrivals[Observed | Batch] = Arrivals()
        self._judging = Judging()
        self._known = Remembered(fabric, jobs_max=jobs_max, hosts_max=hosts_max, saw=self._judging.saw)
        self._judged: datetime | None = None
        self._topologies: list[tuple[datetime, Fabric]] = []  # to come, by time

    @property
    def name(self) -> str:
        return self.topology.name

    @property
    def topology(self) -> Fabric:
        """The graph in force."""
        return self._known.topology

    @topology.setter
    def topology(self, fabric: Fabric) -> None:
        self._known.use(fabric)

    def name_from(self, named_min: float) -> None:
        """Policy: a culprit that is less likely than this is not named; the verdict is undetermined."""
        self._judging.named_min = named_min

    @property
    def judged(self) -> datetime | None:
        """The last grid time judged."""
        return self._judged

    @property
    def open(self) -> tuple[Verdict, ...]:
        return self._judging.open

    @property
    def pending(self) -> int:
        """Messages taken in whose grid time has not come."""
        return len(self._arrivals)

    @property
    def overflow(self) -> int:
        """Messages and facts over a bound, or too late: left out."""
        return self._arrivals.overflow + self._known.overflow

    def set_topology(self, fabric: Fabric, received_at: datetime) -> None:
        """A graph that became whole with a message of that time: in force from the first grid time not before it."""
        self._topologies.append((received_at, fabric))
        self._topologies.sort(key=lambda each: each[0])
        if len(self._topologies) > TOPOLOGIES_MAX:
            self._known.use(self._topologies.pop(0)[1])

    def take(self, message: MessageLike) -> None:
        """Take in one message; judged at the first grid time not before it was received. One that is no evidence is
        nothing. A batch is kept as it is until it is read."""
        if isinstance(message.data, TelemetryBatch | HostProgress):
            self._arrivals.put(message.received_at, message.id, Batch.of(message))
            return
        for each in unpack(message):
            self.observe(each)

    def observe(self, seen: Observed) -> None:
        """Take in one fact that is a message of its own (or was one, when it was kept)."""
        if type(seen.fact) in KEPT:
            self._arrivals.put(seen.received_at, seen.id, seen)

    def tick(self, now: datetime) -> list[Verdict]:
        """Judge every grid time up to `now` that has not been judged. Returns the new versions in order."""
        out: list[Verdict] = []
        until = grid_floor(now)
        at = self._judged + GRID if self._judged else self._first(until)
        while at <= until:
            if not self._known.jobs and not self._known.hosts and not self._judging.open:
                at = max(at, min(until, self._first(until)))  # nothing known: skip to where something is
            self._read(at)
            if not at.microsecond:
                self._known.tidy(at)
            out += self._judging.judge(self._known, at)
            self._judged = at
            at += GRID
        return out

    # ------------------------------------------------------------------------------------------------- restoring

    def restore(
        self,
        verdicts: Iterable[Verdict],
        observed: Iterable[Observed],
        *,
        judged: datetime | None = None,
        jobs: Iterable[Noted] = (),
    ) -> None:
        """Take up where another process left off: the newest version of each open verdict, the evidence of the last
        `LOOK_BACK_S` (registrations of running jobs however old), the last grid time that was judged and stored, and what
        was noted of the jobs. What was received after `judged` is judged again, to the same effect."""
        self.reopen(verdicts)
        self.recall(ordered(observed), judged=judged)
        self.resume(judged=judged, jobs=jobs)

    def reopen(self, verdicts: Iterable[Verdict]) -> None:
        """Restoring begins: the newest version of each open verdict, and of those that were resolved lately."""
        newest: dict[str, Verdict] = {}
        for verdict in sorted(verdicts, key=lambda v: (v.incident, v.version)):
            newest[verdict.incident] = verdict
        for verdict in newest.values():
            self._judging.reopen(verdict)

    def recall(self, kept: Sequence[Observed | Batch], *, judged: datetime | None) -> None:
        """Restoring goes on: a page of the evidence, in the order `(received_at, id)` from page to page. What had been
        judged is read at once, so that no more than a page and the rest that had not been judged is held."""
        for each in kept:
            if isinstance(each, Batch):
                self.take(each)
            else:
                self.observe(each)
        if judged is not None and kept:
            self._read(min(grid_floor(judged), kept[-1].received_at), old_too=True)

    def resume(self, *, judged: datetime | None, jobs: Iterable[Noted]) -> None:
        """Restoring is done: the next tick goes on behind `judged`."""
        if judged is None:
            return
        self._judged = grid_floor(judged)
        self._read(self._judged, old_too=True)
        noted = {each.job: each for each in jobs}
        for name, job in self._known.jobs.items():
            if name in noted:
                job.resume(noted[name])
            if self._judging.concerns(name):
                job.learning = False
                if name not in noted:  # its reports may not have been restored: that is no silence of the job
                    job.heard_at = max(job.heard_at or self._judged, self._judged)

    # ------------------------------------------------------------------------------------------------- reading

    def _first(self, until: datetime) -> datetime:
        earliest = self._arrivals.first_at
        if earliest is None:
            return until
        first = grid_floor(earliest)
        return first if first == earliest else first + GRID

    def _read(self, at: datetime, *, old_too: bool = False) -> None:
        """Everything received up to `at` that has not been read."""
        while self._topologies and self._topologies[0][0] <= at:
            self._known.use(self._topologies.pop(0)[1])
        read, may_leave = self._known.read, self._may_leave
        for each in self._arrivals.due(at, old_too=old_too):
            read(each, may_leave)

    def _may_leave(self, job: str) -> bool:
        return not self._judging.concerns(job)
