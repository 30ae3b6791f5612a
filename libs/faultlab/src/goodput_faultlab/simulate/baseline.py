"""What a healthy training host shows when nothing is wrong with it: which counters move and how fast, and where measurements
stand.

Every figure says where it comes from:

* **H100 capture**: `data/public/gpud/sys-class-infiniband-h100/mlx5_0/ports/1`, a real host's counters over its life.
  The mean packet is `counters/port_xmit_data` (4-byte words) over `counters/port_xmit_packets`: 230,442,669,431,839 x 4
  / 315,487,941,081 = 2,922 bytes, and 2,904 bytes received. `unicast_*` equal `port_*_packets`. At 4 GB/s those words
  are 64 hours, in which `hw_counters/roce_adp_retrans` came to 3, `counters/port_rcv_errors` to 14 and
  `counters/port_rcv_switch_relay_errors` to 1; `symbol_error`, `packet_seq_err`, `out_of_sequence` and
  `local_ack_timeout_err` stood at 0 on all nine adapters.
* **GPU limits**: NVIDIA's data sheets (H100 SXM 700 W, 1,980 MHz; GB200 1,200 W, 2,062 MHz).
* **guess**: nothing in the captures says. RoCE congestion marks, bits corrected by FEC, short pauses, temperatures, a host's
  pressure tables. They are set so that a threshold of "any increase" would be wrong, as it is on real machines.
"""

from __future__ import annotations

from typing import NamedTuple

WORDS_S = (
    1_000_000_000  # 4-byte words a second and NIC at the usual pace: 4 GB/s, a third of what 100 Gb/s would take (guess)
)
BYTES_A_PACKET_SENT = 230_442_669_431_839 * 4 / 315_487_941_081  # H100 capture
BYTES_A_PACKET_RECEIVED = 230_539_874_932_483 * 4 / 317_548_853_677  # H100 capture
BYTES_A_WRITE = 512 * 1024  # NCCL's usual chunk (guess)
MARKED_A_PACKET = 1e-5  # packets that carry a congestion mark (guess)
CNPS_A_MARK = 0.7  # congestion notifications are sent at most every few microseconds (guess)
CAPTURE_H = 230_442_669_431_839 / WORDS_S / 3600  # how long the capture's host has sent at that rate


class Rare(NamedTuple):
    """Something that happens now and then on each component of its kind."""

    name: str
    an_hour: float
    most: int = 1


RARE_NIC = (
    Rare("roce_adp_retrans", 3 / CAPTURE_H, 3),
    Rare("port_rcv_errors", 14 / CAPTURE_H, 2),
    Rare("port_rcv_switch_relay_errors", 1 / CAPTURE_H),
    Rare("out_of_sequence", 3 / CAPTURE_H, 8),  # 0 in the capture, which is InfiniBand; a repeated packet comes out of order
)
RARE_GPU = (
    Rare("pcie_replays", 0.01),  # guess
    Rare(
        "ecc_corrected_volatile_dram", 0.002
    ),  # guess: Llama 3's fleet lost 72 HBMs in 54 days of 16,384; corrected are more
)
PRE_FEC_BITS_S = (400.0, 40_000.0)  # a PAM4 link at 4e11 bit/s with 1e-9 to 1e-7 of them corrected (guess)
PAUSES_SHARE_OF_READINGS = 0.25  # readings of a busy port in which it was paused at all (guess)
PAUSED_US_S = 150.0  # microseconds paused a second, in those (guess)
US_A_FRAME = 20.0  # a pause frame stops a 400G port for up to 84 us (65,535 quanta of 512 bits); mostly it is let go sooner


class Gpu(NamedTuple):
    """Where a GPU's measurements stand: `spins` is waiting in a collective, which polls."""

    clock_mhz: float
    memory_clock_mhz: float
    limit_w: float
    idle_w: float
    spins_w: float
    busy_w: float
    cool_c: float
    hot_c: float
    nvlinks: int
    pcie: str


GPUS = {
    "H100": Gpu(1980, 2619, 700, 72, 240, 655, 31, 63, 18, "gen5 x16"),
    "GB200": Gpu(2062, 3996, 1200, 150, 420, 1090, 33, 58, 18, "gen5 x16"),
}
IDLE_CLOCK_MHZ = 345.0
HEATS_OVER_S = 30.0
AT_POWER_CAP = 0.04  # share of the time in which a busy GPU is held at its limit (guess)
NOISE = {  # what a reading must move by to be told: docs/collector/sources.md, and the collector's settings
    "temperature_c": 2.0,
    "memory_temperature_c": 2.0,
    "power_w": 25.0,
    "power_limit_w": 1.0,
    "clock_sm_mhz": 60.0,
    "clock_memory_mhz": 60.0,
    "clock_sm_max_mhz": 0.0,
    "clock_memory_max_mhz": 0.0,
    "pause_share": 0.01,
    "outbound_pci_stalled_rd_percent": 2.0,
    "outbound_pci_stalled_wr_percent": 2.0,
    "disk_busy_share": 0.05,
    "disk_await_ms": 5.0,
    "disk_in_flight": 32.0,
    "nfs_rtt_ms": 5.0,
    "nfs_backlog": 2.0,
}
SHARE_NOISE = 0.03  # pressure_*_share, memory_available_share and what is alike
WAVERS = {"power_w": 6.0, "temperature_c": 0.4, "clock_sm_mhz": 8.0}  # guess: below the noise, so mostly not told

DISK, MOUNT, SERVER = "nvme0n1", "/mnt/data", "nfs-1"
DISK_ATTRS = {"device": DISK}
MOUNT_ATTRS = {"mount": MOUNT, "server": SERVER, "fstype": "nfs4"}
HOST_GAUGES: tuple[tuple[str, dict[str, str], float, float, float], ...] = (
    # name, attributes, usual, while a checkpoint is written, wavers (all guesses)
    ("pressure_cpu_some_share", {}, 0.02, 0.03, 0.006),
    ("pressure_memory_some_share", {}, 0.0, 0.0, 0.0),
    ("pressure_memory_full_share", {}, 0.0, 0.0, 0.0),
    ("pressure_io_some_share", {}, 0.005, 0.12, 0.003),
    ("pressure_io_full_share", {}, 0.002, 0.08, 0.001),
    ("memory_available_share", {}, 0.71, 0.66, 0.003),
    ("disk_busy_share", DISK_ATTRS, 0.01, 0.35, 0.005),
    ("disk_await_ms", DISK_ATTRS, 0.3, 1.5, 0.05),
    ("disk_in_flight", DISK_ATTRS, 0.0, 16.0, 1.0),
    ("nfs_rtt_ms", MOUNT_ATTRS, 0.8, 4.0, 0.1),
    ("nfs_backlog", MOUNT_ATTRS, 0.0, 0.5, 0.02),
)
HOST_COUNTERS: tuple[tuple[str, float, float], ...] = (
    # name, a second, while a checkpoint is written (guesses, in step with the shares above)
    ("pressure_cpu_some_us", 20_000.0, 30_000.0),
    ("pressure_io_some_us", 5_000.0, 120_000.0),
)
