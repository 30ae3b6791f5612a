"""What `lldpctl` prints without `-f json`: neighbours for people, and as keys and values (`-f keyvalue`).

    Interface:    ens1np0, via: LLDP, RID: 1, Time: 0 day, 00:01:00        lldp.ens1np0.via=LLDP
      Chassis:                                                             lldp.ens1np0.chassis.mac=08:00:27:73:60:cf
        ChassisID:    mac 08:00:27:73:60:cf                                lldp.ens1np0.chassis.name=leaf-1
        SysName:      leaf-1                                               lldp.ens1np0.port.ifname=Ethernet8
      Port:
        PortID:       ifname Ethernet8

Only what names the other end is kept. A neighbour that is heard by another protocol than LLDP is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from goodput_collector.domain.lldp import NameKind, Neighbour, clean
from goodput_collector.domain.pasted import Unread

NEIGHBOURS_MAX = 4096
_INTERFACE = re.compile(r"^\s*Interface:\s+(?P<name>[^\s,]{1,32}), via: (?P<via>[\w-]+)")
_FIELD = re.compile(r"^\s+(?P<name>[A-Za-z][\w /-]*?):(?P<value>.*)$")
_KEY = re.compile(
    r"^\s*lldp\.(?P<name>[^\s=]{1,32}?)"
    r"\.(?P<key>(?:via|rid|age|chassis|port|vlan|pi|unknown|lldp-med|ppvid)[\w.-]*)=(?P<value>.*)$"
)
_KINDS = {kind.value: kind for kind in NameKind}


def parse(text: str) -> tuple[dict[str, list[Neighbour]], Unread]:
    """(interface -> its neighbours, what was not understood)."""
    entries: list[tuple[str, dict[str, str]]] = []
    unread = Unread()
    in_value = False
    for line in text.splitlines():
        if (match := _INTERFACE.match(line)) is not None:
            entries.append((match["name"], {"via": match["via"]}))
        elif (match := _KEY.match(line)) is not None:
            if match["key"] == "via" or not entries or entries[-1][0] != match["name"]:
                entries.append((match["name"], {}))
            entries[-1][1].update(_of_key(match["key"], match["value"]))
        elif (match := _FIELD.match(line)) is not None and entries:
            _of_field(entries[-1][1], match["name"], match["value"].strip())
            in_value = match["name"] == "SysDescr"
            continue
        elif line.strip(" -") and not line.strip().startswith("LLDP neighbors") and not (in_value and line[:1].isspace()):
            unread.note(line)
            continue
        else:
            continue
        in_value = False
    found: dict[str, list[Neighbour]] = {}
    for name, said in entries[:NEIGHBOURS_MAX]:
        if (neighbour := _neighbour(said)) is not None:
            found.setdefault(name, []).append(neighbour)
    return found, unread


def _of_field(said: dict[str, str], name: str, value: str) -> None:
    if name in ("ChassisID", "PortID"):
        kind, _, text = value.partition(" ")
        which = "chassis" if name == "ChassisID" else "port"
        said.setdefault(f"{which} kind", kind)
        said.setdefault(f"{which} id", text.strip())
    elif name == "SysName":
        said.setdefault("system", value)
    elif name == "PortDescr":
        said.setdefault("description", value)
    elif name == "Capability":
        capability, _, state = value.partition(",")
        if state.strip() == "on":
            said[f"can {capability.strip().lower()}"] = "on"


def _of_key(key: str, value: str) -> dict[str, str]:
    place, _, kind = key.partition(".")
    kind = kind.lower()
    if key == "via":
        return {"via": value}
    if place in ("chassis", "port") and kind in _KINDS:
        return {f"{place} kind": kind, f"{place} id": value}
    if key == "chassis.name":
        return {"system": value}
    if key == "port.descr":
        return {"description": value}
    if place == "chassis" and kind.endswith(".enabled") and value == "on":
        return {f"can {kind.removesuffix('.enabled').lower()}": "on"}
    return {}


def _neighbour(said: Mapping[str, str]) -> Neighbour | None:
    chassis, port = clean(said.get("chassis id", "")), clean(said.get("port id", ""))
    if said.get("via", "LLDP").upper() != "LLDP" or not chassis or not port:
        return None
    switch = "can bridge" in said or "can router" in said
    system = clean(said.get("system", ""))
    return Neighbour(
        chassis=chassis,
        chassis_kind=_KINDS.get(said.get("chassis kind", "").lower(), NameKind.LOCAL),
        port=port,
        port_kind=_KINDS.get(said.get("port kind", "").lower(), NameKind.LOCAL),
        system="" if system == chassis else system,
        port_description=clean(said.get("description", "")),
        is_station=False if switch else True if "can station" in said else None,
    )
