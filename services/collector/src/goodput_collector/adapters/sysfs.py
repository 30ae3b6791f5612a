"""RDMA devices under /sys/class/infiniband: what each port is, and how its counters moved.

    <root>/class/infiniband/<device>/ports/<n>/{state,phys_state,rate,link_layer,counters/,hw_counters/}

Reading a counter asks the adapter's firmware. On a function that may not answer (a restricted VF) that fills the kernel
log with errors of our own making, so a device can be left out by name. A counter that cannot be read is left out of
this reading; a device none of whose files can be read is trouble, and says so.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from pathlib import Path

from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.application.rdma_tree import FOLDERS, Port, counters_of, ports_in, state_of
from goodput_collector.domain.changes import Changes
from goodput_collector.domain.deltas import Deltas
from goodput_collector.domain.deltas import Reading as CounterReading
from goodput_collector.domain.rdma_counters import describe
from goodput_common.contracts.telemetry import Sample, Source, State
from goodput_common.runtime.clock import Clock


class RdmaReader:
    """See `goodput_collector.application.ports.SourceReader`."""

    source = Source.RDMA
    instance = ""
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
            for folder in FOLDERS:
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


def _inode(path: Path) -> int:
    """A driver that is loaded again makes its folders anew."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0
