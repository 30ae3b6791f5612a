"""What a switch says about its ports, whichever way it was asked: the common ground of SONiC, OpenConfig and SNMP.

A dialect turns what came over the wire into facts; what follows from them (a link went down, a storm began, a counter
rose by so much) is decided in one place for all of them (`switch_ports`, `switch_lldp`).
"""

from __future__ import annotations

import enum
import functools
import re
from typing import NamedTuple

# interfaces without a cable of their own, and the management port: nothing of the training network runs over them
NOT_PORTS = re.compile(
    r"(?i)(lo|loopback|vlan|null|tunnel|vxlan|irb|bvi|port-?channel|po|bond|ae|mgmt|management|ma|me|cpu|docker|bridge|br)"
    r"[-_/ ]?[\d./]*|(?-i:eth)\d+|fxp\d+|em\d+|.*\.\d+"
)
NAME_MAX = 128


class About(enum.Enum):
    """What of a port is told."""

    OPER = "oper"  # up | down | lowerlayerdown | notpresent | dormant | testing | unknown
    ADMIN = "admin"  # up | down
    LAST_CHANGE_NS = "last_change_ns"  # when `oper` last changed, by the switch's clock
    TRANSITIONS = "transitions"  # how often `oper` has changed, up and down both counted
    ALIAS = "alias"  # another name under which the switch also speaks of it


class PortFact(NamedTuple):
    port: str
    about: About
    value: str | int
    counter: str = ""  # which of several counters of the same thing told it


class CountersFact(NamedTuple):
    """Where counters of a port stand. Most of what a switch tells is this, so those of a port come together."""

    port: str
    values: dict[str, int]


class WatchdogFact(NamedTuple):
    """The PFC watchdog of one priority of a port: it cuts off a queue that has been paused for too long."""

    port: str
    priority: int
    stormed: bool


class NeighbourFact(NamedTuple):
    """One field of what LLDP says stands at the other end; `key` tells several neighbours of a port apart."""

    port: str
    key: str
    field: str  # of switch_lldp.Neighbour
    value: str


class NeighbourGone(NamedTuple):
    port: str
    key: str  # "" for all


class PortGone(NamedTuple):
    port: str


class BootFact(NamedTuple):
    """When the switch started, by its own clock."""

    at_ns: int


Fact = PortFact | CountersFact | WatchdogFact | NeighbourFact | NeighbourGone | PortGone | BootFact


def is_port(name: str, ignore: re.Pattern[str] = NOT_PORTS) -> bool:
    return 0 < len(name) <= NAME_MAX and name.isprintable() and "--" not in name and not ignore.fullmatch(name)


_OPER = {"lower_layer_down": "lowerlayerdown", "lower-layer-down": "lowerlayerdown", "not_present": "notpresent"}


def oper(word: str) -> str:
    """An operational state as the kernel spells it, so that a port and a NIC say the same."""
    return _OPER.get(word, word.replace("-", "").replace("_", ""))


@functools.lru_cache(256)
def pfc(direction: str, priority: int | str, what: str = "") -> str:
    """The name of a pause counter of one priority, as NIC drivers spell it: one name for one thing. `direction` is rx (this
    port was told to stop) or tx (it told its neighbour to stop)."""
    return f"{direction}_prio{priority}_pause{what}"


@functools.lru_cache(256)
def watchdog(priority: int | str, what: str) -> str:
    return f"pfc_watchdog_prio{priority}_{what}"


@functools.lru_cache(1024)
def queue(number: int | str, what: str) -> str:
    return f"out_queue{number}_{what}"
