"""`nvidia-smi nvlink -s` and `-e`, and `nvidia-smi -L`: GPUs by index and UUID, and what each NVLink is and has counted.

GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5269b708-678a-b1a8-60f0-c90406537486)
         Link 0: 26.562 GB/s            -s; or <inactive>
         Link 0: Replay Errors: 0       -e; some releases put all of a link in one line
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from goodput_collector.domain import gpu_links
from goodput_collector.domain.pasted import Unread, number

GPUS_MAX = 256
LINKS_MAX = 64
_GPU = re.compile(r"^\s*GPU (?P<index>\d{1,3}): (?P<model>[^(]{0,80}?)\s*(?:\(UUID: (?P<uuid>[\w-]{1,64})\))?\s*$")
_LINK = re.compile(r"^\s*Link (?P<link>\d{1,3})(?::| -|,)\s*(?P<rest>\S.*?)\s*$")
_COUNT = re.compile(r"^(?P<name>[A-Za-z][A-Za-z -]*?)\s*(?:Errors?|errors?|events)?\s*:\s*(?P<value>\S+)$")
_MIG = re.compile(r"^\s*MIG ")
_NO_LINKS = re.compile(r"NVLink is not supported|all links are in[aA]ctive|Unable to retrieve NVLink|NVML: ", re.IGNORECASE)
_NAMES = {
    "replay": "nvlink_replay_errors",
    "recovery": "nvlink_recovery_errors",
    "crc": "nvlink_crc_errors",
    "crc flit": "nvlink_crc_flit_errors",
    "crc data": "nvlink_crc_data_errors",
    "malformed packet": "nvlink_malformed_packets",
    "buffer overrun": "nvlink_buffer_overruns",
    "rx": "nvlink_receive_errors",
    "rx remote": "nvlink_receive_remote_errors",
    "local link integrity": "nvlink_local_integrity_errors",
    "tx discards": "nvlink_transmit_discards",
    "link recovery successful": "nvlink_recoveries",
    "link recovery failed": "nvlink_recoveries_failed",
    "effective": "nvlink_effective_errors",
    "symbol": "nvlink_symbol_errors",
}
_KNOWN = frozenset({"tx packets", "tx bytes", "rx packets", "rx bytes", "rx general", "total link recovery", "ber"})


@dataclass(slots=True)
class ListedGpu:
    """`links`: by number, in the names that `gpu_links` has, `state` (1: active) among them. `uuid` is "" where not told."""

    index: int
    uuid: str
    model: str
    links: dict[int, dict[str, int]] = field(default_factory=dict)


def parse(text: str) -> tuple[list[ListedGpu], Unread]:
    gpus: list[ListedGpu] = []
    unread = Unread()
    for line in text.splitlines():
        if (match := _GPU.match(line)) is not None and len(gpus) < GPUS_MAX:
            uuid = match["uuid"] or ""
            gpus.append(ListedGpu(int(match["index"]), uuid if uuid.startswith("GPU-") else "", match["model"]))
        elif (match := _LINK.match(line)) is not None and gpus and int(match["link"]) < LINKS_MAX:
            link = gpus[-1].links.setdefault(int(match["link"]), {})
            if not _of_link(link, match["rest"]):
                unread.note(line)
        elif not _MIG.match(line) and not _NO_LINKS.search(line):
            unread.note(line)
    return gpus, unread


def _of_link(link: dict[str, int], rest: str) -> bool:
    if rest.endswith("GB/s"):
        link[gpu_links.STATE] = 1
        return True
    if rest.strip("<>").lower() == "inactive":
        link[gpu_links.STATE] = 0
        return True
    understood = [_count(link, part.strip()) for part in rest.split(",")]
    return all(understood)


def _count(link: dict[str, int], part: str) -> bool:
    match = _COUNT.match(part)
    if match is None:
        return False
    words = match["name"].strip().lower()
    value = number(match["value"])
    if (name := _NAMES.get(words)) is not None and value is not None:
        link[name] = value
        return True
    return words in _KNOWN or words.endswith("ber") or words.startswith(("fec", "tx ", "rx ")) or match["value"] == "N/A"
