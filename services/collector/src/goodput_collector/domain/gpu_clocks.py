"""What holds a GPU's clocks down: NVML's bit mask as names, and throttling as something that begins and ends.

Two kinds of reason must not be mixed up. A GPU at its power limit, at its application clocks or idle does what it was
built for: it is in the mask most of the time, and changes several times a second. Heat, the board's power brake and a
hardware slowdown take away what was paid for: these are told as THROTTLED events, and are the value of the state
`clocks_held_down_by`. `hw_slowdown` is the hardware's general bit; it is named only where no more exact one is set.

One spell of throttling may flicker. It has ended when the reason was away for `SETTLE_S`; its end says how long it was and
in how many pieces it came. Spells shorter than the interval of reading are not seen here; the counters `throttled_*_us`
count them all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from goodput_collector.domain.gpu_presence import Gpu
from goodput_common.contracts.telemetry import Event, EventName, Severity, State

SETTLE_S = 5.0

_NAMES = {
    0x001: "gpu_idle",
    0x002: "application_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
_HW_SLOWDOWN, _EXACT = 0x008, 0x040 | 0x080
_HELD_DOWN = 0x008 | 0x020 | 0x040 | 0x080
_SEVERITIES = {"hw_power_brake": Severity.ERROR, "hw_thermal_slowdown": Severity.ERROR, "hw_slowdown": Severity.ERROR}


def reasons(mask: int) -> tuple[str, ...]:
    """The names of all bits, in order; a bit that is not known by name as `bit_<n>`."""
    return tuple(_NAMES.get(1 << bit, f"bit_{bit}") for bit in range(mask.bit_length()) if mask >> bit & 1)


def held_down_by(mask: int) -> tuple[str, ...]:
    """The reasons that cost speed against the operator's will."""
    bad = mask & _HELD_DOWN
    return reasons(bad & ~_HW_SLOWDOWN if bad & _EXACT else bad)


@dataclass(slots=True)
class _Spell:
    began_s: float
    seen_s: float
    pieces: int = 1
    on: bool = True


class Throttling:
    """The spells of one GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._spells: dict[str, _Spell] = {}
        self._read = False

    @property
    def quiet(self) -> bool:
        """Whether the last reading found no spell: then the same mask again brings no event."""
        return self._read and not self._spells

    def update(self, mask: int, at: datetime, now_s: float) -> list[Event]:
        """What began and what ended by this reading."""
        events = []
        now = held_down_by(mask)
        for reason in now:
            spell = self._spells.get(reason)
            if spell is None:
                self._spells[reason] = _Spell(now_s, now_s)
                found = {} if self._read else {"found": "true"}  # it may have begun before anybody looked
                events.append(self._event(reason, "start", at, mask, found))
                continue
            spell.pieces += not spell.on
            spell.on, spell.seen_s = True, now_s
        for reason, spell in list(self._spells.items()):
            if reason in now:
                continue
            spell.on = False
            if now_s - spell.seen_s >= SETTLE_S:
                del self._spells[reason]
                lasted = {"lasted_s": f"{spell.seen_s - spell.began_s:.1f}", "pieces": str(spell.pieces)}
                events.append(self._event(reason, "end", at, mask, lasted))
        self._read = True
        return events

    def state(self, mask: int, at: datetime) -> State:
        """`reasons` are all bits of the mask; they waver, and are no change by themselves."""
        return State(
            component=self._gpu.component,
            name="clocks_held_down_by",
            observed_at=at,
            value=" ".join(held_down_by(mask)) or "nothing",
            attrs={"reasons": " ".join(reasons(mask))},
        )

    def _event(self, reason: str, state: str, at: datetime, mask: int, more: dict[str, str]) -> Event:
        begins = state == "start"
        return Event(
            component=self._gpu.component,
            name=EventName.THROTTLED,
            observed_at=at,
            severity=_SEVERITIES.get(reason, Severity.WARNING) if begins else Severity.INFO,
            excerpt=f"clocks held down by {reason}" if begins else f"clocks no longer held down by {reason}",
            attrs=self._gpu.attrs | {"reason": reason, "state": state, "reasons": " ".join(reasons(mask))} | more,
        )
