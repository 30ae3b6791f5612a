"""From the bus into the store and the diagnosis, on the in-memory twins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from goodput_common.bus.memory import FaultPlan, MemoryBus
from goodput_common.contracts import subjects
from goodput_common.contracts.ids import ComponentKind
from goodput_common.contracts.telemetry import Event, EventName, Source, TelemetryBatch
from goodput_common.contracts.topology import ComponentRecord, TopologySnapshot
from goodput_common.runtime.clock import SystemClock
from goodput_common.runtime.metrics import Metrics
from goodput_correlator.adapters.memory import MemoryStore
from goodput_correlator.application.ingest import Ingest
from goodput_correlator.application.metrics import CorrelatorMetrics
from goodput_correlator.application.placement import JobBoard
from goodput_correlator.application.ports import Reign
from goodput_correlator.application.sources import Sources
from goodput_correlator.domain.case import MessageLike, Observed, unpack
from goodput_correlator.domain.incidents import Incidents
from goodput_topology.graph import Fabric

T0 = datetime(2026, 1, 1, tzinfo=UTC)


class Diagnosis(Incidents):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__(Fabric.empty("f"))
        self.told: list[Observed] = []

    def take(self, message: MessageLike) -> None:
        self.told.extend(unpack(message))

    def observe(self, seen: Observed) -> None:
        self.told.append(seen)


class Rig:
    def __init__(self, faults: FaultPlan | None = None, slots: int = 8) -> None:
        self.bus = MemoryBus(faults=faults)
        self.store = MemoryStore("f")
        self.diagnosis = Diagnosis()
        self.ingest = Ingest(
            bus=self.bus,
            store=self.store,
            reign=Reign("f", 1),
            incidents=self.diagnosis,
            board=JobBoard(),
            sources=Sources(),
            clock=SystemClock(),
            metrics=CorrelatorMetrics(Metrics(process=False)),
            slots=slots,
        )
        self.committing = asyncio.create_task(self.ingest.commits.run())

    async def send(self, batch: TelemetryBatch) -> None:
        key = f"{batch.fabric}/{batch.host}/{batch.source.value}/{batch.boot_id}/{batch.seq}"
        await self.bus.publish(subjects.telemetry("f", batch.host, batch.source.value), batch, id=key, source="test")

    @property
    def in_hand(self) -> int:
        return sum(feed.bound.in_hand for feed in self.ingest.feeds)

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async def quiet(self) -> None:
        for feed in self.ingest.feeds:
            assert feed.subscription is not None
            while await feed.subscription.pending() or feed.bound.in_hand:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    rig.committing.cancel()
    await rig.bus.close()


def batch(seq: int, *, host: str = "h1", fabric: str = "f", samples: int = 2) -> TelemetryBatch:
    facts = tuple(
        Event(component=f"gpu:h1/{n}", name=EventName.XID, observed_at=T0, excerpt=f"{seq}.{n}") for n in range(samples)
    )
    return TelemetryBatch(
        fabric=fabric,
        host=host,
        source=Source.KERNEL_LOG,
        boot_id="b",
        seq=seq,
        observed_from=T0,
        observed_to=T0,
        samples=facts,
    )


async def test_facts_are_in_the_store_before_the_diagnosis_hears_of_them_and_before_the_message_is_done(rig: Rig) -> None:
    rig.store.away = True
    await rig.ingest.start()
    await rig.send(batch(1))
    await rig.until(lambda: not rig.ingest.commits.available)
    assert (rig.in_hand, rig.diagnosis.told, rig.store.evidence) == (1, [], {})
    rig.store.away = False
    await rig.until(lambda: rig.in_hand == 0)
    assert (
        [each.id for each in rig.diagnosis.told]
        == list(rig.store.evidence)
        == ["f/h1/kernel_log/b/1#0", "f/h1/kernel_log/b/1#1"]
    )
    assert await rig.bus.rejections() == []


async def test_an_answer_lost_after_the_commit_loses_no_fact_for_the_diagnosis(rig: Rig) -> None:
    rig.store.lose_answers = 1
    await rig.ingest.start()
    await rig.send(batch(1))
    await rig.until(lambda: bool(rig.diagnosis.told))
    assert len(rig.diagnosis.told) == 2


async def test_a_doubled_fact_is_stored_and_told_once() -> None:
    rig = Rig(FaultPlan(seed=3, double=0.5, delay_s=0.01, reorder=0.5))
    await rig.ingest.start()
    for seq in range(1, 41):
        await rig.send(batch(seq))
    await rig.quiet()
    told = [each.id for each in rig.diagnosis.told]
    assert len(told) == len(set(told)) == len(rig.store.evidence) == 80
    rig.committing.cancel()
    await rig.bus.close()


async def test_concurrent_messages_share_a_transaction() -> None:
    rig = Rig(slots=64)
    for seq in range(1, 201):
        await rig.send(batch(seq))
    await rig.ingest.start()
    await rig.quiet()
    assert len(rig.store.evidence) == 400
    assert len(rig.store.groups) < 100
    rig.committing.cancel()
    await rig.bus.close()


async def test_what_cannot_be_used_is_rejected_with_the_reason_and_the_stream_goes_on(rig: Rig) -> None:
    await rig.ingest.start()
    subject = subjects.telemetry("f", "h1", "kernel_log")
    await rig.bus.publish_raw(subject, b"not JSON", {"ce-type": "goodput.telemetry.batch.v1"})
    await rig.send(batch(1, fabric="other"))
    await rig.send(batch(2, host="h\x00"))
    await rig.send(batch(3))
    await rig.quiet()
    reasons = sorted(each.reason for each in await rig.bus.rejections())
    assert len(reasons) == 3
    assert any("field fabric is 'other'" in reason for reason in reasons)
    assert any("NUL in host" in reason for reason in reasons)
    assert {each.id.partition("#")[0] for each in rig.diagnosis.told} == {"f/h1/kernel_log/b/3"}
    assert rig.in_hand == 0


async def test_a_whole_topology_reaches_the_diagnosis_and_a_wrong_one_is_rejected(rig: Rig) -> None:
    await rig.ingest.start()
    host = ComponentRecord(id="host:h1", kind=ComponentKind.HOST)
    good = TopologySnapshot(fabric="f", source="s", version=1, at=T0, components=(host,))
    port = ComponentRecord(id="port:leaf/1", kind=ComponentKind.PORT)
    wrong = msgspec.structs.replace(good, version=2, components=(port,))
    for snapshot in (good, wrong):
        await rig.bus.publish(subjects.topology("f", "s"), snapshot, id=f"t{snapshot.version}", source="test")
        await rig.quiet()
    assert rig.ingest.newest is not None
    rig.diagnosis.tick(rig.ingest.newest + timedelta(seconds=1))
    assert "host:h1" in rig.diagnosis.topology
    assert ["port:leaf/1" in each.reason for each in await rig.bus.rejections()] == [True]


async def test_the_end_of_a_term_gives_unfinished_messages_back_for_the_next_one(rig: Rig) -> None:
    rig.store.away = True
    await rig.ingest.start()
    await rig.send(batch(1))
    await rig.until(lambda: not rig.ingest.commits.available)
    rig.committing.cancel()
    await rig.ingest.drain()
    assert rig.in_hand == 1  # as far as this term knows, the message has not been handled
    assert rig.store.evidence == {}
    assert await rig.bus.rejections() == []
