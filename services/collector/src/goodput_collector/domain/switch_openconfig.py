"""OpenConfig: the vendor-neutral models that most switches show over gNMI.

    /interfaces/interface[name=]/state/{oper-status,admin-status,last-change}
    /interfaces/interface[name=]/state/counters/{in-errors,out-discards,carrier-transitions,...}
    /interfaces/interface[name=]/ethernet/state/counters/{in-crc-errors,in-mac-pause-frames,in-pfc3-packets,...}
    /qos/interfaces/interface[interface-id=]/output/queues/queue[name=]/state/{transmit-pkts,dropped-pkts}
    /qos/interfaces/interface[interface-id=]/pfc/pfc-priorities/pfc-priority[dot1p=]/state/statistics/pause-frames-{rx,tx}
    /lldp/interfaces/interface[name=]/neighbors/neighbor[id=]/state/{system-name,chassis-id,port-id,...}
    /lldp/interfaces/interface[name=]/neighbors/neighbor[id=]/capabilities/capability[name=]/state/enabled
    /system/state/boot-time

Pause frames per priority are in no common model; two spellings that vendors add are known. A path means the same each
time it comes, and the same few thousand come every ten seconds: what each means is remembered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from goodput_collector.domain.gnmi_path import Path
from goodput_collector.domain.gnmi_update import Notice, bare, leaves, text, whole, word
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
    is_port,
    oper,
    pfc,
    queue,
)

MEANINGS_MAX = 200_000
PORT_COUNTERS = {
    "in-errors": "in_errors",
    "out-errors": "out_errors",
    "in-discards": "in_discards",
    "out-discards": "out_discards",
    "in-octets": "in_octets",
    "out-octets": "out_octets",
    "in-fcs-errors": "in_crc_errors",
}
ETHERNET_COUNTERS = {"in-mac-pause-frames": "rx_pause", "out-mac-pause-frames": "tx_pause"}
QUEUE_COUNTERS = {
    "transmit-pkts": "packets",
    "dropped-pkts": "dropped_packets",
    "ecn-marked-pkts": "ecn_marked_packets",
}
PAUSE_COUNTERS = {"pause-frames-rx": "rx", "pause-frames-tx": "tx"}
NEIGHBOUR_FIELDS = {
    "system-name": "system",
    "chassis-id": "chassis",
    "port-id": "port",
    "port-description": "port_descr",
    "management-address": "address",
}
CAPABILITIES = {"MAC_BRIDGE": "bridging", "ROUTER": "bridging", "STATION_ONLY": "station"}
_PFC = re.compile(r"(in|out)-pfc-?([0-7])-(?:packets|pkts|frames)")
_NUMBER = re.compile(r"(\d+)$")


class _Means(NamedTuple):
    kind: str  # oper | admin | change | transitions | counter | neighbour | capability | boot
    port: str = ""
    name: str = ""
    key: str = ""


class OpenConfig:
    """See `gnmi_streams.Dialect`."""

    def __init__(self, ignore: re.Pattern[str] = NOT_PORTS) -> None:
        self._ignore = ignore
        self._known: dict[Path, _Means | None] = {}

    def facts(self, notice: Notice) -> Iterator[Fact]:
        for path in notice.deletes:  # gNMI: a notification's deletes come before its updates
            yield from self._gone(path)
        facts: list[Fact] = []
        counters: dict[str, dict[str, int]] = {}
        for path, value in notice.updates:
            if isinstance(value, dict | list):
                for leaf, inner in leaves(path, value):
                    self._leaf(leaf, inner, facts, counters)
            else:
                self._leaf(path, value, facts, counters)
        yield from facts
        for port, values in counters.items():
            yield CountersFact(port, values)

    def _leaf(self, path: Path, value: Any, facts: list[Fact], counters: dict[str, dict[str, int]]) -> None:
        try:
            means = self._known[path]
        except KeyError:
            means = self._means(path)
            if len(self._known) < MEANINGS_MAX:
                self._known[path] = means
        if means is None:
            return
        if means.kind != "counter":
            facts.extend(_told(means, value))
        elif (count := whole(value)) is not None:
            values = counters.get(means.port)
            if values is None:
                values = counters[means.port] = {}
            values[means.name] = count

    def _means(self, path: Path) -> _Means | None:
        steps = [bare(each.name) for each in path]
        if steps[:2] == ["interfaces", "interface"]:
            return self._interface(path, steps)
        if steps[:3] == ["qos", "interfaces", "interface"]:
            return self._qos(path, steps)
        if steps[:3] == ["lldp", "interfaces", "interface"] and len(steps) == 7 and steps[5] == "state":
            name = NEIGHBOUR_FIELDS.get(steps[6])
            port = path[2].only_key()
            known = name is not None and is_port(port, self._ignore)
            return _Means("neighbour", port, name or "", path[4].only_key()) if known else None
        if steps[4:] == ["neighbor", "capabilities", "capability", "state", "enabled"] and steps[0] == "lldp":
            name = CAPABILITIES.get(bare(path[6].only_key()).upper())
            port = path[2].only_key()
            known = name is not None and is_port(port, self._ignore)
            return _Means("capability", port, name or "", path[4].only_key()) if known else None
        return _Means("boot") if steps == ["system", "state", "boot-time"] else None

    def _interface(self, path: Path, steps: list[str]) -> _Means | None:
        port = path[1].only_key()
        if not is_port(port, self._ignore):
            return None
        if len(steps) == 4 and steps[2] == "state":
            kind = {"oper-status": "oper", "admin-status": "admin", "last-change": "change"}.get(steps[3])
            return _Means(kind, port) if kind else None
        if steps[2:4] == ["state", "counters"] and len(steps) == 5:
            if steps[4] in ("carrier-transitions", "interface-transitions"):
                return _Means("transitions", port, steps[4])
            return _counter(port, PORT_COUNTERS.get(steps[4]))
        if steps[2:5] == ["ethernet", "state", "counters"] and len(steps) == 6:
            if match := _PFC.fullmatch(steps[5]):
                return _counter(port, pfc("rx" if match[1] == "in" else "tx", match[2]))
            return _counter(port, ETHERNET_COUNTERS.get(steps[5]))
        return None

    def _qos(self, path: Path, steps: list[str]) -> _Means | None:
        port = path[2].only_key()
        if not is_port(port, self._ignore):
            return None
        if steps[3:6] == ["output", "queues", "queue"] and len(steps) == 8 and steps[6] == "state":
            number = _NUMBER.search(path[5].only_key())
            name = QUEUE_COUNTERS.get(steps[7])
            return _counter(port, queue(number[1], name)) if name and number else None
        if steps[3:6] == ["pfc", "pfc-priorities", "pfc-priority"] and steps[-1] in PAUSE_COUNTERS:
            priority = path[5].only_key()
            return _counter(port, pfc(PAUSE_COUNTERS[steps[-1]], priority)) if priority.isdigit() else None
        return None

    def _gone(self, path: Path) -> Iterator[Fact]:
        steps = [bare(each.name) for each in path]
        if steps[:2] == ["interfaces", "interface"] and len(steps) <= 3:
            if is_port(port := path[1].only_key(), self._ignore):
                yield PortGone(port)
        elif steps[:3] == ["lldp", "interfaces", "interface"] and len(steps) <= 6:
            if is_port(port := path[2].only_key(), self._ignore):
                yield NeighbourGone(port, path[4].only_key() if len(steps) >= 5 else "")
        elif (means := self._means(path)) is not None and means.kind == "oper":
            yield PortFact(means.port, About.OPER, "unknown")


def _counter(port: str, name: str | None) -> _Means | None:
    return _Means("counter", port, name) if name else None


def _told(means: _Means, value: Any) -> Iterator[Fact]:
    kind = means.kind
    if kind in ("oper", "admin"):
        if state := oper(word(value)):
            yield PortFact(means.port, About.OPER if kind == "oper" else About.ADMIN, state)
    elif kind in ("change", "transitions"):
        if (count := whole(value)) is not None:
            about = About.LAST_CHANGE_NS if kind == "change" else About.TRANSITIONS
            yield PortFact(means.port, about, count, means.name)
    elif kind == "neighbour":
        yield NeighbourFact(means.port, means.key, means.name, text(value))
    elif kind == "capability":
        if value is True:
            yield NeighbourFact(means.port, means.key, means.name, "yes")
    elif (count := whole(value)) is not None:
        yield BootFact(count)
