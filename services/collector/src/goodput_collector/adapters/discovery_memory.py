"""What discovery must remember over a restart: the version it told last, numbers given, neighbours heard.

Without it a collector that starts anew would tell a snapshot without cables, for LLDP speaks only every 30 s, and everybody
would build a graph without them. A small JSON file, replaced whole; if it is lost, numbers are given anew and the version is
taken from the clock.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from goodput_collector.domain.lldp import NameKind, Neighbour

FILE_MAX = 4 << 20


class HeardEnd(msgspec.Struct, kw_only=True, omit_defaults=True):
    chassis: str
    chassis_kind: str
    port: str
    port_kind: str
    system: str = ""
    port_description: str = ""
    addresses: list[str] = []
    is_station: bool | None = None


class Memory(msgspec.Struct, kw_only=True, omit_defaults=True):
    version: int = 0
    digest: str = ""
    at_s: float = 0.0  # when that version was made
    rails: dict[str, int] = {}
    been_up: list[str] = []
    boot_id: str = ""  # of the indexes: after a reboot the driver counts anew
    indexes: dict[str, int] = {}
    heard: dict[str, HeardEnd] = {}  # the last heard first
    several: dict[str, list[HeardEnd]] = {}  # where more than one spoke


class DiscoveryMemory:
    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Memory:
        """An empty one where there is none that can be read."""
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(FILE_MAX), type=Memory)
        except (OSError, msgspec.DecodeError, ValueError):
            return Memory()

    def save(self, memory: Memory) -> None:
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(msgspec.json.encode(memory))
            temporary.replace(self._path)


def heard_end(neighbour: Neighbour) -> HeardEnd:
    return HeardEnd(
        chassis=neighbour.chassis, chassis_kind=neighbour.chassis_kind.value, port=neighbour.port,
        port_kind=neighbour.port_kind.value, system=neighbour.system, port_description=neighbour.port_description,
        addresses=list(neighbour.addresses), is_station=neighbour.is_station,
    )  # fmt: skip


def neighbour_of(end: HeardEnd) -> Neighbour:
    kinds = {each.value: each for each in NameKind}
    return Neighbour(
        chassis=end.chassis, chassis_kind=kinds.get(end.chassis_kind, NameKind.LOCAL), port=end.port,
        port_kind=kinds.get(end.port_kind, NameKind.LOCAL), system=end.system, port_description=end.port_description,
        addresses=tuple(end.addresses), is_station=end.is_station,
    )  # fmt: skip
