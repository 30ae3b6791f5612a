"""The sample that tells of one flow of probes."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from goodput_common.contracts.telemetry import Probe, Source, TelemetryBatch

AT = datetime(2026, 3, 1, tzinfo=UTC)
PROBE = Probe(
    component="nic:h0/mlx5_0/1",
    target="nic:h1/mlx5_0/1",
    flow=49_152,
    observed_at=AT,
    interval_s=5.0,
    sent=50,
    lost=2,
    path=("link:nic:h0/mlx5_0/1--port:leaf-0/Ethernet0", "switch:leaf-0"),
)


def test_a_probe_travels_in_a_batch_among_other_samples() -> None:
    batch = TelemetryBatch(
        fabric="f", host="h0", source=Source.PROBES, boot_id="b", seq=1, observed_from=AT, observed_to=AT, samples=(PROBE,)
    )
    assert msgspec.json.decode(msgspec.json.encode(batch), type=TelemetryBatch) == batch


def test_a_delay_that_was_not_measured_is_none_and_takes_no_room() -> None:
    body = msgspec.json.decode(msgspec.json.encode(PROBE))
    assert body["type"] == "probe"
    assert "network_us_p50" not in body
    assert PROBE.responder_us_p99 == -1.0


def test_a_probe_without_its_target_is_refused() -> None:
    body = msgspec.json.decode(msgspec.json.encode(PROBE))
    del body["target"]
    with pytest.raises(msgspec.ValidationError, match="target"):
        msgspec.json.decode(msgspec.json.encode(body), type=Probe)
