"""A pickle reader that can only build plain data.

A flight-recorder file is foreign bytes, and unpickling foreign bytes with the standard loader runs whatever they ask for.
Refusing globals in `pickle.Unpickler.find_class` is not enough either: a forty-byte file can ask the C loader for a memo
of 2**31 slots. So this is a small machine of its own, which knows just the opcodes that make None, numbers, text, lists,
tuples and dicts, and counts what it builds. Any other opcode - a global, a call, a persistent id, an extension - ends it.

That machine is slow, and a job of 4,096 ranks leaves eight million entries. So the bytes are first looked through for
anything but the opcodes of plain data within the bounds below - a regular expression walks over a run of them at once, the
lengths of text are followed by hand - and what passes is handed to the C loader, which then has nothing to be tricked with.
What does not pass (a rare opcode, a high memo slot, many tuples) goes through the machine, which also says what is wrong.

Bounds: the caller bounds the input; here at most `max_values` opcodes and containers nested at most `max_depth` deep (to
look is the dearest part of reading: a caller that takes nothing but text and numbers out can do without), and
dictionary keys are text or numbers (hashing a nested tuple recurses in C).
"""

from __future__ import annotations

import io
import pickle
import re
import struct
from collections.abc import Hashable
from itertools import chain
from typing import Any, Final

_COUNTED: Final = {
    0x54: "<i",  # BINSTRING
    0x55: "<B",  # SHORT_BINSTRING
    0x42: "<I",  # BINBYTES
    0x43: "<B",  # SHORT_BINBYTES
    0x8E: "<Q",  # BINBYTES8
    0x8D: "<Q",  # BINUNICODE8
}
_BYTES: Final = frozenset({0x42, 0x43, 0x8E})
_LONGS: Final = {0x8A: "<B", 0x8B: "<i"}
_REFUSED: Final = {
    0x63: "a global (code to import)",
    0x93: "a global (code to import)",
    0x52: "a call",
    0x69: "an object to build",
    0x6F: "an object to build",
    0x81: "an object to build",
    0x92: "an object to build",
    0x62: "an object's state",
    0x50: "a persistent id",
    0x51: "a persistent id",
    0x82: "an extension",
    0x83: "an extension",
    0x84: "an extension",
}
_LONGEST_INT_BYTES = 16
_FRAME_HEADER = 8
_KEYS = (str, int, float, bytes)
_CONTAINERS = frozenset({list, tuple, dict})
_KEY_TYPES = frozenset({str, int, float, bytes, bool})

# Opcodes of plain data with operands of fixed size; memo slots below 2**20, integers of up to 8 bytes.
_RUN = re.compile(
    rb"(?:[hqK].|[N\x88\x89(\]})use\x61t\x85\x86\x87\x94]|M..|J....|j...\x00|r..[\x00-\x0f]\x00|G.{8}|\x80[\x02-\x05]|\x95.{8}"
    rb"|\x8a(?:\x08.{8}|\x00|\x01.|\x02..|\x03...|\x04....|\x05.{5}|\x06.{6}|\x07.{7}))*+",
    re.DOTALL,
)
_TUPLES = (b"\x85", b"\x86", b"\x87", b"t")
_TUPLES_MAX = 20_000  # nested in a key they would be hashed by recursion; so many fit on any stack


class NotPlainData(ValueError):
    """The bytes are no pickle of plain data; the text says at which byte and why."""


def loads(data: bytes, *, max_values: int = 20_000_000, max_depth: int | None = 16) -> Any:
    """The plain value that `data` pickles; None for `max_depth` leaves the nesting unbounded. Raises NotPlainData."""
    value = _at_once(data, max_values)
    if value is _NOT_SURE:
        value = _Machine(data, max_values).run()
    if max_depth is not None:
        _check_depth(value, max_depth)
    return value


_NOT_SURE: Final = object()


