"""SONiC: a switch that keeps what it knows in Redis, and shows its databases over gNMI.

    COUNTERS_DB   COUNTERS/Ethernet*           {"Ethernet0": {"SAI_PORT_STAT_PFC_3_RX_PKTS": "17", ...}, ...}
                  COUNTERS/Ethernet*/Queues    {"Ethernet0:3": {"SAI_QUEUE_STAT_DROPPED_PACKETS": "0", ...}, ...}
                  COUNTERS/Ethernet*/Pfcwd     {"Ethernet0:3": {"PFC_WD_STATUS": "operational", ...}, ...}
    APPL_DB       PORT_TABLE                   {"Ethernet0": {"oper_status": "up", "alias": "etp1", ...}, ...}
                  LLDP_ENTRY_TABLE             {"Ethernet0": {"lldp_rem_sys_name": "h0", "lldp_rem_port_id": "eth2", ...}}
    OTHERS        proc/stat                    {"btime": "2026-03-01T08:00:00Z", ...}

Every value is text, and whole rows come at each change. Older releases take the database as the prefix's target, newer
ones also as the first element under the origin `sonic-db`. A port is told under its name or under its alias, depending on
the release; the port table knows both.

The same queue counters stand in two rows that are read at different moments, so each is taken from one of them only:
else a counter would seem to fall, and a fall means a reset.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from goodput_collector.domain.gnmi_path import names
from goodput_collector.domain.gnmi_update import Notice, text, whole, word
from goodput_collector.domain.switch_facts import (
    NOT_PORTS,
    About,
    BootFact,
    CountersFact,
    Fact,
    NeighbourFact,
    NeighbourGone,
    PortFact,
    PortGone,
    WatchdogFact,
    is_port,
    oper,
    pfc,
    queue,
    watchdog,
)

DATABASES = frozenset({"COUNTERS_DB", "APPL_DB", "STATE_DB", "CONFIG_DB", "OTHERS"})
PRIORITIES = range(8)

PORT_COUNTERS: dict[str, str] = {
    "SAI_PORT_STAT_IF_IN_ERRORS": "in_errors",
    "SAI_PORT_STAT_IF_OUT_ERRORS": "out_errors",
    "SAI_PORT_STAT_IF_IN_DISCARDS": "in_discards",
    "SAI_PORT_STAT_IF_OUT_DISCARDS": "out_discards",
    "SAI_PORT_STAT_IF_IN_OCTETS": "in_octets",
    "SAI_PORT_STAT_IF_OUT_OCTETS": "out_octets",
    "SAI_PORT_STAT_IF_IN_FEC_CORRECTABLE_FRAMES": "in_fec_corrected_frames",
    "SAI_PORT_STAT_IF_IN_FEC_NOT_CORRECTABLE_FRAMES": "in_fec_uncorrected_frames",
    "SAI_PORT_STAT_IF_IN_FEC_SYMBOL_ERRORS": "in_fec_symbol_errors",
    "SAI_PORT_STAT_ETHER_STATS_CRC_ALIGN_ERRORS": "in_crc_errors",
    "SAI_PORT_STAT_ECN_MARKED_PACKETS": "out_ecn_marked_packets",
    "SAI_PORT_STAT_PAUSE_RX_PKTS": "rx_pause",
    "SAI_PORT_STAT_PAUSE_TX_PKTS": "tx_pause",
}
for _n in PRIORITIES:
    PORT_COUNTERS |= {
        f"SAI_PORT_STAT_PFC_{_n}_RX_PKTS": pfc("rx", _n),
        f"SAI_PORT_STAT_PFC_{_n}_TX_PKTS": pfc("tx", _n),
        f"SAI_PORT_STAT_PFC_{_n}_RX_PAUSE_DURATION_US": pfc("rx", _n, "_duration"),
        f"SAI_PORT_STAT_PFC_{_n}_TX_PAUSE_DURATION_US": pfc("tx", _n, "_duration"),
        f"SAI_PORT_STAT_PFC_{_n}_ON2OFF_RX_PKTS": pfc("rx", _n, "_transition"),
    }
QUEUE_COUNTERS = {
    "SAI_QUEUE_STAT_PACKETS": "packets",
    "SAI_QUEUE_STAT_DROPPED_PACKETS": "dropped_packets",
    "SAI_QUEUE_STAT_WRED_ECN_MARKED_PACKETS": "ecn_marked_packets",
}
WATCHDOG_COUNTERS = {
    "PFC_WD_QUEUE_STATS_DEADLOCK_DETECTED": "stormed",
    "PFC_WD_QUEUE_STATS_DEADLOCK_RESTORED": "restored",
    "PFC_WD_QUEUE_STATS_TX_DROPPED_PACKETS": "tx_dropped_packets",
    "PFC_WD_QUEUE_STATS_RX_DROPPED_PACKETS": "rx_dropped_packets",
}
NEIGHBOUR_FIELDS = {
    "lldp_rem_sys_name": "system",
    "lldp_rem_chassis_id": "chassis",
    "lldp_rem_port_id": "port",
    "lldp_rem_port_desc": "port_descr",
    "lldp_rem_man_addr": "address",
}
_Row = Mapping[str, Any]


class Sonic:
    """See `gnmi_streams.Dialect`."""

    def __init__(self, ignore: re.Pattern[str] = NOT_PORTS) -> None:
        self._ignore = ignore

    def facts(self, notice: Notice) -> Iterator[Fact]:
        for path, value in notice.updates:
            steps = _inside(names(path))
            if steps:
                yield from self._table(steps[0], steps[1:], value)
        for path in notice.deletes:
            steps = _inside(names(path))
            if len(steps) == 2:
                yield from self._gone(steps[0], _key(steps[1]))

    def _table(self, table: str, steps: tuple[str, ...], value: Any) -> Iterator[Fact]:
        if table == "proc":
            yield from _boot(value)
            return
        read = {
            "COUNTERS": self._watchdog if steps[1:] == ("Pfcwd",) else self._counters,
            "PORT_TABLE": self._port,
            "LLDP_ENTRY_TABLE": self._neighbour,
        }.get(table)
        if read is None:
            return
        for key, row in _rows(steps, value):
            if row is None:
                yield from self._gone(table, key)
            else:
                yield from read(key, row)

    def _gone(self, table: str, key: str) -> Iterator[Fact]:
        if not is_port(key, self._ignore):
            return
        if table == "PORT_TABLE":
            yield PortGone(key)
        elif table == "LLDP_ENTRY_TABLE":
            yield NeighbourGone(key, "")

    def _counters(self, key: str, row: _Row) -> Iterator[Fact]:
        port, _, number = key.partition(":")
        if not is_port(port, self._ignore) or (number and not number.isdigit()):
            return
        values: dict[str, int] = {}
        known = QUEUE_COUNTERS if number else PORT_COUNTERS
        for field, value in row.items():
            name = known.get(field)
            if name is not None and (count := whole(value)) is not None:
                values[queue(number, name) if number else name] = count
        if values:
            yield CountersFact(port, values)

    def _watchdog(self, key: str, row: _Row) -> Iterator[Fact]:
        port, _, number = key.partition(":")
        if not is_port(port, self._ignore) or not number.isdigit():
            return
        status = word(row.get("PFC_WD_STATUS"))
        if status in ("operational", "stormed"):
            yield WatchdogFact(port, int(number), status == "stormed")
        counts = {watchdog(number, name): whole(row.get(field)) for field, name in WATCHDOG_COUNTERS.items()}
        if values := {name: count for name, count in counts.items() if count is not None}:
            yield CountersFact(port, values)

    def _port(self, key: str, row: _Row) -> Iterator[Fact]:
        if not is_port(key, self._ignore):
            return
        if alias := text(row.get("alias")):
            yield PortFact(key, About.ALIAS, alias)
        for field, about in (("admin_status", About.ADMIN), ("oper_status", About.OPER)):
            if state := oper(word(row.get(field))):
                yield PortFact(key, about, state)
        if (count := whole(row.get("flap_count"))) is not None:
            yield PortFact(key, About.TRANSITIONS, count)
        changes = [at for field in ("last_up_time", "last_down_time") if (at := _time_ns(text(row.get(field))))]
        if changes:
            yield PortFact(key, About.LAST_CHANGE_NS, max(changes))

    def _neighbour(self, key: str, row: _Row) -> Iterator[Fact]:
        if not is_port(key, self._ignore):
            return
        found = [NeighbourFact(key, "", name, text(row[field])) for field, name in NEIGHBOUR_FIELDS.items() if field in row]
        found += [NeighbourFact(key, "", name, "yes") for name in _capable(text(row.get("lldp_rem_sys_cap_enabled")))]
        if found:
            yield NeighbourGone(key, "")  # a row is the whole of what is known: what it lacks is no more
            yield from found


def _capable(octets: str) -> list[str]:
    """What a neighbour can do, from the first octet of what it has switched on (`28 00`: bridge and router)."""
    try:
        bits = int(octets[:2], 16)
    except ValueError:
        return []
    return (["bridging"] if bits & 0x28 else []) + (["station"] if bits & 0x01 else [])


def _inside(steps: tuple[str, ...]) -> tuple[str, ...]:
    """The path within its database."""
    if steps and steps[0] in DATABASES:
        steps = steps[1:]
        if steps and (steps[0] == "localhost" or steps[0].startswith("asic")):
            steps = steps[1:]
    return steps


def _key(key: str) -> str:
    """A row's key without its table, where Redis's own spelling (`PORT_TABLE:Ethernet0`) is used."""
    table, separator, rest = key.partition(":")
    return rest if separator and table.isupper() else key


def _rows(steps: tuple[str, ...], value: Any) -> Iterator[tuple[str, _Row | None]]:
    """The rows that a value holds: of a table, of a pattern, of one key, or one field of one key. None is a row that is
    gone."""
    pattern = not steps or "*" in steps[0] or steps[-1] in ("Queues", "Pfcwd")
    if pattern or (isinstance(value, Mapping) and value and all(isinstance(each, Mapping) for each in value.values())):
        if isinstance(value, Mapping):
            for key, row in value.items():
                if row is None or isinstance(row, Mapping):
                    yield _key(str(key)), row
    elif len(steps) == 1 and (value is None or isinstance(value, Mapping)):
        yield _key(steps[0]), value
    elif len(steps) == 2:
        yield _key(steps[0]), value if isinstance(value, Mapping) else {steps[1]: value}


def _boot(value: Any) -> Iterator[Fact]:
    if isinstance(value, Mapping):
        at = value.get("btime", value.get("boot_time"))
        seconds = whole(at)
        if seconds:
            yield BootFact(seconds * 1_000_000_000)
        elif isinstance(at, str) and (at_ns := _time_ns(at)):
            yield BootFact(at_ns)


def _time_ns(words: str) -> int:
    """`Wed Feb 01 21:30:53 2023` (UTC) or ISO 8601; 0 where it is neither."""
    if not words:
        return 0
    try:
        at = datetime.strptime(words, "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC)
    except ValueError:
        try:
            at = datetime.fromisoformat(words)
        except ValueError:
            return 0
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    try:
        return int(at.timestamp()) * 1_000_000_000
    except (OverflowError, ValueError):
        return 0
