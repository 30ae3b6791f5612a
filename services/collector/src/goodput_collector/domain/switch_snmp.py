"""A switch's ports as SNMP tells them, for switches that have nothing better.

    IF-MIB      ifName, ifOperStatus, ifAdminStatus, ifLastChange, errors and discards (32 bits), octets (64 bits)
    SNMPv2-MIB  sysUpTime: another start means counters from zero
    LLDP-MIB    lldpRemTable, by the local port's number, which lldpLocPortTable names

SNMP is asked, it does not tell: what happens between two polls shows only in `ifLastChange`, in hundredths of a second since
the start. That is the agent's start: when it alone is started anew, `ifLastChange` begins at 0 and says nothing about the
port until it moves again. There are no pauses per priority here, and no watchdog.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from goodput_collector.domain.rdma_counters import Width
from goodput_collector.domain.switch_facts import NOT_PORTS, About, BootFact, CountersFact, Fact, PortFact, is_port
from goodput_collector.domain.switch_lldp import Neighbour

Oid = tuple[int, ...]
Value = int | bytes
Table = Mapping[Oid, Mapping[Oid, Value]]
"""By column, then by the row's index."""

UPTIME: Oid = (1, 3, 6, 1, 2, 1, 1, 3, 0)
_IF = (1, 3, 6, 1, 2, 1, 2, 2, 1)
_IFX = (1, 3, 6, 1, 2, 1, 31, 1, 1, 1)
IF_DESCR: Oid = (*_IF, 2)
IF_ADMIN: Oid = (*_IF, 7)
IF_OPER: Oid = (*_IF, 8)
IF_LAST_CHANGE: Oid = (*_IF, 9)
IF_NAME: Oid = (*_IFX, 1)
COUNTERS: dict[Oid, str] = {
    (*_IF, 13): "in_discards",
    (*_IF, 14): "in_errors",
    (*_IF, 19): "out_discards",
    (*_IF, 20): "out_errors",
    (*_IFX, 6): "in_octets",
    (*_IFX, 10): "out_octets",
}
WIDTHS = dict.fromkeys(("in_discards", "in_errors", "out_discards", "out_errors"), Width.WRAPS_32)
NAMES: tuple[Oid, ...] = (IF_NAME, IF_DESCR)
PORTS: tuple[Oid, ...] = (IF_ADMIN, IF_OPER, IF_LAST_CHANGE, *COUNTERS)
_LLDP = (1, 0, 8802, 1, 1, 2, 1)
_REM = (*_LLDP, 4, 1, 1)
REM_CHASSIS_TYPE, REM_CHASSIS, REM_PORT_TYPE, REM_PORT, REM_PORT_DESCR, REM_SYSTEM = ((*_REM, n) for n in range(4, 10))
REM_CAPABLE: Oid = (*_REM, 12)
LOC_PORT: Oid = (*_LLDP, 3, 7, 1, 3)
LOC_PORT_DESCR: Oid = (*_LLDP, 3, 7, 1, 4)
NEIGHBOURS: tuple[Oid, ...] = (
    REM_CHASSIS_TYPE,
    REM_CHASSIS,
    REM_PORT_TYPE,
    REM_PORT,
    REM_PORT_DESCR,
    REM_SYSTEM,
    REM_CAPABLE,
)
LOCAL_PORTS: tuple[Oid, ...] = (LOC_PORT, LOC_PORT_DESCR)

_OPER = {1: "up", 2: "down", 3: "testing", 4: "unknown", 5: "dormant", 6: "notpresent", 7: "lowerlayerdown"}
_ADMIN = {1: "up", 2: "down", 3: "testing"}
_MAC_CHASSIS, _MAC_PORT = 4, 3
_HUNDREDTH_NS = 10_000_000
_WAVERS_NS = 10_000_000_000  # the start, worked out anew with each poll


