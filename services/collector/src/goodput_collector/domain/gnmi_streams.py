"""What is asked of a switch over gNMI, in which way, and what is tried when it refuses.

States are wanted at once (ON_CHANGE), counters at intervals (SAMPLE). Not every switch can do either: some take no
ON_CHANGE, some no subscription at all, some lack a whole branch of the models. So what is wanted is cut into streams that
can fail by themselves, and each has a ladder of ways, best first: on change, sampled, fetched (Get) again and again. What
is refused on the last rung is told as trouble; the other streams go on.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from goodput_collector.domain.gnmi_path import Path, parse_path
from goodput_collector.domain.gnmi_update import Notice
from goodput_collector.domain.switch_facts import NOT_PORTS, Fact
from goodput_collector.domain.switch_openconfig import OpenConfig
from goodput_collector.domain.switch_sonic import Sonic

HEARTBEAT_S = 60.0  # a value that does not change is told this often all the same
WATCHDOG_S = 5.0
SLOW_S = 60.0


class Way(enum.Enum):
    """How a stream's values are got."""

    ON_CHANGE = "on change"
    SAMPLE = "sampled"
    GET = "fetched"


class Kind(enum.StrEnum):
    """Which data a switch has."""

    AUTO = "auto"
    SONIC = "sonic"
    OPENCONFIG = "openconfig"
    SNMP = "snmp"


class Dialect(Protocol):
    """Turns notifications into facts. It remembers what paths mean and nothing of any switch: all share one."""

    def facts(self, notice: Notice) -> Iterable[Fact]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What one subscription asks for. `urgent`: a change is worth waking up for. Without a `required` one there is nothing
    to tell about the switch's ports at all."""

    name: str
    paths: tuple[str, ...]
    ways: tuple[Way, ...]
    every_s: float
    database: str = ""  # SONiC
    urgent: bool = False
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One rung: a stream asked for in one way and one spelling."""

    stream: Stream
    way: Way
    origin: str = ""
    target: str = ""
    paths: tuple[Path, ...] = ()
    heartbeat_s: float = 0.0


_STATES = (Way.ON_CHANGE, Way.SAMPLE, Way.GET)
_COUNTERS = (Way.SAMPLE, Way.GET)


def streams(kind: Kind, *, sample_s: float) -> tuple[Stream, ...]:
    if kind is Kind.SONIC:
        watched_s = min(WATCHDOG_S, sample_s)
        return (
            Stream(
                name="port states", database="APPL_DB", paths=("/PORT_TABLE",), ways=_STATES, every_s=sample_s, urgent=True,
                required=True,
            ),
            Stream(
                name="port counters", database="COUNTERS_DB", paths=("/COUNTERS/Ethernet*",), ways=_COUNTERS,
                every_s=sample_s, required=True,
            ),
            Stream(
                name="queue counters", database="COUNTERS_DB", paths=("/COUNTERS/Ethernet*/Queues",), ways=_COUNTERS,
                every_s=sample_s,
            ),
            Stream(
                name="PFC watchdog", database="COUNTERS_DB", paths=("/COUNTERS/Ethernet*/Pfcwd",), ways=_COUNTERS,
                every_s=watched_s,
            ),
            Stream(name="neighbours", database="APPL_DB", paths=("/LLDP_ENTRY_TABLE",), ways=_STATES, every_s=SLOW_S),
            Stream(name="boot time", database="OTHERS", paths=("/proc/stat",), ways=(Way.GET,), every_s=SLOW_S),
        )  # fmt: skip
    interface = "/interfaces/interface[name=*]"
    qos = "/qos/interfaces/interface[interface-id=*]"
    return (
        Stream(
            name="port states",
            paths=tuple(f"{interface}/state/{leaf}" for leaf in ("oper-status", "admin-status", "last-change")),
            ways=_STATES, every_s=sample_s, urgent=True, required=True,
        ),
        Stream(
            name="port counters", paths=(f"{interface}/state/counters",), ways=_COUNTERS, every_s=sample_s, required=True
        ),
        Stream(
            name="Ethernet counters", paths=(f"{interface}/ethernet/state/counters",), ways=_COUNTERS, every_s=sample_s
        ),
        Stream(
            name="queue counters", paths=(f"{qos}/output/queues/queue[name=*]/state",), ways=_COUNTERS, every_s=sample_s
        ),
        Stream(
            name="pause counters", ways=_COUNTERS, every_s=sample_s,
            paths=(f"{qos}/pfc/pfc-priorities/pfc-priority[dot1p=*]/state/statistics",),
        ),
        Stream(
            name="neighbours", paths=("/lldp/interfaces/interface[name=*]/neighbors/neighbor[id=*]",), ways=_STATES,
            every_s=SLOW_S,
        ),
        Stream(name="boot time", paths=("/system/state/boot-time",), ways=(Way.GET, Way.SAMPLE), every_s=SLOW_S),
    )  # fmt: skip


def ladder(stream: Stream, *, origins: Collection[str] = ()) -> Iterator[Attempt]:
    """The ways in which to ask, best first. `origins` are those that the switch says it has: SONiC's databases are asked for
    by origin where it is there, and by target (older releases) where that is refused."""
    for way in stream.ways:
        for heartbeat_s in (HEARTBEAT_S, 0.0) if way is Way.ON_CHANGE else (0.0,):  # not every server knows of heartbeats
            for origin, target, base in _spellings(stream, origins):
                paths = tuple(parse_path(f"{base}{path}") for path in stream.paths)
                yield Attempt(stream=stream, way=way, origin=origin, target=target, paths=paths, heartbeat_s=heartbeat_s)


def _spellings(stream: Stream, origins: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """(origin, target, what comes before each path)."""
    if stream.database and stream.database != "OTHERS" and "sonic-db" in origins:
        yield "sonic-db", "", f"/{stream.database}/localhost"
    yield "", stream.database, ""


def kind_of(models: Iterable[tuple[str, str]]) -> Kind:
    """Which data to ask for, from the (name, organization) of the models that a switch lists. One that shows both is
    SONiC: its databases have the watchdog and the pauses, its models do not."""
    for name, organization in models:
        if name.lower().startswith("sonic") or "sonic" in organization.lower():
            return Kind.SONIC
    return Kind.OPENCONFIG


def origins_of(models: Iterable[tuple[str, str]]) -> frozenset[str]:
    return frozenset(name for name, _ in models if name == "sonic-db")


@functools.cache
def dialect(kind: Kind, ignore: re.Pattern[str] = NOT_PORTS) -> Dialect:
    return Sonic(ignore) if kind is Kind.SONIC else OpenConfig(ignore)


ENCODINGS = {Kind.SONIC: ("JSON_IETF", "JSON"), Kind.OPENCONFIG: ("PROTO", "JSON_IETF", "JSON")}


def encoding(kind: Kind, offered: Collection[str]) -> str:
    """The best of the encodings that the switch offers. One that lists none is asked for the commonest."""
    wanted = ENCODINGS[kind]
    return next((each for each in wanted if each in offered), wanted[0])
