"""The fabric's graph as it crosses the bus: components with attributes, and edges between them."""

from __future__ import annotations

import enum
from datetime import datetime

import msgspec

from goodput_common.contracts.ids import ComponentId, ComponentKind


class Relation(enum.StrEnum):
    """What an edge says."""

    PART_OF = "part_of"  # gpu -> host, nic -> host, port -> switch, gpu -> nvdomain, host -> rack
    CABLED = "cabled"  # end -> end; the edge's id is the link's component id
    RAIL = "rail"  # gpu -> nic that it uses for inter-node traffic


class ComponentRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node.

    Well-known attrs: pci, uuid, netdev, guid, rail, tier (leaf | spine | core), rack, block, pod, chip, carries_traffic,
    mac, alias, numa, missing (was there before).
    """

    id: ComponentId
    kind: ComponentKind
    attrs: dict[str, str] = {}


class EdgeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    a: ComponentId
    b: ComponentId
    relation: Relation
    attrs: dict[str, str] = {}


class TopologySnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that `source` knows of `fabric`; replaces what the same source said before. Parts keep a message below 1 MB."""

    fabric: str
    source: str
    version: int
    at: datetime
    part: int = 1
    parts: int = 1
    components: tuple[ComponentRecord, ...] = ()
    edges: tuple[EdgeRecord, ...] = ()
