"""What stands out in what was read, without being a verdict: an engine needs to know since when, or a job that suffers; a
reader of a bug report wants to see it all the same.

Each line says what the paste says, and what it does not say. A number of which nobody knows how long it has stood there is
told as that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from goodput_collector.application.read_files import Found
from goodput_collector.domain.rdma_counters import Tells, describe
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Counter, CounterDoubt, State
from goodput_topology.graph import Fabric

NOTABLE_MAX = 500
STANDING_PER_COMPONENT = 4
_ERRORS = frozenset({Tells.LINK, Tells.LOSS, Tells.PEER})
_ALSO_ERRORS = (
    *(
        "ecc_uncorrected",
        "nvlink_",
        "remapped_rows_uncorrectable",
        "retired_pages_double",
        "rx_discards_phy",
        "tx_discards_phy",
    ),
    *("link_down_events_phy", "rx_symbol_err_phy", "rx_crc_errors_phy", "tx_pause_storm", "module_", "pcie_replays"),
)
_NOT_ERRORS = frozenset({"rx_icrc_encapsulated", "nvlink_recoveries"})


class Notable(NamedTuple):
    """`rank` orders: what is broken now, what grew, what stands there."""

    rank: int
    component: ComponentId
    what: str
    origin: str


def notable(facts: Iterable[Found], fabric: Fabric) -> list[Notable]:
    """Components go by the names of `fabric`, as in verdicts."""
    found: list[Notable] = []
    standing: dict[ComponentId, list[tuple[str, str, str]]] = {}
    for each in _newest(facts):
        fact = each.fact
        if isinstance(fact, State) and fact.name.startswith("counter:"):
            name = fact.name.removeprefix("counter:")
            if is_error(name):
                least = "at least " if fact.attrs.get("saturated") else ""
                standing.setdefault(fact.component, []).append((name, f"{least}{fact.value}", each.origin))
        elif isinstance(fact, State) and (judge := _STATES.get(fact.name.partition(":")[0])) is not None:
            if said := judge(fact):
                found.append(Notable(0, fact.component, said, each.origin))
        elif isinstance(fact, Counter) and fact.delta and is_error(fact.name):
            doubt = "" if fact.doubt is CounterDoubt.NONE else f" ({fact.doubt.value})"
            what = f"{fact.name} rose by {fact.delta} in {fact.interval_s:g} s{doubt}"
            found.append(Notable(1, fact.component, what, each.origin))
    rising = {each.component for each in found if each.rank == 1}
    for component, counters in standing.items():
        if component in rising:
            continue
        told = ", ".join(f"{name} = {value}" for name, value, _ in counters[:STANDING_PER_COMPONENT])
        more = f" and {len(counters) - STANDING_PER_COMPONENT} more" if len(counters) > STANDING_PER_COMPONENT else ""
        found.append(Notable(2, component, f"{told}{more}: read once, since when is not known", counters[0][2]))
    named = (each._replace(component=_called(each.component, fabric)) for each in found)
    return sorted(dict.fromkeys(named))[:NOTABLE_MAX]


def _called(component: ComponentId, fabric: Fabric) -> ComponentId:
    """An NVLink is called after its GPU, whose link it is."""
    if not component.startswith("nvlink:"):
        return fabric.canonical(component)
    gpu, _, link = component.removeprefix("nvlink:").rpartition("/")
    return f"nvlink:{fabric.canonical(f'gpu:{gpu}').removeprefix('gpu:')}/{link}"


def _newest(facts: Iterable[Found]) -> Iterator[Found]:
    """Of each state only what was said last: an older word no longer holds."""
    states: dict[tuple[ComponentId, str], Found] = {}
    for each in facts:
        if not isinstance(each.fact, State):
            yield each
            continue
        known = states.get(key := (each.fact.component, each.fact.name))
        if known is None or not isinstance(known.fact, State) or known.fact.observed_at <= each.fact.observed_at:
            states[key] = each
    yield from states.values()


def is_error(name: str) -> bool:
    """Does an increase of this counter speak of trouble (and not of traffic, or of congestion, which is usual)?"""
    return name not in _NOT_ERRORS and (describe(name).tells in _ERRORS or name.startswith(_ALSO_ERRORS))


def _port(state: State) -> str:
    physical = state.attrs.get("phys_state", "")
    if state.value in ("ACTIVE", "unknown"):
        return ""
    if physical == "Disabled":
        return f"port is {state.value}, Disabled: mostly a port that nobody uses"
    return f"port is {state.value}" + (f", {physical}" if physical else "") + ": since when is not known"


def _link(state: State) -> str:
    reason = f" ({state.attrs['reason']})" if state.attrs.get("reason") else ""
    return f"no link{reason}" if state.value == "down" else ""


def _gpu(state: State) -> str:
    return "" if state.value == "present" else f"is {state.value}: {state.attrs.get('why', 'it does not answer')}"


def _unless(*fine: str, words: str) -> Callable[[State], str]:
    return lambda state: "" if state.value in fine else words.format(state.value)


def _pcie(state: State) -> str:
    width, most = state.attrs.get("width", ""), state.attrs.get("width_max", "")
    return f"PCIe runs at x{width} of x{most}" if width and most and width != most else ""


def _behind(state: State) -> str:
    attrs = state.attrs
    return f"has launched {attrs.get('launched')} {attrs.get('operation')}, others {attrs.get('others_launched')}"


def _communicator(state: State) -> str:
    errors = state.attrs.get("errors", "")
    if state.value == "stuck":
        return f"communicator {state.name.partition(':')[2]} is stuck: ranks {state.attrs.get('behind')} are behind"
    return f"communicator {state.name.partition(':')[2]}: {errors} (asked once: may be passing)" if errors else ""


_STATES: dict[str, Callable[[State], str]] = {
    "port_state": _port,
    "link": _link,
    "gpu": _gpu,
    "pcie_link": _pcie,
    "row_remap": _unless("ok", words="row remapping: {}"),
    "retired_pages": _unless("ok", "unknown", words="retired pages: {}"),
    "recovery_action": _unless("none", words="the driver wants: {}"),
    "clocks_held_down_by": _unless("nothing", words="clocks are held down by {}"),
    "fabric": _unless("completed", "not_supported", words="NVLink fabric: {}"),
    "nvlink": _unless("active", words="NVLink is {}: whether it should be active is not known"),
    "last_xid": _unless("none", words="last Xid is {}: repeats are not visible, and it may be old"),
    "ras_process": _unless(words="NCCL RAS: the process is {}"),
    "ras_operations": _behind,
    "ras_communicator": _communicator,
}
