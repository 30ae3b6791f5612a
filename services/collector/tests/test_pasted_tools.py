"""The output of tools as people paste it: what is understood, what is counted as not understood, and that nothing raises."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goodput_collector.domain import (
    ethtool_text,
    ib_counters_text,
    ib_lids,
    lldpctl_text,
    port_state_text,
    rdma_statistic,
    smi_nvlink,
    smi_query,
    smi_table,
    smi_topo,
)
from goodput_collector.domain.lldp import NameKind
from goodput_collector.domain.pasted import Unread, number
from goodput_collector.domain.rdma_counters import Width

AT = datetime(2025, 2, 23, 16, 24, 18, tzinfo=UTC)
SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "public"
real = pytest.mark.skipif(not SHARED.is_dir(), reason="the real captures of ../shared/data are not here")

PARSERS: dict[str, Callable[[str], tuple[object, Unread]]] = {
    "ibstat": port_state_text.parse_ibstat,
    "ibstatus": port_state_text.parse_ibstatus,
    "rdma link": port_state_text.parse_rdma_link,
    "perfquery": ib_counters_text.parse_perfquery,
    "ibqueryerrors": ib_counters_text.parse_ibqueryerrors,
    "ethtool -S": ethtool_text.parse_stats,
    "ethtool": ethtool_text.parse_settings,
    "rdma statistic": rdma_statistic.parse_text,
    "nvidia-smi": smi_table.parse,
    "nvidia-smi -q": smi_query.parse,
    "nvidia-smi nvlink": smi_nvlink.parse,
    "nvidia-smi topo -m": smi_topo.parse,
    "lldpctl": lldpctl_text.parse,
}
WORDS = st.sampled_from(
    [
        *(
            "CA 'mlx5_0'",
            "Port 1:",
            "State: Active",
            "    Rate: 400",
            "Infiniband device 'm' port 1 status:",
            "state: 4: ACTIVE",
        ),
        *(
            "link mlx5_0/1 state ACTIVE physical_state LINK_UP",
            "link mlx5_0/1 out_of_buffer 7",
            "# Port counters: Lid 1 port 1 (",
        ),
        *(
            "SymbolErrorCounter:....12",
            "   GUID 0xab port 1: [LinkDownedCounter == 2]",
            "NIC statistics:",
            "     rx_prio3_pause: 9",
        ),
        *(
            "Settings for e0:",
            "\tSpeed: 1Mb/s",
            "GPU 00000000:1B:00.0",
            "    ECC Errors",
            "        Volatile",
            "  DRAM Correctable : 1",
        ),
        *(
            "GPU 0: X (UUID: GPU-1)",
            "  Link 0: 25 GB/s",
            " Link 1: CRC Errors: 1",
            "\tGPU0\tNIC0",
            "GPU0\t X \tPIX",
            "  NIC0: mlx5_0",
        ),
        *(
            "Interface:    e0, via: LLDP, RID: 1",
            "    ChassisID:    mac 0a",
            "    PortID:       ifname E1",
            "lldp.e0.chassis.name=s",
        ),
        *(
            "|   0  H100   On  | 00000000:1B:00.0 Off |  0 |",
            "| N/A   34C    P0   69W / 700W |  x |",
            "+---+",
            "",
            "\x00\ud800",
        ),
    ]
)
LINES = st.lists(st.one_of(WORDS, st.text(max_size=60)), max_size=30)


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=40)
@given(lines=LINES)
def test_no_text_makes_a_parser_raise_and_what_it_does_not_understand_is_counted(name: str, lines: list[str]) -> None:
    text = "\n".join(lines)
    _, unread = PARSERS[name](text)
    assert 0 <= unread.count <= len(text.splitlines()) * 8
    assert bool(unread.first) == (unread.count > 0)


@pytest.mark.parametrize("name", PARSERS)
def test_a_line_that_no_tool_prints_is_not_dropped(name: str) -> None:
    _, unread = PARSERS[name]("§ what is this §\n")
    assert (unread.count, unread.first) == (1, "§ what is this §")


@given(st.text(max_size=40))
def test_only_numbers_of_64_bits_are_numbers(text: str) -> None:
    value = number(text)
    assert value is None or 0 <= value < 2**64


@pytest.mark.parametrize(
    ("text", "value"), [("12", 12), ("0x1F", 31), (" 7 ", 7), ("", None), ("-1", None), ("9" * 21, None)]
)
def test_numbers_are_decimal_or_hexadecimal(text: str, value: int | None) -> None:
    assert number(text) == value


def test_all_three_tools_tell_a_port_in_the_words_of_sysfs() -> None:
    (ibstat,), _ = port_state_text.parse_ibstat(
        "CA 'm'\n Port 1:\n  State: Initializing\n  Physical state: LinkUp\n  Rate: 100\n"
    )
    (ibstatus,), _ = port_state_text.parse_ibstatus(
        "Infiniband device 'm' port 1 status:\n\tstate: 2: INIT\n\tphys state: 5: LinkUp\n\trate: 100 Gb/sec\n"
    )
    (link,), _ = port_state_text.parse_rdma_link("link m/1 state INIT physical_state LINK_UP netdev e0\n")
    for port in (ibstat, ibstatus, link):
        assert (port.state, port.phys_state) == ("INIT", "LinkUp")
    assert ibstat.sample("h", AT).attrs["rate"] == "100 Gb/sec"
    assert link.sample("h", AT).component == "nic:h/m/1"


def test_a_lid_of_a_port_that_is_down_is_no_lid() -> None:
    (port,), _ = port_state_text.parse_ibstatus("Infiniband device 'm' port 1 status:\n\tbase lid: 0xffff\n")
    assert port.lid == ""


@pytest.mark.parametrize(
    ("gid", "guid"),
    [
        ("fe80:0000:0000:0000:e09d:7303:007a:4bd8", "e09d7303007a4bd8"),
        ("0000:0000:0000:0000:0000:ffff:0a00:0001", ""),
        ("fe80:0000:0000:0000:0000:0000:0000:0000", ""),
        ("nonsense", ""),
    ],
)
def test_a_gid_gives_a_guid_unless_it_is_an_address(gid: str, guid: str) -> None:
    assert port_state_text.guid_of_gid(gid) == guid


def test_perfquery_counts_to_the_widths_of_its_set() -> None:
    old, _ = ib_counters_text.parse_perfquery("# Port counters: Lid 5 port 1 (CapMask: 0x1)\nLinkDownedCounter:....255\n")
    new, _ = ib_counters_text.parse_perfquery(
        "# Port extended counters: Lid 5 port 1 (CapMask: 0x1)\nLinkDownedCounter:..300\n"
    )
    assert (old[0].counts, old[0].widths()) == ({"link_downed": 255}, {"link_downed": Width.SATURATES_8})
    assert (new[0].counts, new[0].widths()) == ({"link_downed": 300}, {"link_downed": Width.WRAPS_64})


def test_ibqueryerrors_leaves_out_the_sum_over_a_switch() -> None:
    errors, unread = ib_counters_text.parse_ibqueryerrors(
        'Errors for 0xab "leaf"\n   GUID 0xab port ALL: [LinkDownedCounter == 5]\n'
        "   GUID 0xab port 3: [LinkDownedCounter == 5]\n"
        "## Summary: 2 nodes checked, 1 bad nodes found\n##          9 ports checked, 1 ports have errors beyond threshold\n"
    )
    assert [(each.port, each.counts) for each in errors.ports] == [(3, {"link_downed": 5})]
    assert (errors.nodes_checked, errors.ports_checked, unread.count) == (2, 9, 0)


def test_lids_are_told_of_switches_and_of_adapter_ports_and_not_of_two_at_once() -> None:
    text = (
        'Switch\t65 "S-00000000000000ab"\t\t# "leaf" enhanced port 0 lid 73 lmc 0\n'
        '[1]\t"H-00000000000000cd"[1](cd) \t\t# "node7 mlx5_0" lid 647 4xNDR\n'
        '[2]\t"H-00000000000000ce"[1](ce) \t\t# "node8 mlx5_0" lid 648 4xNDR\n'
        '[3]\t"H-00000000000000cf"[1](cf) \t\t# "node9 mlx5_0" lid 648 4xNDR\n'
        'Ca\t1 "H-00000000000000cd"\t\t# "node7 mlx5_0"\n'
        '[1](cd) \t"S-00000000000000ab"[1]\t\t# lid 647 lmc 0 "leaf" lid 73 4xNDR\n'
    )
    assert ib_lids.lids(text) == {"73": "00000000000000ab", "647": "00000000000000cd"}


@given(st.text(max_size=200))
def test_lids_of_any_text_are_numbers(text: str) -> None:
    assert all(lid.isdigit() for lid in ib_lids.lids(text))


def test_ethtool_says_why_a_link_is_down() -> None:
    (settings,), unread = ethtool_text.parse_settings(
        "Settings for e0:\n\tSpeed: Unknown!\n\tLink detected: no (Cable issue: no cable)\n"
        "netlink error: Operation not permitted\n"
    )
    assert settings.link is False
    assert settings.settings().attrs() == {"reason": "Cable issue: no cable"}
    assert unread.count == 0


def test_rdma_statistic_maps_other_vendors_names_and_leaves_out_what_is_no_counter() -> None:
    (port,), unread = rdma_statistic.parse_text("link bnxt_re0/1 to_retransmits 4 active_qps 7 lifespan 12\n")
    assert port.counts == {"local_ack_timeout_err": 4}
    assert unread.count == 0


def test_rdma_statistic_takes_a_line_for_each_counter_too() -> None:
    (port,), unread = rdma_statistic.parse_text("link mlx5_0/1\n    out_of_buffer 4\n    out_of_sequence 5\n")
    assert (port.counts, unread.count) == ({"out_of_buffer": 4, "out_of_sequence": 5}, 0)


@pytest.mark.parametrize(
    "text", ["{", "[1, 2]", '[{"ifname": "a b", "port": 1}]', '[{"ifname": "m", "port": true}]', "[" * 9000]
)
def test_rdma_json_that_names_no_port_is_not_understood(text: str) -> None:
    counted, said, unread = rdma_statistic.parse_json(text)
    assert (counted, said) == ([], [])
    assert unread.count >= 1


def test_a_gpu_that_answers_err_is_silent_and_the_one_above_it_is_not() -> None:
    gpus, unread = smi_table.parse(
        "| NVIDIA-SMI 535.104.05   Driver Version: 535.104.05   CUDA Version: 12.2     |\n"
        "|   0  NVIDIA H100 80GB HBM3          On  | 00000000:1B:00.0 Off |                    2 |\n"
        "| N/A   34C    P0              69W / 700W |      2MiB / 81559MiB |      0%      Default |\n"
        "+-----------------------------------------+----------------------+----------------------+\n"
        "|   1  NVIDIA H100 80GB HBM3          On  | 00000000:9B:00.0 Off |                 ERR! |\n"
        "| N/A   ERR!   ERR!          ERR! / 700W  |      ERR! / 81559MiB |    ERR!      Default |\n"
    )
    assert [(gpu.pci, gpu.silent) for gpu in gpus] == [("0000:1b:00", False), ("0000:9b:00", True)]
    assert gpus[0].counts == {"ecc_uncorrected_volatile_total": 2}
    assert gpus[0].values == {"temperature_c": 34.0, "power_mw": 69000.0, "power_limit_mw": 700000.0}
    assert unread.count == 0


def test_a_reason_below_another_is_known_by_both_their_names() -> None:
    log, _ = smi_query.parse(
        "GPU 00000000:1B:00.0\n    Clocks Throttle Reasons\n        HW Slowdown : Active\n"
        "            HW Thermal Slowdown : Active\n            HW Power Brake Slowdown : Not Active\n"
        "        Sync Boost : Not Active\n"
    )
    assert log.gpus[0].values["reasons"] == 0x048


def test_not_available_is_no_answer() -> None:
    log, _ = smi_query.parse(
        "GPU 00000000:1B:00.0\n    ECC Mode\n        Current : N/A\n    Retired Pages\n        Single Bit ECC : N/A\n"
    )
    assert (log.gpus[0].values, log.gpus[0].counts) == ({}, {})


def test_the_two_kinds_of_sram_errors_are_added_up() -> None:
    log, _ = smi_query.parse(
        "GPU 00000000:1B:00.0\n    ECC Errors\n        Volatile\n            SRAM Uncorrectable Parity : 1\n"
        "            SRAM Uncorrectable SEC-DED : 2\n"
    )
    assert log.gpus[0].counts == {"ecc_uncorrected_volatile_sram": 3}


def test_links_are_told_by_state_and_by_counters_in_either_form() -> None:
    (gpu,), unread = smi_nvlink.parse(
        "GPU 3: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
        "\t Link 1: Replay Errors: 1, CRC Errors: 2\n"
    )
    assert gpu.links == {0: {"state": 1}, 1: {"state": 0, "nvlink_replay_errors": 1, "nvlink_crc_errors": 2}}
    assert (gpu.index, unread.count) == (3, 0)


@real
def test_a_real_status_of_eight_gpus_is_understood_to_the_last_line() -> None:
    gpus, unread = smi_nvlink.parse((SHARED / "gpud" / "nvidia-smi.nvlink.status.a100").read_text())
    assert len(gpus) == 8
    assert all(len(gpu.links) == 12 and all(link == {"state": 1} for link in gpu.links.values()) for gpu in gpus)
    assert unread.count == 0


@real
def test_a_real_scan_gives_a_lid_for_every_adapter_and_switch() -> None:
    text = (SHARED / "topograph" / "ibnetdiscover-example.out").read_text()
    found = ib_lids.lids(text)
    assert found["73"] == "2c5eab0300b87b40"
    assert found["647"] == "e09d7303007a4bd8"
    assert len(found) > 600


def test_only_the_nearest_adapters_are_a_gpus_own_and_none_across_a_processor() -> None:
    topo, unread = smi_topo.parse(
        "\tGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tCPU Affinity\nGPU0\t X \tNV18\tPXB\tPIX\tSYS\t0-47\n"
        "GPU1\tNV18\t X \tPHB\tSYS\tNODE\t48-95\n"
        "NIC Legend:\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n  NIC2: mlx5_2\n"
    )
    assert topo.near == {0: (("mlx5_1", "PIX"),)}
    assert topo.nvlinks == {0: {1: 18}, 1: {0: 18}}
    assert unread.count == 0


@pytest.mark.parametrize(
    "text",
    [
        "Interface:    e0, via: LLDP, RID: 1, Time: 0 day\n  Chassis:\n    ChassisID:    mac 08:00:27:73:60:cf\n"
        "    SysName:      leaf-1\n    Capability:   Bridge, on\n  Port:\n    PortID:       ifname Ethernet8\n",
        "lldp.e0.via=LLDP\nlldp.e0.chassis.mac=08:00:27:73:60:cf\nlldp.e0.chassis.name=leaf-1\n"
        "lldp.e0.chassis.Bridge.enabled=on\nlldp.e0.port.ifname=Ethernet8\n",
    ],
)
def test_both_forms_of_lldpctl_name_the_other_end(text: str) -> None:
    found, unread = lldpctl_text.parse(text)
    (neighbour,) = found["e0"]
    assert (neighbour.name, neighbour.port, neighbour.port_kind) == ("leaf-1", "Ethernet8", NameKind.INTERFACE)
    assert neighbour.is_station is False
    assert unread.count == 0


def test_a_neighbour_of_another_protocol_is_none() -> None:
    found, _ = lldpctl_text.parse(
        "Interface:    e0, via: CDPv2, RID: 1\n  Chassis:\n    ChassisID:    local c\n  Port:\n    PortID:       ifname E1\n"
    )
    assert found == {}
