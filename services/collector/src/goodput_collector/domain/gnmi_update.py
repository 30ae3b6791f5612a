"""What a gNMI notification says, without the protocol's types: values at paths, paths that are gone, and a time.

A value is a scalar at a leaf, or JSON for a whole branch; `leaves` takes a branch apart, so that whoever reads does not
care how much the switch puts into one value. JSON written by the IETF's rules puts modules before names
(`openconfig-interfaces:state`) and 64-bit numbers in quotes; both are undone here. An entry of a list stands in JSON as an
object that contains its own keys: which of its members those are is known for the lists that are read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from goodput_collector.domain.gnmi_path import Elem, Path, elem

DEPTH_MAX = 24
LEAVES_MAX = 200_000
LIST_KEYS: dict[str, tuple[str, ...]] = {
    "interface": ("name", "interface-id"),
    "queue": ("name", "queue-name"),
    "neighbor": ("id",),
    "pfc-priority": ("dot1p", "priority"),
    "pfc-queue": ("queue", "priority"),
    "subinterface": ("index",),
    "capability": ("name",),
}


class Notice(NamedTuple):
    """One notification. `at_ns` by the switch's clock, 0: not told; `target` comes from the prefix (SONiC: a database)."""

    at_ns: int
    target: str
    updates: tuple[tuple[Path, Any], ...]
    deletes: tuple[Path, ...] = ()


def leaves(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    """Each leaf under `path`. What is nested deeper than anything that a switch says is cut off."""
    return _walk(path, value, DEPTH_MAX)


def _walk(path: Path, value: Any, depth: int) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, Mapping):
        if depth:
            for name, inner in value.items():
                yield from _walk((*path, Elem(bare(str(name)))), inner, depth - 1)
    elif isinstance(value, list) and path and any(isinstance(each, Mapping) for each in value):
        if depth:
            for each in value:
                if isinstance(each, Mapping):
                    yield from _walk((*path[:-1], _entry(path[-1].name, each)), each, depth - 1)
    elif path:
        yield path, value


def _entry(name: str, entry: Mapping[Any, Any]) -> Elem:
    members = {bare(str(key)): value for key, value in entry.items()}
    for key in LIST_KEYS.get(name, ("name", "id", "index")):
        value = members.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return elem(name, {key: str(value)})
    return Elem(name)


def bare(name: str) -> str:
    """The name without its module."""
    return name.rpartition(":")[2] if ":" in name else name


def whole(value: Any) -> int | None:
    """A count: what is no non-negative whole number is none."""
    kind = type(value)  # asked for hundreds of times a second: subclasses do not come over the wire
    if kind is int:
        return int(value) if value >= 0 else None
    if kind is str:
        return int(value) if value.isascii() and value.isdigit() and len(value) <= 20 else None
    if isinstance(value, float) and value.is_integer() and 0 <= value < 2**63:
        return int(value)
    return None


def text(value: Any) -> str:
    """A word: without module and blanks, at most 200 characters; "" where it is none."""
    if isinstance(value, str):
        return value.strip()[:200]
    return str(value) if isinstance(value, int | float) else ""


def word(value: Any) -> str:
    """An enumeration's value in lower case: `UP`, `openconfig-interfaces:UP` and `up` are one."""
    return bare(text(value)).lower()
