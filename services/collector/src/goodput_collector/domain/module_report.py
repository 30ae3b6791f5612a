"""What a module's memory tells, as samples: measurements, a state, and an event for each complaint that is new."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from goodput_collector.domain.module_eeprom import Module
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Event, EventName, Gauge, Severity, State

NOISE = {
    "module_temperature_c": 1.0,
    "module_voltage_v": 0.05,
    "module_rx_power_dbm": 0.5,
    "module_tx_power_dbm": 0.5,
    "module_tx_bias_ma": 0.5,
}


def gauges_of(module: Module, component: ComponentId, attrs: Mapping[str, str], at: datetime) -> list[Gauge]:
    found: list[tuple[str, float | None, str]] = [
        ("module_temperature_c", module.temperature_c, ""),
        ("module_voltage_v", module.voltage_v, ""),
    ]
    for lane in module.lanes:
        number = str(lane.number)
        found += [
            ("module_rx_power_dbm", lane.rx_power_dbm, number),
            ("module_tx_power_dbm", lane.tx_power_dbm, number),
            ("module_tx_bias_ma", lane.tx_bias_ma, number),
        ]
    return [
        Gauge(
            component=component,
            name=name,
            observed_at=at,
            value=value,
            attrs=dict(attrs) | ({"lane": lane_number} if lane_number else {}),
        )
        for name, value, lane_number in found
        if value is not None
    ]


def state_of(module: Module | None, component: ComponentId, attrs: Mapping[str, str], at: datetime) -> State:
    """`absent`, `alarm`, `warning`, `ok`, or what the module says of itself when it is not ready."""
    if module is None:
        return State(component=component, name="module", observed_at=at, value="absent", attrs=dict(attrs))
    value = "ok" if module.state in ("", "ready") else module.state
    if any(_severity(flag) is Severity.ERROR for flag in module.flags):
        value = "alarm"
    elif module.flags and value == "ok":
        value = "warning"
    told = {
        "kind": module.kind,
        "vendor": module.vendor,
        "part": module.part,
        "serial": module.serial,
        "medium": "optical" if module.optical else "copper",
        "flags": ",".join(module.flags),
    }
    told = {name: text for name, text in told.items() if text}
    return State(component=component, name="module", observed_at=at, value=value, attrs={**attrs, **told})


def lost_of(before: State, reason: str, *, gone: bool, at: datetime) -> State:
    """What is told of a module that was read before and cannot be now: `absent` or `unknown`, and which it was."""
    value = "absent" if gone else "unknown"
    attrs = {name: text for name, text in before.attrs.items() if name != "flags"} | {"reason": reason}
    return State(component=before.component, name="module", observed_at=at, value=value, attrs=attrs)


def complaints(
    before: Module | None, module: Module, component: ComponentId, attrs: Mapping[str, str], at: datetime
) -> list[Event]:
    """One event a flag that the reading before did not have."""
    known = set(before.flags) if before is not None else set()
    return [
        Event(
            component=component,
            name=EventName.CABLE,
            observed_at=at,
            severity=_severity(flag),
            excerpt=f"module {module.vendor} {module.part} {module.serial}: {flag.replace('_', ' ')}",
            attrs={**attrs, "by": "ethtool", "what": flag, "error": str(_severity(flag) is Severity.ERROR).lower()},
        )
        for flag in module.flags
        if flag not in known
    ]


def _severity(flag: str) -> Severity:
    return Severity.ERROR if "alarm" in flag or "fault" in flag else Severity.WARNING
