"""From the bus into the store, then into the diagnosis; only then is a message acknowledged.

Three durables feed a fabric: telemetry, topology, jobs. A handler unpacks its message, waits until the facts are in the
database (`group_commit`), and hands them to the diagnosis. A crash at any line leaves a message that is not
acknowledged, which comes again and finds its facts stored, or an acknowledged one whose facts a restart reads from the
store.

A message of the right type that cannot be used (another fabric's, a snapshot that contradicts itself, bytes the database
will not take) is rejected with the reason; the stream goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from prometheus_client import Counter

from goodput_common.bus.errors import Reject, Retry
from goodput_common.bus.ports import Bus, Consumer, Handler, Message, Subscription
from goodput_common.contracts import subjects
from goodput_common.contracts.job import HostProgress, RankRegistered
from goodput_common.contracts.telemetry import CollectorHeartbeat, TelemetryBatch
from goodput_common.contracts.topology import TopologySnapshot
from goodput_common.runtime.clock import Clock
from goodput_common.runtime.logs import get_logger
from goodput_correlator.application.group_commit import GroupCommit
from goodput_correlator.application.metrics import CorrelatorMetrics
from goodput_correlator.application.placement import JobBoard, registration_of
from goodput_correlator.application.ports import Reign, Store, StoreRefused, StoreUnavailable, Write, Written
from goodput_correlator.application.sources import Sources
from goodput_correlator.application.watermark import BrokerClock, StreamBound
from goodput_correlator.domain.case import unpack
from goodput_correlator.domain.incidents import Incidents
from goodput_correlator.domain.remembered import Batch

_log = get_logger(__name__)

ACK_WAIT_S = 5.0  # short: what a killed predecessor had in hand must come again soon (handlers at work extend it)
STREAMS = ("TELEMETRY", "TOPOLOGY", "JOB")
RETRY_S = 1.0
CONTRADICTIONS_SHOWN = 5


def consumers(fabric: str, *, slots: int) -> tuple[Consumer, ...]:
    """One durable a stream, filtered to the fabric. A stand-in takes over the same durables."""
    return tuple(
        Consumer(
            durable=f"correlator-{subjects.token(fabric)}-{stream.lower()}",
            stream=stream,
            subjects=(subjects.of_fabric(stream, fabric),),
            slots=slots,
            ack_wait_s=ACK_WAIT_S,
            max_deliveries=1000,
        )
        for stream in STREAMS
    )


@dataclass
class Feed:
    """One subscription, how far it has come, and how often it has been bound when last looked at."""

    consumer: Consumer
    bound: StreamBound = field(default_factory=StreamBound)
    subscription: Subscription | None = None
    binds_seen: int = 1


class Ingest:
    """Feeds one reign. `slots` bounds the messages in hand of each stream, and with them memory and the size of a group."""

    def __init__(
        self,
        *,
        bus: Bus,
        store: Store,
        reign: Reign,
        incidents: Incidents,
        board: JobBoard,
        sources: Sources,
        clock: Clock,
        metrics: CorrelatorMetrics,
        slots: int = 256,
    ) -> None:
        self._bus = bus
        self._store = store
        self._reign = reign
        self._incidents = incidents
        self._board = board
        self._sources = sources
        self._clock = clock
        self._metrics = metrics
        self.broker_clock = BrokerClock()
        self.feeds = [Feed(consumer) for consumer in consumers(reign.fabric, slots=slots)]
        self.commits: GroupCommit[Write, Written] = GroupCommit(self._write, clock=clock)
        self.newest: datetime | None = None
        self._evidence_counters: dict[str, Counter] = {}

    async def start(self) -> None:
        """Begin to take messages."""
        for feed in self.feeds:
            feed.subscription = await self._bus.consume(feed.consumer, self._handler(feed))

    async def drain(self) -> None:
        """Take no more; finish what is in hand."""
        for feed in self.feeds:
            if feed.subscription is not None:
                await feed.subscription.drain()

    def _handler(self, feed: Feed) -> Handler:
        handled = self._metrics.messages.labels(feed.consumer.stream)

        async def handle(message: Message) -> None:
            feed.bound.began(message.sequence, message.received_at)
            self.broker_clock.seen(message.received_at, self._clock.now())
            try:
                await self._handle(message)
            except Retry:
                raise  # still in hand: it comes again, and no second after it is analysed before
            except Reject:
                feed.bound.done(message.sequence)
                self._metrics.refused.labels(feed.consumer.stream).inc()
                raise
            feed.bound.done(message.sequence)
            handled.inc()

        return handle

    async def _handle(self, message: Message) -> None:
        write = self._read(message)
        try:
            written = await self.commits.put(write)
        except StoreRefused as refused:
            raise Reject(refused.reason) from refused
        except StoreUnavailable as away:
            raise Retry(str(away), delay_s=RETRY_S) from away
        self._note(message, write, written)

    def _read(self, message: Message) -> Write:
        """What to keep of a message. Raises Reject."""
        said = getattr(message.data, "fabric", None)
        if said != self._reign.fabric:
            raise Reject(f"field fabric is {said!r}, but the message came on a subject of fabric {self._reign.fabric!r}")
        if isinstance(message.data, TopologySnapshot):
            snapshot = message.data
            if not 1 <= snapshot.part <= snapshot.parts:
                raise Reject(f"field part is {snapshot.part} of {snapshot.parts} parts")
            return Write(topology=(snapshot,), received_at=message.received_at)
        if isinstance(message.data, TelemetryBatch):
            return Write(batch=Batch.of(message))
        if isinstance(message.data, HostProgress):
            _check_reports(message.data)
            return Write(batch=Batch.of(message))
        try:
            observed = unpack(message)
        except Exception as error:
            raise Reject(f"cannot be taken apart: {error!r}") from error
        if not isinstance(message.data, RankRegistered):
            return Write(observed=observed)
        return Write(observed=observed, registrations=tuple(r for o in observed if (r := registration_of(o)) is not None))

    def _note(self, message: Message, write: Write, written: Written) -> None:
        """The facts are durable: tell the diagnosis and the accounts. No await here: a message is noted whole."""
        if isinstance(message.data, TelemetryBatch):
            missing = self._sources.batch(message.data, message.received_at)
            if missing:
                self._metrics.missing.labels(message.data.source.value).inc(missing)
        elif isinstance(message.data, CollectorHeartbeat):
            self._sources.heartbeat(message.data, message.received_at)
        if write.batch is not None:
            self._note_batch(write.batch, written)
        fresh = [each for each in write.observed if each.id in written.new]
        of_job = bool(fresh) and fresh[0].job is not None  # all facts of a message have one source
        for each in fresh:
            self._incidents.observe(each)
            if of_job:
                self._board.observe(each)
        if fresh:
            self._counted(fresh[0].source).inc(len(fresh))
        if len(fresh) < len(write.observed):
            self._metrics.doubles.inc(len(write.observed) - len(fresh))
        if self.newest is None or message.received_at > self.newest:
            self.newest = message.received_at

    def _note_batch(self, batch: Batch, written: Written) -> None:
        parts = len(batch.parts)
        if batch.id not in written.new:
            self._metrics.doubles.inc(parts)
            return
        self._incidents.take(batch)
        self._counted(batch.source).inc(parts)
        if isinstance(batch.data, HostProgress):
            self._board.reported(batch.data.reports, batch.received_at)

    def _counted(self, source: str) -> Counter:
        """Its counter of facts; finding it by label is dear at this rate."""
        counter = self._evidence_counters.get(source)
        if counter is None:
            counter = self._evidence_counters[source] = self._metrics.evidence.labels(source)
        return counter

    async def _write(self, writes: Sequence[Write], again: bool) -> Written:
        began_s = self._clock.monotonic_s()
        written = await self._store.write(self._reign, writes)
        self._metrics.write_s.observe(self._clock.monotonic_s() - began_s)
        self._metrics.group.observe(sum(len(each.observed) + (each.batch is not None) for each in writes))
        if again:  # an earlier try may have been committed: what is "not new" then was never handed on
            facts = {each.id for write in writes for each in write.observed}
            written = replace(written, new=frozenset(facts | {w.batch.id for w in writes if w.batch is not None}))
        if written.topology is not None:
            received = [each.received_at for each in writes if each.topology and each.received_at is not None]
            self._incidents.set_topology(written.topology, max(received))
            told = written.topology.contradictions
            _log.info(
                "topology changed",
                fabric=self._reign.fabric,
                components=len(written.topology),
                contradictions=len(told),
                such_as=[str(each) for each in told[:CONTRADICTIONS_SHOWN]],
            )
        return written


def _check_reports(data: HostProgress) -> None:
    """Raises Reject: the subject, the row and what a tenant may see all go by what the message says of its reports."""
    for n, report in enumerate(data.reports):
        for name in ("fabric", "job", "host"):
            said, of = getattr(report, name), getattr(data, name)
            if said != of:
                raise Reject(f"field reports[{n}].{name} is {said!r}, but the message is of {name} {of!r}")
