"""Sources that cannot be seen are counted as unknown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from goodput_common.contracts.telemetry import CollectorHeartbeat, Source, SourceHealth, SourceStatus, TelemetryBatch
from goodput_correlator.application.sources import HOLE_S, Sources

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def batch(seq: int, *, boot: str = "b1") -> TelemetryBatch:
    return TelemetryBatch(fabric="f", host="h1", source=Source.RDMA, boot_id=boot, seq=seq, observed_from=T0, observed_to=T0)


def beat(*health: SourceHealth) -> CollectorHeartbeat:
    return CollectorHeartbeat(fabric="f", host="h1", boot_id="b1", seq=1, at=T0, interval_s=5.0, sources=health)


def test_a_hole_in_the_sequence_makes_the_source_unknown_until_it_is_filled() -> None:
    sources = Sources()
    assert [sources.batch(batch(n), T0) for n in (5, 6, 9)] == [0, 0, 2]
    assert sources.unknown(at(1)) == {"rdma": 1}
    sources.batch(batch(7), at(1))
    assert sources.unknown(at(1)) == {"rdma": 1}
    sources.batch(batch(8), at(1))
    assert sources.unknown(at(1)) == {}


def test_a_hole_that_stays_is_history_after_a_while() -> None:
    sources = Sources()
    sources.batch(batch(1), T0)
    sources.batch(batch(3), T0)
    assert sources.unknown(at(HOLE_S + 1)) == {}


def test_a_new_boot_counts_anew() -> None:
    sources = Sources()
    sources.batch(batch(50), T0)
    assert sources.batch(batch(1, boot="b2"), T0) == 0


def test_a_source_that_says_unknown_is_unknown_and_an_absent_one_is_not() -> None:
    sources = Sources()
    sources.heartbeat(
        beat(
            SourceHealth(source=Source.RDMA, status=SourceStatus.ABSENT),
            SourceHealth(source=Source.KERNEL_LOG, status=SourceStatus.UNKNOWN, reason="permission denied"),
            SourceHealth(source=Source.NETLINK, status=SourceStatus.OK),
        ),
        T0,
    )
    assert sources.unknown(at(1)) == {"kernel_log": 1}


def test_a_collector_that_falls_silent_is_unknown_and_one_that_never_spoke_is_not_counted() -> None:
    sources = Sources()
    assert sources.unknown(at(100)) == {}
    sources.heartbeat(beat(), T0)
    assert sources.unknown(at(14)) == {}
    assert sources.unknown(at(16)) == {"heartbeat": 1}


@given(st.permutations(range(1, 12)))
def test_every_order_of_a_whole_sequence_leaves_no_hole(order: list[int]) -> None:
    sources = Sources()
    sources.batch(batch(0), T0)
    for seq in order:
        sources.batch(batch(seq), T0)
    assert sources.unknown(T0) == {}
