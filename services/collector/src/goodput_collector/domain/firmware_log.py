"""An error that the firmware reports, in a dozen lines under one number in braces:

    {1}[Hardware Error]: event severity: recoverable
    {1}[Hardware Error]:  Error 0, type: recoverable
    {1}[Hardware Error]:   section_type: PCIe error
    {1}[Hardware Error]:   device_id: 0000:9b:00.0
    {1}[Hardware Error]:   vendor_id: 0x10de, device_id: 0x2330
    {1}[Hardware Error]:   class_code: 030200

The line with the severity alone says that the host has had an error. Where the section that follows is one of PCIe, it is
the device that had it: so an error that the host survives waits for its section, and a complete PCIe section is told of its
device instead. A fatal one is told at once: nothing may follow it.
"""

from __future__ import annotations

import re
from datetime import datetime

from goodput_collector.domain.host_hardware import Part, part_of
from goodput_collector.domain.nic_log import pci_name
from goodput_collector.domain.xid import excerpt
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Event, EventName, Severity

_LINE = re.compile(r"\{(?P<number>\d{1,10})\}\[Hardware Error\]:\s*(?P<rest>.*)")
_SEVERITY = re.compile(r"(?:event severity|Error \d+, type): (?P<severity>\w+)")
_PCI = re.compile(r"device_id: (?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")
_VENDOR = re.compile(r"vendor_id: (?P<vendor>0x[0-9a-fA-F]{4})\b")
_CLASS = re.compile(r"class_code: (?P<code>(?:0x)?[0-9a-fA-F]{6})\b")
_HELD = "recoverable"
_SEVERITIES = {
    "corrected": ("corrected", Severity.INFO),
    "info": ("corrected", Severity.INFO),
    "fatal": ("fatal", Severity.FATAL),
}


class FirmwareLines:
    """Feed it every line of one log in order, with the event that the line makes by itself."""

    def __init__(self) -> None:
        self._held: Event | None = None
        self._begin("")

    def see(self, text: str, event: Event | None, *, host: str, at: datetime) -> Event | None:
        """The event to tell now: the line's own, one that waited, or that of a PCIe section which is complete."""
        match = _LINE.search(text) if "[Hardware Error]" in text else None
        if match is None:
            return event if event is not None else self._release()
        report, rest = f"{host}/{match['number']}", match["rest"]
        if report != self._report or rest.startswith("event severity"):
            return self._first(report, rest, event)
        if (found := _SEVERITY.match(rest)) is not None:
            self._severity = found["severity"].lower()
        elif rest.startswith("section_type:"):
            self._in_pcie, self._pci, self._vendor = "PCIe" in rest, "", ""
            if not self._in_pcie:
                return self._release()
        elif self._in_pcie:
            return self._section(rest, host, at) or event
        return event

    def _begin(self, report: str) -> None:
        self._report, self._severity = report, ""
        self._in_pcie, self._pci, self._vendor = False, "", ""

    def _first(self, report: str, rest: str, event: Event | None) -> Event | None:
        self._begin(report)
        found = _SEVERITY.match(rest)
        self._severity = found["severity"].lower() if found is not None else ""
        if event is not None and self._severity == _HELD:
            waited, self._held = self._held, event
            return waited
        return event if event is not None else self._release()

    def _section(self, rest: str, host: str, at: datetime) -> Event | None:
        if (found := _PCI.match(rest)) is not None:
            self._pci = found["pci"]
        elif (found := _VENDOR.match(rest)) is not None:
            self._vendor = found["vendor"]
        elif (found := _CLASS.match(rest)) is not None and self._pci:
            self._held = None
            return self._of_device(found["code"], host, at)
        return None

    def _of_device(self, code: str, host: str, at: datetime) -> Event:
        name, part = pci_name(self._pci), part_of(code, self._vendor or "0")
        component = ids.host_id(host)
        if part is Part.GPU:
            component = ids.gpu_id(host, name)
        elif part is Part.NIC:
            component = ids.nic_id(host, name)
        word, severity = _SEVERITIES.get(self._severity, ("uncorrected", Severity.ERROR))
        return Event(
            component=component,
            name=EventName.AER,
            observed_at=at,
            severity=severity,
            excerpt=excerpt(f"firmware: PCIe error of {self._pci}, {self._severity or 'of unknown severity'}"),
            attrs={"severity": word, "pci": name, "by": "firmware"},
        )

    def _release(self) -> Event | None:
        held, self._held = self._held, None
        return held
