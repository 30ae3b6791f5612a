"""One port of a switch: what is remembered of it, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from goodput_collector.domain.deltas import Deltas
from goodput_collector.domain.rdma_counters import Width
from goodput_collector.domain.switch_flaps import Missed, Moved
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Event, EventName, Severity, State

CLOCK_NOTED_S = 0.5


class Stamp(NamedTuple):
    """When facts were seen: `at_ns` by the switch's clock (0: not told), `at` by ours, `monotonic_s` when they got here."""

    at_ns: int
    at: datetime
    arrived: datetime
    monotonic_s: float
    by: str  # in which way: on change | sampled | fetched | SNMP
    stream: str = ""  # what is asked for together comes in order


class Storm:
    """The watchdog of one priority."""

    __slots__ = ("missed", "stormed")

    def __init__(self) -> None:
        self.stormed: bool | None = None
        self.missed = Missed(unit=1)


class Port:
    """What is remembered of one port."""

    __slots__ = (
        "admin", "changed_ns", "component", "counted", "counters", "deltas", "flaps", "flaps_by", "heard_ns", "moved",
        "name", "oper", "stamp", "storm_counters", "storms",
    )  # fmt: skip

    def __init__(self, switch: str, name: str, widths: Mapping[str, Width]) -> None:
        self.name = name
        self.component = ids.port_id(switch, name)
        self.oper = ""
        self.admin = ""
        self.changed_ns = 0
        self.flaps = Missed(unit=2)
        self.flaps_by: str | None = None  # the counter that keeps them: two of them need not stand at the same
        self.moved = Moved()
        self.storms: dict[int, Storm] = {}
        self.deltas = Deltas(self.component, widths)
        self.counters: dict[str, int] = {}  # heard since the last were told
        self.counted: dict[str, int] = {}  # the last heard, told or not
        self.heard_ns: dict[str, int] = {}  # when, by the switch's clock and by stream
        self.storm_counters: dict[str, int] = {}  # those that count storms, with their priority
        self.stamp: Stamp | None = None

    def storm(self, priority: int) -> Storm:
        storm = self.storms.get(priority)
        if storm is None:
            storm = self.storms[priority] = Storm()
        return storm

    def states(self, now: datetime) -> Iterator[State]:
        if self.oper:
            attrs = {"by": "switch"} | ({"admin": self.admin} if self.admin else {})
            yield State(component=self.component, name="operstate", observed_at=now, value=self.oper, attrs=attrs)
        for priority, storm in self.storms.items():
            if storm.stormed is not None:
                yield State(
                    component=self.component,
                    name=f"pfc_watchdog_prio{priority}",
                    observed_at=now,
                    value="stormed" if storm.stormed else "operational",
                )

    def link(self, name: EventName, at: datetime, *, by: str, count: int = 1, more: dict[str, str] | None = None) -> Event:
        down = name is EventName.LINK_DOWN
        admin = self.admin or "unknown"
        times = f" {count} times" if count > 1 else ""
        return Event(
            component=self.component,
            name=name,
            observed_at=at,
            severity=Severity.ERROR if down else Severity.INFO,
            excerpt=f"{self.name}: link {'down' if down else 'up'}{times} (oper {self.oper}, admin {admin})",
            attrs={"by": by, "operstate": self.oper, "admin": admin} | (more or {}),
            count=count,
        )

    def pause(self, priority: int, stormed: bool, at: datetime, *, by: str, count: int = 1) -> Event:
        state = "stormed" if stormed else "restored"
        times = f" {count} times" if count > 1 else ""
        return Event(
            component=self.component,
            name=EventName.PAUSE_STORM,
            observed_at=at,
            severity=Severity.ERROR if stormed else Severity.INFO,
            excerpt=f"{self.name}: PFC watchdog, priority {priority}: {state}{times}",
            attrs={"priority": str(priority), "state": state, "by": by},
            count=count,
        )


def clock_attrs(at_ns: int, behind_s: float | None) -> dict[str, str]:
    """What the switch's own clock said, where that differs from what is told."""
    if at_ns <= 0 or behind_s is None or abs(behind_s) <= CLOCK_NOTED_S:
        return {}
    return {"switch_time_ns": str(at_ns), "switch_clock_behind_s": f"{behind_s:.1f}"}
