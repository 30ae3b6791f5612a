"""Increases of counters that wrap, saturate, are reset, and are read from a cache."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.domain.deltas import Deltas, Reading
from goodput_collector.domain.rdma_counters import Tells, Width, describe
from goodput_common.contracts.telemetry import Counter, CounterDoubt

AT = datetime(2026, 3, 1, tzinfo=UTC)
WIDTHS = {"q": Width.WRAPS_32, "r": Width.WRAPS_32, "bytes": Width.WRAPS_64, "down": Width.SATURATES_8}


def run(
    *readings: dict[str, int], incarnations: str | None = None, lifespan_s: float = 0.0, every_s: float = 5.0
) -> list[tuple[Counter, ...]]:
    deltas = Deltas("nic:h0/mlx5_0/1", WIDTHS)
    told = []
    for number, values in enumerate(readings):
        told.append(
            deltas.update(
                Reading(
                    values=values,
                    at=AT + timedelta(seconds=every_s * number),
                    monotonic_s=every_s * number,
                    incarnation="boot" if incarnations is None else incarnations[number],
                    lifespan_s=lifespan_s,
                )
            )
        )
    return told


def last(*readings: dict[str, int], incarnations: str | None = None) -> dict[str, tuple[int, CounterDoubt]]:
    return {each.name: (each.delta, each.doubt) for each in run(*readings, incarnations=incarnations)[-1]}


def test_a_first_reading_has_no_increase() -> None:
    assert run({"q": 7, "down": 255}) == [()]


def test_what_stands_still_is_not_told() -> None:
    assert run({"q": 7}, {"q": 7})[-1] == ()


def test_an_increase_is_told_with_its_interval_and_value() -> None:
    (counter,) = run({"q": 7}, {"q": 10})[-1]
    assert (counter.delta, counter.interval_s, counter.value, counter.doubt) == (3, 5.0, 10, CounterDoubt.NONE)


def test_one_32_bit_counter_falling_alone_near_its_top_has_wrapped() -> None:
    assert last({"q": 2**32 - 10, "bytes": 5}, {"q": 6, "bytes": 9}) == {
        "q": (16, CounterDoubt.WRAPPED),
        "bytes": (4, CounterDoubt.NONE),
    }


def test_one_32_bit_counter_falling_from_far_below_its_top_was_reset() -> None:
    assert last({"q": 5000}, {"q": 3}) == {"q": (3, CounterDoubt.RESET)}


def test_several_falling_together_were_reset_even_near_the_top() -> None:
    assert last({"q": 2**32 - 10, "r": 2**32 - 5}, {"q": 6, "r": 2}) == {
        "q": (6, CounterDoubt.RESET),
        "r": (2, CounterDoubt.RESET),
    }


def test_a_counter_that_cannot_wrap_shows_that_its_neighbour_did_not_either() -> None:
    assert last({"q": 2**32 - 10, "bytes": 900}, {"q": 6, "bytes": 4})["q"] == (6, CounterDoubt.RESET)
    assert last({"q": 2**32 - 10, "down": 9}, {"q": 6, "down": 1})["down"] == (1, CounterDoubt.RESET)


def test_a_witness_tells_two_wraps_at_once_from_a_reset() -> None:
    wrapped = {"q": (16, CounterDoubt.WRAPPED), "r": (7, CounterDoubt.WRAPPED)}
    before, after = {"q": 2**32 - 10, "r": 2**32 - 5}, {"q": 6, "r": 2}
    assert last(before | {"bytes": 2**40}, after | {"bytes": 2**40 + 9}) == wrapped | {"bytes": (9, CounterDoubt.NONE)}
    assert last(before | {"s": 1000}, after | {"s": 1000}) == wrapped
    assert last(before | {"s": 3}, after | {"s": 3})["q"] == (6, CounterDoubt.RESET)


def test_what_rose_while_others_were_reset_is_a_lower_bound() -> None:
    assert last({"bytes": 900, "q": 5}, {"bytes": 4, "q": 8})["q"] == (3, CounterDoubt.RESET)


def test_a_32_bit_data_counter_saturates_and_a_64_bit_one_goes_on() -> None:
    assert describe("port_rcv_data").width is Width.SATURATES_32
    deltas = Deltas("nic:h0/mlx5_0/1", {"d": Width.SATURATES_32})
    told: list[Counter] = []
    for number, value in enumerate((2**32 - 6, 2**32 - 1, 2**32 - 1, 2**32 + 4)):
        told += deltas.update(Reading(values={"d": value}, at=AT, monotonic_s=number, incarnation="b"))
    assert [(each.delta, each.doubt) for each in told] == [(5, CounterDoubt.SATURATED), (5, CounterDoubt.NONE)]
    assert deltas.saturated() == frozenset()


def test_after_another_incarnation_a_counter_that_fell_began_anew_and_one_that_rose_counted_its_rise_at_least() -> None:
    assert last({"q": 5, "r": 2**31, "bytes": 7}, {"q": 9, "r": 2**31, "bytes": 2}, incarnations="ab") == {
        "q": (4, CounterDoubt.RESET),
        "bytes": (2, CounterDoubt.RESET),
    }


def test_at_its_ceiling_a_saturating_counter_says_at_least() -> None:
    assert last({"down": 250}, {"down": 255}) == {"down": (5, CounterDoubt.SATURATED)}
    deltas = Deltas("nic:h0/mlx5_0/1", WIDTHS)
    deltas.update(Reading(values={"down": 255, "q": 255}, at=AT, monotonic_s=0, incarnation="b"))
    assert deltas.saturated() == {"down"}


def test_a_value_above_the_ceiling_proves_a_wider_counter() -> None:
    assert last({"down": 254}, {"down": 300}, {"down": 301}) == {"down": (1, CounterDoubt.NONE)}


def test_a_cached_reading_is_left_out_and_its_interval_goes_to_the_next() -> None:
    told = run({"q": 0}, {"q": 0}, {"q": 8}, lifespan_s=10.0)
    assert told[1] == ()
    assert (told[2][0].delta, told[2][0].interval_s) == (8, 10.0)


def test_a_counter_that_was_missing_for_a_while_counts_over_the_whole_time() -> None:
    (counter,) = run({"q": 1}, {}, {"q": 4})[-1]
    assert (counter.delta, counter.interval_s) == (3, 10.0)


@given(st.lists(st.integers(0, 2**31 - 1), min_size=2, max_size=20), st.integers(0, 2**32 - 1))
def test_increases_of_a_wrapping_counter_add_up_whatever_its_start(steps: list[int], start: int) -> None:
    total, readings = start, [{"q": start}]
    for step in steps:
        total += step
        readings.append({"q": total % 2**32})
    assert sum(each.delta for told in run(*readings) for each in told) == sum(steps)


@given(st.lists(st.dictionaries(st.sampled_from(sorted(WIDTHS)), st.integers(0, 2**33)), max_size=12))
def test_no_increase_is_negative_or_larger_than_its_counter(readings: list[dict[str, int]]) -> None:
    for told in run(*readings):
        for each in told:
            assert 0 < each.delta <= max(each.value, 2**32)


@given(st.lists(st.integers(0, 255), min_size=1, max_size=20))
def test_a_saturating_counter_never_wraps(values: list[int]) -> None:
    for told in run(*({"down": value} for value in values)):
        assert all(each.doubt is not CounterDoubt.WRAPPED for each in told)


class Hardware:
    """Counters as a device keeps them, beside what was truly counted."""

    def __init__(self) -> None:
        self.shown = {"q": 0, "r": 0, "bytes": 0, "down": 0}
        self.true = dict.fromkeys(self.shown, 0)
        self.lost = dict.fromkeys(self.shown, 0)  # since the last reading, by a reset
        self.incarnation = 0

    def count(self, name: str, by: int) -> None:
        width = WIDTHS[name]
        self.true[name] += by
        total = self.shown[name] + by
        self.shown[name] = min(total, width.ceiling) if width.saturates else total % (width.ceiling + 1)

    def reload(self) -> None:
        self.incarnation += 1
        self.shown = dict.fromkeys(self.shown, 0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("count"), st.sampled_from(sorted(WIDTHS)), st.integers(1, 2**30)),
        st.tuples(st.just("read"), st.just(""), st.just(0)),
        st.tuples(st.just("reload"), st.just(""), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(0, 2**32 - 1))
def test_increases_add_up_to_what_was_counted_through_wraps_ceilings_and_reloads(
    steps: list[tuple[str, str, int]], start: int
) -> None:
    """Exact for a counter that neither stood at its ceiling nor lost counts to a reload, nor passed its last reading after
    one; else a lower bound that says so.
    Between two readings each 32-bit counter counts less than half its range, as the collector's interval sees to."""
    hardware, deltas = Hardware(), Deltas("nic:h0/mlx5_0/1", WIDTHS)
    hardware.shown |= {"q": start, "bytes": 2**40}  # a device that has run for a while
    told, doubts = dict.fromkeys(WIDTHS, 0), {name: set[CounterDoubt]() for name in WIDTHS}
    inexact: set[str] = set()
    unread = dict.fromkeys(WIDTHS, 0)
    second, last_read = 0, (hardware.incarnation, dict(hardware.shown))

    def read() -> None:
        nonlocal second, last_read
        second += 1
        if last_read[0] != hardware.incarnation:
            inexact.update(name for name, before in last_read[1].items() if 0 < before <= hardware.shown[name])
        last_read = hardware.incarnation, dict(hardware.shown)
        reading = Reading(
            values=dict(hardware.shown), at=AT, monotonic_s=second, incarnation=str(hardware.incarnation), lifespan_s=0.5
        )
        for each in deltas.update(reading):
            told[each.name] += each.delta
            doubts[each.name].add(each.doubt)
        unread.update(dict.fromkeys(unread, 0))

    read()
    for what, name, by in [*steps, ("read", "", 0)]:
        if what == "read":
            read()
        elif what == "reload":
            inexact |= {each for each, count in unread.items() if count}
            hardware.reload()
        elif unread[name] + by < 2**31:
            unread[name] += by
            hardware.count(name, by)
            if WIDTHS[name].saturates and hardware.shown[name] == WIDTHS[name].ceiling:
                inexact.add(name)
    for name in WIDTHS:
        assert told[name] <= hardware.true[name]
        if name not in inexact:
            assert told[name] == hardware.true[name], (name, doubts[name])


