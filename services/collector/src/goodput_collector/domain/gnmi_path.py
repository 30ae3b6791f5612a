"""Paths of gNMI: where in a switch's tree of data a value stands.

    /interfaces/interface[name=Ethernet0]/state/oper-status

An element has a name and, in a list, the keys of the entry that is meant. A slash inside a key does not part elements
(`[name=Ethernet1/1]`), and a backslash takes the meaning from the character after it. Here a path is a tuple of
elements, so that it can be looked up in a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Elem(NamedTuple):
    """One step. `keys` are sorted by name."""

    name: str
    keys: tuple[tuple[str, str], ...] = ()

    def key(self, name: str) -> str:
        """The key's value, or "" where there is none of that name."""
        for key, value in self.keys:
            if key == name:
                return value
        return ""

    def only_key(self) -> str:
        """The first key's value whatever it is called: vendors differ in what they call the key of a queue."""
        return self.keys[0][1] if self.keys else ""


Path = tuple[Elem, ...]


def elem(name: str, keys: Mapping[str, str] | None = None) -> Elem:
    return Elem(name, tuple(sorted(keys.items())) if keys else ())


def names(path: Path) -> tuple[str, ...]:
    return tuple(each.name for each in path)


def parse_path(text: str) -> Path:
    """The path that `text` spells. Raises ValueError, naming what does not fit."""
    return tuple(_elem(part, text) for part in _split(text, "/") if part)


def path_text(path: Iterable[Elem]) -> str:
    parts = []
    for each in path:
        keys = "".join(f"[{name}={_escaped(value)}]" for name, value in each.keys)
        parts.append(each.name.replace("\\", "\\\\").replace("/", "\\/").replace("[", "\\[") + keys)
    return "/" + "/".join(parts)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("]", "\\]")


def _split(text: str, at: str) -> list[str]:
    """Cut at `at` outside of brackets; escapes stay as they are."""
    parts, depth, start, skip = [], 0, 0, False
    for place, character in enumerate(text):
        if skip:
            skip = False
        elif character == "\\":
            skip = True
        elif character == "[" and not depth:
            depth = 1
        elif character == "]" and depth:
            depth = 0
        elif character == at and not depth:
            parts.append(text[start:place])
            start = place + 1
    if depth:
        raise ValueError(f"path {text!r}: a key has no closing bracket")
    parts.append(text[start:])
    return parts


def _elem(part: str, text: str) -> Elem:
    place = _first(part, "[")
    name, rest = part[:place], part[place:]
    keys: dict[str, str] = {}
    while rest:
        end = _first(rest, "]", start=1)
        if not rest.startswith("[") or end >= len(rest):
            raise ValueError(f"path {text!r}: cannot read the keys of element {_plain(name)!r}")
        key, equals, value = rest[1:end].partition("=")
        if not equals or not key:
            raise ValueError(f"path {text!r}: a key of element {_plain(name)!r} is not of the form name=value")
        keys[key] = _plain(value)
        rest = rest[end + 1 :]
    return elem(_plain(name), keys)


def _first(text: str, wanted: str, *, start: int = 0) -> int:
    """Where `wanted` first stands without a backslash before it; the length of `text` where it does not."""
    place = start
    while place < len(text):
        if text[place] == "\\":
            place += 1
        elif text[place] == wanted:
            return place
        place += 1
    return len(text)


def _plain(text: str) -> str:
    if "\\" not in text:
        return text
    plain, skip = [], False
    for character in text:
        if character == "\\" and not skip:
            skip = True
        else:
            plain.append(character)
            skip = False
    return "".join(plain)
