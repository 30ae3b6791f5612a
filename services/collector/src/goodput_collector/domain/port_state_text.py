"""The state of RDMA ports as three tools print it: `ibstat`, `ibstatus`, `rdma link`.

    CA 'mlx5_0'                              Infiniband device 'mlx5_0' port 1 status:
        CA type: MT4129                              default gid:     fe80:0000:0000:0000:e09d:7303:007a:4bd8
        Port 1:                                      base lid:        0x287
            State: Active                            state:           4: ACTIVE
            Physical state: LinkUp                   phys state:      5: LinkUp
            Rate: 400                                rate:            400 Gb/sec (4X NDR)

    link mlx5_0/1 state DOWN physical_state POLLING netdev ens1np0

They differ in words only; what is told has sysfs's (`ACTIVE`, `LinkUp`). A port that is `Disabled` is mostly not
provisioned: that, too, is only told.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from goodput_collector.domain.pasted import Unread, number
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import State

PORTS_MAX = 4096
_CA = re.compile(r"^\s*CA '(?P<device>[\w.-]{1,64})'\s*$")
_PORT = re.compile(r"^\s*Port (?P<port>\d{1,3}):\s*$")
_FIELD = re.compile(r"^\s*(?P<name>[A-Za-z][A-Za-z _]*?):(?P<value>.*)$")
_STATUS = re.compile(r"^\s*Infiniband device '(?P<device>[\w.-]{1,64})' port (?P<port>\d{1,3}) status:\s*$")
_LINK = re.compile(
    r"^\s*(?:link |\d+(?:/\d+)?: )(?P<device>[\w.-]{1,64})/(?P<port>\d{1,3}):? (?P<rest>(?:subnet_prefix|state|lid)\b.*)$"
)
_STATES = {"down": "DOWN", "initializing": "INIT", "init": "INIT", "armed": "ARMED", "active": "ACTIVE"}
_PHYSICAL = {
    "linkup": "LinkUp", "disabled": "Disabled", "polling": "Polling", "sleep": "Sleep",
    "linkerrorrecovery": "LinkErrorRecovery", "portconfigurationtraining": "PortConfigurationTraining",
    "phytest": "Phy Test",
}  # fmt: skip
_OF_ADAPTER = frozenset(
    {"CA type", "Number of ports", "Firmware version", "Hardware version", "Node GUID", "System image GUID"}
)
_SAY_NOTHING = frozenset({"LMC", "SM lid", "Capability mask", "lmc", "sm lid"})


@dataclass(slots=True)
class PortSaid:
    """One port, in sysfs's words; "" where the tool says nothing. `lid` is decimal, `guid` 16 hex digits."""

    device: str
    port: int
    state: str = ""
    phys_state: str = ""
    rate: str = ""
    link_layer: str = ""
    lid: str = ""
    guid: str = ""
    netdev: str = ""

    def sample(self, host: str, at: datetime) -> State:
        """As the source `rdma` tells it."""
        told = {
            "device": self.device, "link_layer": self.link_layer, "phys_state": self.phys_state, "rate": self.rate,
            "netdev": self.netdev, "lid": self.lid,
        }  # fmt: skip
        attrs = {name: value for name, value in told.items() if value}
        component = ids.nic_id(host, self.device, self.port)
        return State(component=component, name="port_state", observed_at=at, value=self.state or "unknown", attrs=attrs)


def parse_ibstat(text: str) -> tuple[list[PortSaid], Unread]:
    ports: list[PortSaid] = []
    unread = Unread()
    device, port = "", None
    for line in text.splitlines():
        if (match := _CA.match(line)) is not None:
            device, port = match["device"], None
        elif (match := _PORT.match(line)) is not None and device and len(ports) < PORTS_MAX:
            port = PortSaid(device, int(match["port"]))
            ports.append(port)
        elif (match := _FIELD.match(line)) is not None and device:
            if not _ibstat_field(port, match["name"], match["value"].strip()):
                unread.note(line)
        else:
            unread.note(line)
    return ports, unread


def _ibstat_field(port: PortSaid | None, name: str, value: str) -> bool:
    if port is None or name in _SAY_NOTHING:
        return name in _OF_ADAPTER or name in _SAY_NOTHING
    if name == "State":
        port.state = _state(value)
    elif name == "Physical state":
        port.phys_state = _physical(value)
    elif name == "Rate":
        port.rate = f"{value} Gb/sec" if value.replace(".", "").isdigit() else value
    elif name == "Base lid":
        port.lid = _lid(value)
    elif name == "Port GUID":
        port.guid = _guid(value)
    elif name == "Link layer":
        port.link_layer = value[:32]
    else:
        return False
    return True


