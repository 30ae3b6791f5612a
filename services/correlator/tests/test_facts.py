"""Facts are kept as a kind and a text, and come back as they were."""

from __future__ import annotations

from datetime import UTC, datetime

from goodput_common.contracts.telemetry import Probe
from goodput_correlator.application import facts
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.clues import describe

AT = datetime(2026, 3, 1, tzinfo=UTC)
PROBE = Probe(
    component="nic:h0/mlx5_0/1",
    target="nic:h1/mlx5_0/1",
    flow=49_152,
    observed_at=AT,
    interval_s=5.0,
    sent=50,
    lost=2,
    late=1,
)


def test_a_probe_is_kept_under_its_prober_and_comes_back() -> None:
    assert facts.kind_of(PROBE) == "probe"
    assert facts.component_of(PROBE) == "nic:h0/mlx5_0/1"
    assert facts.decode("probe", facts.encode(PROBE)) == PROBE


def test_a_probe_is_cited_in_one_line() -> None:
    seen = Observed("m#0", "h0", "probes", AT, AT, PROBE)
    assert describe(seen) == "nic:h0/mlx5_0/1 -> nic:h1/mlx5_0/1 flow 49152: 2 of 50 probes lost, 1 late"
