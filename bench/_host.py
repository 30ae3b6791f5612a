"""A simulated host of 8 GPUs and 9 adapters for the collector's benchmarks: trees as sysfs and proc lay them out, a driver's
library, and a load that moves their counters once a second, as training would.

Both the collector and its peer read these trees; who moves them is a process of its own, which nobody's cost includes.
"""

from __future__ import annotations

import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "services" / "collector" / "tests"
sys.path.insert(0, str(TESTS))

from collector_fixtures import rdma_device  # noqa: E402
from fake_nvml import table  # noqa: E402
from host_tree import HostTree  # noqa: E402

NICS, GPUS, CPUS = 9, 8, 96
COUNTERS = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
]
HW_COUNTERS = [
    "duplicate_request",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "req_cqe_error",
    "req_cqe_flush_error",
    "req_remote_access_errors",
    "req_remote_invalid_request",
    "req_rnr_retries_exceeded",
    "req_transport_retries_exceeded",
    "resp_cqe_error",
    "resp_cqe_flush_error",
    "resp_local_length_error",
    "resp_remote_access_errors",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
    "roce_slow_restart_trans",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "rx_atomic_requests",
    "rx_dct_connect",
    "rx_icrc_encapsulated",
    "rx_read_requests",
    "rx_write_requests",
]
MOVING = (
    "port_rcv_data",
    "port_rcv_packets",
    "port_xmit_data",
    "port_xmit_packets",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
)
MOVING_HW = ("rx_write_requests", "np_cnp_sent", "rp_cnp_handled")


