"""A tree of RDMA devices as sysfs lays it out, wherever it stands: on a live host, or copied into a bug report.

<root>/<device>/ports/<n>/{state,phys_state,rate,link_layer,counters/,hw_counters/}
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from goodput_collector.application.small_file import small_text
from goodput_collector.domain.nic_log import pci_name
from goodput_collector.domain.rdma_counters import NOT_COUNTERS, describe, is_reported
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import State

DEVICES_MAX = 256
FOLDERS = ("counters", "hw_counters")


class Port(NamedTuple):
    component: str
    device: Path
    number: int

    @property
    def path(self) -> Path:
        return self.device / "ports" / str(self.number)


def ports_in(root: Path, host: str, ignore: Collection[str] = ()) -> Iterator[Port]:
    """All ports under a `class/infiniband` folder. Raises OSError when it cannot be listed."""
    devices = sorted(path for path in root.iterdir() if path.name not in ignore and (path / "ports").is_dir())
    for device in devices[:DEVICES_MAX]:
        for port in sorted((device / "ports").iterdir()):
            if port.name.isdigit():
                yield Port(ids.nic_id(host, device.name, int(port.name)), device, int(port.name))


def state_of(port: Port, at: datetime) -> State | None:
    """What the port is; None when its state cannot be read."""
    state = _text(port.path / "state")
    if state is None:
        return None
    attrs = identity_of(port)
    for name in ("phys_state", "rate"):
        if (value := _text(port.path / name)) is not None:
            attrs[name] = word_of(value)
    return State(component=port.component, name="port_state", observed_at=at, value=word_of(state), attrs=attrs)


def identity_of(port: Port) -> dict[str, str]:
    """What of a port does not change while its driver is loaded."""
    attrs = {"device": port.device.name}
    if (layer := _text(port.path / "link_layer")) is not None:
        attrs["link_layer"] = layer
    if (pci := pci_of(port.device / "device")) != "":
        attrs["pci"] = pci
    if names := netdevs_of(port.device / "device"):
        attrs["netdev"] = names[min(port.number, len(names)) - 1]
    return attrs


def counters_of(port: Port, folder: str) -> tuple[dict[str, int], float]:
    """(counter -> value, lifespan in seconds) of one folder, under mlx5's names; what cannot be read is left out."""
    values: dict[str, int] = {}
    lifespan_s = 0.0
    try:
        files = sorted((port.path / folder).iterdir())
    except OSError:
        return {}, 0.0
    for file in files:
        number = _number(file)
        if number is None:
            continue
        if file.name in NOT_COUNTERS:
            lifespan_s = number / 1000
        elif is_reported(file.name):
            values[describe(file.name).name] = number
    return values, lifespan_s


def netdevs_of(device: Path) -> tuple[str, ...]:
    """The interfaces of an RDMA device's `device` link."""
    try:
        return tuple(sorted(each.name for each in (device / "net").iterdir()))
    except OSError:
        return ()


def pci_of(device: Path) -> str:
    """The PCI address that a `device` link leads to, "" where there is none."""
    try:
        return pci_name(device.resolve(strict=True).name)
    except (OSError, ValueError):
        return ""


def _text(path: Path) -> str | None:
    try:
        return small_text(path)
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None


def word_of(text: str) -> str:
    """`4: ACTIVE` -> ACTIVE; a rate stays as it is."""
    number, colon, word = text.partition(": ")
    return word if colon and number.isdigit() else text
