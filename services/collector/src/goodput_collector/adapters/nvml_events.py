"""Xids and other things that a GPU's driver tells by event, the moment they happen.

Waiting for an event blocks inside the driver's library. A thread of its own does that, and everything else about events:
initialising, registering the GPUs, starting over. The reader never calls the driver: it takes what the thread has put into
a bounded queue, so that an Xid is told even while every other call into a sick driver hangs.

Nothing is told of what happened before: NVML keeps no events. The kernel log does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from goodput_collector.adapters.nvml_library import GPUS_MAX, Nvml, NvmlLibrary, identify
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.domain.gpu_presence import Gpu
from goodput_collector.domain.gpu_return import TIMEOUT, Meaning, meaning, words
from goodput_collector.domain.gpu_xid import WANTED, event_of
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Event, EventName, Severity, Source
from goodput_common.runtime.clock import Clock

QUEUE_MAX = 4096
_USER = "nvml events"
_SILENT_MAX_S = 30.0
_AGAIN_FIRST_S, _AGAIN_MAX_S = 1.0, 60.0


@dataclass(slots=True)
class _Status:
    """What the thread says of itself. `alive_s`: when it last came back from the driver."""

    alive_s: float
    watching: tuple[str, ...] | None = None
    refused: tuple[str, ...] = ()
    failed: Unreadable | None = None


class NvmlEventReader:
    """See `goodput_collector.application.ports.SourceReader`."""

    source = Source.NVML
    instance = "events"
    interval_s = 5.0
    deadline_s = 5.0

    def __init__(
        self, library: NvmlLibrary, *, host: str, clock: Clock, wait_ms: int = 1000, silent_max_s: float = _SILENT_MAX_S
    ) -> None:
        self._library = library
        self._host = host
        self._clock = clock
        self._wait_ms = wait_ms
        self._silent_max_s = silent_max_s
        self._waiter: _Waiter | None = None
        self._left: _Waiter | None = None  # one that was told to stop and has not come back yet

    def open(self) -> None:
        if self._left is not None and self._left.running:
            raise Unreadable(
                f"a call into the NVIDIA driver has not returned for {self._left.silent_s():.0f} s",
                remedy="see the kernel log; a hung driver usually takes a reboot",
            )
        if self._left is not None:
            os.close(self._left.fd)
        self._left = None
        self._waiter = _Waiter(self._library, self._event, host=self._host, wait_ms=self._wait_ms)
        self._waiter.start(timeout_s=self.deadline_s * 0.8)
        self._raise_if_failed(self._waiter)

    def wake_fd(self) -> int | None:
        return None if self._waiter is None else self._waiter.fd

    def read(self) -> Reading:
        waiter = self._waiter
        if waiter is None:
            raise Unreadable("the NVML events are closed")
        events = waiter.peek()
        missed = waiter.missed
        if missed:
            events.append(self._gap(missed))
        if not events:
            self._raise_if_failed(waiter)
        refused = waiter.status.refused
        return Reading(
            samples=events,
            covered=waiter.status.watching or (),
            trouble=f"no events from {', '.join(refused)}" if refused else "",
            kept=lambda: waiter.forget(len(events) - bool(missed), missed),
        )

    def close(self) -> None:
        if self._waiter is not None:
            self._waiter.stop()
            self._left = self._waiter
        self._waiter = None

    def _raise_if_failed(self, waiter: _Waiter) -> None:
        if waiter.status.failed is not None:
            raise waiter.status.failed
        if (silent_s := waiter.silent_s()) > self._silent_max_s:
            raise Unreadable(
                f"a call into the NVIDIA driver has not returned for {silent_s:.0f} s",
                remedy="see the kernel log; a hung driver usually takes a reboot",
            )

    def _event(self, gpu: Gpu, kind: int, data: int, gi: int, ci: int) -> Event | None:
        return event_of(gpu, kind, data, gi, ci, host=self._host, at=self._clock.now())

    def _gap(self, missed: int) -> Event:
        return Event(
            component=ids.host_id(self._host),
            name=EventName.LOG_GAP,
            observed_at=self._clock.now(),
            severity=Severity.WARNING,
            excerpt=f"{missed} NVML events came faster than they could be told",
            attrs={"missed": str(missed), "by": "nvml"},
        )


class _Waiter:
    """The thread. Everything public may be called from another one."""

    def __init__(
        self,
        library: NvmlLibrary,
        event: Callable[[Gpu, int, int, int, int], Event | None],
        *,
        host: str,
        wait_ms: int,
    ) -> None:
        self._library = library
        self._host = host
        self._event = event
        self._wait_ms = wait_ms
        self._stop = threading.Event()
        self._decided = threading.Event()
        self._lock = threading.Lock()
        self._events: deque[Event] = deque()
        self._thread = threading.Thread(target=self._run, name="source nvml events wait", daemon=True)
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.status = _Status(time.monotonic())
        self.missed = 0

    def start(self, *, timeout_s: float) -> None:
        """Returns once it waits for events or has failed, or at the timeout."""
        self._thread.start()
        self._decided.wait(timeout_s)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def silent_s(self) -> float:
        return time.monotonic() - self.status.alive_s

    def peek(self) -> list[Event]:
        with contextlib.suppress(BlockingIOError, OSError):
            os.eventfd_read(self.fd)
        with self._lock:
            return list(self._events)

    def forget(self, count: int, missed: int) -> None:
        with self._lock:
            for _ in range(min(count, len(self._events))):
                self._events.popleft()
            self.missed -= missed

    def stop(self) -> None:
        """Ends it within one wait; what is hung ends when it comes back."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(self._wait_ms / 1000 + 0.5)

    def _run(self) -> None:
        again_s = _AGAIN_FIRST_S
        while not self._stop.is_set():
            try:
                nvml = self._library.acquire(_USER)
                try:
                    if self._watch(nvml):
                        again_s = _AGAIN_FIRST_S
                finally:
                    self._library.release(_USER)
            except Unreadable as error:
                self._say(failed=None if self._library.renewing else error)
                if isinstance(error, Absent):
                    return
            if self._stop.wait(0.1 if self._library.renewing else again_s):
                return
            again_s = min(again_s * 2, _AGAIN_MAX_S)

    def _watch(self, nvml: Nvml) -> bool:
        """Register and wait until told to stop or to start over. Whether any event could be waited for. Raises
        Unreadable."""
        events: Any = None
        try:
            events = nvml.nvmlEventSetCreate()
            gpus, refused = self._register(nvml, events)
            self._say(watching=tuple(gpu.component for gpu in gpus.values()), refused=tuple(refused))
            return self._wait(nvml, events, gpus)
        except nvml.NVMLError as error:
            reason, remedy = words(int(error.value))
            raise Unreadable(reason, remedy=remedy) from None
        finally:
            if events is not None:
                with contextlib.suppress(nvml.NVMLError):
                    nvml.nvmlEventSetFree(events)

    def _register(self, nvml: Nvml, events: Any) -> tuple[dict[int, Gpu], list[str]]:
        """The GPUs that tell events, by the address of their handle, and those that do not. Raises NVMLError, Absent."""
        gpus: dict[int, Gpu] = {}
        refused = []
        count = min(int(nvml.nvmlDeviceGetCount()), GPUS_MAX)
        if not count:
            raise Absent("no NVIDIA GPU: the driver lists none")
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                gpu = identify(nvml, handle, index, self._host)
                wanted = WANTED & int(nvml.nvmlDeviceGetSupportedEventTypes(handle))
                nvml.nvmlDeviceRegisterEvents(handle, wanted, events)
            except nvml.NVMLError as error:
                if meaning(int(error.value)) is Meaning.DRIVER:
                    raise
                refused.append(f"GPU {index} ({words(int(error.value))[0]})")
                continue
            gpus[_address(handle)] = gpu
        return gpus, refused

    def _wait(self, nvml: Nvml, events: Any, gpus: dict[int, Gpu]) -> bool:
        """Raises NVMLError."""
        waited = False
        while not self._stop.is_set() and not self._library.renewing:
            try:
                told = nvml.nvmlEventSetWait_v2(events, self._wait_ms)
            except nvml.NVMLError as error:
                self.status.alive_s = time.monotonic()
                if int(error.value) == TIMEOUT:
                    waited = True
                    continue
                if meaning(int(error.value)) is Meaning.LOST:
                    return waited  # one of the set is gone: watch those that are left
                raise
            waited = True
            self.status.alive_s = time.monotonic()
            gpu = gpus.get(_address(told.device))
            if gpu is not None:
                self._put(self._event(gpu, told.eventType, told.eventData, told.gpuInstanceId, told.computeInstanceId))
        return waited

    def _put(self, event: Event | None) -> None:
        if event is None:
            return
        with self._lock:
            if len(self._events) >= QUEUE_MAX:
                self.missed += 1
            else:
                self._events.append(event)
        os.eventfd_write(self.fd, 1)

    def _say(
        self,
        *,
        watching: tuple[str, ...] | None = None,
        refused: tuple[str, ...] = (),
        failed: Unreadable | None = None,
    ) -> None:
        self.status = _Status(time.monotonic(), watching, refused, failed)
        self._decided.set()
        with contextlib.suppress(OSError):
            os.eventfd_write(self.fd, 1)


def _address(handle: Any) -> int:
    """NVML's handle is a pointer that it gives anew each time, to the same place."""
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)
