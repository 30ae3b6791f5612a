"""The counters of an RDMA port under sysfs: how wide each is, what it does at its end, and what it tells.

Three kinds of counter stand side by side in `/sys/class/infiniband/<dev>/ports/<n>/`:

* queue counters in `hw_counters/` (mlx5) are 32 bits wide and *wrap*; congestion, Ethernet-side and flow ones have 64 bits;
* the management counters in `counters/` keep the widths of 1999 and *saturate*: link_downed at 255 means "at least 255";
* data and packet counters have 64 bits where the device has the extended set, else 32, and then they saturate too; a value
  above 2^32 shows which. `port_*_data` count 4-byte words.

Other vendors' names are mapped to mlx5's, so that whoever reads a sample knows one name for one thing. Counters that
are not listed are read and reported as they are, with 64 bits. Some files are no counters at all but how many of something
there are now (bnxt_re's `active_qps`): a fall there is no reset, and they are left out.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Width(enum.Enum):
    """How a counter ends: its bits, and whether it stays at its largest reading."""

    WRAPS_32 = (32, False)
    WRAPS_64 = (64, False)
    SATURATES_32 = (32, True)
    SATURATES_16 = (16, True)
    SATURATES_8 = (8, True)
    SATURATES_4 = (4, True)

    def __init__(self, bits: int, saturates: bool) -> None:
        self.ceiling = 2**bits - 1
        self.saturates = saturates


class Tells(enum.Enum):
    """What an increase speaks of. Nothing here says whether it is a fault."""

    LINK = "link"  # the physical link: went down, recovered, saw bad symbols
    LOSS = "loss"  # packets lost, late or repeated between two ends
    PEER = "peer"  # the other end did not answer or refused
    HOST = "host"  # this end was too slow or asked for the wrong thing
    CONGESTION = "congestion"  # packets dropped for want of room
    PACING = "pacing"  # congestion control at its daily work: marks, notices, waiting for credits
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
    **_all(Width.WRAPS_64, Tells.PACING, "rp_cnp_ignored rp_cnp_handled np_ecn_marked_roce_packets np_cnp_sent"),
    **_all(Width.WRAPS_64, Tells.LINK, "rx_icrc_encapsulated"),
    **_all(Width.WRAPS_64, Tells.PACING, "cc_rx_ce_pkts cc_rx_cnp_pkts cc_tx_cnp_pkts"),
    **_all(Width.WRAPS_64, Tells.TRAFFIC, "rdma_tx_packets rdma_tx_bytes rdma_rx_packets rdma_rx_bytes"),
}
PORT_COUNTERS: dict[str, RdmaCounter] = {
    **_all(Width.SATURATES_16, Tells.LINK, "symbol_error port_rcv_errors port_rcv_remote_physical_errors"),
    **_all(Width.SATURATES_8, Tells.LINK, "link_downed link_error_recovery"),
    **_all(Width.SATURATES_4, Tells.LINK, "local_link_integrity_errors excessive_buffer_overrun_errors"),
    **_all(Width.SATURATES_16, Tells.CONGESTION, "port_xmit_discards VL15_dropped port_rcv_switch_relay_errors"),
    **_all(Width.SATURATES_8, Tells.HOST, "port_xmit_constraint_errors port_rcv_constraint_errors"),
    **_all(Width.SATURATES_32, Tells.PACING, "port_xmit_wait"),
    **_all(Width.SATURATES_32, Tells.TRAFFIC, "port_rcv_data port_xmit_data port_rcv_packets port_xmit_packets"),
}
OTHER_COUNTERS: dict[str, RdmaCounter] = {
    # Broadcom bnxt_re, where mlx5 has nothing of the sort
    **_all(Width.WRAPS_64, Tells.TRAFFIC, "rx_pkts rx_bytes tx_pkts tx_bytes rx_roce_good_pkts rx_roce_good_bytes"),
    **_all(Width.WRAPS_64, Tells.TRAFFIC, "tx_atomic_req tx_read_req tx_read_resp tx_write_req tx_send_req rx_read_resp"),
    **_all(Width.WRAPS_64, Tells.TRAFFIC, "rx_send_req"),
    **_all(Width.WRAPS_64, Tells.LOSS, "rx_roce_errors rx_roce_discards missing_resp recoverable_errors"),
    **_all(Width.WRAPS_64, Tells.PACING, "rx_cnp_pkts tx_cnp_pkts rx_ecn_marked_pkts"),
    **_all(
        Width.WRAPS_64,
        Tells.HOST,
        "unrecoverable_err bad_resp_err local_qp_op_err local_protection_err mem_mgmt_op_err res_exceed_max"
        " res_length_mismatch res_exceeds_wqe res_opcode_err res_rx_invalid_rkey res_rx_domain_err res_rx_no_perm"
        " res_rx_range_err res_tx_invalid_rkey res_tx_domain_err res_tx_no_perm res_tx_range_err res_irrq_oflow"
        " res_unsup_opcode res_unaligned_atomic res_rem_inv_err res_mem_err res_srq_err res_cmp_err res_invalid_dup_rkey"
        " res_wqe_format_err res_cq_load_err res_srq_load_err res_tx_pci_err res_rx_pci_err",
    ),
    **_all(Width.WRAPS_64, Tells.PEER, "remote_op_err"),
    # AWS EFA
    **_all(Width.WRAPS_64, Tells.TRAFFIC, "send_bytes send_wrs recv_bytes recv_wrs rdma_read_wrs rdma_read_bytes"),
    **_all(Width.WRAPS_64, Tells.TRAFFIC, "rdma_read_resp_bytes rdma_write_wrs rdma_write_bytes rdma_write_recv_bytes"),
    **_all(Width.WRAPS_64, Tells.TRAFFIC, "submitted_cmds completed_cmds keep_alive_rcvd"),
    **_all(Width.WRAPS_64, Tells.LOSS, "retrans_bytes retrans_pkts rx_drops"),
    **_all(Width.WRAPS_64, Tells.PEER, "impaired_remote_conn_events rdma_read_wr_err rdma_write_wr_err"),
    **_all(Width.WRAPS_64, Tells.HOST, "cmds_err no_completion_cmds alloc_pd_err create_qp_err create_cq_err reg_mr_err"),
    **_all(Width.WRAPS_64, Tells.HOST, "alloc_ucontext_err create_ah_err mmap_err"),
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
    "remote_invalid_req_err": "req_remote_invalid_request",
    "remote_access_err": "req_remote_access_errors",
    "rx_write_req": "rx_write_requests",
    "rx_read_req": "rx_read_requests",
    "rx_atomic_req": "rx_atomic_requests",
    # AWS EFA
    "retrans_timeout_events": "local_ack_timeout_err",
    "unresponsive_remote_events": "req_transport_retries_exceeded",
}
NOT_COUNTERS = frozenset({"lifespan"})
GAUGES = ("active_", "watermark_")
"""What is there now, and the most there ever was: names that begin so are no counters."""
DEVICE_COUNTERS = frozenset({"no_completion_cmds", "cmds_err", "keep_alive_rcvd"})
"""EFA keeps these with the device and not with its port: a device that answers no commands is dead though its link is up.
What other drivers keep there repeats the port's."""
NOT_REPORTED = frozenset({"multicast_rcv_packets", "multicast_xmit_packets", "unicast_rcv_packets", "unicast_xmit_packets"})
"""Parts of the packet counters: traffic is told without them."""


def is_reported(name: str) -> bool:
    """Whether a file of a folder of counters is one, and not told by another already."""
    return name not in NOT_COUNTERS and name not in NOT_REPORTED and not name.startswith(GAUGES)


def describe(name: str) -> RdmaCounter:
    """The counter behind a file name; unknown ones are 64 bits wide and count traffic."""
    alias = ALIASES.get(name)
    if alias is not None:  # another vendor's counter under mlx5's name keeps its own width: 64 bits
        return RdmaCounter(alias, Width.WRAPS_64, QUEUE_COUNTERS[alias].tells)
    plain = name.removeprefix("vport_")  # mlx5 in switchdev mode
    known = QUEUE_COUNTERS.get(plain) or PORT_COUNTERS.get(name) or OTHER_COUNTERS.get(name)
    return known if known is not None else RdmaCounter(name, Width.WRAPS_64, Tells.TRAFFIC)
