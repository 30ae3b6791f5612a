"""Questions to one GPU whose memory is laid out once, because they are asked every second: field values, many in one call,
and single numbers. (The binding's own functions look up, build and take apart anew each time.)
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

from goodput_collector.adapters.nvml_library import Nvml
from goodput_collector.domain.gpu_return import FUNCTION_NOT_FOUND


class Fields:
    """A batch of field values: a driver answers them in one call, and Python reads them in one go."""

    _LAYOUT = struct.Struct("=IIqqIIQ")

    def __init__(self, nvml: Nvml, wanted: Sequence[tuple[int, int]]) -> None:
        self.count = len(wanted)
        self._nvml = nvml
        self._blank = b"".join(self._LAYOUT.pack(field, scope, 0, 0, 0, 0, 0) for field, scope in wanted)
        self._memory = bytearray(self._blank)
        self._pointer = (ctypes.c_char * len(self._memory)).from_buffer(self._memory)
        self._count = ctypes.c_int(self.count)

    def read(self, handle: object) -> tuple[int, list[int | None], list[int]]:
        """(return code of the call, the value of each field or None, the return codes of those without)."""
        self._memory[:] = self._blank
        try:
            code = int(self._nvml.nvmlLib.nvmlDeviceGetFieldValues(handle, self._count, self._pointer))
        except AttributeError:
            return FUNCTION_NOT_FOUND, [], []
        if code:
            return code, [], []
        values: list[int | None] = []
        refused = []
        for _, _, _, _, kind, result, raw in self._LAYOUT.iter_unpack(self._memory):
            if result:
                refused.append(result)
                values.append(None)
            else:
                values.append(_number(kind, raw))
        return 0, values, refused


class Number:
    """A function of NVML that says a whole number of one device, perhaps by one number more."""

    def __init__(self, nvml: Nvml, handle: object, function: str, *arguments: int, kind: type[Any] = ctypes.c_uint) -> None:
        self._nvml = nvml
        self._function = function
        self._call: Callable[..., int] | None = None
        self._answer = kind()
        self._arguments = (handle, *(ctypes.c_uint(each) for each in arguments), ctypes.byref(self._answer))

    def read(self) -> tuple[int, int]:
        """(return code of the call, the number)."""
        if (call := self._call) is None:
            try:
                call = self._call = getattr(self._nvml.nvmlLib, self._function)
            except AttributeError:
                return FUNCTION_NOT_FOUND, 0
        return call(*self._arguments), self._answer.value


def _number(kind: int, raw: int) -> int | None:
    """A field's 8 bytes by its type; a double as whole number. Unused bytes of a narrow one hold anything."""
    if kind in (2, 3):
        return raw
    if kind == 1:
        return raw & 0xFFFFFFFF
    if kind == 5:
        return (raw & 0xFFFFFFFF) - (1 << 32 if raw & 0x80000000 else 0)
    if kind == 4:
        return raw - (1 << 64) if raw >> 63 else raw
    if kind == 6:
        return raw & 0xFFFF
    if kind == 0:
        value: float = struct.unpack("=d", raw.to_bytes(8, "little"))[0]
        return int(value) if abs(value) < 1e18 else None
    return None
