"""Who is at the other end of an interface, from whoever spoke there and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.domain.discovery_heard import INTERFACES_MAX, SPEAKERS_MAX, Heard
from goodput_collector.domain.lldp import NameKind, Neighbour


def speaker(name: str, ttl_s: int = 120, port: str = "1") -> Neighbour:
    return Neighbour(
        chassis=name, chassis_kind=NameKind.MAC, port=port, port_kind=NameKind.INTERFACE, system=name, ttl_s=ttl_s
    )


def who(heard: Heard, now_s: float) -> dict[str, str]:
    return {name: each.system for name, each in heard.ends(now_s).items()}


def test_two_that_speak_in_turn_are_neither_the_other_end() -> None:
    heard = Heard()
    for at_s in range(0, 600, 30):
        heard.frames([("eth0", speaker("a" if at_s % 60 else "b"))], at_s)
        if at_s:
            assert who(heard, at_s) == {}


def test_a_moved_cable_is_seen_once_the_old_ends_word_has_run_out() -> None:
    heard = Heard()
    heard.frames([("eth0", speaker("old"))], 0)
    for at_s in (30, 60, 90):
        heard.frames([("eth0", speaker("new"))], at_s)
        assert who(heard, at_s) == {}
    heard.frames([("eth0", speaker("new"))], 121)
    assert who(heard, 121) == {"eth0": "new"}


def test_another_port_of_the_same_switch_takes_the_old_ones_place_at_once() -> None:
    heard = Heard()
    heard.frames([("eth0", speaker("leaf0", port="8"))], 0)
    heard.frames([("eth0", speaker("leaf0", port="16"))], 1)
    assert {name: end.port for name, end in heard.ends(1).items()} == {"eth0": "16"}
    assert heard.several() == {}


def test_a_farewell_lets_the_new_end_have_it_at_once_and_silence_takes_no_cable_away() -> None:
    heard = Heard()
    heard.frames([("eth0", speaker("old")), ("eth0", speaker("old", ttl_s=0))], 0)
    assert who(heard, 10) == {"eth0": "old"}
    heard.frames([("eth0", speaker("never heard before", ttl_s=0)), ("eth0", speaker("new"))], 10)
    assert who(heard, 10) == who(heard, 100_000) == {"eth0": "new"}


def test_who_speaks_comes_before_who_is_silent_and_the_order_does_not_follow_the_frames() -> None:
    heard = Heard()
    heard.frames([("eth1", speaker("c")), ("eth9", speaker("a")), ("eth2", speaker("b"))], 0)
    assert list(who(heard, 1)) == ["eth1", "eth2", "eth9"]
    heard.frames([("eth2", speaker("b")), ("eth9", speaker("a"))], 100)
    assert list(who(heard, 130)) == ["eth2", "eth9", "eth1"]


def test_several_are_remembered_as_several() -> None:
    before = Heard()
    before.frames([("eth0", speaker("a")), ("eth0", speaker("b")), ("eth1", speaker("c"))], 0)
    after = Heard()
    after.restore({name: [end] for name, end in before.ends(0).items()} | before.several(), 5)
    after.frames([("eth0", speaker("a")), ("eth1", speaker("d"))], 6)
    assert who(after, 6) == {"eth1": "d"}


@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 20), st.integers(0, 300), st.integers(0, 300)), max_size=60))
def test_whatever_is_heard_is_bounded_and_an_end_has_spoken(
    frames: list[tuple[int, int, int, int]],
) -> None:
    heard, now_s = Heard(), 0
    for interface, name, ttl_s, later_s in frames:
        now_s += later_s
        heard.frames([(str(interface), speaker(str(name), ttl_s))], now_s)
        ends = heard.ends(now_s)
        assert len(ends) <= INTERFACES_MAX
        assert all(1 < len(each) <= SPEAKERS_MAX for each in heard.several().values())
        assert ends.keys() <= {str(each[0]) for each in frames} and ends.keys().isdisjoint(heard.several())
