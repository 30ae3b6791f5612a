"""From facts to samples: links, storms, counters, and what was over before anybody looked."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.domain.rdma_counters import Width
from goodput_collector.domain.switch_facts import About, BootFact, CountersFact, Fact, PortFact, PortGone, WatchdogFact
from goodput_collector.domain.switch_flaps import SETTLE_S, Missed
from goodput_collector.domain.switch_port import Stamp
from goodput_collector.domain.switch_ports import PORTS_MAX, SwitchPorts
from goodput_common.contracts.telemetry import Counter, CounterDoubt, Event, EventName, Sample, State

START = datetime(2026, 3, 1, tzinfo=UTC)
PORT = "port:leaf-1/Ethernet0"


class Switch:
    """Feeds facts at moments and collects what is told."""

    def __init__(self, **options: object) -> None:
        self.ports = SwitchPorts("leaf-1", **options)  # type: ignore[arg-type]
        self.seconds = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def hear(self, *facts: Fact, by: str = "on change", late_s: float = 0.0) -> None:
        at = self.now() - timedelta(seconds=late_s)
        at_ns = int(at.timestamp() * 1e9)
        self.ports.clock.observe(int(self.now().timestamp() * 1e9), self.now())
        self.ports.take(facts, Stamp(at_ns, at, self.now(), self.seconds, by))

    def wait(self, seconds: float) -> None:
        self.seconds += seconds

    def tell(self) -> list[Sample]:
        return self.ports.tell(self.now(), self.seconds)

    def events(self) -> list[tuple[EventName, int]]:
        return [(each.name, each.count) for each in self.tell() if isinstance(each, Event)]


def oper(state: str) -> PortFact:
    return PortFact("Ethernet0", About.OPER, state)


def told(samples: Iterable[Sample], kind: type[Sample]) -> list[Sample]:
    return [each for each in samples if isinstance(each, kind)]


def test_a_link_that_goes_down_is_an_event_at_the_switchs_time() -> None:
    switch = Switch()
    switch.hear(PortFact("Ethernet0", About.ADMIN, "up"), oper("up"))
    assert told(switch.tell(), Event) == []  # what is first seen has not changed
    switch.wait(10)
    switch.hear(oper("down"), late_s=1.5)
    (event,) = told(switch.tell(), Event)
    assert isinstance(event, Event)
    assert (event.component, event.name, event.observed_at) == (PORT, EventName.LINK_DOWN, START + timedelta(seconds=8.5))
    assert event.attrs["admin"] == "up"


def test_every_change_that_is_heard_is_told_even_in_one_reading() -> None:
    switch = Switch()
    for state in ("up", "down", "up", "down"):
        switch.hear(oper(state))
    assert switch.events() == [(EventName.LINK_DOWN, 1), (EventName.LINK_UP, 1), (EventName.LINK_DOWN, 1)]


@pytest.mark.parametrize("between", ["unknown", "testing"])
def test_states_that_say_nothing_of_the_link_are_no_events(between: str) -> None:
    switch = Switch()
    for state in ("up", between, "up"):
        switch.hear(oper(state))
    assert switch.events() == []


def test_a_port_that_was_shut_is_told_as_shut() -> None:
    switch = Switch()
    switch.hear(oper("up"))
    switch.hear(oper("down"), PortFact("Ethernet0", About.ADMIN, "down"))  # a row tells both, in any order
    (event,) = told(switch.tell(), Event)
    assert isinstance(event, Event)
    assert event.attrs["admin"] == "down"


def test_states_are_told_on_change_and_in_full_at_intervals() -> None:
    switch = Switch(full_every_s=60)
    switch.hear(oper("up"))
    assert [each.value for each in told(switch.tell(), State) if isinstance(each, State)] == ["up"]
    switch.wait(5)
    switch.hear(oper("up"))
    assert switch.tell() == []
    switch.wait(60)
    assert len(told(switch.tell(), State)) == 1


def test_a_flap_that_only_the_transition_counter_saw_is_told_once() -> None:
    switch = Switch()
    switch.hear(oper("up"), PortFact("Ethernet0", About.TRANSITIONS, 10))
    switch.wait(10)
    switch.hear(oper("up"), PortFact("Ethernet0", About.TRANSITIONS, 14))
    assert switch.events() == []  # what was on its way may still come
    switch.wait(SETTLE_S)
    assert switch.events() == [(EventName.LINK_DOWN, 2), (EventName.LINK_UP, 2)]
    switch.wait(30)
    assert switch.events() == []


def test_changes_that_were_seen_are_not_told_again_for_being_counted() -> None:
    switch = Switch()
    switch.hear(oper("up"), PortFact("Ethernet0", About.TRANSITIONS, 0))
    switch.hear(PortFact("Ethernet0", About.TRANSITIONS, 2))  # counted before the changes are heard
    switch.hear(oper("down"))
    switch.hear(oper("up"))
    switch.wait(SETTLE_S)
    assert switch.events() == [(EventName.LINK_DOWN, 1), (EventName.LINK_UP, 1)]
    switch.hear(oper("down"))
    switch.hear(oper("up"))
    switch.wait(5)
    switch.hear(PortFact("Ethernet0", About.TRANSITIONS, 4))  # and after
    switch.wait(SETTLE_S)
    assert switch.events() == [(EventName.LINK_DOWN, 1), (EventName.LINK_UP, 1)]


def test_a_last_change_that_moved_without_a_change_seen_is_at_least_one_flap() -> None:
    switch = Switch()
    switch.hear(oper("up"), PortFact("Ethernet0", About.LAST_CHANGE_NS, 10**18), by="sampled")
    switch.wait(10)
    switch.hear(oper("up"), PortFact("Ethernet0", About.LAST_CHANGE_NS, 10**18 + 5 * 10**9), by="sampled")
    switch.wait(SETTLE_S)
    assert switch.events() == [(EventName.LINK_DOWN, 1), (EventName.LINK_UP, 1)]


def test_a_sampled_change_is_dated_by_the_last_change() -> None:
    switch = Switch()
    switch.hear(oper("up"), by="sampled")
    switch.wait(10)
    changed = int((START + timedelta(seconds=3)).timestamp() * 1e9)
    switch.hear(PortFact("Ethernet0", About.LAST_CHANGE_NS, changed), oper("down"), by="sampled")
    (event,) = told(switch.tell(), Event)
    assert isinstance(event, Event)
    assert event.observed_at == START + timedelta(seconds=3)


def test_two_counters_of_one_ports_flaps_are_not_taken_for_one() -> None:
    switch = Switch()
    switch.hear(oper("up"))
    for _ in range(3):
        switch.hear(PortFact("Ethernet0", About.TRANSITIONS, 4, "carrier-transitions"))
        switch.hear(PortFact("Ethernet0", About.TRANSITIONS, 40, "interface-transitions"))
        switch.wait(SETTLE_S)
        assert switch.events() == []
    switch.hear(PortFact("Ethernet0", About.TRANSITIONS, 6, "carrier-transitions"))
    switch.wait(SETTLE_S)
    assert switch.events() == [(EventName.LINK_DOWN, 1), (EventName.LINK_UP, 1)]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=30))
def test_flaps_seen_and_flaps_counted_add_up_to_all_flaps(rounds: list[tuple[int, bool]]) -> None:
    switch = Switch()
    total = heard = 0
    switch.hear(oper("up"), PortFact("Ethernet0", About.TRANSITIONS, 0))
    downs = 0
    for flaps, seen in rounds:
        for _ in range(flaps):
            total += 2
            if seen:
                heard += 1
                switch.hear(oper("down"))
                switch.hear(oper("up"))
        switch.wait(10)
        switch.hear(PortFact("Ethernet0", About.TRANSITIONS, total))
        switch.wait(SETTLE_S)
        downs += sum(count for name, count in switch.events() if name is EventName.LINK_DOWN)
    assert downs == total // 2


def test_a_counter_that_leaves_changes_out_is_not_held_against_the_future() -> None:
    missed = Missed(unit=2)
    missed.counted(0, 0.0)
    for second in range(1, 5):
        missed.seen()
        missed.counted(0, float(second))
    missed.counted(2, 10.0)
    assert missed.settle(20.0) == 1


def test_a_storm_is_told_when_it_begins_and_when_it_ends() -> None:
    switch = Switch()
    for stormed in (False, True, False):
        switch.hear(WatchdogFact("Ethernet0", 3, stormed))
    events = told(switch.tell(), Event)
    assert [(each.name, each.attrs["priority"], each.attrs["state"]) for each in events if isinstance(each, Event)] == [
        (EventName.PAUSE_STORM, "3", "stormed"),
        (EventName.PAUSE_STORM, "3", "restored"),
    ]


def test_a_storm_between_two_looks_is_told_by_its_counter() -> None:
    switch = Switch()
    counted = "pfc_watchdog_prio3_stormed"
    switch.hear(WatchdogFact("Ethernet0", 3, stormed=False), CountersFact("Ethernet0", {counted: 5}))
    switch.wait(2)
    switch.hear(WatchdogFact("Ethernet0", 3, stormed=False), CountersFact("Ethernet0", {counted: 7}))
    switch.wait(SETTLE_S)
    events = [each for each in switch.tell() if isinstance(each, Event)]
    assert [(each.attrs["state"], each.count) for each in events] == [("stormed", 2), ("restored", 2)]


def test_counters_are_told_as_increases() -> None:
    switch = Switch()
    switch.hear(CountersFact("Ethernet0", {"rx_prio3_pause": 100}), by="sampled")
    assert told(switch.tell(), Counter) == []
    switch.wait(10)
    switch.hear(CountersFact("Ethernet0", {"rx_prio3_pause": 130}), by="sampled")
    (counter,) = told(switch.tell(), Counter)
    assert isinstance(counter, Counter)
    assert (counter.component, counter.name, counter.delta, counter.interval_s) == (PORT, "rx_prio3_pause", 30, 10.0)


def test_after_a_reboot_a_counter_that_has_overtaken_its_last_reading_is_a_lower_bound() -> None:
    switch = Switch()
    switch.hear(
        BootFact(10**18), CountersFact("Ethernet0", {"in_errors": 5}), CountersFact("Ethernet0", {"in_octets": 10**9})
    )
    switch.tell()
    switch.wait(300)
    switch.hear(
        BootFact(10**18 + 200 * 10**9),
        CountersFact("Ethernet0", {"in_errors": 9}),
        CountersFact("Ethernet0", {"in_octets": 10**6}),
    )
    counters = [each for each in switch.tell() if isinstance(each, Counter)]
    assert {each.name: (each.delta, each.doubt) for each in counters} == {
        "in_errors": (4, CounterDoubt.RESET),
        "in_octets": (10**6, CounterDoubt.RESET),
    }


def test_a_boot_time_that_was_set_right_is_no_reboot() -> None:
    switch = Switch()
    switch.hear(BootFact(10**18), CountersFact("Ethernet0", {"in_octets": 10**9}))
    switch.tell()
    switch.wait(10)
    switch.hear(BootFact(10**18 + 3600 * 10**9), CountersFact("Ethernet0", {"in_octets": 10**9 + 7}))
    (counter,) = told(switch.tell(), Counter)
    assert isinstance(counter, Counter)
    assert (counter.delta, counter.doubt) == (7, CounterDoubt.NONE)


def test_a_value_that_was_overtaken_on_its_way_is_no_reset() -> None:
    switch = Switch()
    switch.hear(CountersFact("Ethernet0", {"in_octets": 1000}))
    switch.tell()
    switch.wait(10)
    switch.hear(CountersFact("Ethernet0", {"in_octets": 1500}))
    switch.hear(CountersFact("Ethernet0", {"in_octets": 1400}), late_s=5)
    counters = [each for each in switch.tell() if isinstance(each, Counter)]
    assert [(each.delta, each.doubt) for each in counters] == [(500, CounterDoubt.NONE)]


def test_a_narrow_counter_wraps() -> None:
    switch = Switch(widths={"in_errors": Width.WRAPS_32})
    switch.hear(CountersFact("Ethernet0", {"in_errors": 2**32 - 3}))
    switch.tell()
    switch.wait(10)
    switch.hear(CountersFact("Ethernet0", {"in_errors": 4}))
    counters = [each for each in switch.tell() if isinstance(each, Counter)]
    assert [(each.delta, each.doubt) for each in counters] == [(7, CounterDoubt.WRAPPED)]


def test_counters_told_under_an_alias_belong_to_the_port() -> None:
    switch = Switch()
    switch.hear(CountersFact("etp1", {"in_errors": 1}))
    switch.hear(PortFact("Ethernet0", About.ALIAS, "etp1"), oper("up"))
    switch.hear(CountersFact("etp1", {"in_errors": 2}))
    switch.tell()
    switch.wait(10)
    switch.hear(CountersFact("etp1", {"in_errors": 5}))
    (counter,) = told(switch.tell(), Counter)
    assert counter.component == PORT
    assert switch.ports.covered() == ("switch:leaf-1", PORT)


@pytest.mark.parametrize("order", [1, -1])
def test_an_alias_that_is_another_ports_name_is_not_gone_by(order: int) -> None:
    switch = Switch()
    rows = (PortFact("Ethernet4", About.ALIAS, "Ethernet8"), PortFact("Ethernet8", About.ALIAS, "Ethernet16"))
    switch.hear(*rows[::order])
    switch.hear(CountersFact("Ethernet8", {"in_errors": 2}))
    assert "port:leaf-1/Ethernet8" in switch.ports.covered()


def test_a_port_that_is_removed_is_told_and_no_longer_covered() -> None:
    switch = Switch()
    switch.hear(oper("up"))
    switch.tell()
    switch.hear(PortGone("Ethernet0"))
    samples = switch.tell()
    assert [each.name for each in samples if isinstance(each, Event)] == [EventName.LINK_DOWN]
    assert [each.value for each in samples if isinstance(each, State)] == ["removed"]
    assert switch.ports.covered() == ("switch:leaf-1",)


def test_ports_beyond_the_bound_are_left_out_and_counted() -> None:
    switch = Switch()
    switch.hear(*(CountersFact(f"Ethernet{number}", {"in_errors": 1}) for number in range(PORTS_MAX + 3)))
    assert len(switch.ports.ports()) == PORTS_MAX
    assert switch.ports.left_out == 3
