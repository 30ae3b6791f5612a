"""dcgm-exporter's names for what this collector calls by one name, old and new spellings.

DCGM renamed its fields (XID_ERRORS became XID_ERROR, GPU_TEMP became GPU_TEMP_CELSIUS, `..._COUNT_TOTAL` became
`..._TOTAL`), and an exporter may be set to tell either, or both. The first spelling that is there counts. All stand behind
`DCGM_FI_DEV_`. Fields of `*_VIOLATION` are nanoseconds, whatever older descriptions say.
"""

from __future__ import annotations

from goodput_collector.domain.gpu_memory import ecc_name, ecc_total_name

PREFIX = "DCGM_FI_DEV_"
XID = ("XID_ERRORS", "XID_ERROR")

# our name: the spellings; measured values, by the names that `gpu_samples` takes
VALUES: dict[str, tuple[str, ...]] = {
    "clock_sm_mhz": ("SM_CLOCK",),
    "clock_memory_mhz": ("MEM_CLOCK",),
    "clock_sm_max_mhz": ("MAX_SM_CLOCK",),
    "clock_memory_max_mhz": ("MAX_MEM_CLOCK",),
    "temperature_c": ("GPU_TEMP", "GPU_TEMP_CELSIUS"),
    "memory_temperature_c": ("MEMORY_TEMP", "MEMORY_TEMP_CELSIUS"),
    "power_w": ("POWER_USAGE", "BOARD_POWER_WATTS"),
    "power_limit_w": ("ENFORCED_POWER_LIMIT", "BOARD_POWER_LIMIT_ENFORCED_WATTS"),
    "reasons": ("CLOCK_THROTTLE_REASONS", "CLOCKS_EVENT_REASONS"),
    "pcie_gen": ("PCIE_LINK_GEN",),
    "pcie_width": ("PCIE_LINK_WIDTH",),
    "pcie_gen_max": ("PCIE_MAX_LINK_GEN",),
    "pcie_width_max": ("PCIE_MAX_LINK_WIDTH",),
    "recovery_action": ("GPU_RECOVERY_ACTION",),
    "ecc_on": ("ECC_CURRENT", "ECC_MODE"),
    "ecc_pending": ("ECC_PENDING",),
    "retired_pending": ("RETIRED_PENDING", "PAGE_RETIRED_PENDING"),
    "remap_failed": ("ROW_REMAP_FAILURE", "ROW_REMAP_FAILED"),
    "remap_pending": ("ROW_REMAP_PENDING",),
    "banks_max": ("BANKS_REMAP_ROWS_AVAIL_MAX", "BANK_REMAP_AVAIL_MAX"),
    "banks_high": ("BANKS_REMAP_ROWS_AVAIL_HIGH", "BANK_REMAP_AVAIL_HIGH"),
    "banks_partial": ("BANKS_REMAP_ROWS_AVAIL_PARTIAL", "BANK_REMAP_AVAIL_PARTIAL"),
    "banks_low": ("BANKS_REMAP_ROWS_AVAIL_LOW", "BANK_REMAP_AVAIL_LOW"),
    "banks_none": ("BANKS_REMAP_ROWS_AVAIL_NONE", "BANK_REMAP_AVAIL_NONE"),
}

