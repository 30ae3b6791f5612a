"""While the spool fills up, measurements and traffic are told less often, and nothing that was counted is lost."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.domain.rdma_counters import OTHER_COUNTERS, PORT_COUNTERS, QUEUE_COUNTERS, RdmaCounter, Tells
from goodput_collector.domain.thinning import HELD_MAX, Thinning, is_low_value, thinned_to
from goodput_common.contracts.telemetry import Counter, CounterDoubt, Event, EventName, Gauge, Sample, State

AT = datetime(2026, 3, 1, tzinfo=UTC)


def traffic(delta: int, *, name: str = "port_xmit_data", doubt: CounterDoubt = CounterDoubt.NONE, n: int = 0) -> Counter:
    return Counter(
        component=f"nic:h0/mlx5_{n}/1", name=name, observed_at=AT, delta=delta, interval_s=1, value=delta, doubt=doubt
    )


def gauge(value: float) -> Gauge:
    return Gauge(component="gpu:h0/0000:9b:00", name="temperature_c", observed_at=AT, value=value)


EVENT = Event(component="nic:h0/mlx5_0/1", name=EventName.LINK_DOWN, observed_at=AT)
STATE = State(component="nic:h0/mlx5_0/1", name="operstate", observed_at=AT, value="down")


def test_an_empty_spool_holds_nothing_back() -> None:
    samples: list[Sample] = [gauge(50), traffic(7), EVENT]
    assert Thinning().take("rdma", samples, every_s=thinned_to(0.0), now_s=0) == samples


def test_the_fuller_the_spool_the_longer_low_value_samples_wait() -> None:
    assert [thinned_to(filled) for filled in (0.0, 0.09, 0.1, 0.4, 0.7, 1.0)] == [0, 0, 10, 60, 300, 300]


def test_what_may_be_a_fault_is_never_held_back() -> None:
    thinning = Thinning()
    error = traffic(3, name="symbol_error")
    doubtful = traffic(3, doubt=CounterDoubt.RESET)
    thinning.take("rdma", [traffic(1)], every_s=300, now_s=0)
    urgent: list[Sample] = [EVENT, STATE, error, doubtful]
    assert thinning.take("rdma", [*urgent, traffic(1), gauge(51)], every_s=300, now_s=1) == urgent


def test_held_counters_are_summed_and_of_a_measurement_the_newest_counts() -> None:
    thinning = Thinning()
    thinning.take("rdma", [traffic(0)], every_s=10, now_s=0)
    for second in range(1, 10):
        assert thinning.take("rdma", [traffic(second), gauge(second)], every_s=10, now_s=second) == []
    counter, measured = thinning.take("rdma", [traffic(10), gauge(10)], every_s=10, now_s=10)
    assert isinstance(counter, Counter)
    assert (counter.delta, counter.interval_s, counter.value) == (sum(range(1, 11)), 10, 10)
    assert measured == gauge(10)


def test_measurements_that_differ_in_an_attribute_are_held_each_for_itself() -> None:
    disks = [
        Gauge(component="host:h0", name="disk_busy_share", observed_at=AT, value=0.5, attrs={"device": device})
        for device in ("nvme0n1", "nvme1n1")
    ]
    thinning = Thinning()
    thinning.take("host", [gauge(1)], every_s=10, now_s=0)
    assert thinning.take("host", disks, every_s=10, now_s=1) == []
    assert thinning.take("host", [], every_s=10, now_s=10) == disks


def test_what_was_held_goes_as_soon_as_there_is_room_again() -> None:
    thinning = Thinning()
    thinning.take("rdma", [traffic(1)], every_s=10, now_s=0)
    assert thinning.take("rdma", [traffic(5)], every_s=10, now_s=1) == []
    (joined,) = thinning.take("rdma", [traffic(6)], every_s=0, now_s=2)
    assert isinstance(joined, Counter)
    assert joined.delta == 11


def test_sources_wait_each_for_themselves() -> None:
    thinning = Thinning()
    thinning.take("rdma", [traffic(1)], every_s=10, now_s=0)
    assert thinning.take("ethtool", [traffic(1)], every_s=10, now_s=5) == [traffic(1)]


def test_at_the_bound_everything_held_goes() -> None:
    thinning = Thinning()
    thinning.take("rdma", [traffic(1)], every_s=300, now_s=0)
    many = [traffic(1, n=n) for n in range(HELD_MAX)]
    assert len(thinning.take("rdma", many, every_s=300, now_s=1)) == HELD_MAX


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.floats(0, 1), st.booleans()), max_size=60),
)
def test_the_sum_of_what_is_told_is_the_sum_of_what_was_counted(steps: list[tuple[int, float, bool]]) -> None:
    thinning, told, now_s = Thinning(), 0, 0.0
    for delta, filled, doubtful in steps:
        now_s += 5
        sample = traffic(delta, doubt=CounterDoubt.RESET if doubtful else CounterDoubt.NONE)
        told += sum(
            each.delta
            for each in thinning.take("s", [sample], every_s=thinned_to(filled), now_s=now_s)
            if isinstance(each, Counter)
        )
    told += sum(each.delta for each in thinning.take("s", [], every_s=0, now_s=now_s) if isinstance(each, Counter))
    assert told == sum(delta for delta, _, _ in steps)


def test_only_measurements_and_plain_traffic_are_low_value() -> None:
    given_ = [gauge(1), traffic(1), traffic(1, name="rx_discards_phy"), EVENT, STATE]
    assert [is_low_value(each) for each in given_] == [True, True, False, False, False]


def test_what_a_silent_source_left_behind_is_due_by_itself() -> None:
    thinning: Thinning[str] = Thinning()
    thinning.take("rdma", [traffic(1)], every_s=10, now_s=0)
    thinning.take("rdma", [traffic(5), gauge(1)], every_s=10, now_s=1)
    assert thinning.due(every_s=10, now_s=9) == []
    ((series, samples),) = thinning.due(every_s=10, now_s=10)
    assert (series, samples) == ("rdma", [traffic(5), gauge(1)])
    assert thinning.due(every_s=10, now_s=100) == []


@pytest.mark.parametrize("table", [QUEUE_COUNTERS, PORT_COUNTERS, OTHER_COUNTERS])
def test_traffic_of_every_vendor_is_traffic(table: dict[str, RdmaCounter]) -> None:
    told = {name: is_low_value(traffic(1, name=name)) for name in table}
    assert told == {name: counter.tells in (Tells.TRAFFIC, Tells.PACING) for name, counter in table.items()}
