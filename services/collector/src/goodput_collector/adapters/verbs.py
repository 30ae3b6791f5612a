"""Asynchronous events of RDMA devices: port errors, dead adapters, changed addresses, as they happen.

Each device is opened once; its events wake this source through one descriptor for all (epoll), so that no thread sits in a
call that does not return. A device that dies or goes is closed, and is trouble until it is there again: a driver that was
loaded anew makes the same name, and another inode. The library is loaded only where the kernel has RDMA devices for user
space.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Collection
from pathlib import Path

from goodput_collector.adapters.verbs_library import VerbsDevice, VerbsLibrary
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.domain.rdma_events import DEVICE_FATAL, event_of
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Sample, Source
from goodput_common.runtime.clock import Clock

_EVENTS_MAX = 1024  # of one device in one reading
_REMEDY = "give the collector read and write access to /dev/infiniband/uverbs*"


class VerbsReader:
    """See `goodput_collector.application.ports.SourceReader`."""

    source = Source.RDMA_EVENTS
    instance = ""
    interval_s = 30.0  # it is woken; this looks for devices that came or went
    deadline_s = 10.0

    def __init__(
        self,
        *,
        host: str,
        clock: Clock,
        sys_root: Path = Path("/sys"),
        ignore: Collection[str] = (),
        library_of: Callable[[], VerbsLibrary] = VerbsLibrary,
    ) -> None:
        self._host = host
        self._clock = clock
        self._root = sys_root / "class" / "infiniband_verbs"
        self._ignore = frozenset(ignore)
        self._library_of = library_of
        self._devices: dict[int, VerbsDevice] = {}
        self._listed: list[tuple[str, int]] = []
        self._refused: list[str] = []
        self._lost: list[str] = []
        self._poll: select.epoll | None = None

    def open(self) -> None:
        self.close()  # a call that hung may have kept it from being closed
        self._listed = self._present()
        if not self._listed:
            raise Absent(f"no RDMA device for user space: nothing in {self._root}")
        try:
            library = self._library_of()
        except (OSError, AttributeError) as error:
            raise Unreadable(f"cannot load the verbs library: {error}", remedy="install libibverbs1") from None
        self._lost = []
        opened, self._refused = library.open(lambda name: name not in self._ignore)
        if not opened:
            if self._refused:
                raise Unreadable(f"cannot open {', '.join(self._refused)}", remedy=_REMEDY)
            raise Absent("the verbs library finds no RDMA device")
        self._poll = select.epoll()
        for device in opened:
            self._devices[device.fd] = device
            self._poll.register(device.fd, select.EPOLLIN)

    def wake_fd(self) -> int | None:
        return None if self._poll is None else self._poll.fileno()

    def read(self) -> Reading:
        samples: list[Sample] = []
        for fd, device in list(self._devices.items()):
            if not self._take(device, samples):
                self._lost.append(device.name)
                self._let_go(fd)
        if self._present() != self._listed and not samples:
            raise Unreadable("RDMA devices have come or gone; opening them anew")
        if not self._devices and not samples:
            raise Unreadable("no RDMA device is left")
        trouble = [f"cannot open {name}" for name in self._refused] + [f"{name} has gone" for name in self._lost]
        return Reading(
            samples=samples,
            trouble="; ".join(trouble),
            covered=[ids.nic_id(self._host, device.name) for device in self._devices.values()],
        )

    def close(self) -> None:
        for fd in list(self._devices):
            self._let_go(fd)
        if self._poll is not None:
            self._poll.close()
        self._poll = None

    def _take(self, device: VerbsDevice, samples: list[Sample]) -> bool:
        """False when the device is of no use any more."""
        for _ in range(_EVENTS_MAX):
            try:
                found = device.next_event()
            except OSError:
                return False
            if found is None:
                return True
            event = event_of(self._host, device.name, found.kind, found.port, self._clock.now())
            if event is not None:
                samples.append(event)
            if found.kind == DEVICE_FATAL:
                return False
        return True

    def _let_go(self, fd: int) -> None:
        device = self._devices.pop(fd)
        if self._poll is not None:
            with contextlib.suppress(OSError, ValueError):
                self._poll.unregister(fd)
        device.close()

    def _present(self) -> list[tuple[str, int]]:
        """(name, inode): the inode comes with the name, without a further call."""
        try:
            with os.scandir(self._root) as entries:
                return sorted((each.name, each.inode()) for each in entries if each.name.startswith("uverbs"))
        except OSError:
            return []
