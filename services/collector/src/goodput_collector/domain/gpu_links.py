"""NVLink: which field of the driver tells what about which link.

Three generations of the interface stand side by side. Up to Hopper a link has CRC, replay and recovery counters; old
drivers give them by a call for each link and counter, newer ones as fields, all of them in one call: as fields with the
link in the scope, or (CRC of flow control and of data, first twelve links) as a field of its own for each link. From
Blackwell on links count symbols, blocks and recoveries instead, and the old counters are gone. A driver is asked for all
of them once, and from then on for those that it answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import State

LINK_COUNT = 91
LINKS_MAX = 36
STATE = "state"

# field ids with the link as scope
_SCOPED = {
    165: STATE,
    161: "nvlink_replay_errors",
    162: "nvlink_recovery_errors",
    163: "nvlink_crc_errors",
    206: "nvlink_malformed_packets",
    207: "nvlink_buffer_overruns",
    208: "nvlink_receive_errors",
    209: "nvlink_receive_remote_errors",
    211: "nvlink_local_integrity_errors",
    212: "nvlink_transmit_discards",
    214: "nvlink_recoveries_failed",
    215: "nvlink_recoveries",
    219: "nvlink_effective_errors",
    221: "nvlink_symbol_errors",
}
# field ids of links 0 to 5 and 6 to 11
_NUMBERED = {"nvlink_crc_flit_errors": (32, 96), "nvlink_crc_data_errors": (39, 102)}
# the counters of the older call, by its numbers
CALLED = {0: "nvlink_replay_errors", 1: "nvlink_recovery_errors", 2: "nvlink_crc_flit_errors", 3: "nvlink_crc_data_errors"}

COUNTERS = tuple(dict.fromkeys([*(name for name in _SCOPED.values() if name != STATE), *_NUMBERED]))

Asked = tuple[int, int]  # field id, scope
Wanted = tuple[int, str]  # link, name


def fields(links: int) -> dict[Asked, Wanted]:
    """Everything that a driver may tell about its first `links` links, by how it is asked."""
    wanted: dict[Asked, Wanted] = {}
    for link in range(min(links, LINKS_MAX)):
        for field, name in _SCOPED.items():
            wanted[field, link] = (link, name)
        for name, (low, high) in _NUMBERED.items():
            if link < 12:
                wanted[low + link if link < 6 else high + link - 6, 0] = (link, name)
    return wanted


def answered(wanted: Mapping[Asked, Wanted], values: Iterable[int | None]) -> dict[Asked, Wanted]:
    """Those of `wanted` that came with a value: what to ask from now on."""
    return {asked: what for (asked, what), value in zip(wanted.items(), values, strict=True) if value is not None}


def by_link(wanted: Mapping[Asked, Wanted], values: Iterable[int | None]) -> dict[int, dict[str, int]]:
    """The values, by link and name."""
    links: dict[int, dict[str, int]] = {}
    for (link, name), value in zip(wanted.values(), values, strict=True):
        if value is not None:
            links.setdefault(link, {})[name] = value
    return links


def link_state(component: ComponentId, gpu: ComponentId, active: int, at: datetime) -> State:
    """A link that was never active may simply lead nowhere: only the topology knows."""
    return State(
        component=component, name="nvlink", observed_at=at, value="active" if active else "inactive", attrs={"gpu": gpu}
    )
