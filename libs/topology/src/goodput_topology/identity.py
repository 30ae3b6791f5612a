"""Which component of one source is the same as which of another.

A host calls its adapter `nic:h7/mlx5_0/1`. The subnet's scan calls it `nic:h7.example/HCA-1/1`, a switch knows a MAC
address, and somebody's drawing says `nic:h7/rdma0/1`. All mean one piece of hardware, and a verdict must mean it too. So
each source's components are laid, one source after the other, upon what is known already, by whatever they have in
common, the strongest first:

1. what is unique by nature: a GUID, a UUID;
2. the place: the PCI address on one host;
3. the id itself;
4. other names on one host or switch: interface, RDMA device, port alias, MAC address; a host's name without its domain.

Two components of *one* source are never the same: it tells them apart, so it knows. What fits two is no key at all. A host
or an NVLink domain that is known under another name is found by its parts: whose adapters are h7's is h7.

A host that speaks *for itself* keeps its name, whatever it has in common with another that does: `n1.pod-a` and `n1.pod-b`
are two, and so are clones of one machine. A MAC address is no exception: every server of a model may have the same one at
its management controller's USB adapter. It finds an adapter of *any* host only for what somebody heard over LLDP, and only
where a single host has it.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, Relation

Key = tuple[str, ...]
_BY_PARTS = (ComponentKind.HOST, ComponentKind.NVDOMAIN)
_SCOPED_BY_HOST = frozenset({ComponentKind.GPU, ComponentKind.NIC, ComponentKind.NVLINK, ComponentKind.NVSWITCH})

_SHORT_HOST, _ANY_NIC = ("short", ComponentKind.HOST), ("mac", ComponentKind.NIC)
_HOSTS_SHARE = frozenset({"short", "mac"})  # what two hosts may well have in common


class Identity:
    """What is known so far: canonical ids, and the keys under which each is found."""

    def __init__(self) -> None:
        self.known: dict[ComponentId, ComponentKind] = {}
        self._of_itself: set[Key] = set()  # keys that a host gave of itself
        self._keys: dict[Key, ComponentId | None] = {}  # None: fits two, so it is no key
        self._whole_of: dict[tuple[ComponentKind, ComponentId], ComponentId] = {}  # (kind of whole, part) -> whole

    def lay(
        self,
        components: Mapping[ComponentId, ComponentRecord],
        edges: Iterable[EdgeRecord],
        *,
        host: str = "",
        hears: bool = False,
    ) -> dict[ComponentId, ComponentId]:
        """One source's components upon what is known: its id -> the canonical id, for all that could be placed. One that
        would be a second component in another's place is left out. `host` is who speaks for itself, "" for any other sort
        of source; `hears`: it tells of others what LLDP said. Hosts come before all others."""
        parts = _parts(components, edges)
        if not self.known:
            placed = {each: each for each in components}
        else:
            placed = _Layer(self, components, parts, host=host, hears=hears).place()
        self._learn(components, placed, parts, host)
        return placed

    def find(self, key: Key) -> ComponentId | None:
        return self._keys.get(key)

    def named(self, system: str, words: Iterable[str]) -> ComponentId | None:
        """The adapter or port that somebody else describes: the name of a host or switch, and words of which one names a
        port of it or is a MAC address. None where nothing fits."""
        short = system.partition(".")[0].lower()
        host, switch = (
            full if (full := f"{kind}:{system}") in self.known else self.find(("short", kind, short))
            for kind in (ComponentKind.HOST, ComponentKind.SWITCH)
        )
        for word in words:
            for whole, key in ((host, "nic"), (switch, "port")):
                if whole is None or not word:
                    continue
                tail = ("1",) if key == "nic" else ()
                if (found := self.find((key, _scope(whole), word, *tail))) is not None:
                    return found
            for kind in (ComponentKind.NIC, ComponentKind.PORT):
                if word and (found := self.find(("mac", kind, normal("mac", word)))) is not None:
                    return found
        return None

    def whole_of(self, kind: ComponentKind, part: ComponentId) -> ComponentId | None:
        return self._whole_of.get((kind, part))

    def _learn(
        self,
        components: Mapping[ComponentId, ComponentRecord],
        placed: Mapping[ComponentId, ComponentId],
        parts: Mapping[ComponentId, list[ComponentId]],
        host: str,
    ) -> None:
        fresh: dict[Key, ComponentId | None] = {}
        for own, canonical in placed.items():
            record = components[own]
            self.known.setdefault(canonical, record.kind)
            for key in keys_of(record, canonical):
                if fresh.setdefault(key, canonical) != canonical:
                    fresh[key] = None
        for key, found in fresh.items():
            if host and found is not None and key[0] in _HOSTS_SHARE and _scope(found) == host:
                if key in self._of_itself and self._keys[key] != found:
                    self._keys[key] = None
                else:  # better than what another had heard of it
                    self._of_itself.add(key)
                    self._keys[key] = found
            else:
                self._keys.setdefault(key, found)  # who spoke first has the key
        for whole, members in parts.items():
            if whole in placed:
                for part in members:
                    if part in placed:
                        self._whole_of.setdefault((components[whole].kind, placed[part]), placed[whole])


class _Layer:
    """One source being laid."""

    def __init__(
        self,
        identity: Identity,
        components: Mapping[ComponentId, ComponentRecord],
        parts: Mapping[ComponentId, list[ComponentId]],
        *,
        host: str,
        hears: bool,
    ) -> None:
        self._host, self._hears = host, hears
        self._identity = identity
        self._components = components
        self._parts = parts
        self._placed: dict[ComponentId, ComponentId] = {}
        self._taken: set[ComponentId] = set()

    def place(self) -> dict[ComponentId, ComponentId]:
        for own, record in self._components.items():
            self._by_keys(own, record, _unique(record))
        self._place_wholes(ComponentKind.SWITCH)
        self._place_wholes(ComponentKind.HOST)  # by the adapters that have a place by now; where a host is, its parts are
        left = [
            (own, record, self._moved(own, record))
            for own, record in self._components.items()
            if own not in self._placed and record.kind is not ComponentKind.NVDOMAIN
        ]
        for strength in (_places, _same_id, self._names):
            left = [each for each in left if not self._by_keys(each[0], each[1], strength(each[1], each[2]))]
        self._place_wholes(ComponentKind.NVDOMAIN)
        for own, record in self._components.items():
            if own not in self._placed:
                self._take(own, self._moved(own, record), record.kind)
        return self._placed

    def _place_wholes(self, kind: ComponentKind) -> None:
        for own, record in self._components.items():
            if record.kind is kind and own not in self._placed:
                self._place_whole(own, record)

    def _place_whole(self, own: ComponentId, record: ComponentRecord) -> None:
        if own in self._identity.known or (self._host and own == ids.host_id(self._host)):
            self._take(own, own, record.kind)
            return
        if record.kind in _BY_PARTS:
            wholes = {
                whole
                for part in self._parts.get(own, ())
                if part in self._placed and (whole := self._identity.whole_of(record.kind, self._placed[part])) is not None
            }
            if len(wholes) == 1 and self._take(own, wholes.pop(), record.kind):
                return
        self._by_keys(own, record, self._names(record, own))

    def _names(self, record: ComponentRecord, canonical: ComponentId) -> Iterator[Key]:
        """The names that may find something, said by this source."""
        heard = self._hears and not (self._host and _scope(record.id) == self._host)
        for key in _names(record, canonical):
            if key[:2] == _SHORT_HOST and self._host:
                continue
            if key[:2] == _ANY_NIC and not heard:
                continue
            yield key

    def _by_keys(self, own: ComponentId, record: ComponentRecord, keys: Iterable[Key]) -> bool:
        for key in keys:
            found = self._identity.find(key)
            if found is not None and self._take(own, found, record.kind):
                return True
        return False

    def _take(self, own: ComponentId, canonical: ComponentId, kind: ComponentKind) -> bool:
        """False where another component of this source has that place, or something of another kind has it."""
        if canonical in self._taken or self._identity.known.get(canonical, kind) is not kind:
            return False
        self._placed[own] = canonical
        self._taken.add(canonical)
        return True

    def _moved(self, own: ComponentId, record: ComponentRecord) -> ComponentId:
        """The id with its host or switch under the canonical name."""
        if record.kind in _SCOPED_BY_HOST:
            whole = f"host:{_scope(own)}"
        elif record.kind is ComponentKind.PORT:
            whole = f"switch:{_scope(own)}"
        else:
            return own
        placed = self._placed.get(whole)
        if placed is None or placed == whole:
            return own
        return f"{record.kind}:{placed.partition(':')[2]}/{own.partition('/')[2]}"


# -- keys ------------------------------------------------------------------------------------------------------------


def keys_of(record: ComponentRecord, canonical: ComponentId) -> Iterator[Key]:
    yield from _unique(record)
    yield from _places(record, canonical)
    yield "id", canonical
    yield from _names(record, canonical)


def _unique(record: ComponentRecord) -> Iterator[Key]:
    if record.kind in (ComponentKind.NIC, ComponentKind.SWITCH, ComponentKind.GPU):
        for attr in ("uuid", "guid"):
            if value := record.attrs.get(attr):
                yield attr, record.kind, normal(attr, value)


def _places(record: ComponentRecord, canonical: ComponentId) -> Iterator[Key]:
    if record.kind in _SCOPED_BY_HOST and (pci := record.attrs.get("pci")):
        yield "pci", record.kind, _scope(canonical), normal("pci", pci)


def _same_id(record: ComponentRecord, canonical: ComponentId) -> Iterator[Key]:
    yield "id", canonical


def _names(record: ComponentRecord, canonical: ComponentId) -> Iterator[Key]:
    kind, scope = record.kind, _scope(canonical)
    rest = canonical.partition("/")[2]
    if kind is ComponentKind.NIC:
        device, _, port = rest.rpartition("/")
        names = dict.fromkeys((device, record.attrs.get("rdma", ""), record.attrs.get("netdev", "")))
        yield from (("nic", scope, name, port) for name in names if name)
        if mac := record.attrs.get("mac"):
            yield "nic-mac", scope, normal("mac", mac)
    elif kind is ComponentKind.PORT:
        names = dict.fromkeys((rest, record.attrs.get("alias", ""), record.attrs.get("netdev", "")))
        yield from (("port", scope, name) for name in names if name)
    elif kind in (ComponentKind.HOST, ComponentKind.SWITCH):
        name = canonical.partition(":")[2]
        short = name.partition(".")[0]
        if short and not short.isdigit():
            yield "short", kind, short.lower()
    if kind in (ComponentKind.NIC, ComponentKind.PORT, ComponentKind.SWITCH) and (mac := record.attrs.get("mac")):
        yield "mac", kind, normal("mac", mac)


@functools.lru_cache(maxsize=65_536)  # a thousand hosts of one model have the same PCI addresses
def normal(attr: str, value: str) -> str:
    """One spelling of a value that has several."""
    text = value.strip().lower()
    if attr == "pci":
        try:
            short, function = ids.normal_pci(text), text.rpartition(".")[2] if "." in text else "0"
        except ValueError:
            return text
        return short if function == "0" else f"{short}.{function}"
    if attr == "guid":
        return text.removeprefix("0x").replace(":", "").rjust(16, "0")
    if attr == "mac":
        digits = text.removeprefix("0x").replace("-", "").replace(":", "").replace(".", "")
        return ":".join(digits[at : at + 2] for at in range(0, 12, 2)) if len(digits) == 12 else text
    return text


def _scope(component: ComponentId) -> str:
    return component.partition(":")[2].partition("/")[0]


def _parts(
    components: Mapping[ComponentId, ComponentRecord], edges: Iterable[EdgeRecord]
) -> dict[ComponentId, list[ComponentId]]:
    """The parts of each host and each NVLink domain."""
    found: dict[ComponentId, list[ComponentId]] = defaultdict(list)
    for edge in edges:
        whole = components.get(edge.b)
        if edge.relation is Relation.PART_OF and whole is not None and whole.kind in _BY_PARTS and edge.a in components:
            found[edge.b].append(edge.a)
    return found
