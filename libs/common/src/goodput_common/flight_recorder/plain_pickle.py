"""A pickle reader that can only build plain data.

A flight-recorder file is foreign bytes, and unpickling foreign bytes with the standard loader runs whatever they ask for.
Refusing globals in `pickle.Unpickler.find_class` is not enough either: a forty-byte file can ask the C loader for a memo of
2**31 slots. So this is a small machine of its own, which knows just the opcodes that make None, numbers, text, lists,
tuples and dicts, and counts what it builds. Any other opcode - a global, a call, a persistent id, an extension - ends it.

Bounds: the caller bounds the input; here at most `max_values` values and containers nested at most `max_depth` deep, and
dictionary keys are text or numbers (hashing a nested tuple recurses in C).
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Hashable
from typing import Any, Final

_MARK: Final = object()
_COUNTED: Final = {
    b"X": "<I",  # BINUNICODE
    b"\x8c": "<B",  # SHORT_BINUNICODE
    b"\x8d": "<Q",  # BINUNICODE8
    b"T": "<i",  # BINSTRING
    b"U": "<B",  # SHORT_BINSTRING
    b"B": "<I",  # BINBYTES
    b"C": "<B",  # SHORT_BINBYTES
    b"\x8e": "<Q",  # BINBYTES8
}
_FIXED: Final = {b"J": "<i", b"K": "<B", b"M": "<H", b"G": ">d"}
_CONSTANTS: Final[dict[bytes, Any]] = {b"N": None, b"\x88": True, b"\x89": False}
_REFUSED: Final = {
    b"c": "a global (code to import)",
    b"\x93": "a global (code to import)",
    b"R": "a call",
    b"i": "an object to build",
    b"o": "an object to build",
    b"\x81": "an object to build",
    b"\x92": "an object to build",
    b"b": "an object's state",
    b"P": "a persistent id",
    b"Q": "a persistent id",
    b"\x82": "an extension",
    b"\x83": "an extension",
    b"\x84": "an extension",
}
_LONGEST_INT_BYTES = 16


class NotPlainData(ValueError):
    """The bytes are no pickle of plain data; the text says at which byte and why."""


class _Machine:
    def __init__(self, data: bytes, max_values: int) -> None:
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._left = max_values

    def run(self) -> Any:
        simple = self._simple_opcodes()
        while True:
            start = self._at
            opcode = self._take(1)
            if opcode == b".":
                return self._pop()
            self._left -= 1
            if self._left < 0:
                raise NotPlainData(f"more values than allowed (at byte {start})")
            try:
                if (counted := _COUNTED.get(opcode)) is not None:
                    self._push_counted(opcode, counted)
                elif (fixed := _FIXED.get(opcode)) is not None:
                    self._stack.append(self._unpack(fixed))
                elif opcode in _CONSTANTS:
                    self._stack.append(_CONSTANTS[opcode])
                elif (step := simple.get(opcode)) is not None:
                    step()
                else:
                    what = _REFUSED.get(opcode, f"opcode 0x{opcode.hex()}")
                    raise NotPlainData(f"refused: {what} at byte {start}; only plain data is read")
            except (KeyError, TypeError, AttributeError, IndexError) as error:
                raise NotPlainData(f"not a well-formed pickle at byte {start}: {type(error).__name__}") from error

    def _simple_opcodes(self) -> dict[bytes, Callable[[], None]]:
        push = self._stack.append
        return {
            b"\x80": lambda: self._protocol(),
            b"\x95": lambda: self._skip(8),  # FRAME
            b"(": lambda: push(_MARK),
            b"0": lambda: self._drop(),
            b"1": lambda: self._drop_to_mark(),
            b"]": lambda: push([]),
            b"}": lambda: push({}),
            b")": lambda: push(()),
            b"a": lambda: self._append(),
            b"e": lambda: self._extend(),
            b"l": lambda: push(self._pop_to_mark()),
            b"t": lambda: push(tuple(self._pop_to_mark())),
            b"\x85": lambda: self._tuple(1),
            b"\x86": lambda: self._tuple(2),
            b"\x87": lambda: self._tuple(3),
            b"d": lambda: push(self._dict({}, self._pop_to_mark())),
            b"s": lambda: self._set_item(),
            b"u": lambda: self._set_items(),
            b"\x8a": lambda: self._long("<B"),
            b"\x8b": lambda: self._long("<i"),
            b"q": lambda: self._remember(self._unpack("<B")),
            b"r": lambda: self._remember(self._unpack("<I")),
            b"\x94": lambda: self._remember(len(self._memo)),
            b"h": lambda: push(self._memo[self._unpack("<B")]),
            b"j": lambda: push(self._memo[self._unpack("<I")]),
        }

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise NotPlainData(f"truncated: ends at byte {len(self._data)}, before the end of the pickle")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _skip(self, count: int) -> None:
        self._take(count)

    def _unpack(self, layout: str) -> Any:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _protocol(self) -> None:
        if (protocol := self._take(1)[0]) > pickle.HIGHEST_PROTOCOL:
            raise NotPlainData(f"pickle protocol {protocol} is unknown")

    def _push_counted(self, opcode: bytes, layout: str) -> None:
        length = self._unpack(layout)
        if length < 0:
            raise NotPlainData("a text of negative length")
        raw = self._take(length)
        self._stack.append(raw if opcode in b"BC\x8e" else raw.decode("utf-8", "replace"))

    def _long(self, layout: str) -> None:
        length = self._unpack(layout)
        if not 0 <= length <= _LONGEST_INT_BYTES:
            raise NotPlainData(f"an integer of {length} bytes")
        self._stack.append(int.from_bytes(self._take(length), "little", signed=True))

    def _pop(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            raise NotPlainData("not a well-formed pickle: a value is missing")
        return self._stack.pop()

    def _drop(self) -> None:
        if not self._stack:
            raise NotPlainData("not a well-formed pickle: a value is missing")
        self._stack.pop()

    def _pop_to_mark(self) -> list[Any]:
        for index in range(len(self._stack) - 1, -1, -1):
            if self._stack[index] is _MARK:
                values = self._stack[index + 1 :]
                del self._stack[index:]
                return values
        raise NotPlainData("not a well-formed pickle: a mark is missing")

    def _drop_to_mark(self) -> None:
        self._pop_to_mark()

    def _top(self, kind: type) -> Any:
        if not self._stack or type(self._stack[-1]) is not kind:
            raise NotPlainData(f"not a well-formed pickle: expected a {kind.__name__}")
        return self._stack[-1]

    def _append(self) -> None:
        value = self._pop()
        self._top(list).append(value)

    def _extend(self) -> None:
        values = self._pop_to_mark()
        self._top(list).extend(values)

    def _tuple(self, count: int) -> None:
        values = [self._pop() for _ in range(count)]
        self._stack.append(tuple(reversed(values)))

    def _dict(self, into: dict[Hashable, Any], flat: list[Any]) -> dict[Hashable, Any]:
        if len(flat) % 2:
            raise NotPlainData("not a well-formed pickle: a key without a value")
        for key, value in zip(flat[::2], flat[1::2], strict=True):
            if not isinstance(key, str | int | float | bytes):
                raise NotPlainData(f"a dictionary key that is a {type(key).__name__}")
            into[key] = value
        return into

    def _set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._dict(self._top(dict), [key, value])

    def _set_items(self) -> None:
        flat = self._pop_to_mark()
        self._dict(self._top(dict), flat)

    def _remember(self, index: int) -> None:
        if not self._stack or self._stack[-1] is _MARK:
            raise NotPlainData("not a well-formed pickle: nothing to remember")
        self._memo[index] = self._stack[-1]


def _check_depth(value: Any, max_depth: int) -> None:
    """Breadth first, each container once: a list that holds itself ends too."""
    seen: set[int] = set()
    level = [value]
    depth = 0
    while level:
        depth += 1
        if depth > max_depth:
            raise NotPlainData(f"nested more than {max_depth} deep")
        deeper: list[Any] = []
        for each in level:
            if not isinstance(each, list | tuple | dict) or id(each) in seen:
                continue
            seen.add(id(each))
            deeper.extend(each.values() if isinstance(each, dict) else each)
        level = [each for each in deeper if isinstance(each, list | tuple | dict)]


def loads(data: bytes, *, max_values: int = 20_000_000, max_depth: int = 16) -> Any:
    """The plain value that `data` pickles. Raises NotPlainData."""
    value = _Machine(data, max_values).run()
    _check_depth(value, max_depth)
    return value
