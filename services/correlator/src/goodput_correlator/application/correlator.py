"""The correlator's life: wait for the lease, take up where the last term stopped, reign, and again.

A term ends when the lease is lost (the database went away, another took over) or the service stops. Everything of a term
(the diagnosis, the subscriptions, the accounts) is made anew from the store at the next one; nothing that might be out
of date is carried over.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Coroutine
from typing import Any

from goodput_common.bus.errors import BusUnavailable
from goodput_common.bus.ports import Bus
from goodput_common.runtime.clock import Clock
from goodput_common.runtime.lifecycle import Part
from goodput_common.runtime.logs import get_logger
from goodput_common.runtime.tasks import Tasks, cancel_all
from goodput_correlator.application.analyze import Analyze
from goodput_correlator.application.ingest import Ingest
from goodput_correlator.application.metrics import CorrelatorMetrics
from goodput_correlator.application.ports import Deposed, Lease, Reign, Retention, Store, StoreUnavailable
from goodput_correlator.application.restore import rebuilt
from goodput_correlator.application.sources import Sources
from goodput_correlator.domain.ranking import NAMED_MIN

_log = get_logger(__name__)

PRUNE_EVERY_S = 30.0
PRUNE_ROUNDS_MAX = 20
FINISH_S = 3.0
_AGAIN_S = 1.0


class Phase(enum.StrEnum):
    STANDBY = "standby"  # another correlator is active, or the database is away
    RESTORING = "restoring"
    ACTIVE = "active"
    STOPPED = "stopped"


class Correlator(Part):
    """The active or standby correlator of one fabric."""

    name = "correlator"

    def __init__(
        self,
        *,
        fabric: str,
        bus: Bus,
        store: Store,
        lease: Lease,
        clock: Clock,
        tasks: Tasks,
        metrics: CorrelatorMetrics,
        retention: Retention,
        slots: int,
        named_min: float = NAMED_MIN,
    ) -> None:
        self.fabric = fabric
        self.phase = Phase.STANDBY
        self._bus = bus
        self._store = store
        self._lease = lease
        self._clock = clock
        self._tasks = tasks
        self._metrics = metrics
        self._retention = retention
        self._slots = slots
        self._named_min = named_min
        self._ingest: Ingest | None = None
        self._stopping = asyncio.Event()
        self._main: asyncio.Task[Any] | None = None
        self._committing: asyncio.Task[Any] | None = None

    # ------------------------------------------------------------------------------------------------- lifecycle

    async def start(self) -> None:
        self._main = self._tasks.spawn("correlator terms", self._terms())

    async def stop_pulling(self) -> None:
        self._stopping.set()

    async def drain(self) -> None:
        """The running term ends by itself: it finishes what is in hand, commits, and gives the lease back."""
        if self._main is not None:
            await asyncio.wait([self._main])

    async def close(self) -> None:
        await self._lease.release()

    async def check(self) -> None:
        """Health check: only the active correlator is ready. Raises with what it is instead."""
        if self.phase is not Phase.ACTIVE:
            why = {
                Phase.STANDBY: "another correlator of this fabric is active, or the database is away",
                Phase.RESTORING: "reading what the last term left",
                Phase.STOPPED: "stopping",
            }[self.phase]
            raise RuntimeError(f"{self.phase.value}: {why}")
        if self._ingest is not None and not self._ingest.commits.available:
            raise RuntimeError("the database is away; messages wait on the bus")

    # ------------------------------------------------------------------------------------------------- terms

    async def _terms(self) -> None:
        while not self._stopping.is_set():
            self._enter(Phase.STANDBY)
            token = await self._unless_stopping(self._lease.acquire())
            if token is None:
                break
            try:
                await self._term(Reign(self.fabric, token))
            except Deposed as deposed:
                _log.warning("term ended", fabric=self.fabric, token=token, reason=str(deposed))
            except (StoreUnavailable, BusUnavailable) as away:
                _log.warning("term cut short, trying again", fabric=self.fabric, reason=str(away))
                await self._unless_stopping(self._clock.sleep(_AGAIN_S))
            finally:
                self._enter(Phase.STANDBY)
                await self._lease.release()
        self._enter(Phase.STOPPED)

    async def _term(self, reign: Reign) -> None:
        self._enter(Phase.RESTORING)
        ticked_to, incidents, board = await rebuilt(self._store, self.fabric)
        incidents.name_from(self._named_min)
        sources = Sources()
        ingest = Ingest(
            bus=self._bus, store=self._store, reign=reign, incidents=incidents, board=board, sources=sources,
            clock=self._clock, metrics=self._metrics, slots=self._slots,
        )  # fmt: skip
        analyze = Analyze(
            store=self._store, reign=reign, ingest=ingest, incidents=incidents, board=board, sources=sources,
            clock=self._clock, metrics=self._metrics, stored_to=ticked_to,
        )  # fmt: skip
        self._ingest = ingest
        committing = asyncio.create_task(ingest.commits.run(), name="group commit")
        others = [
            asyncio.create_task(analyze.run(), name="analyze"),
            asyncio.create_task(self._prune(), name="prune"),
            asyncio.create_task(self._lease.lost(), name="lease lost"),
            asyncio.create_task(self._stopping.wait(), name="stopping"),
        ]
        try:
            await ingest.start()
            self._enter(Phase.ACTIVE)
            _log.info(
                "active",
                fabric=self.fabric,
                term=reign.token,
                grid_at=str(ticked_to),
                open_verdicts=len(incidents.open),
            )
            done, _ = await asyncio.wait([committing, *others], return_when=asyncio.FIRST_COMPLETED)
            self._enter(Phase.STOPPED if self._stopping.is_set() else Phase.STANDBY)
            for task in done:
                task.result()  # raises what ended the term
        finally:
            await cancel_all(others, within_s=1.0)
            await _wind_up(ingest, committing, within_s=FINISH_S if self._stopping.is_set() else 0.0)
            self._ingest = None

    async def _prune(self) -> None:
        while True:
            await self._clock.sleep(PRUNE_EVERY_S)
            try:
                for _ in range(PRUNE_ROUNDS_MAX):
                    gone = await self._store.prune(self.fabric, self._retention, self._clock.now())
                    self._metrics.pruned.inc(gone)
                    if gone < self._retention.rows_a_round:
                        break
                    await self._clock.sleep(0.1)
            except StoreUnavailable as away:
                _log.info("pruning put off", reason=str(away))

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._metrics.active.set(phase is Phase.ACTIVE)

    async def _unless_stopping(self, doing: Coroutine[Any, Any, Any]) -> Any:
        """The result of `doing`, or None when the service stops first."""
        task = asyncio.ensure_future(doing)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            await cancel_all([task, stopping], within_s=2.0)


async def _wind_up(ingest: Ingest, committing: asyncio.Task[None], *, within_s: float) -> None:
    """Let handlers in hand finish through the group commit; those that cannot within `within_s` give their message back."""
    draining = asyncio.create_task(ingest.drain(), name="drain")
    await asyncio.wait([draining], timeout=within_s)
    await cancel_all([committing], within_s=1.0)
    await draining
