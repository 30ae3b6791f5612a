"""Which tool printed this? Told by the lines that only that tool prints, never by a file's name.

An opener is the first line of a tool's output, or of one of its parts (an adapter of `ibstat`, a GPU of `nvidia-smi -q`).
What the opener is about is its key: when the same key comes again, the tool was run again.
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple


class Tool(enum.StrEnum):
    IBSTAT = "ibstat"
    IBSTATUS = "ibstatus"
    RDMA_LINK = "rdma link"
    RDMA_STATISTIC = "rdma statistic"
    RDMA_JSON = "rdma -j"
    PERFQUERY = "perfquery"
    IBQUERYERRORS = "ibqueryerrors"
    IBNETDISCOVER = "ibnetdiscover"
    ETHTOOL_STATS = "ethtool -S"
    ETHTOOL = "ethtool"
    SMI_TABLE = "nvidia-smi"
    SMI_QUERY = "nvidia-smi -q"
    SMI_NVLINK = "nvidia-smi nvlink"
    SMI_TOPO = "nvidia-smi topo -m"
    DCGM = "dcgm-exporter"
    RAS_TEXT = "NCCL RAS"
    RAS_JSON = "NCCL RAS JSON"
    LLDPCTL = "lldpctl"
    LLDPCTL_JSON = "lldpctl JSON"
    JOURNAL = "journal"


class Opened(NamedTuple):
    tool: Tool
    key: str


_OPENERS: tuple[tuple[Tool, re.Pattern[str]], ...] = tuple(
    (tool, re.compile(pattern))
    for tool, pattern in (
        (Tool.IBSTAT, r"^\s*CA '(?P<key>[^'\s]+)'\s*$"),
        (Tool.IBSTATUS, r"^\s*Infiniband device '(?P<key>[^']+' port \d+) status:"),
        (
            Tool.RDMA_LINK,
            r"^\s*(?:link |\d+(?:/\d+)?: )(?P<key>[\w.-]+/\d+):? (?:subnet_prefix \S+ |lid \d+ )?.{0,160}?\bstate [A-Z]+ ",
        ),
        (Tool.RDMA_STATISTIC, r"^\s*link (?P<key>[\w.-]+/\d+)(?: [a-z]\w+ \d+(?: |$)|\s*$)"),
        (Tool.PERFQUERY, r"^\s*# Port (?:extended )?counters: (?P<key>.*? port \d+)"),
        (Tool.IBQUERYERRORS, r'^\s*Errors for (?P<key>0x[0-9a-fA-F]+ "|")'),
        (Tool.IBQUERYERRORS, r"^\s*GUID (?P<key>0x[0-9a-fA-F]+ port (?:ALL|\d+)):\s*\["),
        (Tool.IBQUERYERRORS, r"^\s*## (?P<key>Summary): \d+ nodes checked"),
        (Tool.IBNETDISCOVER, r"^(?P<key># Topology file: generated on)"),
        (Tool.IBNETDISCOVER, r'^(?P<key>(?:Switch|Ca|Rt)\s+\d+\s+"[SHR]-[0-9a-fA-F]{1,16}")'),
        (Tool.IBNETDISCOVER, r"^(?P<key>(?:switch|ca)guid=0x[0-9a-fA-F]+)"),
        (Tool.IBNETDISCOVER, r"^(?:vendid|devid|sysimgguid)=0x[0-9a-fA-F]+\s*(?P<key>)$"),
        (Tool.ETHTOOL_STATS, r"^\s*(?P<key>NIC) statistics(?: \(.*\))?:\s*$"),
        (Tool.ETHTOOL, r"^\s*Settings for (?P<key>[^\s:]+):\s*$"),
        (Tool.SMI_TABLE, r"^\s*\|\s*(?P<key>NVIDIA-SMI)\s+(?:version\W*)?\d"),
        (Tool.SMI_QUERY, r"^\s*=+(?P<key>NVSMI LOG)=+\s*$"),
        (Tool.SMI_QUERY, r"^\s*GPU (?P<key>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$"),
        (Tool.SMI_NVLINK, r"^\s*GPU (?P<key>\d+): .*\(UUID: GPU-[\w-]+\)\s*$"),
        (
            Tool.SMI_TOPO,
            r"^\s*(?:\x1b\[\d*m)?(?P<key>GPU0)(?:\x1b\[\d*m)?\s+(?:\x1b\[\d*m)?(?:GPU1|NIC0|mlx5_\w+|CPU Affinity)\b",
        ),
        (Tool.DCGM, r"^# (?P<key>HELP DCGM_FI_\w+)"),
        (Tool.DCGM, r"^DCGM_FI_(?P<key>)\w+\{"),
        (Tool.RAS_TEXT, r"^\s*(?P<key>(?:NCCL|RCCL) version) \S+ compiled with "),
        (Tool.RAS_TEXT, r"^\s*(?P<key>Job summary)\s*$"),
        (Tool.LLDPCTL, r"^\s*(?P<key>LLDP neighbors):\s*$"),
        (Tool.LLDPCTL, r"^\s*Interface:\s+(?P<key>)\S+, via: \S+, "),
        (Tool.LLDPCTL, r"^\s*lldp\.(?P<key>)\S+?\.(?:via|rid|chassis|port)\b\S*="),
        (Tool.JOURNAL, r'^(?P<key>)(?:__CURSOR=|__REALTIME_TIMESTAMP=|\{\s*"(?=.*"__REALTIME_TIMESTAMP")(?=.*"MESSAGE"))'),
    )
)
_FIRST = frozenset("CIlGESPLNJTRrvdcsi#_{D|=0123456789")
_JSON: tuple[tuple[Tool, tuple[str, ...]], ...] = (
    (Tool.RAS_JSON, ('"communicators"',)),
    (Tool.LLDPCTL_JSON, ('"lldp"',)),
    (Tool.RDMA_JSON, ('"ifname"', '"ifindex"')),
)
_COMMANDS = frozenset(
    word
    for words in (
        "ibstat ibstatus rdma perfquery ibqueryerrors ibnetdiscover ethtool nvidia-smi curl ncclras lldpctl lldpcli",
        "dmesg journalctl date hostname uname cat ssh pdsh clush mlxlink ibdiagnet ip lspci iblinkinfo uptime show_gids",
        "ibv_devinfo sudo",
    )
    for word in words.split()
)


def opened_by(line: str) -> Opened | None:
    """The tool that prints such a line first; None for any other line."""
    if line.lstrip()[:1] not in _FIRST:
        return None
    for tool, pattern in _OPENERS:
        if (match := pattern.match(line)) is not None:
            return Opened(tool, match["key"])
    return None


def json_tool(window: str) -> Tool | None:
    """Whose JSON begins here, by the names in its first few kilobytes."""
    for tool, names in _JSON:
        if all(name in window for name in names):
            return tool
    return None


def is_command(word: str) -> bool:
    """The name of a program that people run for a bug report."""
    return word.rpartition("/")[2] in _COMMANDS


_SIGNS = (
    *(
        "CA '",
        "Infiniband device '",
        "physical_state",
        "# Port ",
        "Errors for ",
        "GUID 0x",
        " nodes checked",
        "guid=0x",
        '"S-',
        '"H-',
        '"R-',
        "Hostname:",
    ),
    *("Topology file", "vendid=", "devid=", " statistics", "Settings for ", "NVIDIA-SMI", "NVSMI LOG", "UUID: GPU-", "GPU0"),
    *(
        "DCGM_FI_",
        "compiled with",
        "Job summary",
        "LLDP neighbors",
        ", via: ",
        "lldp.",
        '"lldp"',
        '"communicators"',
        '"ifname"',
    ),
    *("__REALTIME_TIMESTAMP", "__CURSOR", "```", "~~~", "==> "),
)
_SIGN = re.compile(
    r"link [\w.-]+/\d+ |GPU [0-9A-Fa-f]{4,8}:|^\s*\[?[\w.-]+@[\w.-]+[ :][^\n$#]{0,120}[$#] |^[A-Za-z][\w.-]{0,63}: \[",
    re.MULTILINE,
)


def may_hold_tools(text: str) -> bool:
    """A quick look: whether anything in a text speaks of a tool's output, or of a shell. Most logs have nothing of it, and
    need not be taken apart line by line."""
    return any(sign in text for sign in _SIGNS) or _SIGN.search(text) is not None
