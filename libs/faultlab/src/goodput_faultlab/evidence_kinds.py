"""What kinds of facts can support which claim: a small table a class of fault.

Written from what the hardware, the kernel and NCCL say of each fault, and not from the engines that diagnose it: an engine
that cites something which says nothing about its claim is to be found by this table. A kind looks at one fact alone; whether
the fact is about the culprit at all is `evidence`'s business.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from goodput_common.contracts.job import (
    CollectiveState,
    FlightRecorderDump,
    RankExited,
    RankProgress,
    StallSuspected,
)
from goodput_common.contracts.telemetry import CollectorHeartbeat, Counter, Event, EventName, Gauge, Probe, State
from goodput_common.contracts.verdict import FaultClass

Kind = Callable[[object], bool]
GPU_WORDS = re.compile(r"CUDA|GPU|driver|device|ECC|uncorrectable|launch failure", re.IGNORECASE)
MEMORY_WORDS = re.compile(r"ECC|uncorrectable", re.IGNORECASE)


def event(*names: EventName, **attrs: tuple[str, ...]) -> Kind:
    """An event of one of these names, whose attributes begin with one of the words given for them."""

    def fits(fact: object) -> bool:
        return (
            isinstance(fact, Event)
            and fact.name in names
            and all(fact.attrs.get(key, "").startswith(words) for key, words in attrs.items())
        )

    return fits


def xid(*numbers: int) -> Kind:
    wanted = {str(number) for number in numbers}
    return lambda fact: isinstance(fact, Event) and fact.name is EventName.XID and fact.attrs.get("xid") in wanted


def counter(*names: str) -> Kind:
    """A counter that rose. A name that ends in * stands for all that begin so."""
    return lambda fact: isinstance(fact, Counter) and fact.delta > 0 and _named(fact.name, names)


def gauge(*names: str) -> Kind:
    return lambda fact: isinstance(fact, Gauge) and _named(fact.name, names)


def state(name: str, *values: str) -> Kind:
    """That state; with values, only those."""
    return lambda fact: isinstance(fact, State) and _named(fact.name, (name,)) and (not values or fact.value in values)


def _named(name: str, names: tuple[str, ...]) -> bool:
    return any(name.startswith(each[:-1]) if each.endswith("*") else name == each for each in names)


def left(words: re.Pattern[str] | None = None) -> Kind:
    """A rank's last words, which were no clean end; with `words`, only where they are in the reason."""
    return lambda fact: (
        isinstance(fact, RankExited) and not fact.clean and (words is None or bool(words.search(fact.reason)))
    )


def lost_connection(fact: object) -> bool:
    """A rank's word that a peer's end of a connection was closed, and where that peer was."""
    if not isinstance(fact, Event) or fact.name is not EventName.NCCL_NET_ERROR:
        return False
    return fact.attrs.get("kind", "").startswith("connection_") and bool(fact.attrs.get("peer"))


def carrier_lost(fact: object) -> bool:
    return isinstance(fact, Event) and fact.name is EventName.LINK_DOWN


def listed_gone(fact: object) -> bool:
    """The collector's list of processes: it is no more, and did not leave in order."""
    return isinstance(fact, State) and fact.name == "process" and fact.value == "gone" and fact.attrs.get("clean") != "true"


def lost_probes(fact: object) -> bool:
    return isinstance(fact, Probe) and (fact.lost > 0 or fact.late > 0 or fact.network_us_p99 > 0)


def stands(fact: object) -> bool:
    """A rank's own word of where it stands."""
    return isinstance(fact, RankProgress | StallSuspected | FlightRecorderDump)


def waits(fact: object) -> bool:
    """A rank's word that shows it to wait for others: it is inside a collective, or spends part of each step in them."""
    if isinstance(fact, RankProgress):
        inside = any(group.last_enqueued > group.last_completed for group in fact.groups)
        return bool(fact.in_collective) or inside or (fact.steps > 0 and fact.waiting_ms >= 0)
    if isinstance(fact, FlightRecorderDump):
        return any(each.state is not CollectiveState.COMPLETED for each in fact.collectives) or any(
            group.last_enqueued > group.last_completed for group in fact.groups
        )
    return isinstance(fact, StallSuspected) and bool(fact.in_collective)


def beats(fact: object) -> bool:
    return isinstance(fact, CollectorHeartbeat)


def trained_down(fact: object) -> bool:
    """A PCIe link with fewer lanes, or slower ones, than both ends could."""
    if not isinstance(fact, State) or fact.name != "pcie_link":
        return False
    of = {name: int(value) for name, value in fact.attrs.items() if value.isdigit()}
    return of.get("width", 0) < of.get("width_max", 0) or of.get("gen", 0) < of.get("gen_max", 0)


def asks_for_reset(fact: object) -> bool:
    """An Xid that the vendor's catalogue answers with a reset or a reboot, whatever its number."""
    return isinstance(fact, Event) and fact.name is EventName.XID and fact.attrs.get("impact") in ("reset", "reboot")


