"""The incidents of a fabric that are open, and those that ended lately and may come back.

A job can have troubles at once that have nothing to do with each other: it was slow because one GPU was held down, and now
it stands still because a process elsewhere was killed, and a cable is dead besides. So several incidents of a job can be
open, few of them: one that tells why it is slow, and of those that tell why it stands still one for each fault. A slow job
that comes to a halt for the same reason stays one incident.

What flaps is one fault, not many. An incident that was resolved and whose component fails again in the same way within
`RETURNS_S` is taken up again, under its old id. Ten minutes: operators of links damp what came and went within minutes (BGP
route-flap damping forgets half of a penalty in 15), a repair takes longer, and a restart reads far enough back to know. A
process that dies again is another process: for ranks every death is an incident of its own.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from goodput_common.contracts.ids import ComponentKind
from goodput_common.contracts.verdict import Trouble, Verdict, VerdictState
from goodput_correlator.domain.finding import Diagnosis
from goodput_correlator.domain.verdict import VERSIONS_MAX

RETURNS_S = 600.0
OF_A_JOB_MAX = 3
LATELY_MAX = 4096  # incidents that ended; beyond it the one that ended first is forgotten


class Held:
    """`hold` the newest version of an incident, `let_go` of its last."""

    def __init__(self) -> None:
        self._open: dict[str, Verdict] = {}  # incident -> newest version
        self._of_job: dict[str, set[str]] = {}  # job -> its open incidents
        self._lately: dict[str, Verdict] = {}  # incident -> its resolution

    def __contains__(self, incident: str) -> bool:
        return incident in self._open

    @property
    def open(self) -> tuple[Verdict, ...]:
        return tuple(sorted(self._open.values(), key=lambda v: v.id))

    def of(self, job: str) -> tuple[Verdict, ...]:
        """What is open of a job, in the order in which it was found: first why it stands still, then why it is slow."""
        found = [self._open[incident] for incident in self._of_job.get(job, ())]
        return tuple(sorted(found, key=lambda v: (v.trouble is Trouble.SLOW, v.detected_at, v.incident)))

    def stalled(self, job: str) -> tuple[Verdict, ...]:
        return tuple(each for each in self.of(job) if each.trouble is not Trouble.SLOW)

    def slow(self, job: str) -> Verdict | None:
        return next((each for each in self.of(job) if each.trouble is Trouble.SLOW), None)

    def has_room(self, job: str) -> bool:
        return len(self._of_job.get(job, ())) < OF_A_JOB_MAX

    def hold(self, verdict: Verdict) -> None:
        self._lately.pop(verdict.incident, None)
        self._open[verdict.incident] = verdict
        if verdict.job is not None:
            self._of_job.setdefault(verdict.job, set()).add(verdict.incident)

    def let_go(self, resolved: Verdict) -> None:
        self._open.pop(resolved.incident, None)
        if resolved.job is not None and (mine := self._of_job.get(resolved.job)) is not None:
            mine.discard(resolved.incident)
            if not mine:
                del self._of_job[resolved.job]
        before = resolved.published_at - timedelta(seconds=RETURNS_S)
        self._lately = {name: each for name, each in self._lately.items() if each.published_at >= before}
        self._lately[resolved.incident] = resolved
        if len(self._lately) > LATELY_MAX:
            first = min(self._lately.values(), key=lambda v: (v.published_at, v.incident))
            del self._lately[first.incident]

    def returning(self, job: str | None, diagnosis: Diagnosis, at: datetime) -> Verdict | None:
        """The resolution of an incident that would come back with this diagnosis: of the same job (or of none), of the same
        class, with a component in common that is no process. The latest, if there are several."""
        named = {each.component for each in diagnosis.culprits if each.component and each.kind is not ComponentKind.RANK}
        found = [
            each
            for each in self._lately.values()
            if each.job == job
            and each.fault_class is diagnosis.fault_class
            and (at - each.published_at).total_seconds() <= RETURNS_S
            and each.version < VERSIONS_MAX
            and not named.isdisjoint(culprit.component for culprit in each.culprits)
        ]
        return max(found, key=lambda v: (v.published_at, v.incident), default=None)

    def restore(self, verdict: Verdict) -> None:
        """An earlier process said this last of an incident."""
        if verdict.state is VerdictState.RESOLVED:
            self._lately[verdict.incident] = verdict
        else:
            self.hold(verdict)
