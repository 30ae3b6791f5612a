"""What the application asks of the world: a store. Postgres implements it; tests run the same behaviour on a twin in memory.

Every write names the reign it is made under: one term of the fabric's lease. The store refuses (`Deposed`) whatever
comes under a term that has ended, in the same transaction as the write: a correlator that lost its lease without
noticing can neither acknowledge evidence into nowhere nor publish a second chain.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.topology import TopologySnapshot
from goodput_common.contracts.verdict import Verdict
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.remembered import Batch
from goodput_topology.graph import Fabric


class StoreUnavailable(Exception):
    """The database cannot be reached or is starting: nothing was written, or it is unknown whether. Try the same again."""


class StoreRefused(Exception):
    """The database will never take this write; `reason` says why. Reject its message."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Deposed(Exception):
    """The term has ended. Drop all state, wait for the lease, begin anew from the store."""


@dataclass(frozen=True, slots=True)
class Reign:
    """The right to write for `fabric`: one term of its lease, named by the fencing token."""

    fabric: str
    token: int


class Lease(Protocol):
    """See `goodput_common.store.lease.Lease`."""

    async def acquire(self) -> int: ...

    async def lost(self) -> None: ...

    async def release(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One rank's registration and the message that carried it."""

    id: str
    received_at: datetime
    body: RankRegistered


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """What one message leaves in the store. A telemetry batch stays whole."""

    observed: tuple[Observed, ...] = ()
    batch: Batch | None = None
    registrations: tuple[Registration, ...] = ()
    topology: tuple[TopologySnapshot, ...] = ()
    received_at: datetime | None = None  # of the message that carried the snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a group changed: the ids of facts and batches that were not there before, and the graph if a snapshot became
    complete."""

    new: frozenset[str]
    topology: Fabric | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """How far a job has come, by its newest reports."""

    job: str
    generation: int
    world_size: int
    first_seen_at: datetime
    last_seen_at: datetime
    step_min: int = -1
    step_max: int = -1
    step_at: datetime | None = None  # when step_max was first reported, broker time
    exited_clean: int = 0
    exited_failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What one or more grid times have decided: `previous` is where the grid stood, `now` where it stands after."""

    previous: datetime | None
    now: datetime
    verdicts: tuple[Verdict, ...] = ()
    jobs: tuple[JobProgress, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a correlator needs to go on where its predecessor stopped."""

    ticked_to: datetime | None
    jobs: tuple[JobProgress, ...] = ()  # heard of lately
    observed: tuple[Observed, ...] = ()  # their newest registrations and last words, however old
    topology: Fabric
    verdicts: tuple[Verdict, ...] = ()  # the newest version of each chain that is open or ended lately


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long things are kept. Evidence that a verdict cites stays as long as the verdict. Batches of mere measurements are
    most of what is stored, and the first to go."""

    evidence_s: float = 6 * 3600.0
    measured_s: float = 15 * 60.0
    evidence_rows_max: int = 20_000_000
    verdicts_s: float = 30 * 86400.0
    events_s: float = 7 * 86400.0
    rows_a_round: int = 20_000


class Store(Protocol):
    """All methods raise StoreUnavailable; writes also Deposed and StoreRefused."""

    async def write(self, reign: Reign, writes: Sequence[Write]) -> Written:
        """Commit a group whole or not at all. What is already there (by id) stays as it is. A snapshot that
        contradicts itself is refused; one that contradicts another source's is not: the graph holds what was believed."""

    async def restore(self, fabric: str, *, window_s: float, jobs_s: float) -> Restored:
        """The grid's place; the jobs heard of in the `jobs_s` before it, with the registrations of their newest generation
        and, of those that have gone quiet or begun to leave, what each rank said last before the window; the graph; chains
        that are open or ended within `jobs_s`, for what ended lately may come back."""

    def evidence_pages(
        self, fabric: str, *, since: datetime | None, measured_since: datetime | None = None, rows_max: int, page_rows: int
    ) -> AsyncIterator[tuple[Observed | Batch, ...]]:
        """Evidence that a diagnosis reads, received after `since` (batches of mere measurements: after `measured_since`), in
        pages and in its order; of more than `rows_max` the newest."""

    async def commit(self, reign: Reign, tick: Tick) -> tuple[Verdict, ...]:
        """Advance the grid, store verdict versions and queue them for the bus, in one transaction. Committing the same
        tick again (after an answer that got lost) changes nothing. A version is stored only on top of its predecessor:
        those that did not fit are returned, and are neither stored nor queued."""

    async def prune(self, fabric: str, keep: Retention, now: datetime) -> int:
        """Delete a bounded number of rows that `keep` lets go. Returns how many; 0: nothing is left to delete."""
