"""Pauses lead to the port that paused first, through whatever relays them, whichever port is the loudest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Counter
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.measurements import Measurements, measured
from goodput_correlator.domain.pauses import End, Pauses, shares
from goodput_topology.generate import h100_pod

START = datetime(2026, 3, 2, tzinfo=UTC)
POD = h100_pod(hosts=64, spines=4)
HOSTS = POD.hosts()
SLOW = POD.nics_of_host(HOSTS[40])[1]  # on rail 1
NEAR = POD.nics_of_host(HOSTS[3])[1]  # under the same leaf
FAR = POD.nics_of_host(HOSTS[0])[0]  # on rail 0: across a spine
LEAF_1, LEAF_0, SPINE = "switch:leaf-p0-r1", "switch:leaf-p0-r0", "switch:spine-0"


def counted(port: ComponentId, name: str, delta: int) -> Observed:
    at = START + timedelta(seconds=5)
    fact = Counter(component=port, name=name, observed_at=at, delta=delta, interval_s=5.0, value=delta)
    return Observed(f"{port}/{name}", "h", "ethtool", at, at, fact)


def received(port: ComponentId, share: float, priority: int = 3) -> Observed:
    return counted(port, f"rx_prio{priority}_pause_duration", int(share * 5e6))


def sent(port: ComponentId, share: float) -> Observed:
    return counted(port, "tx_prio3_pause_duration", int(share * 5e6))


def peer(end: ComponentId) -> ComponentId:
    found = POD.peer_of(end)
    assert found is not None
    return found


def between(lower: ComponentId, upper: ComponentId) -> tuple[ComponentId, ComponentId]:
    """The ports of a link of two switches."""
    for port in POD.ports_of_switch(lower):
        if (other := POD.peer_of(port)) is not None and POD.switch_of(other) == upper:
            return port, other
    raise AssertionError(f"no link {lower} {upper}")


def traced(*facts: Observed) -> Pauses:
    return Pauses(measured(facts, POD), POD, START)


UP_0, DOWN_0 = between(LEAF_0, SPINE)
UP_1, DOWN_1 = between(LEAF_1, SPINE)
# what a slow receiver on rail 1 leaves behind: its leaf's port to it, the spine's port to that leaf, the far leaf's uplink
STORM = (sent(SLOW, 0.6), received(peer(SLOW), 0.6), received(DOWN_1, 0.4), received(UP_0, 0.3))


def test_a_slow_receiver_is_found_under_the_same_leaf() -> None:
    (origin,) = traced(*STORM, received(NEAR, 0.5)).origins([NEAR])
    assert (origin.component, origin.end) == (SLOW, End.RECEIVER)
    assert peer(SLOW) in origin.relays


def test_and_across_a_spine_through_every_hop() -> None:
    (origin,) = traced(*STORM, received(FAR, 0.2)).origins([FAR])
    assert origin.component == SLOW
    assert {UP_0, DOWN_1, peer(SLOW)} <= origin.relays


def test_the_port_that_an_origin_tells_to_stop_itself_is_known_as_the_last_hop() -> None:
    (origin,) = traced(*STORM, received(FAR, 0.2)).origins([FAR])
    assert origin.last == {peer(SLOW)}
    (congested,) = traced(received(FAR, 0.2), received(UP_0, 0.3), received(NEAR, 0.0), received(DOWN_1, 0.0)).origins([FAR])
    assert congested.component == SPINE and congested.last == {UP_0}


def test_the_loudest_port_is_not_blamed_for_relaying() -> None:
    (origin,) = traced(*STORM, received(FAR, 0.99)).origins([FAR])
    assert origin.component == SLOW


def test_a_switch_none_of_whose_ports_is_paused_is_where_congestion_begins() -> None:
    quiet = counted(POD.ports_of_switch(LEAF_1)[0], "rx_prio3_pause", 0)
    (origin,) = traced(received(DOWN_1, 0.4), received(UP_0, 0.3), received(FAR, 0.2), quiet).origins([FAR])
    assert (origin.component, origin.end) == (LEAF_1, End.CONGESTED)


def test_a_switch_that_tells_nothing_is_only_where_the_trace_is_lost() -> None:
    (origin,) = traced(received(NEAR, 0.3)).origins([NEAR])
    assert (origin.component, origin.end) == (LEAF_1, End.LOST)


def test_a_ring_of_ports_is_told_whole() -> None:
    other = "switch:spine-1"
    up_0b, down_0b = between(LEAF_0, other)
    up_1b, _ = between(LEAF_1, other)
    # leaf 0 -> spine 0 -> leaf 1 -> spine 1 -> leaf 0: each waits for the next
    ring = [received(UP_0, 0.9), received(DOWN_1, 0.9), received(up_1b, 0.9), received(down_0b, 0.9)]
    (origin,) = traced(*ring, received(FAR, 0.9)).origins([FAR])
    assert origin.end is End.RING
    assert set(origin.ring) == {UP_0, DOWN_1, up_1b, down_0b}
    assert up_0b not in origin.ring


def test_pauses_of_another_priority_are_another_trace() -> None:
    (origin,) = traced(*STORM, received(NEAR, 0.5, priority=4)).origins([NEAR])
    assert (origin.component, origin.end) == (LEAF_1, End.CONGESTED)


def test_frames_are_used_where_nobody_counts_durations() -> None:
    facts = [counted(peer(SLOW), "rx_prio3_pause", 200_000), counted(NEAR, "rx_prio3_pause", 400_000)]
    (origin,) = traced(*facts).origins([NEAR])
    assert origin.component == SLOW


def test_two_origins_share_what_they_explain() -> None:
    second = POD.nics_of_host(HOSTS[50])[1]
    facts = (*STORM, sent(second, 0.2), received(peer(second), 0.2), received(NEAR, 0.5))
    origins = traced(*facts).origins([NEAR])
    part = shares(origins)
    assert [each.component for each in origins] == [SLOW, second]
    assert abs(part[SLOW] - 0.75) < 0.01


PORTS = [port for switch in (LEAF_0, LEAF_1, SPINE, "switch:spine-1") for port in POD.ports_of_switch(switch)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([*PORTS, NEAR, FAR, SLOW]), st.floats(0, 1)), max_size=60, unique_by=lambda t: t[0])
)
def test_whatever_is_paused_every_trace_ends_and_all_pauses_are_accounted_for(paused: list[tuple[str, float]]) -> None:
    pauses = traced(*[received(port, share) for port, share in paused])
    origins = pauses.origins([NEAR, FAR])
    begun = [pause.us for (port, _), pause in pauses.received.items() if port in (NEAR, FAR) and pause.share >= 0.01]
    assert abs(sum(each.us for each in origins) - sum(begun)) <= 1e-6 * max(1.0, sum(begun))


def test_without_measurements_there_is_nothing_to_trace() -> None:
    assert Pauses(Measurements(POD), POD, START).origins([NEAR]) == []
