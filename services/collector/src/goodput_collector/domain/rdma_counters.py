"""The counters of an RDMA port under sysfs: how wide each is, what it does at its end, and what it tells.

Three kinds of counter stand side by side in `/sys/class/infiniband/<dev>/ports/<n>/`:

* queue counters in `hw_counters/` (mlx5) are 32 bits wide and *wrap*; congestion and Ethernet-side ones there have 64 bits;
* the management counters in `counters/` keep the widths of 1999 and *saturate*: link_downed at 255 means "at least 255";
* data and packet counters have 64 bits; `port_*_data` count 4-byte words.

Other vendors' names are mapped to mlx5's, so that whoever reads a sample knows one name for one thing. Counters that
are not listed are read and reported as they are, with 64 bits.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Width(enum.Enum):
    """How a counter ends. The value is its largest reading."""

    WRAPS_32 = 2**32 - 1
    WRAPS_64 = 2**64 - 1
    SATURATES_16 = 2**16 - 1
    SATURATES_8 = 2**8 - 1
    SATURATES_4 = 2**4 - 1

    @property
    def ceiling(self) -> int:
        return int(self.value)

    @property
    def saturates(self) -> bool:
        return self in (Width.SATURATES_16, Width.SATURATES_8, Width.SATURATES_4)


class Tells(enum.Enum):
    """What an increase speaks of. Nothing here says whether it is a fault."""

    LINK = "link"  # the physical link: went down, recovered, saw bad symbols
    LOSS = "loss"  # packets lost, late or repeated between two ends
    PEER = "peer"  # the other end did not answer or refused
    HOST = "host"  # this end was too slow or asked for the wrong thing
    CONGESTION = "congestion"
    TRAFFIC = "traffic"


class RdmaCounter(NamedTuple):
    name: str
    width: Width
    tells: Tells


def _all(width: Width, tells: Tells, names: str) -> dict[str, RdmaCounter]:
    return {name: RdmaCounter(name, width, tells) for name in names.split()}


QUEUE_COUNTERS: dict[str, RdmaCounter] = {
    **_all(Width.WRAPS_32, Tells.TRAFFIC, "rx_write_requests rx_read_requests rx_atomic_requests rx_dct_connect"),
    **_all(
        Width.WRAPS_32,
        Tells.LOSS,
        "out_of_sequence duplicate_request packet_seq_err implied_nak_seq_err local_ack_timeout_err",
    ),
    **_all(Width.WRAPS_32, Tells.HOST, "out_of_buffer rnr_nak_retry_err resp_local_length_error"),
    **_all(Width.WRAPS_32, Tells.HOST, "req_cqe_error resp_cqe_error req_cqe_flush_error resp_cqe_flush_error"),
    **_all(
        Width.WRAPS_32,
        Tells.PEER,
        "req_transport_retries_exceeded req_rnr_retries_exceeded req_remote_invalid_request req_remote_access_errors"
        " resp_remote_access_errors",
    ),
    **_all(
        Width.WRAPS_32,
        Tells.LOSS,
        "roce_adp_retrans roce_adp_retrans_to roce_slow_restart roce_slow_restart_cnps roce_slow_restart_trans",
    ),
    **_all(Width.WRAPS_64, Tells.CONGESTION, "rp_cnp_ignored rp_cnp_handled np_ecn_marked_roce_packets np_cnp_sent"),
    **_all(Width.WRAPS_64, Tells.LINK, "rx_icrc_encapsulated"),
}
PORT_COUNTERS: dict[str, RdmaCounter] = {
    **_all(Width.SATURATES_16, Tells.LINK, "symbol_error port_rcv_errors port_rcv_remote_physical_errors"),
    **_all(Width.SATURATES_8, Tells.LINK, "link_downed link_error_recovery"),
    **_all(Width.SATURATES_4, Tells.LINK, "local_link_integrity_errors excessive_buffer_overrun_errors"),
    **_all(Width.SATURATES_16, Tells.CONGESTION, "port_xmit_discards VL15_dropped port_rcv_switch_relay_errors"),
    **_all(Width.SATURATES_8, Tells.HOST, "port_xmit_constraint_errors port_rcv_constraint_errors"),
    **_all(Width.WRAPS_64, Tells.CONGESTION, "port_xmit_wait"),
    **_all(Width.WRAPS_64, Tells.TRAFFIC, "port_rcv_data port_xmit_data port_rcv_packets port_xmit_packets"),
}
ALIASES: dict[str, str] = {
    # Broadcom bnxt_re
    "to_retransmits": "local_ack_timeout_err",
    "seq_err_naks_rcvd": "packet_seq_err",
    "oos_drop_count": "out_of_sequence",
    "rnr_naks_rcvd": "rnr_nak_retry_err",
    "max_retry_exceeded": "req_transport_retries_exceeded",
    "rx_out_of_buffer": "out_of_buffer",
    "dup_req": "duplicate_request",
    # AWS EFA
    "retrans_timeout_events": "local_ack_timeout_err",
    "unresponsive_remote_events": "req_transport_retries_exceeded",
}
NOT_COUNTERS = frozenset({"lifespan"})
NOT_REPORTED = frozenset({"multicast_rcv_packets", "multicast_xmit_packets", "unicast_rcv_packets", "unicast_xmit_packets"})
"""Parts of the packet counters: traffic is told without them."""


def describe(name: str) -> RdmaCounter:
    """The counter behind a file name; unknown ones are 64 bits wide and count traffic."""
    alias = ALIASES.get(name)
    if alias is not None:  # another vendor's counter under mlx5's name keeps its own width: 64 bits
        return RdmaCounter(alias, Width.WRAPS_64, QUEUE_COUNTERS[alias].tells)
    known = QUEUE_COUNTERS.get(name) or PORT_COUNTERS.get(name)
    return known if known is not None else RdmaCounter(name, Width.WRAPS_64, Tells.TRAFFIC)
