"""Other names of components: PCI addresses, interfaces, UUIDs, as logs and counters use them.

An alias belongs to a host (or to a switch), except for those that are unique by nature. Two components under one alias
mean that the alias names neither: "cannot tell" is the answer, not the first that comes along.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.topology import ComponentRecord
from goodput_topology.identity import normal

ALIAS_ATTRS = ("pci", "uuid", "guid", "netdev", "rdma", "addr", "serial", "mac", "alias")
GLOBAL_ATTRS = ("uuid", "guid", "addr", "serial", "mac")  # unique in the whole fabric, so they resolve without a host


def spellings(alias: str) -> tuple[str, ...]:
    """The forms under which an alias is kept: as written in lower case, a PCI address in its normal form, and a GID that
    holds an IPv4 address as that address. A function other than 0 stays in the normal form: it is another adapter."""
    text = alias.strip().lower().removeprefix("::ffff:")
    usual = normal("pci", text)
    return (text,) if usual == text else (text, usual)


def scopes(records: Mapping[ComponentId, ComponentRecord]) -> dict[str, tuple[ComponentId, ...]]:
    """The components by the host (or switch) that their id names."""
    found: dict[str, list[ComponentId]] = defaultdict(list)
    for each, record in records.items():
        if record.kind is not ComponentKind.LINK:
            found[each.partition(":")[2].partition("/")[0]].append(each)
    return {scope: tuple(members) for scope, members in found.items()}


class Aliases:
    """Other names of components, per host and for the whole fabric. A host's are read when first asked for: a fabric has a
    million names and few are ever used. The answer never changes."""

    def __init__(self, records: Mapping[ComponentId, ComponentRecord]) -> None:
        self._records = records
        self._scopes = scopes(records)
        self._of: dict[str, dict[str, ComponentId | None]] = {}
        self._everywhere: dict[str, ComponentId | None] | None = None

    def find(self, scope: str | None, alias: str) -> ComponentId | None:
        """None when nothing fits, and when two components do."""
        names = self._global() if not scope else self._scope(scope)
        for each in spellings(alias):
            found = names.get(each)
            if found is not None:
                return found
        return None

    def _scope(self, scope: str) -> dict[str, ComponentId | None]:
        names = self._of.get(scope)
        if names is None:
            names = {}
            for each in self._scopes.get(scope, ()):
                record, rest = self._records[each], each.partition(":")[2].partition("/")[2]
                if record.kind is ComponentKind.NIC:
                    _note(names, rest.rpartition("/")[0], each)
                elif record.kind in (ComponentKind.PORT, ComponentKind.NVSWITCH):
                    _note(names, rest, each)
                for attr in ALIAS_ATTRS:
                    _note(names, record.attrs.get(attr, ""), each)
            self._of[scope] = names
        return names

    def _global(self) -> dict[str, ComponentId | None]:
        if self._everywhere is None:
            names: dict[str, ComponentId | None] = {}
            for each, record in self._records.items():
                for attr in GLOBAL_ATTRS:
                    if value := record.attrs.get(attr):
                        _note(names, value, each)
            self._everywhere = names
        return self._everywhere


def _note(names: dict[str, ComponentId | None], alias: str, component: ComponentId) -> None:
    for each in spellings(alias) if alias else ():
        if names.setdefault(each, component) != component:
            names[each] = None  # two fit: cannot tell
