"""Lines of NICs, PCIe and the host; and whole logs, down to the real ones."""

# ruff: noqa: E501 - log lines are quoted whole

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.domain.journal_export import JournalEntries
from goodput_collector.domain.kernel_log import NEEDLES, KernelLogParser, parse_text
from goodput_collector.domain.timestamps import LineClock
from goodput_collector.domain.xid import EXCERPT_CHARS
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Event, EventName, Severity

AT = datetime(2026, 3, 1, tzinfo=UTC)
SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "public"


def parser() -> KernelLogParser:
    return KernelLogParser(host="h0", clock=LineClock(reference=AT), reference=AT)


@pytest.mark.parametrize(
    ("line", "name", "component", "severity"),
    [
        ("mlx5_core 0000:01:00.0 enp1s0f0: Link down", "link_down", "nic:h0/enp1s0f0/1", "error"),
        ("mlx5_core 0000:01:00.1 rail1: Link up", "link_up", "nic:h0/rail1/1", "info"),
        ("bnxt_en 0000:01:00.0 eth0: NIC Link is Down", "link_down", "nic:h0/eth0/1", "error"),
        ("e1000e: eth0 NIC Link is Down", "link_down", "nic:h0/eth0/1", "error"),
        ("ixgbe 0000:01:00.0 eth0: NIC Link is Up 10 Gbps, Flow Control: RX/TX", "link_up", "nic:h0/eth0/1", "info"),
        ("systemd-networkd[12]: ib6: Lost carrier", "link_down", "nic:h0/ib6/1", "error"),
        ("systemd-networkd[12]: ib6: Gained carrier", "link_up", "nic:h0/ib6/1", "info"),
        (
            "NetworkManager[1]: <info>  [175.1] device (eth0): link disconnected (deferring)",
            "link_down",
            "nic:h0/eth0/1",
            "error",
        ),
        ("NetworkManager[1]: <info>  [175.1] device (eth0): carrier: link connected", "link_up", "nic:h0/eth0/1", "info"),
        ("mlx5_core 0000:01:00.0: Port module event: module 0, Cable plugged", "cable", "nic:h0/0000:01:00/1", "info"),
        (
            "mlx5_core 0000:01:00.1: Port module event: module 1, Cable unplugged",
            "cable",
            "nic:h0/0000:01:00.1/1",
            "warning",
        ),
        (
            "mlx5_core 0000:01:00.0: Port module event[error]: module 0, Cable error, High Temperature",
            "cable",
            "nic:h0/0000:01:00/1",
            "error",
        ),
        (
            "mlx5_core 0000:01:00.0: wait_func:1132:(pid 4): CREATE_DCT(0x710) timeout. Will cause a leak of a command resource",
            "nic_hang",
            "nic:h0/0000:01:00/1",
            "fatal",
        ),
        (
            "mlx5_core 0000:01:00.0: device's health compromised - reached miss count",
            "nic_hang",
            "nic:h0/0000:01:00/1",
            "fatal",
        ),
        (
            "mlx5_core 0000:01:00.0: print_health_info:434:(pid 0): synd 0x7: irisc not responding",
            "nic_hang",
            "nic:h0/0000:01:00/1",
            "fatal",
        ),
        (
            "mlx5_core 0000:01:00.0: print_health_info:434:(pid 0): synd 0x8: unrecoverable hardware error",
            "nic_hang",
            "nic:h0/0000:01:00/1",
            "fatal",
        ),
        ("pcieport 0000:15:01.0: AER: Corrected error received: 0000:17:00.0", "aer", "host:h0", "info"),
        (
            "pcieport 0000:15:01.0: AER: Uncorrectable (Fatal) error message received from 0000:17:00.0",
            "aer",
            "host:h0",
            "fatal",
        ),
        ("pcieport 0000:15:01.0: AER: Uncorrected (Non-Fatal) error received: 0000:17:00.0", "aer", "host:h0", "error"),
        (
            "nvidia 0000:9b:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)",
            "aer",
            "gpu:h0/0000:9b:00",
            "error",
        ),
        (
            "mlx5_core 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
            "aer",
            "nic:h0/0000:01:00/1",
            "info",
        ),
        ("pcieport 0000:15:01.0: DPC: containment event, status:0x1f01 source:0x0000", "aer", "host:h0", "fatal"),
        ("pcieport 0000:15:01.0: pciehp: Slot(1): Card not present", "aer", "host:h0", "fatal"),
        ("INFO: task python3:4242 blocked for more than 122 seconds.", "host_stall", "host:h0", "error"),
        ("watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:4242]", "host_stall", "host:h0", "error"),
        ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 3", "host_stall", "host:h0", "fatal"),
        ("rcu: INFO: rcu_sched self-detected stall on CPU", "host_stall", "host:h0", "error"),
        ("Memory cgroup out of memory: Killed process 42 (python3) total-vm:1kB", "host_stall", "host:h0", "error"),
        ("nfs: server 10.0.0.1 not responding, still trying", "storage_stall", "host:h0", "error"),
        ("nfs: server 10.0.0.1 OK", "storage_stall", "host:h0", "info"),
        (
            "Lustre: 4242:0:(client.c:2289:ptlrpc_expire_one_request()) @@@ lustre-OST0001: Connection to lustre-OST0001 (at 10.0.0.5@o2ib) was lost; in progress operations using this service will wait",
            "storage_stall",
            "host:h0",
            "error",
        ),
        (
            "Lustre: lustre-OST0001-osc-ffff: Connection restored to 10.0.0.5@o2ib (at 10.0.0.5@o2ib)",
            "storage_stall",
            "host:h0",
            "info",
        ),
        ("ceph: mds0 hung", "storage_stall", "host:h0", "error"),
        ("libceph: osd12 (1)10.0.0.7:6801 socket closed (con state OPEN)", "storage_stall", "host:h0", "error"),
        ("nvme nvme0: I/O 12 QID 4 timeout, aborting", "storage_stall", "host:h0", "error"),
        ("nvme nvme0: I/O 12 (Read) QID 4 timeout, reset controller", "storage_stall", "host:h0", "error"),
        (
            "nvme nvme0: I/O tag 12 (100c) opcode 0x2 (I/O Cmd) QID 4 timeout, aborting req_op:READ(0) size:4096",
            "storage_stall",
            "host:h0",
            "error",
        ),
        ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff", "storage_stall", "host:h0", "error"),
        (
            "blk_update_request: I/O error, dev nvme0n1, sector 512 op 0x0:(READ) flags 0x0",
            "storage_stall",
            "host:h0",
            "error",
        ),
        ("mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: 8c00004000010091", "machine_check", "host:h0", "info"),
        (
            "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000010090",
            "machine_check",
            "host:h0",
            "fatal",
        ),
        (
            "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x1 offset:0x0)",
            "machine_check",
            "host:h0",
            "info",
        ),
        ("EDAC MC1: 2 UE memory scrubbing error on DIMM_B1 (channel:0 slot:0)", "machine_check", "host:h0", "fatal"),
        ("{3}[Hardware Error]: event severity: corrected", "machine_check", "host:h0", "info"),
        ("{3}[Hardware Error]: event severity: fatal", "machine_check", "host:h0", "fatal"),
        ("{3}[Hardware Error]: event severity: recoverable", "machine_check", "host:h0", "error"),
        ("Memory failure: 0x1234: recovery action for dirty LRU page: Recovered", "machine_check", "host:h0", "fatal"),
        (
            "mce: CPU5: Package temperature above threshold, cpu clock throttled (total events = 9)",
            "throttled",
            "host:h0",
            "warning",
        ),
        ("Linux version 5.15.0-112-generic (build@host)", "boot", "host:h0", "info"),
    ],
)
def test_what_a_line_tells(line: str, name: str, component: str, severity: str) -> None:
    event = parse_text(line, host="h0", at=AT)
    assert event is not None
    assert (event.name, event.component, event.severity) == (name, component, severity)
    assert NEEDLES.found_in(line.encode())


