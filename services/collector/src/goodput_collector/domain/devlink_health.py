"""What drivers report of their own health: devlink's reporters (mlx5: fw, fw_fatal, tx, rx, vnic).

Each reporter has a state, how many errors it has seen and how many times it recovered from one. An error that was recovered
from within the second shows only in the counts; a reporter that stays in `error` has given up. `fw_fatal` in error is an
adapter whose firmware is dead though its link may read UP.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from goodput_collector.domain import netlink_wire as wire
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Event, EventName, Severity, State

HEALTH_GET = 52
_BUS, _DEVICE, _PORT = 1, 2, 3
_REPORTER, _NAME, _STATE, _ERRORS, _RECOVERIES, _AUTO_RECOVER = 114, 115, 116, 117, 118, 121
HEALTHY = "healthy"
_STATES = (HEALTHY, "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporter:
    """`device` is a PCI address in full; `port` -1: of the device, not of one port."""

    device: str
    port: int
    name: str
    state: str
    errors: int
    recoveries: int
    auto_recover: bool

    @property
    def key(self) -> tuple[str, int, str]:
        return self.device, self.port, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    component: ComponentId
    attrs: dict[str, str]


def reporters(answer: Iterable[wire.Message]) -> list[Reporter]:
    """Raises Malformed."""
    found = []
    for message in answer:
        attrs = message.attributes()
        parts = wire.attributes(attrs.get(_REPORTER, b""))
        device, name = wire.text(attrs.get(_DEVICE)), wire.text(parts.get(_NAME))
        if not device or not name or wire.text(attrs.get(_BUS)) != "pci":
            continue
        state = wire.number(parts.get(_STATE))
        port = wire.number(attrs.get(_PORT))
        found.append(
            Reporter(
                device=device,
                port=-1 if port is None else port,
                name=name,
                state=_STATES[state] if state is not None and state < len(_STATES) else f"state {state}",
                errors=wire.number(parts.get(_ERRORS)) or 0,
                recoveries=wire.number(parts.get(_RECOVERIES)) or 0,
                auto_recover=bool(wire.number(parts.get(_AUTO_RECOVER))),
            )
        )
    return found


def state_of(reporter: Reporter, owner: Owner, at: datetime) -> State:
    return State(
        component=owner.component,
        name=f"health:{reporter.name}",
        observed_at=at,
        value=reporter.state,
        attrs=owner.attrs | _attrs(reporter),
    )


class Health:
    """Remembers what each reporter said last."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int, str], Reporter] = {}

    def update(self, found: Iterable[Reporter], owners: Mapping[str, Owner], at: datetime) -> list[Event]:
        """What has changed. A reporter that is in error when it is first seen is told; old counts are not."""
        events = []
        now = {reporter.key: reporter for reporter in found}
        for key, reporter in now.items():
            before = self._last.get(key)
            owner = owners[reporter.device]
            events += _changes(before, reporter, owner, at)
        self._last = now
        return events


def _changes(before: Reporter | None, now: Reporter, owner: Owner, at: datetime) -> list[Event]:
    if before is None:
        return [_event(now, owner, at, 1)] if now.state != HEALTHY else []
    if now.errors < before.errors:  # the driver was loaded again and counts anew
        before = Reporter(
            device=now.device, port=now.port, name=now.name, state=HEALTHY, errors=0, recoveries=0, auto_recover=True
        )
    errors, recovered = now.errors - before.errors, now.recoveries - before.recoveries
    if errors == 0 and now.state == before.state:
        return []
    return [_event(now, owner, at, max(1, errors), recovered=recovered)]


def _event(reporter: Reporter, owner: Owner, at: datetime, count: int, *, recovered: int = 0) -> Event:
    severity = Severity.WARNING  # it was ill, and is well again
    if reporter.state != HEALTHY:
        severity = Severity.FATAL if "fatal" in reporter.name else Severity.ERROR
    told = {"reporter": reporter.name, "state": reporter.state}
    if recovered > 0:
        told["recovered"] = str(recovered)
    return Event(
        component=owner.component,
        name=EventName.DEVICE_HEALTH,
        observed_at=at,
        severity=severity,
        excerpt=f"{reporter.device}: health reporter {reporter.name} is {reporter.state}"
        f" ({reporter.errors} errors, {reporter.recoveries} recoveries)",
        attrs=owner.attrs | _attrs(reporter) | told,
        count=count,
    )


def _attrs(reporter: Reporter) -> dict[str, str]:
    told = {"errors": str(reporter.errors), "recoveries": str(reporter.recoveries)}
    if reporter.port >= 0:
        told["devlink_port"] = str(reporter.port)
    return told
