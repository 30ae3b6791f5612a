"""Which of a driver's statistics are told, and under which name.

A driver has a thousand of them, most of them per ring and of interest to its author. What is told speaks of the fabric:
pause frames per priority and for how long, drops, the physical link before and after error correction, the module, and how
long the adapter waited for PCIe. mlx5's names are the common ones; bnxt_en's and ice's are mapped to them where they mean
the same, and keep their own where not. ENA has no such counters; it tells where the instance's allowance was exceeded.

`outbound_pci_stalled_*` (without `_events`) are percent of the last second, and so are no counters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from goodput_collector.domain.rdma_counters import Width

STATS_MAX = 256  # told of one interface

_PRIORITY = re.compile(
    r"(?P<direction>[rt]x)_prio(?P<priority>[0-7])_"
    r"(?P<what>pause|pause_duration|pause_transition|discards|buf_discard|cong_discard)"
)
_LANE = re.compile(r"rx_err_lane_\d_phy")
_BNXT_FRAMES = re.compile(r"(?P<direction>[rt]x)_pfc_ena_frames_pri(?P<priority>[0-7])")
_BNXT_TIMES = re.compile(r"pfc_pri(?P<priority>[0-7])_(?P<direction>[rt]x)_(?P<what>duration_us|transitions)")
_BNXT_DISCARDS = re.compile(r"rx_discard_packets_cos[0-7]")
_ICE_XOFF = re.compile(r"(?P<direction>[rt]x)_priority_(?P<priority>[0-7])_xoff\.nic")
_BNXT_WORDS = {"duration_us": "pause_duration", "transitions": "pause_transition"}


def _words(*texts: str) -> frozenset[str]:
    return frozenset(word for text in texts for word in text.split())


_MLX5 = """
    rx_pause_ctrl_phy tx_pause_ctrl_phy rx_global_pause rx_global_pause_duration rx_global_pause_transition
    tx_global_pause tx_global_pause_duration tx_global_pause_transition
    tx_pause_storm_warning_events tx_pause_storm_error_events
    rx_discards_phy tx_discards_phy rx_buffer_passed_thres_phy rx_steer_missed_packets tx_errors_phy
    link_down_events_phy rx_symbol_err_phy rx_pcs_symbol_err_phy rx_corrected_bits_phy rx_crc_errors_phy
    rx_fec_corrected_blocks rx_fec_uncorrectable_blocks
    module_unplug module_bus_stuck module_high_temp module_bad_shorted
    rx_recover tx_recover dev_internal_queue_oob outbound_pci_buffer_overflow
"""
_BNXT = "continuous_pause_events continuous_roce_pause_events resume_pause_events resume_roce_pause_events"
_ENA = """
    bw_in_allowance_exceeded bw_out_allowance_exceeded pps_allowance_exceeded conntrack_allowance_exceeded
    linklocal_allowance_exceeded rx_drops tx_drops wd_expired tx_timeout interface_down
"""
_AS_THEY_ARE = _words(_MLX5, _BNXT, _ENA)
_ALSO_CALLED = {
    # bnxt_en
    "rx_pause_frames": "rx_pause_ctrl_phy",
    "tx_pause_frames": "tx_pause_ctrl_phy",
    "link_down_events": "link_down_events_phy",
    "rx_pcs_symbol_err": "rx_pcs_symbol_err_phy",
    "rx_corrected_bits": "rx_corrected_bits_phy",
    "rx_fcs_err_frames": "rx_crc_errors_phy",
    "rx_stat_discard": "rx_discards_phy",
    "tx_stat_discard": "tx_discards_phy",
    "rx_buffer_passed_threshold": "rx_buffer_passed_thres_phy",
    # ice
    "link_xoff_rx.nic": "rx_pause_ctrl_phy",
    "link_xoff_tx.nic": "tx_pause_ctrl_phy",
    "rx_crc_errors.nic": "rx_crc_errors_phy",
    "rx_dropped.nic": "rx_discards_phy",
    "tx_dropped_link_down.nic": "tx_dropped_link_down",
    "illegal_bytes.nic": "illegal_bytes",
    "mac_local_faults.nic": "mac_local_faults",
    "mac_remote_faults.nic": "mac_remote_faults",
    "tx_timeout.nic": "tx_timeout",
}
_32_BITS = _words(
    """
    rx_out_of_buffer rx_if_down_packets rx_pci_signal_integrity tx_pci_signal_integrity
    outbound_pci_stalled_rd_events outbound_pci_stalled_wr_events
    """
)
_GAUGES = {
    "outbound_pci_stalled_rd": "outbound_pci_stalled_rd_percent",
    "outbound_pci_stalled_wr": "outbound_pci_stalled_wr_percent",
    "conntrack_allowance_available": "conntrack_allowance_available",
}


class Stat(NamedTuple):
    place: int  # in the driver's list
    name: str
    width: Width
    gauge: bool


def chosen(names: Sequence[str]) -> tuple[Stat, ...]:
    """Those of a driver's statistics that are told; of two that mean the same, the first."""
    found: dict[str, Stat] = {}
    for index, theirs in enumerate(names):
        stat = _describe(index, theirs)
        if stat is not None and stat.name not in found and len(found) < STATS_MAX:
            found[stat.name] = stat
    return tuple(found.values())


def _describe(index: int, theirs: str) -> Stat | None:
    if theirs in _GAUGES:
        return Stat(index, _GAUGES[theirs], Width.WRAPS_64, True)
    if theirs in _32_BITS:
        return Stat(index, theirs, Width.WRAPS_32, False)
    name = _name(theirs)
    return Stat(index, name, Width.WRAPS_64, False) if name else None


def _name(theirs: str) -> str:
    """The common name; "" for what is not told."""
    if theirs in _AS_THEY_ARE or _PRIORITY.fullmatch(theirs) or _LANE.fullmatch(theirs) or _BNXT_DISCARDS.fullmatch(theirs):
        return theirs
    if match := _BNXT_FRAMES.fullmatch(theirs) or _ICE_XOFF.fullmatch(theirs):
        return f"{match['direction']}_prio{match['priority']}_pause"
    if match := _BNXT_TIMES.fullmatch(theirs):
        return f"{match['direction']}_prio{match['priority']}_{_BNXT_WORDS[match['what']]}"
    return _ALSO_CALLED.get(theirs, "")
