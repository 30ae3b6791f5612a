"""The store's twin in memory: the same promises as `PostgresStore`, for tests of the application without a server.

`away` makes every call raise StoreUnavailable; `lose_answers` lets the next so many writes succeed and then claims that they
did not, as a connection that breaks after a commit does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from goodput_common.contracts.job import RankExited, RankProgress
from goodput_common.contracts.topology import TopologySnapshot
from goodput_common.contracts.verdict import Verdict, VerdictState
from goodput_correlator.application import facts
from goodput_correlator.application.ports import (
    Deposed,
    JobProgress,
    Registration,
    Reign,
    Restored,
    Retention,
    StoreRefused,
    StoreUnavailable,
    Tick,
    Write,
    Written,
)
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.remembered import Batch
from goodput_correlator.domain.timeline import READ
from goodput_topology.build import InvalidFabric
from goodput_topology.graph import Fabric
from goodput_topology.merge import check
from goodput_topology.snapshot import Assembly


class MemoryStore:
    """One fabric's rows, without bounds: for tests."""

    def __init__(self, fabric: str) -> None:
        self.away = False
        self.lose_answers = 0
        self.token = 1
        self.evidence: dict[str, Observed] = {}
        self.batches: dict[str, Batch] = {}
        self.registrations: dict[tuple[str, int, int], Registration] = {}
        self.jobs: dict[str, JobProgress] = {}
        self.ticked_to: datetime | None = None
        self.chains: dict[str, list[Verdict]] = {}
        self.groups: list[int] = []
        self._ticked_by = 0
        self._fabric = fabric
        self._assembly = Assembly()
        self._snapshots: dict[str, tuple[TopologySnapshot, ...]] = {}

    def _reachable(self) -> None:
        if self.away:
            raise StoreUnavailable("the store is away")

    def _under(self, reign: Reign) -> None:
        self._reachable()
        if reign.token != self.token:
            raise Deposed(f"term {reign.token} has ended, now it is term {self.token}")

    def _answer(self) -> None:
        if self.lose_answers:
            self.lose_answers -= 1
            raise StoreUnavailable("the answer got lost")

    async def write(self, reign: Reign, writes: Sequence[Write]) -> Written:
        self._under(reign)
        batches = [write.batch for write in writes if write.batch is not None]
        of_batches = [each for batch in batches for each in batch.all()]
        observed = [each for write in writes for each in write.observed] + of_batches
        if refused := [each for each in observed if "\x00" in each.host]:
            raise StoreRefused(f"{refused[0].id}: a NUL in host")
        graph = self._topology([part for write in writes for part in write.topology])
        new = (frozenset(each.id for each in observed) - self.evidence.keys()) | (
            frozenset(each.id for each in batches) - self.batches.keys()
        )
        for batch in batches:
            self.batches.setdefault(batch.id, batch)
        for each in observed:
            self.evidence.setdefault(each.id, each)
        for placed in (each for write in writes for each in write.registrations):
            key = (placed.body.job, placed.body.generation, placed.body.rank)
            held = self.registrations.get(key)
            if held is None or held.received_at < placed.received_at:
                self.registrations[key] = placed
            self._seen(placed)
        self.groups.append(len(writes))
        self._answer()
        return Written(new=new, topology=graph)

    def _seen(self, placed: Registration) -> None:
        body, at = placed.body, placed.received_at
        row = self.jobs.get(body.job)
        if row is None or row.generation < body.generation:
            began_at = row.first_seen_at if row is not None else at
            self.jobs[body.job] = JobProgress(
                job=body.job, generation=body.generation, world_size=body.world_size, first_seen_at=began_at,
                last_seen_at=at,
            )  # fmt: skip
        elif row.generation == body.generation and row.last_seen_at < at:
            self.jobs[body.job] = replace(row, last_seen_at=at)

    def _topology(self, parts: Sequence[TopologySnapshot]) -> Fabric | None:
        snapshots = dict(self._snapshots)
        for part in parts:
            whole = self._assembly.add(part)
            held = snapshots.get(part.source)
            if whole is not None and (held is None or held[0].version < part.version):
                try:
                    check(whole)
                except InvalidFabric as error:
                    raise StoreRefused(str(error)) from error
                snapshots[part.source] = whole
        if snapshots == self._snapshots:
            return None
        graph = _joined(self._fabric, snapshots)
        self._snapshots = snapshots
        return graph

    async def commit(self, reign: Reign, tick: Tick) -> tuple[Verdict, ...]:
        self._under(reign)
        if (self.ticked_to, self._ticked_by) == (tick.now, reign.token):
            return ()
        if self.ticked_to != tick.previous:
            raise Deposed(f"the grid stands at {self.ticked_to}, not at {tick.previous}")
        self.ticked_to, self._ticked_by = tick.now, reign.token
        unfit = []
        for verdict in tick.verdicts:
            chain = self.chains.setdefault(verdict.id, [])
            if verdict.version == len(chain) + 1:
                chain.append(verdict)
            else:
                unfit.append(verdict)
        self.jobs.update({each.job: each for each in tick.jobs})
        self._answer()
        return tuple(unfit)

    async def restore(self, fabric: str, *, window_s: float, jobs_s: float) -> Restored:
        self._reachable()
        since = self.ticked_to - timedelta(seconds=window_s) if self.ticked_to else None
        jobs_since = self.ticked_to - timedelta(seconds=jobs_s) if self.ticked_to else None
        jobs = {job: row for job, row in self.jobs.items() if jobs_since is None or row.last_seen_at > jobs_since}
        kept = []
        for (job, generation, rank), placed in self.registrations.items():
            row = jobs.get(job)
            if row is not None and row.generation == generation:
                body = placed.body
                kept.append(Observed(placed.id, body.host, "agent", body.at, placed.received_at, body))
                if since is not None and (row.last_seen_at <= since or row.exited_clean + row.exited_failed):
                    kept += self._last_words(job, rank, placed.received_at, since)
        newest = [chain[-1] for chain in self.chains.values()]
        return Restored(
            ticked_to=self.ticked_to,
            jobs=tuple(jobs.values()),
            observed=tuple(kept),
            topology=_joined(self._fabric, self._snapshots),
            verdicts=tuple(
                v for v in newest if v.state is not VerdictState.RESOLVED or not jobs_since or v.published_at > jobs_since
            ),
        )

    def _last_words(self, job: str, rank: int, began_at: datetime, until: datetime) -> list[Observed]:
        said = [
            each
            for each in self.evidence.values()
            if isinstance(each.fact, RankProgress | RankExited)
            and (each.fact.job, each.fact.rank) == (job, rank)
            and began_at <= each.received_at <= until
        ]
        return sorted(said, key=lambda o: o.order)[-2:]

    async def evidence_pages(
        self, fabric: str, *, since: datetime | None, measured_since: datetime | None = None, rows_max: int, page_rows: int
    ) -> AsyncIterator[tuple[Observed | Batch, ...]]:
        self._reachable()
        in_batches = {each.id for batch in self.batches.values() for each in batch.all()}
        read: list[Observed | Batch] = [
            each
            for each in self.evidence.values()
            if each.id not in in_batches and isinstance(each.fact, READ) and (since is None or each.received_at > since)
        ]
        for batch in self.batches.values():
            after = measured_since if facts.kind_of_batch(batch) == facts.MEASURED else since
            if after is None or batch.received_at > after:
                read.append(batch)
        newest = sorted(read, key=lambda each: (each.received_at, each.id))[-rows_max:]
        for start in range(0, len(newest), page_rows):
            yield tuple(newest[start : start + page_rows])

    async def prune(self, fabric: str, keep: Retention, now: datetime) -> int:
        self._reachable()
        before = now - timedelta(seconds=keep.evidence_s)
        cited = {each.event_id for chain in self.chains.values() for v in chain for each in v.evidence}
        old = [key for key, each in self.evidence.items() if each.received_at <= before and key not in cited]
        for key in old[: keep.rows_a_round]:
            del self.evidence[key]
        return len(old[: keep.rows_a_round])


def _joined(fabric: str, snapshots: dict[str, tuple[TopologySnapshot, ...]]) -> Fabric:
    return Fabric.from_snapshots(fabric, [part for parts in snapshots.values() for part in parts])