VALUES = st.sampled_from([0, 1, 7, 200, 255, 256, 2**31, 2**32 - 1, 2**32, 2**32 + 5, 2**63, 2**64 - 1])
READS = st.tuples(
    st.dictionaries(st.sampled_from(sorted(WIDTHS)), VALUES, min_size=3), st.sampled_from([0.1, 1.0]), st.integers(0, 1)
)


@given(st.lists(READS, max_size=12))
def test_who_says_what_moved_gets_the_deltas_of_who_does_not(reads: list[tuple[dict[str, int], float, int]]) -> None:
    """Also where a reading in between was left out, lacked a counter, or was the first of another boot."""
    compared, told = Deltas("nic:h0/mlx5_0/1", WIDTHS), Deltas("nic:h0/mlx5_0/1", WIDTHS)
    since: dict[str, int] | None = None
    second = 0.0
    for values, later_s, boot in reads:
        second += later_s
        reading = Reading(values=values, at=AT, monotonic_s=second, incarnation=str(boot), lifespan_s=0.5)
        hinted = reading
        if since is not None and since.keys() == values.keys():
            moved = [name for name in sorted(values) if values[name] != since[name]]
            hinted = reading._replace(since=since, moved=moved)
        assert told.update(hinted) == compared.update(reading)
        assert told.saturated() == compared.saturated()
        since = values


def test_names_of_other_vendors_mean_the_same() -> None:
    assert describe("to_retransmits").name == "local_ack_timeout_err"
    assert describe("link_downed").width is Width.SATURATES_8
    assert describe("local_ack_timeout_err") == describe("local_ack_timeout_err")
    assert describe("rp_cnp_handled").width is Width.WRAPS_64
    assert describe("never_heard_of").tells is Tells.TRAFFIC
