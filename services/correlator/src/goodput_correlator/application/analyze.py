"""One grid time after the other: wait until everything received by T is here, judge T, store what was decided, go on.

The grid's place is stored with the verdicts of the same transaction, so after a crash at any line the successor judges
exactly what was not stored, from the same evidence. A decision is in memory ahead of the store only between `tick` and
`commit`; until that commit has gone through nothing further is judged. A grid time between two seconds at which nothing was
decided is stored with the next whole second.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from goodput_common.bus.errors import BusError
from goodput_common.runtime.clock import Clock
from goodput_common.runtime.logs import get_logger
from goodput_correlator.application.ingest import ACK_WAIT_S, Feed, Ingest
from goodput_correlator.application.metrics import CorrelatorMetrics
from goodput_correlator.application.placement import JobBoard
from goodput_correlator.application.ports import Reign, Store, StoreUnavailable, Tick
from goodput_correlator.application.sources import Sources
from goodput_correlator.application.watermark import GRACE_S, smallest
from goodput_correlator.domain.grid import GRID, GRID_S, grid_floor
from goodput_correlator.domain.incidents import Incidents

_log = get_logger(__name__)

SECONDS_A_COMMIT_MAX = 60  # while catching up, seconds without a verdict are stored together
LOOK_S = 0.05
SETTLE_S = ACK_WAIT_S + 1.0  # what a predecessor or a lost connection had in hand comes again within this


class Analyze:
    """The grid of one reign."""

    def __init__(
        self,
        *,
        store: Store,
        reign: Reign,
        ingest: Ingest,
        incidents: Incidents,
        board: JobBoard,
        sources: Sources,
        clock: Clock,
        metrics: CorrelatorMetrics,
        stored_to: datetime | None,
    ) -> None:
        self._store = store
        self._reign = reign
        self._ingest = ingest
        self._incidents = incidents
        self._board = board
        self._sources = sources
        self._clock = clock
        self._metrics = metrics
        self._stored_to = stored_to
        self._settled_at_s = 0.0
        self._reported_at: datetime | None = None

    async def run(self) -> None:
        """Judge one grid time after the other until cancelled. Raises Deposed."""
        if self._stored_to is not None:
            self._settle()
        while True:
            calm = await asyncio.gather(*(self._look(feed) for feed in self._ingest.feeds))
            if all(calm):
                self._settled_at_s = 0.0
            bound = smallest([feed.bound for feed in self._ingest.feeds])
            if bound is not None and self._clock.monotonic_s() >= self._settled_at_s:
                await self._advance(_last_before(bound))
            self._report()
            await self._clock.sleep(self._pause_s())

    def _settle(self) -> None:
        """Deliveries may be out of order now: wait until everything is calm, or until all of them have come again."""
        self._settled_at_s = self._clock.monotonic_s() + SETTLE_S

    async def _look(self, feed: Feed) -> bool:
        """See whether the stream is calm. A broker that does not answer says nothing: the grid waits."""
        at = self._ingest.broker_clock.at(self._clock.now())  # before asking: the answer is not older than this
        self._metrics.in_hand.labels(feed.consumer.stream).set(feed.bound.in_hand)
        self._metrics.late_s.labels(feed.consumer.stream).set(feed.bound.late_s_max)
        if feed.subscription is None:
            return False
        try:
            pending = await feed.subscription.pending()
        except BusError:
            self._settle()
            return False
        if feed.subscription.binds > feed.binds_seen:  # a connection was lost: what it had on the wire comes again later
            feed.binds_seen = feed.subscription.binds
            self._settle()
        if pending or feed.bound.in_hand:
            return False
        feed.bound.calm(at)
        return True

    async def _advance(self, until: datetime) -> None:
        """Judge every grid time up to `until` that has not been judged."""
        if self._incidents.judged is None:
            if self._ingest.newest is None:
                return  # nothing has ever been received: no time to begin with
            await self._judge(until, last=True)
        while self._incidents.judged is not None and self._incidents.judged < until:
            at = self._incidents.judged + GRID
            await self._judge(at, last=at >= until)
            await asyncio.sleep(0)  # messages are taken in on a long way

    async def _judge(self, at: datetime, *, last: bool) -> None:
        """Judge up to `at` and store the outcome. On a long way, seconds without a verdict are stored with later ones."""
        began_s = self._clock.monotonic_s()
        verdicts = tuple(self._incidents.tick(at))
        self._metrics.tick_s.observe(self._clock.monotonic_s() - began_s)
        self._metrics.ticks.inc()
        judged = self._incidents.judged
        if judged is None:
            return
        unstored_s = (judged - self._stored_to).total_seconds() if self._stored_to else float("inf")
        if verdicts or (last and unstored_s >= 1.0) or unstored_s >= SECONDS_A_COMMIT_MAX:
            await self._commit(
                Tick(previous=self._stored_to, now=judged, verdicts=verdicts, jobs=self._board.take_changed())
            )

    async def _commit(self, tick: Tick) -> None:
        """Store a decision, however long the database is away."""
        pause_s = 0.1
        while True:
            try:
                unfit = await self._store.commit(self._reign, tick)
                break
            except StoreUnavailable as away:
                _log.warning("cannot store the grid's place, trying again", at=tick.now.isoformat(), reason=str(away))
                await self._clock.sleep(pause_s)
                pause_s = min(2.0, pause_s * 2)
        self._stored_to = tick.now
        for verdict in tick.verdicts:
            if verdict in unfit:
                self._metrics.unfit.inc()
                _log.error("a version does not follow on its chain, left out", verdict=verdict.id, version=verdict.version)
                continue
            self._metrics.verdicts.labels(verdict.fault_class.value, verdict.state.value).inc()
            _log.info(
                "verdict",
                verdict=verdict.id,
                version=verdict.version,
                state=verdict.state.value,
                fault_class=verdict.fault_class.value,
                culprit=verdict.culprit.component,
                confidence=round(verdict.confidence, 3),
                job=verdict.job,
            )

    def _report(self) -> None:
        """How far it is, and once a second the rest."""
        judged = self._incidents.judged
        now = self._ingest.broker_clock.at(self._clock.now())
        if judged is not None:
            self._metrics.lag_s.set((now - judged).total_seconds())
        if self._reported_at is not None and timedelta(0) <= now - self._reported_at < timedelta(seconds=1):
            return
        self._reported_at = now
        self._metrics.overflow.set(self._incidents.overflow + self._board.left_out)
        counts = self._sources.unknown(now)
        self._metrics.unknown.clear()
        for source, count in counts.items():
            self._metrics.unknown.labels(source).set(count)

    def _pause_s(self) -> float:
        """Until the next grid time can be due; short when it is overdue."""
        if self._incidents.judged is None:
            return LOOK_S
        due = self._incidents.judged + GRID + timedelta(seconds=GRACE_S)
        left_s = (due - self._ingest.broker_clock.at(self._clock.now())).total_seconds()
        return min(GRID_S + GRACE_S, left_s + 0.005) if left_s > 0 else LOOK_S


def _last_before(bound: datetime) -> datetime:
    """The last grid time strictly before `bound`."""
    floor = grid_floor(bound)
    return floor - GRID if floor == bound else floor
