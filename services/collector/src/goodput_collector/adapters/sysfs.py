"""RDMA devices under /sys/class/infiniband: what each port is, and how its counters moved.

    <root>/class/infiniband/<device>/ports/<n>/{state,phys_state,rate,link_layer,counters/,hw_counters/}

Reading a counter asks the adapter's firmware. On a function that may not answer (a restricted VF) that fills the kernel
log with errors of our own making, so a device can be left out by name. A counter that cannot be read is left out of
this reading; a device none of whose files can be read is trouble, and says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from goodput_collector.adapters.netdevs import netdevs_of, pci_of
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.domain.changes import Changes
from goodput_collector.domain.deltas import Deltas
from goodput_collector.domain.deltas import Reading as CounterReading
from goodput_collector.domain.rdma_counters import NOT_COUNTERS, NOT_REPORTED, describe
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Sample, Source, State
from goodput_common.runtime.clock import Clock

DEVICES_MAX = 256
_FOLDERS = ("counters", "hw_counters")


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
    attrs = {"device": port.device.name}
    for name in ("phys_state", "rate", "link_layer"):
        if (value := _text(port.path / name)) is not None:
            attrs[name] = _word(value)
    if (pci := pci_of(port.device / "device")) != "":
        attrs["pci"] = pci
    if names := netdevs_of(port.device / "device"):
        attrs["netdev"] = names[min(port.number, len(names)) - 1]
    return State(component=port.component, name="port_state", observed_at=at, value=_word(state), attrs=attrs)


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
        elif file.name not in NOT_REPORTED:
            values[describe(file.name).name] = number
    return values, lifespan_s


class RdmaReader:
    """See `goodput_collector.application.ports.SourceReader`."""

    source = Source.RDMA
    deadline_s = 10.0

    def __init__(
        self,
        *,
        host: str,
        boot_id: str,
        clock: Clock,
        sys_root: Path = Path("/sys"),
        ignore: Collection[str] = (),
        interval_s: float = 5.0,
        full_every_s: float = 60.0,
    ) -> None:
        self.interval_s = interval_s
        self._root = sys_root / "class" / "infiniband"
        self._host = host
        self._boot_id = boot_id
        self._clock = clock
        self._ignore = frozenset(ignore)
        self._deltas: dict[tuple[str, str], Deltas] = {}
        self._changes = Changes(full_every_s=full_every_s)

    def open(self) -> None:
        if not self._root.is_dir():
            raise Absent(f"no RDMA devices: there is no {self._root}")

    def wake_fd(self) -> int | None:
        return None

    def read(self) -> Reading:
        now = self._clock.now()
        states: list[State] = []
        samples: list[Sample] = []
        unreadable = []
        try:
            ports = list(ports_in(self._root, self._host, self._ignore))
        except FileNotFoundError:
            raise Absent(f"no RDMA devices: {self._root} is gone") from None
        except OSError as error:
            raise Unreadable(f"{self._root}: {error.strerror or error}") from None
        if not ports:
            raise Absent(f"no RDMA devices in {self._root}")
        for port in ports:
            state = state_of(port, now)
            if state is None:
                unreadable.append(f"{port.device.name}/{port.number}")
                continue
            states.append(state)
            for folder in _FOLDERS:
                samples += self._moved(port, folder)
                states += self._saturated(port, folder, now)
        trouble = f"cannot read {', '.join(unreadable)}" if unreadable else ""
        return Reading(samples=[*samples, *self._changes.of(states, self._clock.monotonic_s())], trouble=trouble)

    def close(self) -> None:
        """Nothing is held open; what the counters stood at is kept, so that a short outage loses no increase."""

    def _moved(self, port: Port, folder: str) -> list[Sample]:
        values, lifespan_s = counters_of(port, folder)
        if not values:
            return []
        deltas = self._deltas.get((port.component, folder))
        if deltas is None:
            widths = {name: describe(name).width for name in values}
            deltas = self._deltas[port.component, folder] = Deltas(port.component, widths)
        return list(
            deltas.update(
                CounterReading(
                    values=values,
                    at=self._clock.now(),
                    monotonic_s=self._clock.monotonic_s(),
                    incarnation=f"{self._boot_id}/{_inode(port.device)}",
                    lifespan_s=lifespan_s,
                )
            )
        )

    def _saturated(self, port: Port, folder: str, now: datetime) -> list[State]:
        deltas = self._deltas.get((port.component, folder))
        return [
            State(component=port.component, name=f"counter:{name}", observed_at=now, value="saturated")
            for name in (deltas.saturated() if deltas is not None else ())
        ]


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None


def _word(text: str) -> str:
    """`4: ACTIVE` -> ACTIVE; a rate stays as it is."""
    number, colon, word = text.partition(": ")
    return word if colon and number.isdigit() else text


def _inode(path: Path) -> int:
    """A driver that is loaded again makes its folders anew."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0
