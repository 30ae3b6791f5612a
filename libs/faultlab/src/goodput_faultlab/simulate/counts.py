"""What every counter stands at, so that all increases told of it add up, whoever caused them.

Counters end as the real ones do (signals.md, "RDMA device counters"): queue counters have 32 bits and wrap, the management
counters of 1999 are narrow and saturate, all else has 64 bits. Where a counter stands when a run begins is drawn by its name
around where a real H100 host stood: `data/public/gpud/sys-class-infiniband-h100/mlx5_0/ports/1`, files of the same names
(two of them stand at or near their ends: rx_write_requests short of 2^32, excessive_buffer_overrun_errors at 15).
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import CounterDoubt

WRAPS_32 = frozenset(
    [
        "rx_write_requests",
        "rx_read_requests",
        "rx_atomic_requests",
        "rx_dct_connect",
        "out_of_sequence",
        "duplicate_request",
        "packet_seq_err",
        "implied_nak_seq_err",
        "local_ack_timeout_err",
        "out_of_buffer",
        "rnr_nak_retry_err",
        "roce_adp_retrans",
        "roce_adp_retrans_to",
        "roce_slow_restart",
        "pcie_replays",
    ]
)
SATURATES = {
    "symbol_error": 0xFFFF,
    "port_rcv_errors": 0xFFFF,
    "port_rcv_remote_physical_errors": 0xFFFF,
    "port_xmit_discards": 0xFFFF,
    "port_rcv_switch_relay_errors": 0xFFFF,
    "link_downed": 0xFF,
    "link_error_recovery": 0xFF,
    "local_link_integrity_errors": 0xF,
    "excessive_buffer_overrun_errors": 0xF,
    "port_xmit_wait": 0xFFFF_FFFF,
}
STOOD_AT = {
    "port_xmit_data": 230_442_669_431_839,
    "port_rcv_data": 230_539_874_932_483,
    "port_xmit_packets": 315_487_941_081,
    "port_rcv_packets": 317_548_853_677,
    "unicast_xmit_packets": 315_487_941_081,
    "unicast_rcv_packets": 317_548_853_677,
    "rx_write_requests": 3_809_045_607,
    "rx_read_requests": 9_187_392,
    "port_rcv_errors": 14,
    "port_rcv_switch_relay_errors": 1,
    "roce_adp_retrans": 3,
    # no capture: round figures for a host that has been up for some weeks
    "np_cnp_sent": 20_000_000,
    "np_ecn_marked_roce_packets": 30_000_000,
    "rp_cnp_handled": 20_000_000,
    "rx_corrected_bits_phy": 10_000_000_000,
    "throttled_power_us": 50_000_000_000,
    "pressure_cpu_some_us": 60_000_000_000,
    "pressure_io_some_us": 10_000_000_000,
    "in_octets": 900_000_000_000_000,
    "out_octets": 900_000_000_000_000,
}


class Counted(NamedTuple):
    delta: int
    value: int
    doubt: CounterDoubt


class Counts:
    """`of(component)` are the values of one component's counters by name; they may be moved on directly where a counter is
    known to have 64 bits."""

    def __init__(self) -> None:
        self._of: dict[ComponentId, dict[str, int]] = {}

    def of(self, component: ComponentId) -> dict[str, int]:
        found = self._of.get(component)
        if found is None:
            found = self._of[component] = {}
        return found

    def start(self, component: ComponentId, name: str) -> int:
        """Where a counter stands that nobody has moved yet. All counters of a component have run equally long."""
        typical = STOOD_AT.get(name, 0)
        if not typical:
            return 0
        return min(typical * (zlib.crc32(component.encode()) % 1000 + 200) // 1000, ceiling(name))

    def add(self, component: ComponentId, name: str, delta: int) -> Counted | None:
        """Move a counter on. None when it stands at its end and cannot tell of it."""
        counts = self.of(component)
        before = counts[name] if name in counts else self.start(component, name)
        if name in WRAPS_32:
            value = (before + delta) & 0xFFFF_FFFF
            doubt = CounterDoubt.WRAPPED if before + delta > value else CounterDoubt.NONE
        elif name in SATURATES:
            value = min(before + delta, SATURATES[name])
            delta = value - before
            doubt = CounterDoubt.SATURATED if value == SATURATES[name] else CounterDoubt.NONE
        else:
            value, doubt = before + delta, CounterDoubt.NONE
        counts[name] = value
        return Counted(delta, value, doubt) if delta > 0 else None

    def restart(self, host: str) -> None:
        """Another boot: whatever this host counts begins at zero."""
        for component, counts in self._of.items():
            if component.partition(":")[2].partition("/")[0] == host:
                for name in counts:
                    counts[name] = 0


def ceiling(name: str) -> int:
    return 0xFFFF_FFFF if name in WRAPS_32 else SATURATES.get(name, 2**64 - 1)
