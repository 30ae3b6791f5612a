"""Whose LID is it? `ibnetdiscover` says so beside the names, and `perfquery` names ports by nothing else.

    Switch  65 "S-2c5eab0300b87b40"   # "MF0;leaf-04:MQM9701/U1" enhanced port 0 lid 73 lmc 0      the switch itself
    [1]     "H-e09d7303007a4bd8"[1](e09d7303007a4bd8)  # "c01 mlx5_5" lid 647 4xNDR                its port's other end
    [1](e09d7303007a4bd8)  "S-2c5eab0300b87b40"[1]  # lid 647 lmc 0 "MF0;leaf-04..." lid 73 4xNDR  an adapter's own port

A switch has one LID for all its ports; an adapter has one a port. A LID that is told of two things is told of none.
"""

from __future__ import annotations

import re

_SWITCH = re.compile(r'^\s*Switch\s+\d+\s+"S-(?P<guid>[0-9a-fA-F]{1,16})".*\blid (?P<lid>\d{1,6}) lmc\b')
_FAR = re.compile(
    r'^\s*\[\d+\][^"]*"H-(?P<node>[0-9a-fA-F]{1,16})"\[\d+\](?:\((?P<guid>[0-9a-fA-F]{1,16})\))?'
    r".*\blid (?P<lid>\d{1,6})\b(?! lmc)"
)
_OWN = re.compile(r"^\s*\[\d+\]\((?P<guid>[0-9a-fA-F]{1,16})\)\s.*?#\s*lid (?P<lid>\d{1,6}) lmc\b")


def lids(text: str) -> dict[str, str]:
    """LID (decimal) -> GUID in 16 digits: a switch's own, or an adapter port's."""
    found: dict[str, str] = {}
    doubtful: set[str] = set()
    for line in text.splitlines():
        match = _SWITCH.match(line) or _OWN.match(line) or _FAR.match(line)
        if match is None:
            continue
        said = match.groupdict()
        guid = (said.get("guid") or said.get("node") or "").lower().rjust(16, "0")
        lid = str(int(said["lid"]))
        if lid != "0" and found.setdefault(lid, guid) != guid:
            doubtful.add(lid)
    return {lid: guid for lid, guid in found.items() if lid not in doubtful}
