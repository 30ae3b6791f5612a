"""A term takes up what the one before has left, on the store's twin in memory."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from goodput_common.contracts.telemetry import Probe, Source, TelemetryBatch
from goodput_common.contracts.verdict import FaultClass
from goodput_correlator.adapters.memory import MemoryStore
from goodput_correlator.application import restore
from goodput_correlator.application.placement import JobBoard, job_state, registration_of
from goodput_correlator.application.ports import Reign, Tick, Write
from goodput_correlator.application.views import JobState
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.incidents import Incidents, grid_floor
from goodput_correlator.domain.remembered import Batch
from goodput_topology.generate import h100_pod

Script = Callable[..., Any]


async def stored(log: Any, *, judged_at: datetime, until: datetime) -> tuple[MemoryStore, JobBoard]:
    """The store of a correlator that had stored everything received up to `until` and the grid up to `judged_at`."""
    store, board = MemoryStore(log.fabric.name), JobBoard()
    reign = Reign(log.fabric.name, 1)
    arrived = sorted((each for each in log.log if each.received_at <= until), key=lambda o: o.order)
    await store.write(reign, [write(each) for each in arrived])
    for each in arrived:
        if each.received_at <= judged_at:
            board.observe(each)
    await store.commit(reign, Tick(previous=None, now=judged_at, jobs=board.take_changed()))
    return store, board


def write(seen: Observed) -> Write:
    placed = registration_of(seen)
    return Write(observed=(seen,), registrations=(placed,) if placed is not None else ())


@pytest.mark.parametrize("page_rows", [1, 7, 5000])
async def test_the_verdicts_after_a_restart_are_those_without_one(
    script: Script, page_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "PAGE_ROWS", page_rows)
    log = script()
    log.register()
    step = log.run(1, 25)
    log.stand(25, 50, step=step, silent=(4,))
    start = log.log[0].received_at
    judged_at = grid_floor(start + timedelta(seconds=26))
    store, _ = await stored(log, judged_at=judged_at, until=judged_at + timedelta(seconds=9.5))
    judged, after, _ = await restore.rebuilt(store, log.fabric.name)
    assert judged == judged_at
    after.topology = log.fabric
    for each in log.log:
        after.observe(each)
    said = after.tick(start + timedelta(seconds=50))
    assert said
    assert [msgspec.json.encode(v) for v in said] == [msgspec.json.encode(v) for v in log.verdicts(50)]


async def test_what_probes_had_told_before_a_restart_still_counts(script: Script) -> None:
    """A switch drops and counts nothing: all that tells of it are probes, most of them sent before the restart."""
    pod, spine = h100_pod(hosts=4, pods=2, spines=2), "switch:spine-0"
    log = script(hosts=8, fabric=pod)
    log.register()
    log.beats(75.0)
    last = log.run(1, 40)
    log.step_s *= 1.5
    log.run(40, 75, first_step=last)
    start = log.log[0].received_at
    batches = []
    for at_s in range(5, 75, 5):
        for host in range(8):
            told = []
            for rail, flow in ((0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)):
                a, b = f"nic:h{host}/mlx5_{rail}/1", f"nic:h{(host + 4) % 8}/mlx5_{rail}/1"
                out, back = (pod.path(*ends).listed for ends in ((a, b), (b, a)))
                path, answer_path = out[flow % len(out)][1:-1], back[flow // 2 % len(back)][1:-1]
                lost = 6 if at_s > 40 and spine in path + answer_path else 0
                told.append(
                    Probe(
                        component=a, target=b, flow=flow, observed_at=log.clock(f"h{host}", at_s), interval_s=5.0, sent=50,
                        lost=lost, path=path, answer_path=answer_path,
                    )
                )  # fmt: skip
            at = told[0].observed_at
            data = TelemetryBatch(
                fabric=pod.name, host=f"h{host}", source=Source.PROBES, boot_id="b", seq=at_s, observed_from=at,
                observed_to=at, samples=tuple(told),
            )  # fmt: skip
            batches.append(Batch(f"h{host}/probes/{at_s}", start + timedelta(seconds=at_s + 0.1), data))

    unbroken = Incidents(pod)
    for seen in log.log:
        unbroken.observe(seen)
    for batch in batches:
        unbroken.take(batch)
    expected = unbroken.tick(start + timedelta(seconds=75))
    assert [each.culprit.component for each in expected if each.fault_class is FaultClass.SWITCH_FAULT] == [spine]

    judged_at = grid_floor(start + timedelta(seconds=51))
    assert all(each.published_at > judged_at for each in expected)
    store, _ = await stored(log, judged_at=judged_at, until=judged_at)
    before = [each for each in batches if each.received_at <= judged_at]
    await store.write(Reign(pod.name, 1), [Write(batch=each) for each in before])
    _, after, _ = await restore.rebuilt(store, pod.name)
    after.topology = pod
    for seen in log.log:
        after.observe(seen)
    for batch in batches[len(before) :]:
        after.take(batch)
    said = after.tick(start + timedelta(seconds=75))
    assert [msgspec.json.encode(v) for v in said] == [msgspec.json.encode(v) for v in expected]


async def test_a_job_that_finished_long_before_a_restart_stays_finished(script: Script) -> None:
    log = script()
    log.register()
    log.run(1, 25)
    for rank in range(log.world):
        log.exited(rank, 26, clean=True)
    start = log.log[0].received_at
    judged_at = grid_floor(start + timedelta(seconds=1000))
    store, _ = await stored(log, judged_at=judged_at, until=judged_at)
    before = dict(store.jobs)
    assert job_state(before["j"], open_verdict=False, now=judged_at) is JobState.FINISHED
    _, after, board = await restore.rebuilt(store, log.fabric.name)
    assert board.take_changed() == ()
    assert after.tick(judged_at + timedelta(seconds=60)) == []
    await store.write(Reign(log.fabric.name, 1), [])
    assert store.jobs == before


async def test_a_job_that_some_ranks_have_left_still_counts_them_when_it_goes_on(script: Script) -> None:
    log = script()
    log.register()
    log.run(1, 25)
    log.exited(0, 26, clean=True)
    start = log.log[0].received_at
    judged_at = grid_floor(start + timedelta(seconds=1000))
    store, _ = await stored(log, judged_at=judged_at, until=judged_at)
    _, _, board = await restore.rebuilt(store, log.fabric.name)
    log.progress(1, 1001.0, step=900, age_s=0.1, joined=1, finished=1)
    board.observe(log.log[-1])
    (row,) = board.take_changed()
    assert (row.exited_clean, row.step_max, row.last_seen_at) == (1, 900, log.log[-1].received_at)


async def test_memory_at_the_start_is_what_was_not_judged_and_a_page(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "PAGE_ROWS", 50)
    held = []
    real = Incidents.recall

    def recall(self: Incidents, observed: Any, *, judged: datetime | None) -> None:
        real(self, observed, judged=judged)
        held.append(self.pending)

    monkeypatch.setattr(Incidents, "recall", recall)
    log = script()
    log.register()
    log.run(1, 100)
    judged_at = grid_floor(log.log[0].received_at + timedelta(seconds=90))
    store, _ = await stored(log, judged_at=judged_at, until=log.log[-1].received_at)
    unjudged = sum(each.received_at > judged_at for each in log.log)
    await restore.rebuilt(store, log.fabric.name)
    assert len(held) > 10
    assert max(held) <= unjudged + 50
