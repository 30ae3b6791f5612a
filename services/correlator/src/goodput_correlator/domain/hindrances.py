"""What holds a component back: heat and want of power at a GPU, want of CPU, memory or storage on a host, a network adapter
whose link came back slower.

None of this makes a culprit by itself: GPUs sit at their power cap all day, hosts are busy. It tells *why* a rank is late
once its own time shows that it is. What holds back most of the job's components alike is no reason for one of them to be
late, so every hindrance is held against a sample of its peers.

Where thresholds come from: pressure of a tenth of the time is where operators of PSI begin to act; `sw_power_cap` is how a
busy GPU looks, so time at the cap counts only where the limit is below that of its peers.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from goodput_common.contracts.ids import ComponentId, host_id
from goodput_common.contracts.telemetry import Event, EventName, Gauge, State
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import canonical, events, gpus_of_job, nics_of_job, states

BEFORE_S = 15.0  # what holds back begins before steps are seen to be slow
PEERS_MAX = 48  # components of the job that one is held against
EVERYWHERE = 0.5  # of the peers
HELD_SHARE_MIN = 0.08  # of the time that clocks were held down
CLOCK_LOW = 0.93  # of the peers' (or the highest) clock
LIMIT_LOW = 0.95  # of the peers' power limit
RETRANSMITS_PER_S = 5.0
MEMORY_LEFT_MIN = 0.03


class Kind(StrEnum):
    THERMAL = "thermal"
    POWER = "power"
    CPU = "cpu"
    MEMORY = "memory"
    STORAGE = "storage"
    NETWORK = "network"


@dataclass(slots=True)
class Hindrance:
    """`strength` is how likely it is to hold the component back noticeably, 0..1. `seen`: facts, with what each means."""

    kind: Kind
    component: ComponentId
    strength: float = 0.0
    words: str = ""
    seen: list[tuple[Observed, str]] = field(default_factory=list)

    def add(self, strength: float, words: str, *seen: Observed) -> None:
        """One more sign of it."""
        if strength > self.strength:
            self.words = words
        self.strength = 1.0 - (1.0 - self.strength) * (1.0 - strength)
        self.seen += [(each, words) for each in seen]


# ---------------------------------------------------------------------------------------------------------------- GPUs

_HELD_BY = {
    "hw_thermal_slowdown": (Kind.THERMAL, 0.85),
    "sw_thermal_slowdown": (Kind.THERMAL, 0.75),
    "hw_power_brake": (Kind.POWER, 0.85),
    "hw_slowdown": (Kind.THERMAL, 0.6),  # the general bit: heat more often than the brake
}
_HELD_US = {
    "throttled_hw_thermal_us": Kind.THERMAL,
    "throttled_sw_thermal_us": Kind.THERMAL,
    "throttled_thermal_us": Kind.THERMAL,
    "throttled_power_brake_us": Kind.POWER,
}


def of_gpu(case: Case, gpu: ComponentId) -> Hindrance | None:
    """What holds the clocks of a GPU down; None where nothing is known to, or it holds down most GPUs of the job."""
    found = _held_down(case, gpu)
    low_cap = _capped(case, gpu)
    if low_cap is not None:
        found.append(low_cap)
    found = [each for each in found if not _everywhere(case, gpu, each.kind)]
    best = max(found, key=lambda each: each.strength, default=None)
    if best is not None:
        _add_clock(case, gpu, best)
    return best


def throttled_gpus(case: Case) -> tuple[ComponentId, ...]:
    """GPUs of the job of which somebody says in words that their clocks are held down."""
    told = {component for (component, name), seen in states(case).items() if name == "clocks_held_down_by" and _by(seen)}
    told |= {canonical(case, event.component) for _, event in events(case, EventName.THROTTLED)}
    return tuple(gpu for gpu in gpus_of_job(case) if gpu in told)


def _held_down(case: Case, gpu: ComponentId) -> list[Hindrance]:
    """By heat or the power brake: what the state says, what events say where no state is told, and for how much of the
    time."""
    found: dict[Kind, Hindrance] = {}

    def of(kind: Kind) -> Hindrance:
        return found.setdefault(kind, Hindrance(kind, gpu))

    state = states(case).get((gpu, "clocks_held_down_by"))
    for reason in _by(state):
        kind, strength = _HELD_BY[reason]
        if state is not None:
            of(kind).add(strength, f"its clocks are held down by {reason}", state)
    for seen, event in _spells(case, gpu):
        reason = event.attrs.get("reason", "")
        if reason in _HELD_BY and (state is None or reason in _by(state)):
            kind, strength = _HELD_BY[reason]
            of(kind).add(strength, f"throttling began: {reason}", seen)
    for name in sorted(_HELD_US.keys() & case.measurements.names(gpu).keys()):
        rise = case.measurements.rise(gpu, name, _since(case))
        share = min(1.0, rise.per_s / 1e6)
        if share >= HELD_SHARE_MIN and rise.facts:
            of(_HELD_US[name]).add(min(0.85, 0.4 + share), f"held down {share:.0%} of the time", rise.facts[-1])
    return [found[kind] for kind in sorted(found)]


def _by(state: Observed | None) -> tuple[str, ...]:
    if state is None or not isinstance(state.fact, State):
        return ()
    return tuple(word for word in state.fact.value.replace(",", " ").split() if word in _HELD_BY)


def _spells(case: Case, gpu: ComponentId) -> list[tuple[Observed, Event]]:
    """Spells of throttling that have begun and not ended."""
    under_way: dict[str, tuple[Observed, Event]] = {}
    for seen, event in events(case, EventName.THROTTLED):
        if canonical(case, event.component) != gpu:
            continue
        reason = event.attrs.get("reason", "")
        if event.attrs.get("state") == "end":
            under_way.pop(reason, None)
        else:
            under_way[reason] = (seen, event)
    return [under_way[reason] for reason in sorted(under_way)]


def _capped(case: Case, gpu: ComponentId) -> Hindrance | None:
    """A power limit below that of its peers, and time spent at it. Without peers that tell theirs the time alone is weak."""
    rise = case.measurements.rise(gpu, "throttled_power_us", _since(case))
    share = min(1.0, rise.per_s / 1e6)
    if share < HELD_SHARE_MIN or not rise.facts:
        return None
    found = Hindrance(Kind.POWER, gpu)
    found.add(0.25 + 0.2 * share, f"at its power cap {share:.0%} of the time", rise.facts[-1])
    limit = case.measurements.newest(gpu, "power_limit_w")
    peers = _of_peers(case, gpu, "power_limit_w")
    if limit is not None and isinstance(limit.fact, Gauge):
        usual_w = statistics.median(peers) if peers else 0.0
        if usual_w and limit.fact.value < LIMIT_LOW * usual_w:
            found.add(0.8, f"its power limit is {limit.fact.value:.0f} W, its peers' {usual_w:.0f} W", limit)
        elif not peers:
            found.add(0.35, f"its power limit was told anew: {limit.fact.value:.0f} W", limit)
    return found


def _add_clock(case: Case, gpu: ComponentId, found: Hindrance) -> None:
    clock = case.measurements.newest(gpu, "clock_sm_mhz")
    if clock is None or not isinstance(clock.fact, Gauge):
        return
    peers, most = _of_peers(case, gpu, "clock_sm_mhz"), case.measurements.newest(gpu, "clock_sm_max_mhz")
    usual = statistics.median(peers) if peers else most.fact.value if most and isinstance(most.fact, Gauge) else 0.0
    if usual and clock.fact.value < CLOCK_LOW * usual:
        found.add(0.5, f"its clock is {clock.fact.value:.0f} MHz where {usual:.0f} MHz are usual", clock)
    elif not usual:
        found.seen.append((clock, f"its clock: {clock.fact.value:.0f} MHz"))
    heat = case.measurements.newest(gpu, "temperature_c")
    if heat is not None and isinstance(heat.fact, Gauge) and found.kind is Kind.THERMAL:
        found.seen.append((heat, f"its temperature: {heat.fact.value:.0f} °C"))


def _everywhere(case: Case, gpu: ComponentId, kind: Kind) -> bool:
    def held(peer: ComponentId) -> bool:
        if any(each.kind is kind for each in _held_down(case, peer)):
            return True
        rise = case.measurements.rise(peer, "throttled_power_us", _since(case))
        return kind is Kind.POWER and rise.per_s / 1e6 >= HELD_SHARE_MIN and not _of_limit(case, peer)

    if kind is Kind.POWER and _of_limit(case, gpu):
        return False  # others at their cap have a higher one
    peers = _sample(gpus_of_job(case), gpu)
    return len(peers) >= 2 and sum(1 for peer in peers if held(peer)) >= EVERYWHERE * len(peers)


def _of_limit(case: Case, gpu: ComponentId) -> bool:
    limit, peers = case.measurements.newest(gpu, "power_limit_w"), _of_peers(case, gpu, "power_limit_w")
    return bool(peers) and limit is not None and isinstance(limit.fact, Gauge) and (
        limit.fact.value < LIMIT_LOW * statistics.median(peers)
    )  # fmt: skip


def _of_peers(case: Case, component: ComponentId, name: str) -> list[float]:
    newest = [case.measurements.newest(peer, name) for peer in _sample(gpus_of_job(case), component)]
    return [seen.fact.value for seen in newest if seen is not None and isinstance(seen.fact, Gauge)]


# ---------------------------------------------------------------------------------------------------------------- hosts

_PRESSURE = {
    "pressure_cpu_some_share": (Kind.CPU, 0.12, 0.6, "its tasks wait for a CPU"),
    "pressure_cpu_full_share": (Kind.CPU, 0.05, 0.5, "none of its tasks gets a CPU"),
    "pressure_memory_some_share": (Kind.MEMORY, 0.05, 0.5, "its tasks wait for memory"),
    "pressure_memory_full_share": (Kind.MEMORY, 0.03, 0.6, "all of its tasks wait for memory"),
    "cgroup_memory_some_share": (Kind.MEMORY, 0.05, 0.5, "the tasks of the ranks' control group wait for memory"),
    "pressure_io_some_share": (Kind.STORAGE, 0.04, 0.45, "its tasks wait for storage"),
    "pressure_io_full_share": (Kind.STORAGE, 0.05, 0.5, "all of its tasks wait for storage"),
}
_SWAPPING_PAGES_PER_S = 50.0


def of_host(case: Case, host: str) -> Hindrance | None:
    """What a host is short of, beyond the other hosts of the job; None where nothing is known."""
    component = host_id(host)
    found: dict[Kind, Hindrance] = {}
    peers = _sample(tuple(host_id(each) for each in case.placement.hosts) if case.placement else (), component)
    for name, (kind, least, strength, words) in _PRESSURE.items():
        seen = case.measurements.newest(component, name)
        if seen is None or not isinstance(seen.fact, Gauge) or seen.fact.value < least:
            continue
        others = [_value(case, peer, name) for peer in peers]
        if others and seen.fact.value < 2.0 * statistics.median(others) + 0.02:
            continue  # all are
        value = seen.fact.value
        how = strength + (0.9 - strength) * min(1.0, (value - least) / 0.5)
        found.setdefault(kind, Hindrance(kind, component)).add(how, f"{words}, {value:.0%} of the time", seen)
    left = case.measurements.newest(component, "memory_available_share")
    if left is not None and isinstance(left.fact, Gauge) and left.fact.value < MEMORY_LEFT_MIN:
        words = f"{left.fact.value:.1%} of its memory is left"
        found.setdefault(Kind.MEMORY, Hindrance(Kind.MEMORY, component)).add(0.3, words, left)
    for name in ("swap_in_pages", "swap_out_pages"):
        rise = case.measurements.rise(component, name, _since(case))
        if rise.facts and rise.per_s >= _SWAPPING_PAGES_PER_S:
            found.setdefault(Kind.MEMORY, Hindrance(Kind.MEMORY, component)).add(0.5, "it swaps", rise.facts[-1])
    clock = states(case).get((component, "cpu_clock"))
    if clock is not None and isinstance(clock.fact, State) and clock.fact.value == "limited":
        found.setdefault(Kind.CPU, Hindrance(Kind.CPU, component)).add(0.5, "the clock of its CPUs is limited", clock)
    for seen, event in events(case, EventName.THROTTLED):
        if canonical(case, event.component) == component and event.attrs.get("state") != "end":
            found.setdefault(Kind.CPU, Hindrance(Kind.CPU, component)).add(0.6, "its CPUs are throttled", seen)
    return max((found[kind] for kind in sorted(found)), key=lambda each: each.strength, default=None)


def _value(case: Case, component: ComponentId, name: str) -> float:
    seen = case.measurements.newest(component, name)
    return seen.fact.value if seen is not None and isinstance(seen.fact, Gauge) else 0.0


# ---------------------------------------------------------------------------------------------------------------- NICs

_RETRIED = (
    "local_ack_timeout_err", "packet_seq_err", "out_of_sequence", "implied_nak_seq_err", "roce_adp_retrans", "retrans_pkts",
    "to_retransmits", "oos_drop_count",
)  # fmt: skip
_RETRAINED_S = 120.0


def of_nic(case: Case, nic: ComponentId) -> Hindrance | None:
    """A link that is up at less than it could be, or over which much has to be sent again."""
    found = Hindrance(Kind.NETWORK, nic)
    port = states(case).get((nic, "port_state"))
    if port is not None and isinstance(port.fact, State) and port.fact.attrs.get("degraded", "false") != "false":
        found.add(0.8, f"its port is up at {port.fact.attrs.get('rate', 'a lower rate')}, less than it had before", port)
    link, usual = states(case).get((nic, "link")), _usual_speed(case)
    speed = _speed(link)
    if link is not None and speed and usual and speed < 0.9 * usual:
        found.add(
            0.75, f"its link runs at {speed / 1000:.0f} Gb/s where {usual / 1000:.0f} Gb/s are usual in this job", link
        )
    if found.strength:
        began = (case.since or case.now) - timedelta(seconds=_RETRAINED_S)
        for seen, event in events(case, EventName.LINK_UP, EventName.LINK_DOWN):
            if canonical(case, event.component) == nic and seen.received_at >= began:
                found.add(0.3, "the link was lost and came back shortly before", seen)
                break
    for name in _RETRIED:
        rise = case.measurements.rise(nic, name, _since(case))
        if not rise.facts or rise.per_s < RETRANSMITS_PER_S:
            continue
        peers = [case.measurements.rise(peer, name, _since(case)).per_s for peer in _sample(nics_of_job(case), nic)]
        if not peers or rise.per_s > 5.0 * statistics.median(peers):
            found.add(0.4, f"{name} rises by {rise.per_s:.0f} a second, on its peers it does not", rise.facts[-1])
    return found if found.strength else None


def _usual_speed(case: Case) -> float:
    """The median speed of the job's links, Mb/s; 0 where nobody tells."""
    found: float | None = case.memo.get("usual_link_speed")
    if found is None:
        speeds = [speed for nic in nics_of_job(case) if (speed := _speed(states(case).get((nic, "link"))))]
        found = case.memo["usual_link_speed"] = statistics.median(speeds) if len(speeds) >= 3 else 0.0
    return found


def _speed(link: Observed | None) -> float:
    text = link.fact.attrs.get("speed_mbps", "") if link is not None and isinstance(link.fact, State) else ""
    return float(text) if text.isdigit() else 0.0


# ---------------------------------------------------------------------------------------------------------------- all


def _since(case: Case) -> datetime:
    return (case.since or case.now) - timedelta(seconds=BEFORE_S)


def _sample(all_of: Iterable[ComponentId], without: ComponentId) -> list[ComponentId]:
    """At most `PEERS_MAX` of them, spread evenly, always the same ones."""
    others = [each for each in all_of if each != without]
    step = max(1, -(-len(others) // PEERS_MAX))
    return others[::step]


def strongest(
    case: Case, components: Iterable[ComponentId], look: Callable[[Case, ComponentId], Hindrance | None]
) -> list[Hindrance]:
    """What holds these back, the strongest first."""
    found = [each for component in components if (each := look(case, component)) is not None]
    return sorted(found, key=lambda each: (-each.strength, each.component))
