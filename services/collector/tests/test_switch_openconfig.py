"""OpenConfig's leaves become facts, leaf by leaf or as a branch of JSON."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from switch_facts_fixtures import gone, notice

from goodput_collector.domain.gnmi_path import elem
from goodput_collector.domain.gnmi_update import Notice
from goodput_collector.domain.switch_facts import (
    About,
    BootFact,
    CountersFact,
    Fact,
    NeighbourFact,
    NeighbourGone,
    PortFact,
    PortGone,
)
from goodput_collector.domain.switch_openconfig import OpenConfig

PORT = "/interfaces/interface[name=Ethernet1/1]"
LLDP = "/lldp/interfaces/interface[name=Ethernet1/1]/neighbors/neighbor[id=7]"
QOS = "/qos/interfaces/interface[interface-id=Ethernet1/1]"


@pytest.mark.parametrize(
    ("path", "value", "fact"),
    [
        (f"{PORT}/state/oper-status", "UP", PortFact("Ethernet1/1", About.OPER, "up")),
        (f"{PORT}/state/oper-status", "LOWER_LAYER_DOWN", PortFact("Ethernet1/1", About.OPER, "lowerlayerdown")),
        (f"{PORT}/state/admin-status", "DOWN", PortFact("Ethernet1/1", About.ADMIN, "down")),
        (f"{PORT}/state/last-change", "1700000000000000000", PortFact("Ethernet1/1", About.LAST_CHANGE_NS, 17 * 10**17)),
        (
            f"{PORT}/state/counters/carrier-transitions", 4,
            PortFact("Ethernet1/1", About.TRANSITIONS, 4, "carrier-transitions"),
        ),
        (f"{PORT}/state/counters/in-errors", 9, CountersFact("Ethernet1/1", {"in_errors": 9})),
        (f"{PORT}/ethernet/state/counters/in-mac-pause-frames", 9, CountersFact("Ethernet1/1", {"rx_pause": 9})),
        (f"{PORT}/ethernet/state/counters/in-pfc3-packets", 9, CountersFact("Ethernet1/1", {"rx_prio3_pause": 9})),
        (f"{PORT}/ethernet/state/counters/out-pfc-4-packets", 9, CountersFact("Ethernet1/1", {"tx_prio4_pause": 9})),
        (
            f"{QOS}/output/queues/queue[name=UC3]/state/dropped-pkts", 5,
            CountersFact("Ethernet1/1", {"out_queue3_dropped_packets": 5}),
        ),
        (
            f"{QOS}/pfc/pfc-priorities/pfc-priority[dot1p=3]/state/statistics/pause-frames-tx", 6,
            CountersFact("Ethernet1/1", {"tx_prio3_pause": 6}),
        ),
        (f"{LLDP}/state/system-name", "h0", NeighbourFact("Ethernet1/1", "7", "system", "h0")),
        (
            f"{LLDP}/capabilities/capability[name=openconfig-lldp-types:STATION_ONLY]/state/enabled", True,
            NeighbourFact("Ethernet1/1", "7", "station", "yes"),
        ),
        ("/openconfig-system:system/state/boot-time", 123, BootFact(123)),
    ],
)  # fmt: skip
def test_a_leaf_is_the_fact_that_it_tells(path: str, value: Any, fact: Fact) -> None:
    openconfig = OpenConfig()
    assert list(openconfig.facts(notice(path, value))) == [fact]
    assert list(openconfig.facts(notice(path, value))) == [fact]  # what a path means is remembered


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{PORT}/state/oper-status", 7.5j),
        (f"{PORT}/state/mtu", 9000),
        (f"{PORT}/state/counters/in-errors", "many"),
        (f"{PORT}/state/counters/in-errors", -3),
        ("/interfaces/interface[name=Loopback0]/state/oper-status", "UP"),
        (f"{QOS}/output/queues/queue[name=default]/state/dropped-pkts", 5),
        ("/system/state/hostname", "leaf"),
    ],
)
def test_what_tells_nothing_of_a_port_is_no_fact(path: str, value: Any) -> None:
    assert list(OpenConfig().facts(notice(path, value))) == []


def test_a_branch_of_json_tells_as_much_as_its_leaves() -> None:
    branch = {
        "openconfig-interfaces:interface": [
            {"name": "Ethernet1", "state": {"oper-status": "DOWN", "counters": {"in-errors": "3", "in-octets": "100"}}},
            {"name": "Management1", "state": {"oper-status": "UP"}},
        ]
    }
    assert list(OpenConfig().facts(notice("/interfaces", branch))) == [
        PortFact("Ethernet1", About.OPER, "down"),
        CountersFact("Ethernet1", {"in_errors": 3, "in_octets": 100}),
    ]


def test_deletes_tell_what_is_gone() -> None:
    openconfig = OpenConfig()
    assert list(openconfig.facts(gone(PORT))) == [PortGone("Ethernet1/1")]
    assert list(openconfig.facts(gone(f"{PORT}/state/oper-status"))) == [PortFact("Ethernet1/1", About.OPER, "unknown")]
    assert list(openconfig.facts(gone(LLDP))) == [NeighbourGone("Ethernet1/1", "7")]
    assert list(openconfig.facts(gone("/lldp/interfaces/interface[name=Ethernet1/1]"))) == [NeighbourGone("Ethernet1/1", "")]


def test_a_notifications_deletes_come_before_its_updates() -> None:
    both = Notice(0, "", notice(f"{LLDP}/state/system-name", "h1").updates, gone(LLDP).deletes)
    assert list(OpenConfig().facts(both)) == [
        NeighbourGone("Ethernet1/1", "7"),
        NeighbourFact("Ethernet1/1", "7", "system", "h1"),
    ]


NAMES = st.sampled_from(
    (
        *(
            "interfaces",
            "interface",
            "state",
            "counters",
            "qos",
            "lldp",
            "neighbors",
            "neighbor",
            "output",
            "queues",
            "queue",
        ),
        *("pfc", "pfc-priorities", "pfc-priority", "oper-status", "last-change", "in-errors", "system-name", "enabled"),
    )
)
PATHS = st.lists(st.builds(elem, NAMES, st.dictionaries(st.text(max_size=4), st.text(max_size=8), max_size=1)), max_size=9)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=15,
)


@given(PATHS, VALUES, st.booleans())
def test_nothing_that_a_switch_may_say_breaks_the_reader(path: Any, value: Any, delete: bool) -> None:
    said = Notice(0, "", () if delete else ((tuple(path), value),), (tuple(path),) if delete else ())
    for fact in OpenConfig().facts(said):
        assert isinstance(fact, BootFact) or fact.port