class _NoGlobals(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise NotPlainData(f"refused: the global {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise NotPlainData("refused: a persistent id")


def _at_once(data: bytes, max_values: int) -> Any:
    """The value by the C loader, where all bytes are known to be harmless; else _NOT_SURE."""
    if len(data) > max_values or not _harmless(data):
        return _NOT_SURE
    try:
        return _NoGlobals(io.BufferedReader(io.BytesIO(data), 1 << 16)).load()  # type: ignore[arg-type,unused-ignore]
    except (pickle.UnpicklingError, ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError, RecursionError):
        return _NOT_SURE  # damaged: the machine says where


def _harmless(data: bytes) -> bool:
    """Whether `data` consists of opcodes of plain data only, up to its STOP."""
    if sum(data.count(opcode) for opcode in _TUPLES) > _TUPLES_MAX:
        return False
    at, size = 0, len(data)
    while True:
        run = _RUN.match(data, at)
        at = run.end() if run is not None else at
        opcode = data[at] if at < size else -1
        if opcode == 0x58:  # BINUNICODE
            at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
        elif opcode == 0x8C:  # SHORT_BINUNICODE
            at += 2 + data[at + 1] if at + 1 < size else 2
        else:
            return opcode == 0x2E  # STOP


class _Machine:
    def __init__(self, data: bytes, max_values: int) -> None:
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._left = max_values

    def run(self) -> Any:
        try:
            return self._run()
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            if self._at >= len(self._data):
                raise NotPlainData(f"truncated: ends at byte {len(self._data)}, before the end of the pickle") from error
            raise NotPlainData(f"not a well-formed pickle: {type(error).__name__} at byte {self._at}") from error

    def _run(self) -> Any:
        """The opcodes that torch's dumps consist of, in one loop over local names: a dump holds a million of them. The
        others go through `_rare`."""
        data, stack, memo = self._data, self._stack, self._memo
        push, little = stack.append, int.from_bytes
        at, left = 0, self._left
        while True:
            self._at = at
            opcode = data[at]
            at += 1
            left -= 1
            if left < 0:
                raise NotPlainData(f"more values than allowed (at byte {at})")
            if opcode == 0x71:  # BINPUT
                memo[data[at]] = stack[-1]
                at += 1
            elif opcode == 0x68:  # BINGET
                push(memo[data[at]])
                at += 1
            elif opcode == 0x72:  # LONG_BINPUT
                memo[little(data[at : at + 4], "little")] = stack[-1]
                at += 4
            elif opcode == 0x6A:  # LONG_BINGET
                push(memo[little(data[at : at + 4], "little")])
                at += 4
            elif opcode == 0x58 or opcode == 0x8C:  # BINUNICODE, SHORT_BINUNICODE
                start = at + 4 if opcode == 0x58 else at + 1
                end = start + little(data[at:start], "little")
                text = data[start:end]
                if start > len(data) or len(text) != end - start:
                    self._cut_short()
                push(text.decode("utf-8", "replace"))
                at = end
            elif opcode == 0x4B:  # BININT1
                push(data[at])
                at += 1
            elif opcode == 0x94:  # MEMOIZE
                memo[len(memo)] = stack[-1]
            elif opcode == 0x28:  # MARK
                self._marks.append(len(stack))
            elif opcode == 0x5D:  # EMPTY_LIST
                push([])
            elif opcode == 0x7D:  # EMPTY_DICT
                push({})
            elif opcode == 0x75:  # SETITEMS
                flat = self._to_mark()
                _fill(self._top(dict), flat)
            elif opcode == 0x73:  # SETITEM
                value, key = stack.pop(), stack.pop()
                _fill(self._top(dict), [key, value])
            elif opcode == 0x65:  # APPENDS
                values = self._to_mark()
                self._top(list).extend(values)
            elif opcode == 0x61:  # APPEND
                value = stack.pop()
                self._top(list).append(value)
            elif opcode == 0x4A:  # BININT
                push(struct.unpack_from("<i", self._slice(at, 4))[0])
                at += 4
            elif opcode == 0x4D:  # BININT2
                push(little(self._slice(at, 2), "little"))
                at += 2
            elif opcode == 0x4E:  # NONE
                push(None)
            elif opcode == 0x88 or opcode == 0x89:  # NEWTRUE, NEWFALSE
                push(opcode == 0x88)
            elif opcode == 0x2E:  # STOP
                return stack.pop()
            else:
                at = self._rare(opcode, at)

    def _rare(self, opcode: int, at: int) -> int:
        """All other opcodes of plain data; returns where the next one starts."""
        stack = self._stack
        if opcode in _LONGS or opcode in _COUNTED:
            layout = _LONGS.get(opcode) or _COUNTED[opcode]
            size = struct.calcsize(layout)
            length = struct.unpack(layout, self._slice(at, size))[0]
            if length < 0 or (opcode in _LONGS and length > _LONGEST_INT_BYTES):
                raise NotPlainData(f"a value of {length} bytes at byte {at}")
            raw = self._slice(at + size, length)
            if opcode in _LONGS:
                stack.append(int.from_bytes(raw, "little", signed=True))
            else:
                stack.append(raw if opcode in _BYTES else raw.decode("utf-8", "replace"))
            return int(at + size + length)
        if opcode == 0x80:  # PROTO
            if self._slice(at, 1)[0] > pickle.HIGHEST_PROTOCOL:
                raise NotPlainData(f"pickle protocol {self._data[at]} is unknown")
            return at + 1
        if opcode == 0x95:  # FRAME
            self._slice(at, _FRAME_HEADER)
            return at + _FRAME_HEADER
        if opcode == 0x47:  # BINFLOAT
            stack.append(struct.unpack(">d", self._slice(at, 8))[0])
            return at + 8
        if opcode in (0x85, 0x86, 0x87):  # TUPLE1, TUPLE2, TUPLE3
            values = [stack.pop() for _ in range(opcode - 0x84)]
            stack.append(tuple(reversed(values)))
        elif opcode == 0x74:  # TUPLE
            stack.append(tuple(self._to_mark()))
        elif opcode == 0x29:  # EMPTY_TUPLE
            stack.append(())
        elif opcode == 0x6C:  # LIST
            stack.append(self._to_mark())
        elif opcode == 0x64:  # DICT
            stack.append(_fill({}, self._to_mark()))
        elif opcode == 0x30:  # POP
            stack.pop()
        elif opcode == 0x31:  # POP_MARK
            self._to_mark()
        else:
            what = _REFUSED.get(opcode, f"opcode 0x{opcode:02x}")
            raise NotPlainData(f"refused: {what} at byte {at - 1}; only plain data is read")
        return at

    def _slice(self, at: int, length: int) -> bytes:
        taken = self._data[at : at + length]
        if len(taken) != length:
            self._cut_short()
        return taken

    def _cut_short(self) -> None:
        raise NotPlainData(f"truncated: ends at byte {len(self._data)}, before the end of the pickle")

    def _to_mark(self) -> list[Any]:
        mark = self._marks.pop()
        values = self._stack[mark:]
        del self._stack[mark:]
        return values

    def _top(self, kind: type) -> Any:
        top = self._stack[-1]
        if type(top) is not kind:
            raise NotPlainData(f"not a well-formed pickle: expected a {kind.__name__} at byte {self._at}")
        return top


def _fill(into: dict[Hashable, Any], flat: list[Any]) -> dict[Hashable, Any]:
    if len(flat) % 2:
        raise NotPlainData("not a well-formed pickle: a key without a value")
    for index in range(0, len(flat), 2):
        key = flat[index]
        if not isinstance(key, _KEYS):
            raise NotPlainData(f"a dictionary key that is a {type(key).__name__}")
        into[key] = flat[index + 1]
    return into


def _check_depth(value: Any, max_depth: int) -> None:
    """Breadth first, each container once: a list that holds itself ends too. Raises NotPlainData, also for odd keys."""
    seen: set[int] = set()
    level = [value] if type(value) in _CONTAINERS else []
    depth = 0
    while level:
        depth += 1
        if depth > max_depth:
            raise NotPlainData(f"nested more than {max_depth} deep")
        fresh = {id(each): each for each in level}
        level = [each for name, each in fresh.items() if name not in seen]
        seen.update(fresh)
        dicts = [each for each in level if type(each) is dict]
        if not _KEY_TYPES.issuperset(map(type, chain.from_iterable(dicts))):
            raise NotPlainData("a dictionary key that is neither text nor a number")
        inside = chain(
            chain.from_iterable(each.values() for each in dicts),
            chain.from_iterable(each for each in level if type(each) is not dict),
        )
        level = [each for each in inside if type(each) in _CONTAINERS]