@pytest.mark.parametrize(
    "line",
    [
        "mlx5_core 0000:01:00.0: mlx5_cmd_out_err:808:(pid 1): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2)",
        "mlx5_core 0000:01:00.0: firmware version: 20.31.1014",
        "clocksource: Long readout interval, skipping watchdog check",
        "systemd[1]: Finished Rotate log files.",
        "NVRM:     -1    103  GSP_RM_ALLOC          0x0000000000002080",
    ],
)
def test_what_we_cause_ourselves_and_chatter_is_passed_over(line: str) -> None:
    assert parse_text(line, host="h0", at=AT) is None


def firmware(number: int, *lines: str) -> list[str]:
    return [f"kernel: {{{number}}}[Hardware Error]: {line}" for line in lines]


def pcie(severity: str, *, pci_class: str = "030200", vendor: str = "0x10de") -> list[str]:
    return firmware(
        1,
        "Hardware error from APEI Generic Hardware Error Source: 0",
        f"event severity: {severity}",
        f" Error 0, type: {severity}",
        "  section_type: PCIe error",
        "  port_type: 0, PCIe end point",
        "  device_id: 0000:9b:00.0",
        f"  vendor_id: {vendor}, device_id: 0x2330",
        f"  class_code: {pci_class}",
        "  aer_uncor_status: 0x00100000, aer_uncor_mask: 0x00000000",
    )


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (pcie("recoverable"), [("aer", "gpu:h0/0000:9b:00", "error")]),
        (pcie("recoverable", pci_class="020000", vendor="0x15b3"), [("aer", "nic:h0/0000:9b:00/1", "error")]),
        (pcie("recoverable", pci_class="060400", vendor="0x8086"), [("aer", "host:h0", "error")]),
        (pcie("corrected"), [("machine_check", "host:h0", "info"), ("aer", "gpu:h0/0000:9b:00", "info")]),
        (pcie("fatal"), [("machine_check", "host:h0", "fatal"), ("aer", "gpu:h0/0000:9b:00", "fatal")]),
        (pcie("fatal")[:2], [("machine_check", "host:h0", "fatal")]),
        (
            firmware(2, "event severity: recoverable", "  section_type: memory error"),
            [("machine_check", "host:h0", "error")],
        ),
        ([*pcie("recoverable")[:4], "kernel: something else"], [("machine_check", "host:h0", "error")]),
        (
            [*pcie("recoverable")[:2], *firmware(2, "event severity: recoverable", "  section_type: memory error")],
            [("machine_check", "host:h0", "error")] * 2,
        ),
    ],
)
def test_what_firmware_reports_of_pcie_is_told_of_the_device(lines: list[str], told: list[tuple[str, str, str]]) -> None:
    events = parser().feed_all(lines)
    assert [(each.name, each.component, each.severity) for each in events] == told


