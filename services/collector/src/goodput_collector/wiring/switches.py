"""Switches that this collector asks: one reader each, from the list that the settings name.

Only a collector that serves switches imports what that needs: on a compute host the graph library alone would be half of
its memory.
"""

from __future__ import annotations

from pathlib import Path

from goodput_collector.application.ports import Reading, SourceReader, Unreadable
from goodput_collector.wiring.given import Given
from goodput_common.contracts.telemetry import Source

LIST_BYTES_MAX = 4 << 20


def readers(given: Given) -> list[SourceReader]:
    path = given.settings.switches
    if path is None:
        return []
    try:
        return _of_list(path, given)
    except OSError as error:
        return [_Unusable(f"{error.filename or path}: {error.strerror or error}")]
    except ValueError as error:
        return [_Unusable(f"{path}: {error}")]


def _of_list(path: Path, given: Given) -> list[SourceReader]:
    from goodput_collector.adapters.gnmi import GnmiReader
    from goodput_collector.adapters.snmp import SnmpReader
    from goodput_collector.domain.gnmi_streams import Kind
    from goodput_collector.domain.switch_list import parse_switches
    from goodput_collector.domain.switch_lldp import Directory

    settings = given.settings
    with path.open("rb") as file:
        switches = parse_switches(file.read(LIST_BYTES_MAX))
    directory = Directory(each.name for each in switches)
    found: list[SourceReader] = []
    for switch in switches:
        make = SnmpReader if switch.kind is Kind.SNMP else GnmiReader
        found.append(make(switch, fabric=settings.fabric, directory=directory, clock=given.clock))
    return found


class _Unusable:
    """Stands for the switches of a list that cannot be used, and says why."""

    source = Source.SWITCH
    instance = ""
    interval_s = 60.0
    deadline_s = 5.0

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def open(self) -> None:
        raise Unreadable(self._reason, remedy="correct the file that GOODPUT_SWITCHES names, and start the collector again")

    def read(self) -> Reading:
        raise Unreadable(self._reason)

    def wake_fd(self) -> int | None:
        return None

    def close(self) -> None:
        """Nothing is open."""
