"""SNMP's tables become the same facts as gNMI's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.domain import switch_snmp as snmp
from goodput_collector.domain.switch_facts import About, BootFact, CountersFact, PortFact
from goodput_collector.domain.switch_flaps import SETTLE_S
from goodput_collector.domain.switch_lldp import Neighbour
from goodput_collector.domain.switch_port import Stamp
from goodput_collector.domain.switch_ports import SwitchPorts
from goodput_common.contracts.telemetry import Event, EventName

NOW_NS = 1_772_352_000 * 10**9


def ports(*names: bytes) -> snmp.SnmpPorts:
    made = snmp.SnmpPorts()
    made.name({snmp.IF_NAME: {(number,): name for number, name in enumerate(names, start=1)}})
    return made


def table(**columns: dict[tuple[int, ...], Any]) -> dict[snmp.Oid, dict[tuple[int, ...], Any]]:
    return {getattr(snmp, name): rows for name, rows in columns.items()}


def test_a_port_is_read_by_its_name() -> None:
    counters = {column: {(1,): 7} for column in snmp.COUNTERS}
    rows = table(IF_OPER={(1,): 2}, IF_ADMIN={(1,): 1}, IF_LAST_CHANGE={(1,): 500}) | counters
    facts = list(ports(b"Ethernet0").facts(rows, uptime=1000, now_ns=NOW_NS))
    assert facts[:4] == [
        BootFact(NOW_NS - 10 * 10**9),
        PortFact("Ethernet0", About.ADMIN, "up"),
        PortFact("Ethernet0", About.LAST_CHANGE_NS, NOW_NS - 5 * 10**9),
        PortFact("Ethernet0", About.OPER, "down"),
    ]
    assert facts[4:] == [CountersFact("Ethernet0", dict.fromkeys(snmp.COUNTERS.values(), 7))]


def test_the_last_change_is_told_only_when_it_moved() -> None:
    made = ports(b"Ethernet0")
    rows = table(IF_LAST_CHANGE={(1,): 500})
    list(made.facts(rows, uptime=1000, now_ns=NOW_NS))
    wavering = [fact for fact in made.facts(rows, uptime=2003, now_ns=NOW_NS + 10 * 10**9) if isinstance(fact, PortFact)]
    assert wavering == []


@pytest.mark.parametrize(
    ("uptime", "changed"),
    [(300, 0), (300, 2), (300, 500), (1500, 0)],
    ids=["shorter uptime", "a change since", "none told anew", "long after"],
)
def test_an_agent_that_was_started_anew_is_no_flap(uptime: int, changed: int) -> None:
    switch, made = SwitchPorts("leaf-1"), ports(b"Ethernet0")

    def poll(uptime: int, changed: int, after_s: float) -> list[Event]:
        rows = table(IF_OPER={(1,): 1}, IF_LAST_CHANGE={(1,): changed})
        at = datetime.fromtimestamp(NOW_NS // 10**9, UTC) + timedelta(seconds=after_s)
        facts = made.facts(rows, uptime=uptime, now_ns=int(at.timestamp()) * 10**9)
        switch.take(facts, Stamp(0, at, at, after_s, "SNMP"))
        switch.tell(at, after_s)
        return [each for each in switch.tell(at, after_s + SETTLE_S) if isinstance(each, Event)]

    assert poll(1000, 500, 0.0) == []
    assert poll(uptime, changed, 60.0) == []
    assert poll(uptime + 1000, changed, 70.0) == []
    flaps = poll(uptime + 2000, uptime + 1500, 80.0)
    assert [each.name for each in flaps] == [EventName.LINK_DOWN, EventName.LINK_UP]


def test_interfaces_that_are_no_ports_are_left_out_and_new_ones_noticed() -> None:
    made = ports(b"Ethernet0", b"Vlan10", b"")
    assert made.named
    facts = list(made.facts(table(IF_OPER={(1,): 1, (2,): 1}), uptime=0, now_ns=NOW_NS))
    assert [each.port for each in facts if isinstance(each, PortFact)] == ["Ethernet0"]
    assert not ports(b"Ethernet0").unknown(table(IF_OPER={(1,): 1}))
    assert ports(b"Ethernet0").unknown(table(IF_OPER={(9,): 1}))


def test_a_name_is_the_description_where_there_is_no_other() -> None:
    made = snmp.SnmpPorts()
    made.name(table(IF_DESCR={(1,): b"Ethernet1/1", (2,): b"long words"}, IF_NAME={(2,): b"Eth1/2"}))
    facts = list(made.facts(table(IF_OPER={(1,): 1, (2,): 1}), uptime=0, now_ns=NOW_NS))
    assert [each.port for each in facts if isinstance(each, PortFact)] == ["Ethernet1/1", "Eth1/2"]


def test_neighbours_are_found_by_the_local_ports_number_or_name() -> None:
    rows = table(
        REM_CHASSIS_TYPE={(0, 1, 1): 4, (0, 77, 2): 7},
        REM_CHASSIS={(0, 1, 1): bytes.fromhex("0c42a100000b"), (0, 77, 2): b"spine"},
        REM_PORT_TYPE={(0, 1, 1): 5},
        REM_PORT={(0, 1, 1): b"eth2", (0, 77, 2): b"Ethernet9"},
        REM_SYSTEM={(0, 1, 1): b"h0\0"},
        REM_CAPABLE={(0, 1, 1): b"\x01\x00", (0, 77, 2): b"\x28"},
        LOC_PORT={(77,): b"Ethernet4"},
    )
    assert ports(b"Ethernet0", b"Ethernet4").neighbours(rows) == {
        ("Ethernet0", "1"): Neighbour(system="h0", chassis="0c:42:a1:00:00:0b", port="eth2", station="yes"),
        ("Ethernet4", "2"): Neighbour(chassis="spine", port="Ethernet9", bridging="yes"),
    }


COLUMNS = st.sampled_from([*snmp.NAMES, *snmp.PORTS, *snmp.NEIGHBOURS, *snmp.LOCAL_PORTS])
INDEX = st.lists(st.integers(0, 3), max_size=4).map(tuple)
TABLES = st.dictionaries(COLUMNS, st.dictionaries(INDEX, st.integers() | st.binary(max_size=8), max_size=4), max_size=8)


@given(TABLES, st.integers(), st.integers(0, 2**62))
def test_no_answer_breaks_the_reader(rows: Any, uptime: int, now_ns: int) -> None:
    made = ports(b"Ethernet0", b"Ethernet4")
    made.name(rows)
    assert isinstance(next(iter(made.facts(rows, uptime=uptime, now_ns=now_ns))), BootFact)
    made.neighbours(rows)
    made.unknown(rows)
