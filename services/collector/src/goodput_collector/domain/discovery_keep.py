"""What has vanished stays in the snapshot, and when a snapshot is told.

A GPU that fell off the bus, an adapter whose firmware died: the kernel takes the device away, and just then the diagnosis
must know what hung where. So a device that was there stays in the host's snapshot, marked `missing`, for as long as this
collector runs, unless it has turned up elsewhere or something else has taken its place. Virtual functions come and go by
design and do not stay.

A snapshot replaces the one before, and everybody builds the graph anew: it is told when what it says has changed and has
been the same for a few seconds (a driver that loads brings its devices one by one), and from time to time under its *old*
version, for whoever has missed it.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Mapping

from goodput_collector.domain.discovery import Records, ordered
from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, Relation

KEPT_MAX = 256
_STAYS = frozenset({ComponentKind.GPU, ComponentKind.NIC, ComponentKind.NVSWITCH})
_IS_ITSELF_BY = ("uuid", "guid", "mac", "pci")


class Keeper:
    def __init__(self) -> None:
        self._last: Records = ((), ())

    def with_vanished(self, records: Records, on_bus: Container[str]) -> Records:
        """`records` with what was there before and is not now. `on_bus` holds the PCI addresses (as attributes write
        them) that the bus still shows: a device on it is out of sight (given to a container), not missing."""
        now = {record.id: record for record in records[0]}
        itself = {
            (record.kind, name, record.attrs[name])
            for record in records[0]
            for name in _IS_ITSELF_BY
            if name in record.attrs
        }
        gone: dict[ComponentId, ComponentRecord] = {}
        for record in self._last[0]:
            if record.id in now or record.kind not in _STAYS or "pci" not in record.attrs or "pf" in record.attrs:
                continue
            if any((record.kind, name, record.attrs[name]) in itself for name in _IS_ITSELF_BY if name in record.attrs):
                continue
            if len(gone) < KEPT_MAX:
                missing = {} if record.attrs["pci"] in on_bus else {"missing": "true"}
                attrs = {name: value for name, value in record.attrs.items() if name != "missing"} | missing
                gone[record.id] = ComponentRecord(id=record.id, kind=record.kind, attrs=attrs)
        self._last = self._joined(records, now, gone) if gone else records
        return self._last

    def _joined(
        self, records: Records, now: Mapping[ComponentId, ComponentRecord], gone: Mapping[ComponentId, ComponentRecord]
    ) -> Records:
        before = {record.id: record for record in self._last[0]}
        components, edges = {**now, **gone}, list(records[1])
        cabled = {end for edge in edges if edge.relation is Relation.CABLED for end in (edge.a, edge.b)}
        wanted: list[EdgeRecord] = []
        for edge in self._last[1]:
            if edge.a not in gone and edge.b not in gone:
                continue
            if edge.relation is Relation.CABLED:
                if edge.a in cabled or edge.b in cabled:
                    continue
                far = edge.b if edge.a in gone else edge.a
                wanted += [each for each in self._last[1] if each.a == far and each.relation is Relation.PART_OF]
            elif edge.relation is Relation.RAIL and any(
                each.a == edge.a and each.relation is Relation.RAIL for each in edges
            ):
                continue  # the GPU has found another adapter
            wanted.append(edge)
        for edge in wanted:
            for end in (edge.a, edge.b):
                if end in before:
                    components.setdefault(end, before[end])
            if edge not in edges:
                edges.append(edge)
        return ordered(components.values(), edges)


class Tell(enum.Enum):
    NOTHING = "nothing"
    AGAIN = "again"  # the same under the same version
    CHANGED = "changed"  # under a new version


class Telling:
    """Decides, from a digest of what there is to say. `told` is the digest that was said last, also by an earlier
    process."""

    def __init__(self, *, told: str = "", settle_s: float = 10.0, hurry_s: float = 60.0, again_s: float = 600.0) -> None:
        self._told = told
        self._settle_s, self._hurry_s, self._again_s = settle_s, hurry_s, again_s
        self._at_s: float | None = None  # when it was said, by this process
        self._candidate = ""
        self._since_s = self._pending_s = 0.0

    def decide(self, digest: str, monotonic_s: float) -> Tell:
        if digest == self._told:
            self._candidate = ""
            due = self._at_s is None or monotonic_s - self._at_s >= self._again_s
            if due:
                self._at_s = monotonic_s
            return Tell.AGAIN if due else Tell.NOTHING
        if not self._candidate:
            self._pending_s = monotonic_s
        if digest != self._candidate:
            self._candidate, self._since_s = digest, monotonic_s
        settled = monotonic_s - self._since_s >= self._settle_s
        if not settled and monotonic_s - self._pending_s < self._hurry_s:
            return Tell.NOTHING
        self._told, self._candidate, self._at_s = digest, "", monotonic_s
        return Tell.CHANGED


def next_version(last: int, now_s: float) -> int:
    """Grows over restarts also where the last version was lost: it is a time unless that would go back."""
    return max(last + 1, int(now_s))