class Host:
    """The trees below `root`, and the driver's library with its table."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = HostTree(root)
        self._ports = [
            rdma_device(
                self.tree.sys, f"mlx5_{n}", dict.fromkeys(COUNTERS, 0), dict.fromkeys(HW_COUNTERS, 0) | {"lifespan": 10}
            )
            for n in range(NICS)
        ]
        for cpu in range(CPUS):
            self.tree.cpu(cpu, cpu // 48, cpu)
        self.tree.edac()
        self.tree.mount(sent=1, received=1)
        for n in range(NICS):
            device = self.tree.pci(
                f"0000:{0x40 + n:02x}:00.0", "0x020700", "0x15b3", under=f"0000:00:{n:02x}.0", infiniband=f"mlx5_{n}"
            )
            interface = self.tree.sys / "class" / "net" / f"ib{n}"  # a veth, whose statistics the kernel tells
            interface.mkdir(parents=True)
            (interface / "device").symlink_to(device)
        for n in range(GPUS):
            self.tree.pci(f"{table.pci(n)}.0", "0x030200", "0x10de", under=f"0000:00:{n + 10:02x}.0")
        self._net_dev()
        self.library = table.build(root / "lib")
        self.nvml = table.Table(root / "nvml.table")
        self.nvml.gpus(GPUS)
        self._seconds = 0

    @classmethod
    def again(cls, root: Path) -> Host:
        """The host whose trees are there already."""
        host = cls.__new__(cls)
        host.root, host._seconds = root, 0
        host.tree = HostTree.__new__(HostTree)
        host.tree.proc, host.tree.sys = root / "proc", root / "sys"
        host._ports = [root / "sys" / "class" / "infiniband" / f"mlx5_{n}" / "ports" / "1" for n in range(NICS)]
        host.nvml = table.Table(root / "nvml.table")
        host.nvml.gpus(GPUS)
        return host

    def environment(self) -> dict[str, str]:
        return table.environment(self.nvml.path, self.library)

    def move(self) -> None:
        """One second of training."""
        self._seconds = second = self._seconds + 1
        for n, port in enumerate(self._ports):
            for name in MOVING:
                (port / "counters" / name).write_text(f"{second * 12_000_000_000 + n}\n")
            for name in MOVING_HW:
                (port / "hw_counters" / name).write_text(f"{second * 1000 % (1 << 32)}\n")
        self.tree.pressure("cpu", some=second % 7, some_us=second * 20_000)
        self.tree.disks(done=100 + second * 50, ms=50 + second * 20, busy_ms=10 + second * 300)
        self.tree.mount(sent=second * 30, received=second * 30)
        self.nvml.set(
            {f"gpu{n}.GetPowerUsage": 600_000 + (second * 7919 + n * 977) % 90_000 for n in range(GPUS)}
            | {f"gpu{n}.GetTemperature.0": 50 + (second // 5 + n) % 8 for n in range(GPUS)}
        )

    def _net_dev(self) -> None:
        columns = "bytes    packets errs drop fifo {} compressed{}"
        received, sent = columns.format("frame", " multicast"), columns.format("colls carrier", "")
        head = f"Inter-|   Receive                |  Transmit\n face |{received}|{sent}\n"
        lines = "".join(f"  ib{n}: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n" for n in range(NICS))
        self.tree.put(self.tree.proc / "net" / "dev", head + lines)
        self.tree.put(self.tree.proc / "1" / "net" / "dev", head + lines)
        stat = "cpu  1 1 1 1 1 1 1 0 0 0\n" + "".join(f"cpu{n} 1 1 1 1 1 1 1 0 0 0\n" for n in range(CPUS))
        self.tree.put(
            self.tree.proc / "stat", stat + "ctxt 1\nbtime 1700000000\nprocesses 1\nprocs_running 1\nprocs_blocked 0\n"
        )
        self.tree.put(self.tree.proc / "loadavg", "1.00 1.00 1.00 1/100 1\n")
        self.tree.put(self.tree.proc / "sys" / "kernel" / "random" / "boot_id", "00000000-1111-2222-3333-444444444444\n")


class DcgmExporter(BaseHTTPRequestHandler):
    """The text of a dcgm-exporter for eight GPUs with its default fields."""

    second = 0

    def do_GET(self) -> None:
        lines = []
        for name, kind in DCGM_FIELDS.items():
            lines.append(f"# HELP {name} As the exporter describes it.\n# TYPE {name} {kind}\n")
            for n in range(GPUS):
                labels = f'gpu="{n}",UUID="GPU-{n:08d}",pci_bus_id="0000{table.pci(n).upper()}.0",device="nvidia{n}"'
                value = type(self).second if kind == "counter" else 40 + n
                lines.append(f'{name}{{{labels},modelName="NVIDIA H100 80GB HBM3",Hostname="h0"}} {value}\n')
        body = "".join(lines).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


GAUGES = """
    DCGM_FI_DEV_SM_CLOCK DCGM_FI_DEV_MEM_CLOCK DCGM_FI_DEV_MEMORY_TEMP DCGM_FI_DEV_GPU_TEMP DCGM_FI_DEV_POWER_USAGE
    DCGM_FI_DEV_XID_ERRORS DCGM_FI_DEV_FB_FREE DCGM_FI_DEV_FB_USED DCGM_FI_DEV_GPU_UTIL DCGM_FI_DEV_MEM_COPY_UTIL
    DCGM_FI_DEV_ENC_UTIL DCGM_FI_DEV_DEC_UTIL DCGM_FI_DEV_ROW_REMAP_FAILURE DCGM_FI_DEV_VGPU_LICENSE_STATUS
    DCGM_FI_PROF_GR_ENGINE_ACTIVE DCGM_FI_PROF_PIPE_TENSOR_ACTIVE DCGM_FI_PROF_DRAM_ACTIVE
"""
TOTALS = """
    DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION DCGM_FI_DEV_PCIE_REPLAY_COUNTER DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL
    DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS DCGM_FI_PROF_PCIE_TX_BYTES
    DCGM_FI_PROF_PCIE_RX_BYTES
"""
DCGM_FIELDS = dict.fromkeys(GAUGES.split(), "gauge") | dict.fromkeys(TOTALS.split(), "counter")


def main() -> None:
    """Move the trees that are made already, once a second, until killed: `python bench/_host.py ROOT DCGM_PORT`."""
    exporter = HTTPServer(("127.0.0.1", int(sys.argv[2])), DcgmExporter)
    threading.Thread(target=exporter.serve_forever, daemon=True).start()
    host = Host.again(Path(sys.argv[1]))
    due_s = time.monotonic()
    while True:
        host.move()
        DcgmExporter.second += 1
        due_s += 1.0
        time.sleep(max(0.0, due_s - time.monotonic()))


if __name__ == "__main__":
    main()
