"""Repeats are folded with their count; the first is never lost, and memory stays bounded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.domain.changes import Changes
from goodput_collector.domain.dedup import Folder
from goodput_common.contracts.telemetry import Event, EventName, State

START = datetime(2026, 3, 1, tzinfo=UTC)


def xid(at_s: float, code: str = "119", component: str = "gpu:h0/0000:9b:00") -> Event:
    return Event(component=component, name=EventName.XID, observed_at=START + timedelta(seconds=at_s), attrs={"xid": code})


def test_the_first_ones_go_through_and_the_rest_is_one_event_with_a_count() -> None:
    folder = Folder(burst=2, window_s=30)
    told = [event for second in range(10) for event in folder.add(xid(second))]
    assert [event.count for event in told] == [1, 1]
    (rest,) = folder.flush()
    assert (rest.count, rest.observed_at, rest.last_at) == (8, START + timedelta(seconds=2), START + timedelta(seconds=9))


def test_another_code_or_component_is_another_thing() -> None:
    folder = Folder(burst=1)
    for event in (xid(0), xid(1, "79"), xid(2, component="gpu:h0/0000:05:00")):
        assert folder.add(event) == (event,)


def test_a_new_window_starts_with_the_first_event_after_the_old_one() -> None:
    folder = Folder(burst=1, window_s=30)
    folder.add(xid(0))
    folder.add(xid(1))
    told = folder.add(xid(31))
    assert [(event.count, event.observed_at) for event in told] == [
        (1, START + timedelta(seconds=1)),
        (1, START + timedelta(seconds=31)),
    ]


def test_what_goes_on_and_on_is_told_ever_more_rarely() -> None:
    folder = Folder(burst=4, window_s=30, window_s_max=600)
    told = []
    for second in range(86_400):  # once a second, all day
        told += folder.add(xid(second))
        if second % 5 == 0:
            told += folder.flush(START + timedelta(seconds=second))
    told += folder.flush()
    assert sum(event.count for event in told) == 86_400
    assert len(told) < 400
    quiet = folder.add(xid(90_000))
    assert len(quiet) == 1 and all(len(folder.add(xid(90_000 + n))) == 1 for n in range(1, 4))  # the burst is back


def test_a_window_that_is_over_is_told_without_another_event() -> None:
    folder = Folder(burst=1, window_s=30)
    folder.add(xid(0))
    folder.add(xid(1))
    assert folder.flush(START + timedelta(seconds=29)) == ()
    assert [event.count for event in folder.flush(START + timedelta(seconds=31))] == [1]


def test_eight_hundred_thousand_repeats_are_a_handful_of_events() -> None:
    folder = Folder()
    event = xid(0)
    told = sum(len(folder.add(event)) for _ in range(800_000))
    (rest,) = folder.flush()
    assert told + rest.count == 800_000
    assert told < 10


def test_at_the_bound_the_thing_not_seen_for_longest_is_told_and_let_go() -> None:
    folder = Folder(burst=1, keys_max=3)
    folder.add(xid(0, "0"))
    folder.add(xid(1, "0"))
    told = [event for code in range(1, 5) for event in folder.add(xid(2, str(code)))]
    assert [event.attrs["xid"] for event in told] == ["1", "2", "0", "3", "4"]


@given(st.lists(st.tuples(st.integers(0, 200), st.sampled_from("abc")), max_size=200), st.integers(1, 4), st.integers(1, 3))
def test_counts_add_up_and_the_first_of_each_is_told_at_once(
    arrivals: list[tuple[int, str]], burst: int, keys_max: int
) -> None:
    folder = Folder(burst=burst, window_s=20, keys_max=keys_max)
    seen: set[str] = set()
    told: list[Event] = []
    for at_s, code in arrivals:
        event = xid(at_s, code)
        now = folder.add(event)
        if code not in seen:
            assert event in now
        seen.add(code)
        told += now
    told += folder.flush()
    assert sum(event.count for event in told) == len(arrivals)


def state(value: str, **attrs: str) -> State:
    return State(component="nic:h0/rail0/1", name="operstate", observed_at=START, value=value, attrs=attrs)


def test_states_are_told_on_change_and_in_full_at_intervals() -> None:
    changes = Changes(full_every_s=30, volatile=("ups",))
    assert len(changes.of([state("up", ups="1")], 0)) == 1
    assert changes.of([state("up", ups="2")], 5) == []
    assert len(changes.of([state("down", ups="2")], 6)) == 1
    assert changes.of([state("down")], 7) == []
    assert len(changes.of([state("down")], 31)) == 1
    assert changes.of([], 32) == []
    assert len(changes.of([state("down")], 33)) == 1