class SnmpPorts:
    """Remembers the ports' names and when each last changed: worked out anew, that time would waver with each poll."""

    def __init__(self, ignore: re.Pattern[str] = NOT_PORTS) -> None:
        self._ignore = ignore
        self._names: dict[int, str] = {}
        self._changed: dict[str, int] = {}
        self._uptime = 0
        self._boot_ns = 0

    def name(self, table: Table) -> None:
        names = {index[0]: words(value) for index, value in table.get(IF_DESCR, {}).items() if len(index) == 1}
        names |= {i[0]: words(value) for i, value in table.get(IF_NAME, {}).items() if len(i) == 1 and words(value)}
        self._names = {number: name for number, name in names.items() if is_port(name, self._ignore)}

    @property
    def named(self) -> bool:
        return bool(self._names)

    def unknown(self, table: Table) -> bool:
        """Whether there are rows that had no name when names were asked for: ports were added."""
        return any(index[0] not in self._names for index in table.get(IF_OPER, {}) if len(index) == 1)

    def facts(self, table: Table, *, uptime: int, now_ns: int) -> Iterator[Fact]:
        """`uptime` in hundredths of a second; 0: not told. A last change of 0 says that it is not known any more."""
        boot_ns = now_ns - uptime * _HUNDREDTH_NS
        restarted = self._restarted(uptime, boot_ns)
        yield BootFact(boot_ns)
        for number, name in self._names.items():
            index = (number,)
            if (admin := _ADMIN.get(_number(table, IF_ADMIN, index))) is not None:
                yield PortFact(name, About.ADMIN, admin)
            changed = _number(table, IF_LAST_CHANGE, index)
            if changed >= 0:
                before = self._changed.get(name)
                self._changed[name] = changed
                if before is not None and (restarted or changed < before):
                    yield PortFact(name, About.LAST_CHANGE_NS, 0)
                elif before != changed:
                    yield PortFact(name, About.LAST_CHANGE_NS, max(1, boot_ns + changed * _HUNDREDTH_NS))
            if (state := _OPER.get(_number(table, IF_OPER, index))) is not None:
                yield PortFact(name, About.OPER, state)
            counts = {counter: _number(table, column, index) for column, counter in COUNTERS.items()}
            yield CountersFact(name, {counter: count for counter, count in counts.items() if count >= 0})

    def _restarted(self, uptime: int, boot_ns: int) -> bool:
        if not uptime:
            return False
        restarted = uptime < self._uptime or (self._uptime > 0 and boot_ns > self._boot_ns + _WAVERS_NS)
        self._uptime, self._boot_ns = uptime, boot_ns
        return restarted

    def neighbours(self, table: Table) -> dict[tuple[str, str], Neighbour]:
        """By port and by the neighbour's number, as `switch_lldp` keeps them."""
        ports = self._local(table)
        found: dict[tuple[str, str], Neighbour] = {}
        for index, chassis in table.get(REM_CHASSIS, {}).items():
            if len(index) != 3 or (port := ports.get(index[1])) is None:  # when heard, local port, number
                continue
            chassis_type, port_type = _number(table, REM_CHASSIS_TYPE, index), _number(table, REM_PORT_TYPE, index)
            enabled = table.get(REM_CAPABLE, {}).get(index, b"")
            capable = enabled[0] if isinstance(enabled, bytes) and enabled else 0
            found[port, str(index[2])] = Neighbour(
                system=words(table.get(REM_SYSTEM, {}).get(index, b"")),
                chassis=_identity(chassis, hardware=chassis_type == _MAC_CHASSIS),
                port=_identity(table.get(REM_PORT, {}).get(index, b""), hardware=port_type == _MAC_PORT),
                port_descr=words(table.get(REM_PORT_DESCR, {}).get(index, b"")),
                bridging="yes" if capable & 0x28 else "",
                station="yes" if capable & 0x01 else "",
            )
        return found

    def _local(self, table: Table) -> dict[int, str]:
        """LLDP's numbers of ports: named by its own table, else the interfaces' numbers."""
        own = set(self._names.values())
        ports = dict(self._names)
        for column in (LOC_PORT_DESCR, LOC_PORT):
            for index, value in table.get(column, {}).items():
                if len(index) == 1 and words(value) in own:
                    ports[index[0]] = words(value)
        return ports


def _number(table: Table, column: Oid, index: Oid) -> int:
    value = table.get(column, {}).get(index, -1)
    return value if isinstance(value, int) else -1


def words(value: Value) -> str:
    """An octet string as text; "" where it is none."""
    if isinstance(value, int):
        return str(value)
    text = value.rstrip(b"\0").decode("utf-8", "replace").strip()[:200]
    return text if text.isprintable() else ""


def _identity(value: Value, *, hardware: bool) -> str:
    if isinstance(value, bytes) and hardware and len(value) == 6:
        return ":".join(f"{octet:02x}" for octet in value)
    return words(value)