def parse_ibstatus(text: str) -> tuple[list[PortSaid], Unread]:
    ports: list[PortSaid] = []
    unread = Unread()
    port: PortSaid | None = None
    for line in text.splitlines():
        if (match := _STATUS.match(line)) is not None and len(ports) < PORTS_MAX:
            port = PortSaid(match["device"], int(match["port"]))
            ports.append(port)
        elif port is None or (match := _FIELD.match(line)) is None or not _ibstatus_field(port, match):
            unread.note(line)
    return ports, unread


def _ibstatus_field(port: PortSaid, match: re.Match[str]) -> bool:
    name, value = match["name"], match["value"].strip()
    _, colon, word = value.partition(": ")
    word = word if colon and name in ("state", "phys state") else value
    if name == "state":
        port.state = _state(word)
    elif name == "phys state":
        port.phys_state = _physical(word)
    elif name == "rate":
        port.rate = value[:64]
    elif name == "base lid":
        port.lid = _lid(value)
    elif name == "link_layer":
        port.link_layer = value[:32]
    elif name == "default gid":
        port.guid = guid_of_gid(value)
    else:
        return name in _SAY_NOTHING
    return True


def parse_rdma_link(text: str) -> tuple[list[PortSaid], Unread]:
    """A line a port; details of `-d` in angle brackets and caps are passed over."""
    ports: list[PortSaid] = []
    unread = Unread()
    for line in text.splitlines():
        match = _LINK.match(line)
        if match is None or len(ports) >= PORTS_MAX:
            if not line.strip().startswith("caps:"):
                unread.note(line)
            continue
        words = match["rest"].split()
        said = dict(zip(words[::2], words[1::2], strict=False))
        ports.append(_of_words(match["device"], int(match["port"]), said))
    return ports, unread


def _of_words(device: str, port: int, said: dict[str, str]) -> PortSaid:
    return PortSaid(
        device,
        port,
        state=_state(said.get("state", "")),
        phys_state=_physical(said.get("physical_state", "")),
        lid=_lid(said.get("lid", "")),
        netdev=said.get("netdev", "")[:32],
        link_layer="InfiniBand" if "subnet_prefix" in said else "",
    )


def from_words(said: dict[str, object]) -> PortSaid | None:
    """One entry of `rdma -j link`; None where it names no port."""
    device, port = said.get("ifname"), said.get("port")
    if not isinstance(device, str) or not isinstance(port, int) or isinstance(port, bool) or not 0 <= port < 1000:
        return None
    if not device or len(device) > 64 or "/" in device or not device.isprintable() or " " in device:
        return None
    words = {name: str(value) for name, value in said.items() if isinstance(value, (str, int))}
    return _of_words(device, port, words)


def guid_of_gid(gid: str) -> str:
    """The port's GUID: the lower half of its default GID, in sixteen digits; "" where it is none (zeroes, IPv4 in IPv6)."""
    groups = gid.strip().split(":")
    if len(groups) != 8 or any(not 1 <= len(each) <= 4 or not _is_hex(each) for each in groups):
        return ""
    lower = "".join(each.rjust(4, "0") for each in groups[4:]).lower()
    return "" if not lower.strip("0") or groups[5].lower() == "ffff" else lower


def _guid(text: str) -> str:
    digits = text.lower().removeprefix("0x")
    return digits.rjust(16, "0") if _is_hex(digits) and len(digits) <= 16 and digits.strip("0") else ""


def _is_hex(text: str) -> bool:
    return bool(text) and all(each in "0123456789abcdefABCDEF" for each in text)


def _lid(text: str) -> str:
    """Decimal; "" for none: 0, and 0xffff, which says the same on a port that is down."""
    value = number(text)
    return str(value) if value is not None and 0 < value < 0xFFFF else ""


def _state(word: str) -> str:
    return _STATES.get(word.strip().lower(), word.strip().upper()[:32])


def _physical(word: str) -> str:
    return _PHYSICAL.get(word.strip().lower().replace("_", "").replace(" ", ""), word.strip()[:32])
