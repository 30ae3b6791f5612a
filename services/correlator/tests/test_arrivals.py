"""Messages come in any order and several times; each is read once, in one order. Measurements are packed without loss."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from goodput_common.contracts.telemetry import Counter, CounterDoubt, Event, EventName, Gauge, Sample, Source, TelemetryBatch
from goodput_correlator.application import facts
from goodput_correlator.domain.arrivals import GENERATION_S, REMEMBER_IDS_S, Arrivals, SeenIds
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.incidents import Incidents
from goodput_correlator.domain.measurements import Measurements
from goodput_correlator.domain.packed import Packer, Reading, Unpackable
from goodput_correlator.domain.remembered import Batch, Remembered
from goodput_topology.generate import h100_pod
from goodput_topology.graph import Fabric

T0 = datetime(2026, 3, 2, tzinfo=UTC)
NIC = "nic:h1/mlx5_0/1"
moments = st.integers(0, 10**9).map(lambda us: T0 + timedelta(microseconds=us))
finite = st.floats(allow_nan=False, allow_infinity=False)  # the bus speaks JSON, which has no others
counters = st.builds(
    Counter,
    component=st.just(NIC),
    name=st.just("link_downed"),
    observed_at=moments,
    delta=st.integers(-(2**63), 2**63 - 1),
    interval_s=finite,
    value=st.integers(0, 2**64 - 1),
    doubt=st.sampled_from(CounterDoubt),
)
gauges = st.builds(
    Gauge,
    component=st.just(NIC),
    name=st.just("link_downed"),
    observed_at=moments,
    value=finite,
    attrs=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
)


def second(n: float) -> datetime:
    return T0 + timedelta(seconds=n)


def batch(seq: int, *samples: Sample, at: datetime = T0) -> Batch:
    data = TelemetryBatch(
        fabric="f", host="h1", source=Source.RDMA, boot_id="b", seq=seq, observed_from=at, observed_to=at, samples=samples
    )
    return Batch(f"b/{seq}", at, data)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=40), st.randoms())
def test_whatever_the_order_and_the_number_of_deliveries_each_message_is_handed_out_once_and_in_order(
    sent: list[tuple[int, int]], random: Random
) -> None:
    arrivals: Arrivals[tuple[int, int]] = Arrivals()
    given_in = sent + sent[: len(sent) // 2]
    random.shuffle(given_in)
    for at_s, n in given_in:
        arrivals.put(second(at_s), f"{at_s}/{n}", (at_s, n))
    out = [each for until in range(0, 25, 5) for each in arrivals.due(second(until))]
    assert out == sorted(set(sent))
    assert arrivals.overflow == 0


def test_what_does_not_fit_is_counted() -> None:
    arrivals: Arrivals[int] = Arrivals(pending_max=2)
    for n in range(5):
        arrivals.put(T0, str(n), n)
    assert (len(arrivals), arrivals.overflow) == (2, 3)


def test_ids_are_remembered_long_enough_and_not_for_ever() -> None:
    seen = SeenIds()
    seen.begin(T0)
    assert seen.note("a")
    seen.begin(second(REMEMBER_IDS_S))
    assert not seen.note("a")
    seen.begin(second(REMEMBER_IDS_S + GENERATION_S + 1))
    assert "a" not in seen


def test_of_too_many_ids_the_oldest_are_forgotten() -> None:
    seen = SeenIds(ids_max=3)
    for n in range(4):
        seen.begin(second(n * GENERATION_S))
        seen.note(str(n))
    seen.begin(second(3 * GENERATION_S))
    assert ["0" in seen, "3" in seen, len(seen)] == [False, True, 3]


@given(st.lists(st.one_of(counters, gauges), min_size=1, max_size=8))
def test_measurements_are_packed_without_loss(told: list[Counter | Gauge]) -> None:
    packer = Packer()
    reading = packer.begin(Reading("m", "h1", "rdma", T0))
    records = [packer.pack(reading, n, fact) for n, fact in enumerate(told)]
    seen = [packer.unpack(NIC, "link_downed", record) for record in records]
    assert [each.fact for each in seen] == told
    assert [each.id for each in seen] == [f"m#{n}" for n in range(len(told))]


def test_a_number_that_no_counter_has_is_left_out_and_counted() -> None:
    fact = Counter(component=NIC, name="link_downed", observed_at=T0, delta=1, interval_s=5.0, value=2**64)
    packer = Packer()
    with pytest.raises(Unpackable, match="link_downed"):
        packer.pack(packer.begin(Reading("m", "h1", "rdma", T0)), 0, fact)
    measured = Measurements(Fabric.empty("f"))
    measured.fold(Observed("m", "h1", "rdma", T0, T0, fact))
    assert measured.dropped == 1


def test_forgetting_messages_leaves_those_that_a_series_still_holds() -> None:
    measured = Measurements(Fabric.empty("f"))
    for n in range(100):
        fact = Gauge(component=NIC, name="temperature_c", observed_at=second(n), value=n)
        measured.fold(Observed(f"m{n}", "h1", "ethtool", second(n), second(n), fact))
    measured.forget(second(0))
    assert [each.id for each in measured.of(NIC, "temperature_c")] == ["m96", "m97", "m98", "m99"]
    measured.forget(second(1000))
    assert (list(measured.components()), len(measured)) == ([], 0)


def test_a_rise_that_was_asked_for_before_grows_with_the_series() -> None:
    measured = Measurements(Fabric.empty("f"))
    for n in (1, 2):
        fact = Counter(component=NIC, name="link_downed", observed_at=second(n), delta=n, interval_s=1.0, value=n)
        measured.fold(Observed(f"m{n}", "h1", "rdma", second(n), second(n), fact))
        assert measured.rise(NIC, "link_downed", T0) is measured.rise(NIC, "link_downed", T0)
    assert measured.rise(NIC, "link_downed", T0).delta == 3
    assert measured.rise(NIC, "link_downed", second(1)).delta == 2


def test_a_batch_is_read_as_its_samples_are() -> None:
    pod = h100_pod(hosts=2, spines=1)
    xids = [Event(component="gpu:h1/0", name=EventName.XID, observed_at=T0, excerpt=str(n)) for n in range(12)]
    told = batch(1, *xids, Gauge(component=NIC, name="temperature_c", observed_at=T0, value=50.0))
    whole, by_sample = _remembered(pod), _remembered(pod)
    whole.read(told, lambda job: True)
    for each in sorted(told.all(), key=lambda seen: seen.order):
        by_sample.read(each, lambda job: True)
    assert list(whole.hosts["h1"].events) == list(by_sample.hosts["h1"].events)
    newest = whole.measured.newest(NIC, "temperature_c")
    assert newest == by_sample.measured.newest(NIC, "temperature_c")
    assert newest is not None
    assert newest.id == f"{told.id}#12"


def _remembered(pod: Fabric) -> Remembered:
    return Remembered(pod, jobs_max=10, hosts_max=10, saw=lambda seen, event: None)


def test_a_batch_delivered_twice_is_read_once() -> None:
    incidents = Incidents(h100_pod(hosts=2, spines=1))
    told = batch(1, Event(component="gpu:h1/0", name=EventName.XID, observed_at=T0, attrs={"xid": "13"}))
    for each in (told, told, replace(told, received_at=second(0.5))):
        incidents.take(each)
    incidents.tick(second(2))
    assert len(incidents._known.hosts["h1"].events) == 1


@given(st.lists(st.one_of(counters, gauges), max_size=5))
def test_a_kept_batch_comes_back_as_it_was(samples: list[Sample]) -> None:
    told = batch(7, *samples)
    assert facts.unpack(told.id, facts.MEASURED, told.received_at, facts.pack(told)) == told
    assert facts.kind_of_batch(told) == facts.MEASURED


@pytest.mark.parametrize(
    ("event_id", "row"), [("a/b#3", ("a/b", 3)), ("a#b#12", ("a#b", 12)), ("a/b", None), ("a#", None), ("a#x", None)]
)
def test_the_id_of_a_sample_names_its_message(event_id: str, row: tuple[str, int] | None) -> None:
    assert facts.row_of(event_id) == row