@pytest.mark.parametrize(
    "line",
    [
        "nvme nvme0: Shutdown timeout set to 8 seconds",
        "nvme nvme0: D3 entry latency set to 10 seconds",
        *(f"I/O error, dev {name}, sector 0 op 0x0:(READ) flags 0x80700" for name in ("sr0", "fd0", "loop3", "zram0")),
    ],
)
def test_what_every_boot_says_is_no_storage_that_stalled(line: str) -> None:
    assert parse_text(line, host="h0", at=AT) is None


def test_an_aer_line_names_the_device_behind_the_port() -> None:
    event = parse_text("pcieport 0000:15:01.0: AER: Corrected error received: 0000:17:00.0", host="h0", at=AT)
    assert event is not None
    assert (event.attrs["pci"], event.attrs["port"]) == ("0000:17:00", "0000:15:01")


def test_the_host_in_a_line_wins_over_the_assumed_one() -> None:
    event = parser().feed("Feb  7 06:18:01 vm-3 kernel: mlx5_core 0000:01:00.0 ib0: Link down")
    assert event is not None and event.component == "nic:vm-3/ib0/1"


def test_a_line_that_cannot_be_dated_takes_the_collection_time_and_says_so() -> None:
    event = parser().feed("kernel: NVRM: Xid (PCI:0000:05:00): 79, x")
    assert event is not None
    assert (event.observed_at, event.attrs["at"]) == (AT, "unknown")


def test_a_boot_border_is_an_event() -> None:
    event = parser().feed("-- Boot 0b5e9f0011223344 --")
    assert event is not None
    assert (event.name, event.attrs) == (EventName.BOOT, {"boot_id": "0b5e9f0011223344", "at": "unknown"})


def survives(line: str) -> None:
    """What is told of the line, if anything, is fit for the bus, and does not spoil the parser for the next line."""
    log = parser()
    event = log.feed(line)
    if event is not None:
        assert ids.parse(event.component)
        assert len(event.excerpt) <= EXCERPT_CHARS
        assert msgspec.json.decode(msgspec.json.encode(event), type=Event) == event
    after = log.feed("kernel: NVRM: Xid (PCI:0000:05:00): 79, x")
    assert after is not None and after.attrs["xid"] == "79"


@given(st.text(max_size=300))
def test_any_line_is_survived_and_the_next_one_is_read(line: str) -> None:
    survives(line)


@given(
    st.lists(
        st.sampled_from(
            ["NVRM: Xid (PCI:0000:05:00): ", "mlx5_core 0000:01:00.0: ", "AER: ", "[1.0] ", "Link down", ", 79", "pid="]
        ),
        max_size=8,
    )
)
def test_lines_made_of_the_right_words_in_any_order_are_survived_and_the_next_one_is_read(parts: list[str]) -> None:
    survives("".join(parts))


def test_journal_exports_give_time_host_and_a_border_between_boots() -> None:
    export = (
        "__REALTIME_TIMESTAMP=1767225600000000\n_HOSTNAME=n1\n_BOOT_ID=aaaaaaaa\nSYSLOG_IDENTIFIER=kernel\n"
        "MESSAGE=NVRM: Xid (PCI:0000:05:00): 79, x\n\n"
        "__REALTIME_TIMESTAMP=1767225601000000\n_HOSTNAME=n1\n_BOOT_ID=bbbbbbbb\nSYSLOG_IDENTIFIER=systemd-networkd\n"
        "MESSAGE=ib6: Lost carrier\n\n"
    )
    entries, log = JournalEntries(), parser()
    told: list[Event] = []
    for placed in entries.feed(export.encode()):
        event = log.see(placed)
        if event is not None:
            told.append(event)
    assert [(event.name.value, event.component) for event in told] == [
        ("xid", "gpu:n1/0000:05:00"),
        ("boot", "host:n1"),
        ("link_down", "nic:n1/ib6/1"),
    ]
    assert told[0].observed_at == datetime(2026, 1, 1, tzinfo=UTC)


