"""The verbs library through ctypes: open a device, take its asynchronous events.

`libibverbs.so.1` is on every host that uses RDMA; its functions and these few structures have been the same since its
version 1.1 (symbol version IBVERBS_1.1). pyverbs wraps the same calls, but comes only with a distribution's own Python. Of
`struct ibv_context` two fields are read, the device and the descriptor of events.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, NamedTuple

LIBRARY = "libibverbs.so.1"
DEVICES_MAX = 64
_OPERATIONS = 32  # pointers in struct ibv_context_ops


class _Context(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("operations", ctypes.c_void_p * _OPERATIONS),
        ("command_fd", ctypes.c_int),
        ("event_fd", ctypes.c_int),
    )


class _AsyncEvent(ctypes.Structure):
    _fields_ = (("element", ctypes.c_uint64), ("kind", ctypes.c_int))  # element: a pointer, or the number of the port


class AsyncEvent(NamedTuple):
    kind: int
    port: int


class VerbsDevice:
    """An open device. Its events can be waited for at `fd`."""

    def __init__(self, library: Any, context: Any, name: str) -> None:
        self._library = library
        self._context = context
        self.name = name
        self.fd = int(context.contents.event_fd)
        os.set_blocking(self.fd, False)

    def next_event(self) -> AsyncEvent | None:
        """None when there is none now. Raises OSError when the device has gone."""
        event = _AsyncEvent()
        if self._library.ibv_get_async_event(self._context, ctypes.byref(event)):
            code = ctypes.get_errno()
            if code in (0, 11):  # EAGAIN
                return None
            raise OSError(code, os.strerror(code), self.name)
        found = AsyncEvent(int(event.kind), int(event.element) & 0xFFFFFFFF)
        self._library.ibv_ack_async_event(ctypes.byref(event))
        return found

    def close(self) -> None:
        self._library.ibv_close_device(self._context)


class VerbsLibrary:
    """Raises OSError when there is no such library."""

    def __init__(self, path: str = LIBRARY) -> None:
        library = ctypes.CDLL(path, use_errno=True)
        context, pointer = ctypes.POINTER(_Context), ctypes.c_void_p
        functions: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
            ("ibv_get_device_list", ctypes.POINTER(pointer), (ctypes.POINTER(ctypes.c_int),)),
            ("ibv_free_device_list", None, (ctypes.POINTER(pointer),)),
            ("ibv_get_device_name", ctypes.c_char_p, (pointer,)),
            ("ibv_open_device", context, (pointer,)),
            ("ibv_close_device", ctypes.c_int, (context,)),
            ("ibv_get_async_event", ctypes.c_int, (context, ctypes.POINTER(_AsyncEvent))),
            ("ibv_ack_async_event", None, (ctypes.POINTER(_AsyncEvent),)),
        )
        for name, result, arguments in functions:
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._library = library

    def open(self, wanted: Callable[[str], bool]) -> tuple[list[VerbsDevice], list[str]]:
        """(the devices that could be opened, names of those that could not)."""
        count = ctypes.c_int()
        listed = self._library.ibv_get_device_list(ctypes.byref(count))
        if not listed:
            return [], []
        opened, refused = [], []
        try:
            for index in range(min(count.value, DEVICES_MAX)):
                name = (self._library.ibv_get_device_name(listed[index]) or b"").decode("ascii", "replace")
                if not wanted(name):
                    continue
                context = self._library.ibv_open_device(listed[index])
                if context:
                    opened.append(VerbsDevice(self._library, context, name))
                else:
                    refused.append(name)
        finally:
            self._library.ibv_free_device_list(listed)
        return opened, refused
