"""A fabric as messages: cut into parts that fit the bus, and put together again from parts in any order.

A snapshot *replaces* what its source said before, so a half-received one must never be used: `Assembly` gives parts out
only when all of one version are there, and forgets what an interrupted sender left behind.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime

import msgspec

from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, TopologySnapshot
from goodput_topology.graph import Fabric

PART_BYTES_MAX = 900_000  # the bus takes 1 MB a message, headers included
SOURCES_MAX = 64  # half-received snapshots kept; the oldest goes first
PARTS_MAX = 10_000


def to_snapshots(fabric: Fabric, *, source: str, version: int, at: datetime) -> tuple[TopologySnapshot, ...]:
    """At least one part, also for an empty fabric."""
    encode = msgspec.json.Encoder().encode
    chunks: list[tuple[list[ComponentRecord], list[EdgeRecord]]] = [([], [])]
    room = PART_BYTES_MAX
    components = [r for r in fabric.components.values() if fabric.ends_of(r.id) is None]  # links are in the edges
    records: Iterator[ComponentRecord | EdgeRecord] = itertools.chain(components, fabric.edges)
    for record in records:
        size = len(encode(record)) + 1
        if size > room:
            chunks.append(([], []))
            room = PART_BYTES_MAX
        room -= size
        if isinstance(record, ComponentRecord):
            chunks[-1][0].append(record)
        else:
            chunks[-1][1].append(record)
    return tuple(
        TopologySnapshot(
            fabric=fabric.name, source=source, version=version, at=at, part=number, parts=len(chunks),
            components=tuple(components), edges=tuple(edges),
        )
        for number, (components, edges) in enumerate(chunks, start=1)
    )  # fmt: skip


class Assembly:
    """Collects parts per (fabric, source). At the bound the snapshot that has waited longest is forgotten: it comes
    again."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], dict[int, TopologySnapshot]] = {}

    def add(self, part: TopologySnapshot) -> tuple[TopologySnapshot, ...] | None:
        """All parts in order once the last has come, else None. A part of an older version than the one in hand is
        ignored."""
        if not 1 <= part.part <= part.parts <= PARTS_MAX:
            raise ValueError(f"part {part.part} of {part.parts} (at most {PARTS_MAX}) from source {part.source!r}")
        key = (part.fabric, part.source)
        held = self._waiting.get(key, {})
        if held:
            version = next(iter(held.values())).version
            if part.version < version:
                return None
            if part.version > version:
                held = {}
        held[part.part] = part
        if len(held) == part.parts:
            self._waiting.pop(key, None)
            return tuple(held[number] for number in sorted(held))
        if key not in self._waiting and len(self._waiting) >= SOURCES_MAX:
            self._waiting.pop(next(iter(self._waiting)))
        self._waiting[key] = held
        return None