E, C = EventName, FaultClass
PAUSES = counter("rx_prio*", "tx_prio*", "rx_global_pause*", "tx_global_pause*", "in_pfc*", "out_pfc*", "pfc*")
PCIE_WAIT = gauge("outbound_pci_stalled*")
DAMAGE = counter(
    "symbol_error", "port_rcv_errors", "link_error_recovery", "link_downed", "local_link_integrity_errors",
    "rx_symbol_err_phy", "rx_pcs_symbol_err_phy", "rx_crc_errors_phy", "rx_fec_uncorrectable*", "in_crc_errors",
    "in_fec_uncorrect*", "in_errors", "out_errors",
)  # fmt: skip
RESENDS = counter(
    "packet_seq_err", "out_of_sequence", "local_ack_timeout_err", "roce_adp_retrans", "implied_nak_seq_err", "retrans_pkts",
    "to_retransmits", "oos_drop_count",
)  # fmt: skip
CARRIER = (
    event(E.LINK_DOWN, E.LINK_UP, E.CABLE), state("operstate"), state("port_state"), state("link"), state("phys_state"),
)  # fmt: skip
ADAPTER_DEAD = event(E.NIC_HANG, E.DEVICE_HEALTH, E.NCCL_ASYNC_EVENT)

SUPPORTS: dict[FaultClass, tuple[Kind, ...]] = {
    C.GPU_OFF_BUS: (
        xid(79), event(E.GPU_LOST), state("gpu", "lost", "reset_required", "unreadable", "unseen"),
        event(E.AER, severity=("uncorrected", "fatal")), left(GPU_WORDS), stands,
    ),
    C.GPU_MEMORY: (
        xid(48, 63, 64, 92, 94, 95, 140, 171, 172), state("row_remap", "pending", "failed"), counter("ecc_uncorrected*"),
        left(MEMORY_WORDS), stands,
    ),
    C.NVLINK: (xid(74, *range(144, 151)), event(E.SXID), counter("nvlink*"), stands),
    C.GPU_DRIVER: (
        xid(119, 120, 154), asks_for_reset, event(E.GPU_LOST), state("gpu", "lost", "reset_required", "unreadable"),
        state("recovery_action"), left(GPU_WORDS), stands,
    ),
    C.PCIE: (
        event(E.AER, severity=("uncorrected", "fatal")), trained_down, counter("pcie_replays", "aer_*"), PCIE_WAIT,
        counter("tx_prio*"), stands,
    ),
    C.NIC_HANG: (ADAPTER_DEAD, lost_probes, stands),
    C.LINK_FLAP: (*CARRIER, DAMAGE, lost_probes, stands),
    C.SWITCH_FAULT: (*CARRIER, DAMAGE, RESENDS, lost_probes, stands),
    C.PFC_STORM: (PAUSES, gauge("pause_share"), event(E.PAUSE_STORM), PCIE_WAIT, counter("rx_discards_phy", "rx_buffer*")),
    C.STRAGGLER: (
        event(E.THROTTLED), state("clocks_held_down_by"), state("cpu_clock"), counter("throttled_*"),
        gauge("power_limit_w", "clock_sm_mhz", "temperature_c", "pressure_*", "cgroup_memory_*", "memory_available_share"),
        counter("swap_*"), *CARRIER, RESENDS, stands,
    ),
    C.HOST_DOWN: (
        beats, event(E.HOST_STALL, what=("soft_lockup", "hard_lockup", "panic", "mce")), event(E.MACHINE_CHECK, E.BOOT),
        stands,
    ),
    C.PROCESS_DEAD: (event(E.PROCESS_EXITED), listed_gone, left(), event(E.HOST_STALL, what=("oom_kill",)), stands),
    C.PROCESS_STALL: (event(E.PROCESS_STOPPED), state("process*"), stands),
    C.COLLECTIVE_DESYNC: (stands,),
    C.STORAGE_STALL: (
        event(E.STORAGE_STALL), state("mount:*", "stalled"), state("disk:*", "stalled"),
        gauge("nfs_*", "disk_*", "pressure_io_*"), counter("nfs_*"), stands,
    ),
    C.NO_HARDWARE_FAULT: (
        left(), xid(13, 31, 43, 45), event(E.NCCL_WATCHDOG, E.PROCESS_EXITED), stands,
    ),
    C.UNDETERMINED: (stands,),
}  # fmt: skip
"""Undetermined claims only that ranks stand, and that its alternatives are possible."""

OF_THE_HOST: tuple[Kind, ...] = (
    event(E.HOST_STALL), event(E.AER, severity=("uncorrected", "fatal")), event(E.SXID), beats, event(E.STORAGE_STALL),
    gauge("pressure_*", "cgroup_memory_*", "memory_available_share", "nfs_*", "disk_*"), state("cpu_clock"),
    state("mount:*"), state("disk:*"), counter("swap_*", "nfs_*"),
)  # fmt: skip
"""What is told of a whole host, and can be about something on it: the kernel's line about a process that it killed, a root
port's error above a GPU."""
