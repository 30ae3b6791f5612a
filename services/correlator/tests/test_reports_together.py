"""Reports of a host's ranks in one message: read as if each had come by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from goodput_common.bus.errors import Reject
from goodput_common.bus.memory import MemoryBus
from goodput_common.contracts import subjects
from goodput_common.contracts.job import HostProgress, RankProgress, RankRegistered
from goodput_common.contracts.verdict import Verdict
from goodput_common.runtime.clock import SystemClock
from goodput_common.runtime.metrics import Metrics
from goodput_correlator.adapters.memory import MemoryStore
from goodput_correlator.application import facts
from goodput_correlator.application.ingest import Ingest
from goodput_correlator.application.metrics import CorrelatorMetrics
from goodput_correlator.application.placement import JobBoard
from goodput_correlator.application.ports import Reign, Tick
from goodput_correlator.application.restore import rebuilt
from goodput_correlator.application.sources import Sources
from goodput_correlator.domain.case import Observed, unpack
from goodput_correlator.domain.incidents import Incidents
from goodput_correlator.domain.remembered import Batch
from goodput_correlator.domain.replay import replay
from goodput_correlator.domain.timeline import JobTimeline
from goodput_topology.generate import lab

START = datetime(2026, 3, 2, 8, 0, 0, tzinfo=UTC)


def report(
    rank: int = 0, *, seq: int = 1, at_s: float = 1.0, step: int = 5, age_s: float = 0.2, host: str = "h0"
) -> RankProgress:
    at = START + timedelta(seconds=at_s)
    return RankProgress(
        fabric="f", job="j", rank=rank, host=host, seq=seq, at=at, step=step, step_at=at - timedelta(seconds=age_s), steps=1
    )  # fmt: skip


def together(*reports: RankProgress, at_s: float = 1.0, received_s: float = 1.0, key: str = "m") -> Batch:
    data = HostProgress(fabric="f", job="j", host="h0", at=START + timedelta(seconds=at_s), reports=reports)
    return Batch(key, START + timedelta(seconds=received_s), data)


def registered(rank: int) -> RankRegistered:
    return RankRegistered(fabric="f", job="j", rank=rank, world_size=2, host="h0", pid=1 + rank, at=START)


def test_each_report_is_a_fact_cited_by_its_place() -> None:
    batch = together(report(0), report(3))
    assert [each.id for each in batch.all()] == ["m#0", "m#1"]
    assert tuple(batch.all()) == unpack(batch)
    assert [(each.source, each.host, each.job) for each in batch.all()] == [("agent", "h0", "j")] * 2


def test_a_kept_message_comes_back_as_it_was() -> None:
    batch = together(report(0), report(3))
    kind = facts.kind_of_batch(batch)
    assert kind == facts.REPORTS
    assert facts.unpack(batch.id, kind, batch.received_at, facts.pack(batch)) == batch


def test_a_report_that_was_held_on_its_host_has_grown_older() -> None:
    job = JobTimeline("j", "f")
    batch = together(report(at_s=1.0, age_s=0.2), at_s=1.25, received_s=1.27)
    for each in batch.all():
        job.fold(each, said_at=batch.data.at)  # type: ignore[union-attr]
    assert job.moved_at == START + timedelta(seconds=1.27 - 0.2 - 0.25)


def test_a_report_told_by_the_rank_and_by_its_host_counts_once() -> None:
    job, said = JobTimeline("j", "f"), report(0, seq=4)
    early, late = START + timedelta(seconds=1.1), START + timedelta(seconds=3.0)
    job.fold(Observed("alone", "h0", "agent", said.at, early, said))
    job.fold(Observed("m#0", "h0", "agent", said.at, late, said))
    last = job.ranks[0].last
    assert last is not None
    assert (last.id, last.received_at) == ("alone", early)


def test_silence_of_one_rank_shows_beside_the_reports_of_its_host() -> None:
    incidents = Incidents(lab(2, 1))
    for second in range(1, 12):
        said = [report(0, seq=second, at_s=second)] + ([report(1, seq=second, at_s=second)] if second < 4 else [])
        incidents.take(together(*said, at_s=second, received_s=second, key=f"m{second}"))
    incidents.tick(START + timedelta(seconds=11))
    job = incidents._known.jobs["j"]
    assert job.reporting(START + timedelta(seconds=11)) == [0]


def test_a_message_delivered_twice_is_read_once() -> None:
    incidents = Incidents(lab(2, 1))
    batch = together(report(0))
    for each in (batch, batch, msgspec.structs.replace(batch, received_at=batch.received_at + timedelta(seconds=1))):
        incidents.take(each)
    incidents.tick(START + timedelta(seconds=3))
    last = incidents._known.jobs["j"].ranks[0].last
    assert last is not None
    assert last.received_at == batch.received_at


@pytest.mark.parametrize("broken", [3, None])
def test_the_same_verdicts_as_of_reports_that_came_one_by_one(script: Callable[..., Any], broken: int | None) -> None:
    """Reports of one host within a quarter of a second, once each by itself and once in one message."""
    log = script()
    log.register()
    done = log.run(1, 30)
    if broken is None:
        log.run(30, 50, first_step=done)
    else:
        log.stand(30, 50, step=done, joined={broken: done * log.collectives_per_step + 2})
    alone = sorted(_met(log.log), key=lambda each: each.received_at)
    packed = sorted(_grouped(alone), key=lambda each: each.received_at)
    assert sum(isinstance(each.data, HostProgress) for each in packed) > 100
    one, other = replay(alone, log.fabric), replay(packed, log.fabric)
    assert [_told(each) for each in other] == [_told(each) for each in one]
    assert bool(one) == (broken is not None)


def _met(log: list[Observed]) -> Iterator[SimpleNamespace]:
    """The log as messages, in which the reports of a host within a quarter of a second were sent and received together."""
    for each in log:
        fact, at = each.fact, each.received_at
        if isinstance(fact, RankProgress):
            met_at = at.replace(microsecond=at.microsecond // 250_000 * 250_000) + timedelta(seconds=0.25)
            fact, at = msgspec.structs.replace(fact, at=fact.at + (met_at - at)), met_at
        yield SimpleNamespace(id=each.id, received_at=at, data=fact)


def _grouped(messages: list[SimpleNamespace]) -> Iterator[SimpleNamespace]:
    held: dict[tuple[object, str], list[RankProgress]] = {}
    for each in messages:
        if isinstance(each.data, RankProgress):
            held.setdefault((each.received_at, each.data.host), []).append(each.data)
        else:
            yield each
    for (received_at, host), reports in held.items():
        first = reports[0]
        data = HostProgress(fabric=first.fabric, job=first.job, host=host, at=first.at, reports=tuple(reports))
        yield SimpleNamespace(id=f"together/{host}/{received_at}", received_at=received_at, data=data)


def _told(verdict: Verdict) -> object:
    """Without what names messages: ids of evidence, and ids made of them."""
    plain = msgspec.to_builtins(verdict)
    for each in plain["evidence"]:
        each.pop("event_id")
    plain["evidence"] = sorted(plain["evidence"], key=repr)
    return {name: value for name, value in plain.items() if name not in ("id", "incident")}


class Rig:
    def __init__(self) -> None:
        self.bus, self.store, self.board = MemoryBus(), MemoryStore("f"), JobBoard()
        self.incidents = Incidents(lab(2, 1))
        metrics = CorrelatorMetrics(Metrics(process=False))
        self.ingest = Ingest(
            bus=self.bus, store=self.store, reign=Reign("f", 1), incidents=self.incidents, board=self.board,
            sources=Sources(), clock=SystemClock(), metrics=metrics,
        )  # fmt: skip

    async def take(self, *data: msgspec.Struct) -> None:
        committing = asyncio.create_task(self.ingest.commits.run())
        try:
            await self.ingest.start()
            for n, each in enumerate(data):
                await self.bus.publish(subjects.job("f", "j", "any"), each, id=f"id{n}", source="test")
            for feed in self.ingest.feeds:
                assert feed.subscription is not None
                while await feed.subscription.pending() or feed.bound.in_hand:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            await self.ingest.drain()
        finally:
            committing.cancel()
            await self.bus.close()


async def test_a_message_is_one_row_and_the_job_has_moved() -> None:
    rig = Rig()
    await rig.take(registered(0), registered(1), together(report(0, step=7), report(1, step=6)).data)
    assert [len(batch.parts) for batch in rig.store.batches.values()] == [2]
    assert [(row.step_min, row.step_max) for row in rig.board.take_changed()] == [(6, 7)]


@pytest.mark.parametrize("name", ["fabric", "job", "host"])
async def test_a_report_of_another_fabric_job_or_host_rejects_the_message(name: str) -> None:
    rig, good = Rig(), together(report(0), report(1)).data
    assert isinstance(good, HostProgress)
    stray = msgspec.structs.replace(good.reports[1], **{name: "other"})
    await rig.take(msgspec.structs.replace(good, reports=(good.reports[0], stray)))
    assert not rig.store.batches
    with pytest.raises(Reject, match=rf"reports\[1\]\.{name}"):
        rig.ingest._read(SimpleNamespace(  # type: ignore[arg-type]
            id="m", received_at=START, data=msgspec.structs.replace(good, reports=(good.reports[0], stray))
        ))  # fmt: skip


async def test_a_restart_knows_the_ranks_again() -> None:
    rig = Rig()
    await rig.take(registered(0), registered(1), together(report(0, step=7), report(1, step=6)).data)
    newest = max(batch.received_at for batch in rig.store.batches.values())
    judged = newest.replace(microsecond=0) + timedelta(seconds=1)
    await rig.store.commit(Reign("f", 1), Tick(previous=None, now=judged, jobs=rig.board.take_changed()))
    _, incidents, board = await rebuilt(rig.store, "f")
    assert {rank: track.step for rank, track in incidents._known.jobs["j"].ranks.items()} == {0: 7, 1: 6}
    assert board.take_changed() == ()
