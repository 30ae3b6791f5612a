"""Listening to the ranks, and judging plans by what they say.

`Ranks` takes in what the JOB stream tells of ranks (registered, progress, exited) and keeps the newest of it in memory: the
reports come every second, so after a restart the picture is whole again within one. Where each rank runs is kept in the
store, because a registration comes only once. `Verifier` looks at the plans under verification with that picture.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from goodput_common.bus.errors import Reject, Retry
from goodput_common.bus.ports import Message
from goodput_common.contracts.job import HostProgress, RankExited, RankProgress, RankRegistered
from goodput_common.contracts.verdict import VerdictState
from goodput_common.runtime.clock import Clock
from goodput_recovery.application.ports import Store, StoreUnavailable
from goodput_recovery.domain.facts import Facts
from goodput_recovery.domain.incident import Incident
from goodput_recovery.domain.plan import Plan
from goodput_recovery.domain.policy import Policy
from goodput_recovery.domain.progress import JobProgress, Seen, Watch, look

JOBS_MAX = 4096  # the job unheard of for longest is forgotten; its ranks will speak again


class Ranks:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._jobs: OrderedDict[str, JobProgress] = OrderedDict()
        self._heard: set[str] = set()

    async def handle(self, message: Message) -> None:
        """A message of the JOB stream."""
        data = message.data
        if isinstance(data, RankProgress):
            self._reported(data.job, (data,), message.received_at)
        elif isinstance(data, HostProgress):
            self._reported(data.job, data.reports, message.received_at)
        elif isinstance(data, RankRegistered):
            try:
                await self._store.place(data)
            except StoreUnavailable as error:
                raise Retry(str(error)) from error
            self._job(data.job).registered(data)
        elif isinstance(data, RankExited):
            self._job(data.job).exited(data)
        else:
            raise Reject(f"{type(data).__name__} is nothing that recovery listens to")

    def _reported(self, job: str, reports: Sequence[RankProgress], heard_at: datetime) -> None:
        progress = self._job(job)
        for report in reports:
            progress.reported(report, heard_at)
        if len(self._heard) < JOBS_MAX:
            self._heard.add(job)

    def forget_all(self) -> None:
        """A new term begins: what was heard before it is old."""
        self._jobs.clear()
        self._heard.clear()

    def heard(self) -> list[str]:
        """The jobs that reported since the last call."""
        heard = sorted(self._heard)
        self._heard.clear()
        return heard

    async def recall(self, job: str) -> JobProgress:
        """What is known of a job, with its size from the store where no registration was heard since the start."""
        progress = self._job(job)
        if progress.world_size is None and (places := await self._store.places(job)):
            newest = max(place.generation for place in places.values())
            if newest >= progress.generation:
                progress.world_size = next(each.world_size for each in places.values() if each.generation == newest)
        return progress

    def known(self, job: str | None) -> JobProgress | None:
        return self._jobs.get(job) if job is not None else None

    def facts(self, base: Facts, job: str | None, now: datetime) -> Facts:
        """`base` with what the ranks of `job` say."""
        progress = self.known(job)
        if progress is None:
            return base
        return Facts(
            offered=base.offered,
            spare_nodes=base.spare_nodes,
            capacity_left=base.capacity_left,
            world_size=progress.world_size or len(progress.ranks) or None,
            moving=progress.moving(now),
            ranks_gone=frozenset(progress.left),
            finished=progress.finished(),
        )

    def _job(self, job: str) -> JobProgress:
        progress = self._jobs.get(job)
        if progress is None:
            progress = self._jobs[job] = JobProgress()
            if len(self._jobs) > JOBS_MAX:
                self._jobs.popitem(last=False)
        self._jobs.move_to_end(job)
        return progress


class Verifier:
    """Keeps one `Watch` for each plan under verification. Watches are not stored: with a restart or a new term the holding
    time begins anew, and no plan fails before it was watched for a while."""

    def __init__(self, ranks: Ranks, policy: Policy, clock: Clock, bus_healthy: Callable[[], Awaitable[bool]]) -> None:
        self._ranks, self._policy, self._clock, self._bus_healthy = ranks, policy, clock, bus_healthy
        self._watches: dict[str, Watch] = {}
        self._looked_at: datetime | None = None

    def forget_all(self) -> None:
        """A new term begins: nobody watched in between, so nothing was blind and nothing was held."""
        self._watches.clear()
        self._looked_at = None

    async def look(self, verifying: Sequence[tuple[Incident, Plan]]) -> dict[str, Seen]:
        """Judge all plans that are being verified now, each with its incident; forgets those that are not any more."""
        plans = [plan for _, plan in verifying]
        now = self._clock.now()
        blind_s = 0.0
        if plans and not await self._bus_healthy() and self._looked_at is not None:
            blind_s = (now - self._looked_at).total_seconds()
        self._looked_at = now
        self._watches = {plan.id: self._watches.get(plan.id) or Watch(since=now) for plan in plans}
        seen: dict[str, Seen] = {}
        for incident, plan in verifying:
            watch = self._watches[plan.id]
            resolved = incident.verdict.resolution if incident.verdict.state is VerdictState.RESOLVED else None
            # a plan that came under watch only now missed nothing: never more than it was watched at all
            watch.blind_s = min(watch.blind_s + blind_s, (now - watch.since).total_seconds())
            progress = await self._ranks.recall(plan.job) if plan.job is not None else None
            seen[plan.id] = look(progress, plan, watch, self._policy, now, resolved)
        return seen
