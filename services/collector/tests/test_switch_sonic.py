"""SONiC's rows become facts, in both spellings of the path, and nothing that it may say breaks the reader."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from switch_facts_fixtures import gone, notice

from goodput_collector.domain.gnmi_path import Elem
from goodput_collector.domain.gnmi_update import Notice
from goodput_collector.domain.switch_facts import (
    About,
    BootFact,
    CountersFact,
    NeighbourFact,
    NeighbourGone,
    PortFact,
    PortGone,
    WatchdogFact,
)
from goodput_collector.domain.switch_sonic import Sonic

ROW = {"SAI_PORT_STAT_PFC_3_RX_PKTS": "17", "SAI_PORT_STAT_IF_IN_ERRORS": "2", "SAI_PORT_STAT_IF_OUT_QLEN": "5"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/COUNTERS/Ethernet*", {"Ethernet0": ROW}),
        ("/COUNTERS/Ethernet0", ROW),
        ("/COUNTERS", {"Ethernet0": ROW}),
        ("/COUNTERS_DB/localhost/COUNTERS/Ethernet*", {"Ethernet0": ROW}),
        ("/COUNTERS_DB/COUNTERS/Ethernet0", {"Ethernet0": ROW}),
    ],
)
def test_a_ports_counters_are_read_whichever_way_they_are_asked_for(path: str, value: Any) -> None:
    assert list(Sonic().facts(notice(path, value))) == [CountersFact("Ethernet0", {"rx_prio3_pause": 17, "in_errors": 2})]


def test_one_field_by_itself_is_read() -> None:
    facts = list(Sonic().facts(notice("/COUNTERS/Ethernet4/SAI_PORT_STAT_PFC_4_TX_PKTS", "9")))
    assert facts == [CountersFact("Ethernet4", {"tx_prio4_pause": 9})]


def test_queue_counters_are_read_and_watermarks_are_not() -> None:
    rows = {
        "Ethernet0:3": {"SAI_QUEUE_STAT_DROPPED_PACKETS": "4", "SAI_QUEUE_STAT_PACKETS": "10", "PFC_WD_STATUS": "stormed"},
        "Ethernet0:3:periodic": {"SAI_QUEUE_STAT_DROPPED_PACKETS": "1"},
    }
    assert list(Sonic().facts(notice("/COUNTERS/Ethernet*/Queues", rows))) == [
        CountersFact("Ethernet0", {"out_queue3_dropped_packets": 4, "out_queue3_packets": 10})
    ]


def test_the_watchdog_is_read_from_its_own_rows_only() -> None:
    rows = {
        "Ethernet0:3": {
            "PFC_WD_STATUS": "stormed",
            "PFC_WD_QUEUE_STATS_DEADLOCK_DETECTED": "2",
            "PFC_WD_QUEUE_STATS_DEADLOCK_RESTORED": "1",
            "SAI_QUEUE_STAT_DROPPED_PACKETS": "3",  # read with the queues: read twice, it would seem to fall
        }
    }
    assert list(Sonic().facts(notice("/COUNTERS/Ethernet*/Pfcwd", rows))) == [
        WatchdogFact("Ethernet0", 3, stormed=True),
        CountersFact("Ethernet0", {"pfc_watchdog_prio3_stormed": 2, "pfc_watchdog_prio3_restored": 1}),
    ]


def test_a_row_of_the_port_table_tells_state_alias_and_flaps() -> None:
    row = {
        "oper_status": "down", "admin_status": "up", "alias": "etp1", "flap_count": "3",
        "last_down_time": "Sun Mar 01 08:00:05 2026", "last_up_time": "Sun Mar 01 08:00:01 2026",
    }  # fmt: skip
    facts = set(Sonic().facts(notice("/PORT_TABLE", {"PORT_TABLE:Ethernet0": row, "PortInitDone": {"lanes": "0"}})))
    assert facts == {
        PortFact("Ethernet0", About.ALIAS, "etp1"),
        PortFact("Ethernet0", About.ADMIN, "up"),
        PortFact("Ethernet0", About.OPER, "down"),
        PortFact("Ethernet0", About.TRANSITIONS, 3),
        PortFact("Ethernet0", About.LAST_CHANGE_NS, 1_772_352_005_000_000_000),
    }


def test_a_row_of_the_neighbours_replaces_what_was_said_before() -> None:
    row = {"lldp_rem_sys_name": "h0", "lldp_rem_port_id": "eth2", "lldp_rem_sys_cap_enabled": "01 00"}
    facts = list(Sonic().facts(notice("/LLDP_ENTRY_TABLE", {"Ethernet0": row, "eth0": row})))
    assert facts[0] == NeighbourGone("Ethernet0", "")
    assert set(facts[1:]) == {
        NeighbourFact("Ethernet0", "", "system", "h0"),
        NeighbourFact("Ethernet0", "", "port", "eth2"),
        NeighbourFact("Ethernet0", "", "station", "yes"),
    }


def test_rows_that_are_deleted_are_told_as_gone_in_either_way() -> None:
    sonic = Sonic()
    assert list(sonic.facts(gone("/PORT_TABLE/Ethernet0"))) == [PortGone("Ethernet0")]
    assert list(sonic.facts(gone("/LLDP_ENTRY_TABLE/LLDP_ENTRY_TABLE:Ethernet0"))) == [NeighbourGone("Ethernet0", "")]
    assert list(sonic.facts(notice("/PORT_TABLE", {"Ethernet4": None}))) == [PortGone("Ethernet4")]


@pytest.mark.parametrize("said", [{"btime": "2026-03-01T08:00:00Z"}, {"btime": 1_772_352_000}, {"boot_time": "1772352000"}])
def test_the_start_is_read_from_proc(said: dict[str, Any]) -> None:
    assert list(Sonic().facts(notice("/proc/stat", said))) == [BootFact(1_772_352_000_000_000_000)]


@pytest.mark.parametrize("name", ["Loopback0", "Vlan100", "PortChannel1", "eth0", "Ethernet0.10", "a--b", ""])
def test_interfaces_without_a_cable_are_no_ports(name: str) -> None:
    assert list(Sonic().facts(notice("/PORT_TABLE", {name: {"oper_status": "up"}}))) == []


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["Ethernet0", "Ethernet0:3", "oper_status", "last_up_time", "PFC_WD_STATUS", "flap_count", "btime"])
        | st.text(max_size=12),
        inner,
        max_size=4,
    ),
    max_leaves=25,
)  # fmt: skip
STEPS = st.sampled_from(
    ["COUNTERS", "PORT_TABLE", "LLDP_ENTRY_TABLE", "proc", "stat", "Ethernet*", "Ethernet0", "Pfcwd", "Queues", "APPL_DB"]
) | st.text(max_size=10)


@given(st.lists(STEPS, max_size=5), JSON, st.booleans())
def test_nothing_that_a_switch_may_say_breaks_the_reader(steps: list[str], value: Any, delete: bool) -> None:
    path = tuple(Elem(each) for each in steps)
    said = Notice(0, "", () if delete else ((path, value),), (path,) if delete else ())
    for fact in Sonic().facts(said):
        assert isinstance(fact, BootFact) or fact.port


@given(st.dictionaries(st.integers(0, 63).map("Ethernet{}".format), st.integers(0, 2**64 - 1), max_size=20))
def test_no_row_is_dropped(counts: dict[str, int]) -> None:
    rows = {port: {"SAI_PORT_STAT_IF_IN_ERRORS": str(count)} for port, count in counts.items()}
    told = {
        fact.port: fact.values["in_errors"]
        for fact in Sonic().facts(notice("/COUNTERS/Ethernet*", rows))
        if isinstance(fact, CountersFact)
    }
    assert told == counts