COUNTERS: dict[str, tuple[str, ...]] = {
    "pcie_replays": ("PCIE_REPLAY_COUNTER", "PCIE_REPLAY_TOTAL"),
    "remapped_rows_correctable": ("CORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_CORRECTABLE_TOTAL"),
    "remapped_rows_uncorrectable": ("UNCORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_UNCORRECTABLE_TOTAL"),
    "retired_pages_single_bit": ("RETIRED_SBE", "PAGE_RETIRED_SBE_TOTAL"),
    "retired_pages_double_bit": ("RETIRED_DBE", "PAGE_RETIRED_DBE_TOTAL"),
    "throttled_power_ns": ("POWER_VIOLATION", "CLOCKS_EVENT_REASON_SW_POWER_CAP_NS"),
    "throttled_thermal_ns": ("THERMAL_VIOLATION",),
    "throttled_sw_thermal_ns": ("CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS",),
    "throttled_hw_thermal_ns": ("CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS",),
    "throttled_power_brake_ns": ("CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS",),
    "nvlink_crc_flit_errors": ("NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "NVLINK_CRC_FLIT_ERROR_TOTAL"),
    "nvlink_crc_data_errors": ("NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "NVLINK_CRC_DATA_ERROR_TOTAL"),
    "nvlink_replay_errors": (
        "NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "NVLINK_REPLAY_ERROR_TOTAL",
        "NVLINK_REPLAY_TOTAL",
    ),
    "nvlink_recovery_errors": (
        "NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "NVLINK_RECOVERY_ERROR_TOTAL",
        "NVLINK_RECOVERY_TOTAL",
    ),
    "nvlink_crc_errors": ("NVLINK_CRC_ERROR_TOTAL",),
    "nvlink_malformed_packets": ("NVLINK_COUNT_RX_MALFORMED_PACKET_ERRORS", "NVLINK_RX_PACKET_MALFORMED_TOTAL"),
    "nvlink_buffer_overruns": ("NVLINK_COUNT_RX_BUFFER_OVERRUN_ERRORS", "NVLINK_RX_PACKET_DROPPED_TOTAL"),
    "nvlink_receive_errors": ("NVLINK_COUNT_RX_ERRORS", "NVLINK_RX_ERROR_TOTAL"),
    "nvlink_receive_remote_errors": ("NVLINK_COUNT_RX_REMOTE_ERRORS", "NVLINK_RX_REMOTE_ERROR_TOTAL"),
    "nvlink_local_integrity_errors": ("NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS", "NVLINK_INTEGRITY_ERROR_TOTAL"),
    "nvlink_transmit_discards": ("NVLINK_COUNT_TX_DISCARDS",),
    "nvlink_recoveries": ("NVLINK_COUNT_LINK_RECOVERY_EVENTS", "NVLINK_RECOVERY_EVENT_TOTAL"),
    "nvlink_recoveries_failed": ("NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", "NVLINK_RECOVERY_FAILED_TOTAL"),
    "nvlink_symbol_errors": ("NVLINK_COUNT_RX_SYMBOL_ERRORS", "NVLINK_RX_SYMBOL_ERROR_TOTAL"),
    "nvlink_effective_errors": ("NVLINK_COUNT_EFFECTIVE_ERRORS", "NVLINK_EFFECTIVE_ERROR_TOTAL"),
}

_PLACES = {"L1": 0, "L2": 1, "DEV": 2, "REG": 3, "TEX": 4, "SHM": 5, "CBU": 6, "SRM": 7}
for _bits, _kind in (("SBE", 0), ("DBE", 1)):
    for _life, _number in (("VOL", 0), ("AGG", 1)):
        COUNTERS[ecc_total_name(_kind, _number)] = (f"ECC_{_bits}_{_life}_TOTAL",)
        for _place, _where in _PLACES.items():
            COUNTERS[ecc_name(_kind, _number, _where)] = (f"ECC_{_bits}_{_life}_{_place}",)

# per link: (our name, link) by spelling
LINK_COUNTERS: dict[str, tuple[str, int]] = {}
for _link in range(18):
    for _name, _field in (
        ("nvlink_crc_flit_errors", "CRC_FLIT"),
        ("nvlink_crc_data_errors", "CRC_DATA"),
        ("nvlink_replay_errors", "REPLAY"),
        ("nvlink_recovery_errors", "RECOVERY"),
    ):
        LINK_COUNTERS[f"NVLINK_{_field}_ERROR_COUNT_L{_link}"] = (_name, _link)
        LINK_COUNTERS[f"NVLINK_{_field}_ERROR_L{_link}_TOTAL"] = (_name, _link)

# per link, with the link's number in a label
LABELLED_LINK_COUNTERS = {
    f"NVLINK_{_field}_ERROR_PER_LINK_TOTAL": _name
    for _name, _field in (
        ("nvlink_crc_flit_errors", "CRC_FLIT"),
        ("nvlink_crc_data_errors", "CRC_DATA"),
        ("nvlink_replay_errors", "REPLAY"),
        ("nvlink_recovery_errors", "RECOVERY"),
    )
}

SPELLINGS: dict[str, tuple[str, str, int]] = {
    spelling: (kind, name, place)
    for kind, table in (("value", VALUES), ("count", COUNTERS))
    for name, spellings in table.items()
    for place, spelling in enumerate(spellings)
}
"""Where a spelling belongs: value or count, our name, and its place in the order."""