def export(*fields: tuple[str, str]) -> bytes:
    """One entry; a value with newlines with its length."""
    parts = []
    for name, value in fields:
        data = value.encode()
        parts.append(
            name.encode() + (b"\n" + len(data).to_bytes(8, "little") + data if b"\n" in data else b"=" + data) + b"\n"
        )
    return b"".join(parts) + b"\n"


@given(
    st.lists(st.text("ab=\n{}x ", max_size=30), min_size=1, max_size=6),
    st.lists(st.integers(1, 40), max_size=60),
)
def test_an_export_reads_the_same_wherever_it_is_cut(messages: list[str], cuts: list[int]) -> None:
    data = b"".join(
        export(("__CURSOR", f"s={number}"), ("__REALTIME_TIMESTAMP", "1767225600000000"), ("MESSAGE", message))
        for number, message in enumerate(messages)
    )
    entries, told, at = JournalEntries(), [], 0
    for size in cuts:
        told += entries.feed(data[at : at + size])
        at += size
    told += entries.feed(data[at:])
    assert [placed.text for placed in told] == [line for message in messages for line in message.split("\n") if line]
    assert (entries.cursor, entries.seen, entries.damaged) == (f"s={len(messages) - 1}", len(messages), 0)


def test_a_damaged_entry_costs_itself_only() -> None:
    good = export(("__REALTIME_TIMESTAMP", "1767225600000000"), ("MESSAGE", "x"))
    entries = JournalEntries()
    told = entries.feed(good + b"this is no field but a line of text\nmore\n\n" + export(("MESSAGE", "undated")) + good)
    assert [placed.text for placed in told] == ["x", "x"]
    assert entries.damaged == 2


def test_a_journal_in_json_is_read_with_its_odd_values() -> None:
    lines = (
        b'{"__REALTIME_TIMESTAMP":"1767225600000000","MESSAGE":[104,105]}\n'
        b'{"__REALTIME_TIMESTAMP":"1767225600000000","MESSAGE":null}\n{"broken\n'
        b'{"__REALTIME_TIMESTAMP":"1767225600000000","MESSAGE":["a","b"]}\n'
    )
    entries = JournalEntries()
    assert [placed.text for placed in entries.feed(lines)] == ["hi", "a", "b"]
    assert entries.damaged == 1


def test_a_field_without_an_end_is_cut() -> None:
    entries = JournalEntries()
    told = entries.feed(b"__REALTIME_TIMESTAMP=1767225600000000\nMESSAGE=" + b"y" * 300_000)
    told += entries.feed(b"y" * 300_000 + b"\n\n")
    (placed,) = told
    assert len(placed.text) < 70_000


@given(st.lists(st.binary(max_size=80), max_size=20))
def test_no_bytes_crash_the_export_reader(parts: list[bytes]) -> None:
    entries = JournalEntries()
    for part in parts:
        entries.feed(part)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the captures under ../shared are not here")
class TestRealLogs:
    def events(self, name: str) -> list[Event]:
        with (SHARED / name).open(encoding="utf-8") as file:
            return list(parser().feed_all(file))

    def test_the_gsp_timeout_is_told_at_its_pci_address(self) -> None:
        events = self.events("gpud/dmesg-with-xid-119.log")
        assert {event.component for event in events} == {"gpu:h0/0000:9b:00"}
        assert {event.attrs["xid"] for event in events} == {"119"}
        assert events[0].observed_at == datetime(2025, 2, 23, 16, 24, 18, tzinfo=UTC)
        assert {event.severity for event in events} == {Severity.FATAL}

    def test_six_flaps_of_one_interface_are_six_downs(self) -> None:
        events = self.events("azurehpc/1dev_6flap_syslog")
        downs = [event for event in events if event.name is EventName.LINK_DOWN]
        assert [event.component for event in downs] == ["nic:jplc7eb7-vm-0/ib6/1"] * 6

    def test_a_quiet_log_tells_nothing(self) -> None:
        assert self.events("azurehpc/0flap_syslog") == []


@given(st.lists(st.sampled_from([b"x", b"NVRM: a", b"", b"b NVRM: NVRM: ", b"AER: q"]), max_size=12))
def test_searching_many_lines_at_once_finds_the_lines_that_searching_each_does(lines: list[bytes]) -> None:
    assert list(NEEDLES.lines_in(lines)) == [line for line in lines if NEEDLES.found_in(line)]
