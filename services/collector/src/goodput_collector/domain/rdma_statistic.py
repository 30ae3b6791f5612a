"""`rdma statistic` and `rdma link` as text and as JSON (`-j`).

    link mlx5_0/1 rx_write_requests 0 rx_read_requests 0 out_of_buffer 17 ...

One line a port (with `-p` a line a counter). The names are those of sysfs's `hw_counters`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from goodput_collector.domain.pasted import Unread, number
from goodput_collector.domain.port_state_text import PortSaid, from_words
from goodput_collector.domain.rdma_counters import describe, is_reported

PORTS_MAX = 4096
_LINK = re.compile(r"^\s*link (?P<device>[\w.-]{1,64})/(?P<port>\d{1,3})(?P<rest>(?:\s.*)?)$")
_NAME = re.compile(r"^[A-Za-z]\w{0,95}$")
_OF_THE_LIST = frozenset({"ifindex", "ifname", "port", "flags"})


@dataclass(slots=True)
class PortStatistic:
    """Counters under mlx5's names."""

    device: str
    port: int
    counts: dict[str, int] = field(default_factory=dict)

    def take(self, name: str, value: int) -> None:
        if is_reported(name):
            self.counts[describe(name).name] = value


def parse_text(text: str) -> tuple[list[PortStatistic], Unread]:
    ports: list[PortStatistic] = []
    unread = Unread()
    for line in text.splitlines():
        match = _LINK.match(line)
        if match is not None and len(ports) < PORTS_MAX:
            ports.append(PortStatistic(match["device"], int(match["port"])))
        words = (match["rest"] if match is not None else line).split()
        if not ports or not _pairs(ports[-1], words):
            unread.note(line)
    return ports, unread


def _pairs(port: PortStatistic, words: list[str]) -> bool:
    """False where they are no pairs of a name and a number; what was understood up to there counts."""
    for name, told in zip(words[::2], words[1::2], strict=False):
        value = number(told)
        if _NAME.match(name) is None or value is None:
            return False
        port.take(name, value)
    return len(words) % 2 == 0


def parse_json(text: str) -> tuple[list[PortStatistic], list[PortSaid], Unread]:
    """`rdma -j statistic` and `rdma -j link` are lists of ports; which of the two each entry is shows in its fields."""
    unread = Unread()
    try:
        document = msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        unread.note(text)
        return [], [], unread
    counted: list[PortStatistic] = []
    said: list[PortSaid] = []
    for entry in document[:PORTS_MAX] if isinstance(document, list) else [document]:
        port = from_words(entry) if isinstance(entry, dict) else None
        if port is None:
            unread.note(str(entry))
        elif "state" in entry:
            said.append(port)
        else:
            counted.append(_counted(port, entry))
    return counted, said, unread


def _counted(port: PortSaid, entry: dict[str, Any]) -> PortStatistic:
    found = PortStatistic(port.device, port.port)
    for name, value in entry.items():
        if name not in _OF_THE_LIST and isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64:
            found.take(name, value)
    return found
