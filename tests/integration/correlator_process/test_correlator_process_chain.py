"""What comes in goes out as one chain, whatever else comes in."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest

from goodput_common.contracts import subjects
from goodput_common.contracts.job import RankProgress
from goodput_common.contracts.verdict import FaultClass, VerdictState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]
World = Any  # of conftest


async def test_a_stalled_job_gets_its_culprit_on_the_bus_and_over_rest_and_the_process_stops_cleanly(world: World) -> None:
    correlator = world.correlator()
    await correlator.start()
    await correlator.active()
    await world.listen()
    await world.begin()
    await world.healthy_for(20)
    await world.gpu_falls_off()
    await world.until(world.opened)
    first = world.chain[0]
    assert (first.fault_class, first.culprit.component, first.job) == (FaultClass.GPU_OFF_BUS, "gpu:h2/0", "j")
    assert first.evidence and first.evidence[0].excerpt == world.xid_79
    answer = await correlator.get(f"/v1/verdicts/{first.id}/versions")
    assert world.published[0][1] in answer.content
    job = (await correlator.get("/v1/jobs/j")).json()
    assert (job["job"]["state"], [rank["host"] for rank in job["ranks"]]) == ("stalled", ["h0", "h1", "h2", "h3"])
    evidence = (await correlator.get(f"/v1/evidence/{quote(first.evidence[0].event_id)}")).json()
    assert evidence["fact"]["excerpt"] == world.xid_79
    metrics = (await correlator.get("/metrics")).text
    assert 'goodput_correlator_verdicts_total{fault_class="gpu_off_bus",state="open"} 1.0' in metrics
    world.stalled = False
    await world.until(world.resolved)
    chain = await world.check_one_chain()
    assert chain[-1].state is VerdictState.RESOLVED
    assert await correlator.kill(signal.SIGTERM) == 0


async def test_poison_doubles_and_late_messages_change_nothing(world: World) -> None:
    correlator = world.correlator()
    await correlator.start()
    await correlator.active()
    await world.listen()
    world.double, world.late_s = 0.3, 0.3
    await world.begin()
    await world.healthy_for(10)
    good = {"ce-specversion": "1.0", "ce-source": "t", "ce-time": "2026-01-01T00:00:00Z"}
    poison: Iterable[tuple[bytes, dict[str, str]]] = (
        (b"\x80\x02 not JSON", good | {"ce-id": "p1", "ce-type": "goodput.telemetry.batch.v1"}),
        (b"{}", good | {"ce-id": "p2", "ce-type": "goodput.telemetry.unheard.of.v9"}),
        (b'{"fabric":"f","host":7}', good | {"ce-id": "p3", "ce-type": "goodput.telemetry.batch.v1"}),
        (b"{}", {}),
    )
    for body, headers in poison:
        await world.bus.publish_raw(subjects.telemetry("f", "h0", "rdma"), body, headers)
    other = RankProgress(fabric="g", job="j", rank=0, host="h0", seq=1, at=datetime.now(UTC))
    await world.bus.publish(subjects.job("f", "j", "rank_progress"), other, id="p5", source="t")
    await world.gpu_falls_off()
    await world.until(world.opened)
    world.stalled = False
    await world.until(world.resolved)
    chain = await world.check_one_chain()
    assert (chain[0].fault_class, chain[0].culprit.component) == (FaultClass.GPU_OFF_BUS, "gpu:h2/0")
    reasons = [each["reason"] for each in (await correlator.get("/v1/rejected")).json()["items"]]
    assert len(reasons) == 5
    for part in ("not JSON", "unheard.of", "host", "ce-type is missing", "field fabric is 'g'"):
        assert any(part in reason for reason in reasons), (part, reasons)
