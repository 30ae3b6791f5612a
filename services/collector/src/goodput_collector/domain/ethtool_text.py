"""`ethtool -S <interface>` and plain `ethtool <interface>` as they are pasted.

    NIC statistics:                     Settings for ens1np0:
         rx_packets: 1234                   Speed: 400000Mb/s
         rx_prio3_pause: 17                 Link detected: no (Cable issue: cable test failure)

The statistics do not say whose they are: the interface stands in the command, which is in the paste or not. Which of them
are told is the business of `ethtool_stats`; all others are understood and passed over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from goodput_collector.domain.ethtool_link import LinkSettings
from goodput_collector.domain.pasted import Unread, number

STATS_MAX = 16_384
_TITLE = re.compile(r"^\s*(?:NIC|\S+)\s+statistics(?: \(standard\))?.*:\s*$")
_STAT = re.compile(r"^\s*(?:\[\d+\]:?\s*)?(?P<name>[A-Za-z][\w.\-\[\]/() ]{0,95}?):\s*(?P<value>\d{1,20})\s*$")
_SETTINGS = re.compile(r"^\s*Settings for (?P<name>[^\s:]{1,32}):\s*$")
_FIELD = re.compile(r"^\s+(?P<name>[A-Z][A-Za-z /'()-]*?):(?P<value>.*)$")
_SPEED = re.compile(r"^(?P<mbps>\d{1,9})Mb/s")
_LINK = re.compile(r"^(?P<up>yes|no)(?:\s+\((?P<reason>.*)\))?$")
_REFUSED = re.compile(r"^\s*(?:netlink error|Cannot get|No data available|ethtool:)", re.IGNORECASE)


@dataclass(slots=True)
class Settings:
    """One interface's link, as `ethtool_link` tells it."""

    interface: str
    link: bool | None = None
    speed_mbps: int = 0
    duplex: str = ""
    lanes: int = 0
    autoneg: str = ""
    reason: str = ""

    def settings(self) -> LinkSettings:
        return LinkSettings(
            link=self.link,
            speed_mbps=self.speed_mbps,
            duplex=self.duplex,
            lanes=self.lanes,
            autoneg=self.autoneg,
            reason=self.reason,
        )


def parse_stats(text: str) -> tuple[dict[str, int], Unread]:
    """All the driver's statistics by its own names; of a name that comes twice the first counts."""
    stats: dict[str, int] = {}
    unread = Unread()
    for line in text.splitlines():
        if _TITLE.match(line) is not None:
            continue
        match = _STAT.match(line)
        value = number(match["value"]) if match is not None else None
        if match is None or value is None or len(stats) >= STATS_MAX:
            unread.note(line)
        else:
            stats.setdefault(match["name"], value)
    return stats, unread


def parse_settings(text: str) -> tuple[list[Settings], Unread]:
    """Fields that are not told are understood as long as they look like fields, and so are lists that go on below them."""
    found: list[Settings] = []
    unread = Unread()
    for line in text.splitlines():
        if (match := _SETTINGS.match(line)) is not None:
            found.append(Settings(match["name"]))
        elif _REFUSED.match(line):
            continue  # what the caller was not allowed to see
        elif (match := _FIELD.match(line)) is not None and found:
            _take(found[-1], match["name"], match["value"].strip())
        elif not found or not line[:1].isspace():
            unread.note(line)
    return found, unread


def _take(settings: Settings, name: str, value: str) -> None:
    if name == "Speed" and (match := _SPEED.match(value)) is not None:
        settings.speed_mbps = int(match["mbps"])
    elif name == "Duplex" and value in ("Full", "Half"):
        settings.duplex = value.lower()
    elif name == "Lanes":
        settings.lanes = min(number(value) or 0, 64)
    elif name == "Auto-negotiation" and value in ("on", "off"):
        settings.autoneg = value
    elif name == "Link detected" and (match := _LINK.match(value)) is not None:
        settings.link = match["up"] == "yes"
        settings.reason = (match["reason"] or "")[:128]
