"""NVIDIA's error lines: Xid (a GPU's), SXid (an NVSwitch's), and the lines that say a GPU is gone without any number.

    NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
    NVRM: Xid (PCI:0000:c1:00 GPU-I:05 GPU-CI:02): 13, Graphics SM Warp Exception …               (MIG)
    NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=python3, Ch 00000001 caused by previous Xid 149   (a victim)
    NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 …)  (NVLink5)
    nvidia-nvswitch3: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 30 LTSSM Fault Up

A number alone says little: what the driver's vendor asks for comes from the catalogue (`xid_table`), and for 144-150
from the first two words in the parentheses. `impact` puts the answer in one word:

    reset, reboot     the GPU or the machine has to be reset: a fault of device, driver or link
    app               the application is to be restarted: mostly its own doing, or contained
    nonfatal          an NVLink5 condition that went no further, worth a look
    ignore            nothing to do
    victim            Xid 45: the channel died because of something else
    workflow          the catalogue says: it depends
    unknown           not in the catalogue

Whether the line is anybody's fault is not decided here.
"""

from __future__ import annotations

import re
from datetime import datetime

from goodput_collector.domain.xid_table import NVLINK_ROWS, XIDS, Bits, NvlinkRow
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Event, EventName, Severity

EXCERPT_CHARS = 400
_NVLINK5 = range(144, 151)
_PCI = r"(?:PCI:)?(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_XID = re.compile(rf"NVRM: Xid \({_PCI}(?:,? GPU-I:(?P<gi>\d+))?(?:,? GPU-CI:(?P<ci>\d+))?\): (?P<code>\d{{1,4}})\b,?\s*")
_OWNER = re.compile(r"^(?:pid=(?P<pid>'[^']*'|<[^>]*>|[^,\s]*),?\s*)?(?:name=(?P<name>'[^']*'|<[^>]*>|[^,]*)(?:,\s*|\s*$))?")
_CHANNEL = re.compile(r"\bCh(?:annel)?:? ?(?:ID )?(?P<ch>(?:0x)?[0-9a-fA-F]+)\b", re.IGNORECASE)
_CAUSE = re.compile(r"caused by previous Xid (?P<cause>\d+)")
_UNIT = re.compile(
    r"^(?P<unit>[A-Z][A-Za-z0-9_ ]*?)\s+(?P<word>Non-?fatal|Link-?fatal|Fatal)\b(?:\s+XC(?P<xc>\d))?(?:\s+i(?P<inj>\d))?"
    r"(?:\s+Link\s+(?P<link>-?\d+))?(?:\s*\((?P<words>(?:0x[0-9a-fA-F]+[\s,]*)+)\))?",
    re.IGNORECASE,
)
_ACTION_CHANGE = re.compile(
    r"recovery action changed from 0x(?P<old>[0-9a-fA-F]+) \((?P<old_name>[^)]*)\)"
    r" to 0x(?P<new>[0-9a-fA-F]+) \((?P<new_name>[^)]*)\)"
)
_GSP = re.compile(r"Timeout (?:after|\[?of) (?P<s>\d+)s? .*?RPC response from GPU(?P<gpu>\d+)")
_NVLINK_74 = re.compile(r"error detected on link (?P<link>\d+)\s*\((?P<words>(?:0x[0-9a-fA-F]+[\s,]*)+)\)", re.IGNORECASE)
_UNITS_HIT = re.compile(r"\(?GPC (?P<gpc>\d+), ?TPC (?P<tpc>\d+)(?:, ?SM (?P<sm>\d+))?")
_RATE = re.compile(rf"NVRM: Rate limiting GSP RPC error prints for GPU at {_PCI} \(printing 1 of every (?P<every>\d+)\)")
_GONE = (
    (re.compile(rf"NVRM: .*?{_PCI}.*fallen off the bus", re.IGNORECASE), "fallen off the bus"),
    (re.compile(rf"NVRM: .*?{_PCI}.*(?:RmInitAdapter|rm_init_adapter) failed"), "RmInitAdapter failed"),
    (re.compile(rf"NVRM: (?:RmInitAdapter|rm_init_adapter) failed.*?{_PCI}"), "rm_init_adapter failed"),
    (
        re.compile(rf"Unable to determine the device handle for (?:GPU|gpu)\s*{_PCI}: (?:.*Unknown Error|.*is lost)"),
        "NVML lost",
    ),
)
_SXID = re.compile(rf"nvidia-nvswitch(?P<index>\d+): SXid \({_PCI}\): (?P<code>\d{{4,6}}), (?P<rest>.*)$")
_SXID_SEVERITY = re.compile(r"^Severity (?P<severity>\d+) Engine instance (?P<engine>\d+)")
_LINK = re.compile(r"\bLink (?P<link>\d+)\b")
_PEER_REASONS = frozenset({21, 32, 33, 34, 35, 36, 37})
_IGNORED_REASONS = frozenset({38, 40})
_RESET = frozenset({"RESET_GPU", "RESTART_FM"})
_REBOOT = frozenset({"RESTART_BM", "RESTART_VM"})
_RECOVERY_ACTIONS = {0: "none", 1: "gpu_reset", 2: "node_reboot", 3: "drain_p2p", 4: "drain_and_reset", 5: "recover_imex"}


def excerpt(line: str) -> str:
    text = line.strip()
    return text if len(text) <= EXCERPT_CHARS else text[: EXCERPT_CHARS - 1] + "…"


def parse_nvidia(text: str, *, host: str, at: datetime) -> Event | None:
    """The event that one line (its time stamp already taken off) tells, or None. SXid continuation lines give None: see
    `SxidLines`."""
    if "Xid (" in text:
        match = _XID.search(text)
        if match is not None:
            return _xid(match, text, host, at)
    if "NVRM" not in text and "Unable to determine" not in text:
        return None
    if (rate := _RATE.search(text)) is not None:
        attrs = {"xid": "119", "pci": ids.normal_pci(rate["pci"]), "impact": "reset", "lower_bound": "true"}
        attrs["printing_one_of"] = rate["every"]
        return _event(host, at, Severity.FATAL, text, attrs)
    for form, what in _GONE:
        if (gone := form.search(text)) is not None:
            pci = ids.normal_pci(gone["pci"])
            return Event(
                component=ids.gpu_id(host, pci),
                name=EventName.GPU_LOST,
                observed_at=at,
                severity=Severity.FATAL,
                excerpt=excerpt(text),
                attrs={"pci": pci, "what": what},
            )
    return None


def _event(host: str, at: datetime, severity: Severity, text: str, attrs: dict[str, str]) -> Event:
    return Event(
        component=ids.gpu_id(host, attrs["pci"]),
        name=EventName.XID,
        observed_at=at,
        severity=severity,
        excerpt=excerpt(text),
        attrs=attrs,
    )


def _xid(match: re.Match[str], text: str, host: str, at: datetime) -> Event:
    code = int(match["code"])
    attrs = {"xid": str(code), "pci": ids.normal_pci(match["pci"])}
    if match["gi"]:
        attrs["mig"] = f"{int(match['gi'])}" + (f"/{int(match['ci'])}" if match["ci"] else "")
    rest = text[match.end() :]
    owner = _OWNER.match(rest)
    if owner is not None:
        rest = rest[owner.end() :]
        for key, name in (("pid", "pid"), ("name", "process")):
            value = (owner[key] or "").strip("'")
            if value and "<" not in value:
                attrs[name] = value
    entry = XIDS.get(code)
    if entry is not None:
        attrs["mnemonic"] = entry.mnemonic
        attrs["what"] = entry.description
        attrs["action"] = entry.action
    impact = "unknown" if entry is None else _impact(entry.action)
    if code in _NVLINK5:
        impact = _nvlink5(code, rest, attrs, impact)
    elif code == 154:
        impact = _recovery_action(rest, attrs)
    elif code == 45:
        impact = "victim"
    _details(code, rest, attrs)
    attrs["impact"] = impact
    return _event(host, at, _severity(impact), text, attrs)


def _details(code: int, rest: str, attrs: dict[str, str]) -> None:
    if (cause := _CAUSE.search(rest)) is not None:
        attrs["cause"] = cause["cause"]
    if (channel := _CHANNEL.search(rest)) is not None:
        attrs["channel"] = channel["ch"].lower()
    if code in (119, 120) and (gsp := _GSP.search(rest)) is not None:
        attrs["timeout_s"] = gsp["s"]
        attrs["gpu_number"] = gsp["gpu"]
    if code == 74 and (link := _NVLINK_74.search(rest)) is not None:
        attrs["link"] = str(int(link["link"]))
        attrs["words"] = " ".join(link["words"].replace(",", " ").split())
    if code in (13, 31) and (unit := _UNITS_HIT.search(rest)) is not None:
        attrs["gpc"], attrs["tpc"] = unit["gpc"], unit["tpc"]


def _impact(action: str) -> str:
    if action in _RESET:
        return "reset"
    if action in _REBOOT:
        return "reboot"
    if action == "RESTART_APP":
        return "app"
    if action.startswith("IGNORE"):
        return "ignore"
    return "workflow" if action else "unknown"


def _severity(impact: str) -> Severity:
    return {
        "reset": Severity.FATAL,
        "reboot": Severity.FATAL,
        "workflow": Severity.ERROR,
        "unknown": Severity.ERROR,
        "app": Severity.WARNING,
        "victim": Severity.WARNING,
        "nonfatal": Severity.WARNING,
    }.get(impact, Severity.INFO)


def _recovery_action(rest: str, attrs: dict[str, str]) -> str:
    change = _ACTION_CHANGE.search(rest)
    if change is None:
        return "unknown"
    new = int(change["new"], 16)
    attrs["recovery_action"] = _RECOVERY_ACTIONS.get(new, change["new_name"])
    attrs["recovery_action_before"] = _RECOVERY_ACTIONS.get(int(change["old"], 16), change["old_name"])
    return {0: "ignore", 1: "reset", 2: "reboot", 4: "reset"}.get(new, "workflow")


def _nvlink5(code: int, rest: str, attrs: dict[str, str], default: str) -> str:
    """Unit, severity, link and words of a 144-150 line; the impact by the catalogue's decode rows, else by the line's own
    word, never by the number alone."""
    found = _UNIT.match(rest.strip())
    if found is None:
        return default
    unit = " ".join(found["unit"].split())
    attrs["unit"] = unit
    attrs["fatal"] = "false" if found["word"].lower().startswith("non") else "true"
    if found["link"] is not None and int(found["link"]) >= 0:
        attrs["link"] = str(int(found["link"]))
    if found["inj"] == "1":
        attrs["injected"] = "true"
    said = "reset" if attrs["fatal"] == "true" else "nonfatal"
    words = [int(word, 16) for word in (found["words"] or "").replace(",", " ").split()]
    if not words:
        return said
    attrs["words"] = " ".join(f"0x{word:08x}" for word in words)
    row, second = _row(code, unit, words[0], words[1] if len(words) > 1 else None)
    if code == 149 and unit.startswith("NETIR_LINK"):
        _down_reason(words[0], attrs)
    if row is None:
        return said
    action = row.second_action if second else row.action
    attrs["action"], attrs["investigate"], attrs["catalogue_severity"] = action, row.investigate, row.severity
    if action == "XID_154_EVAL":
        return "app"
    impact = _impact(action)
    if impact == "reset" and attrs["fatal"] == "false":
        return "nonfatal"  # a promotable error that was not promoted
    worth_a_look = row.investigate != "IGNORE" and attrs.get("side") != "none"
    return "nonfatal" if impact == "ignore" and worth_a_look else impact


def _down_reason(word: int, attrs: dict[str, str]) -> None:
    """Bits 20-25 say why the link went down, and on which side."""
    reason = (word >> 20) & 0x3F
    attrs["down_reason"] = str(reason)
    if reason in _PEER_REASONS:
        attrs["side"] = "peer"
    elif reason in _IGNORED_REASONS:
        attrs["side"] = "none"
    else:
        attrs["side"] = "local"


def _row(code: int, unit: str, word: int, status: int | None) -> tuple[NvlinkRow | None, bool]:
    """The decode row that fits, and whether its second action applies."""
    for row in NVLINK_ROWS:
        if row.xid != code or unit not in row.units or (row.status is not None and row.status != status):
            continue
        if _fits(row.second_v1, word) or _fits(row.second_v2, word):
            return row, True
        if _fits(row.v1, word) or _fits(row.v2, word):
            return row, False
    return None, False


def _fits(bits: Bits | None, word: int) -> bool:
    return bits is not None and word & bits.mask == bits.value


class SxidLines:
    """An SXid comes as up to three lines: message, severity, data. One event for each, whichever line comes first."""

    def __init__(self) -> None:
        self._open: tuple[str, str] | None = None

    def feed(self, text: str, *, host: str, at: datetime) -> Event | None:
        match = _SXID.search(text)
        if match is None:
            return None
        key = (match["index"], match["code"])
        rest = match["rest"]
        if rest.startswith("Data {"):
            self._open = None
            return None
        severity = _SXID_SEVERITY.match(rest)
        if severity is not None and self._open == key:
            return None
        self._open = key
        attrs = {"sxid": match["code"].lstrip("0"), "pci": ids.normal_pci(match["pci"]), "nvswitch": match["index"]}
        fatal = severity["severity"] != "0" if severity is not None else rest.lower().startswith("fatal")
        attrs["fatal"] = "true" if fatal else "false"
        if severity is not None:
            attrs["engine"] = severity["engine"]
        if (link := _LINK.search(rest)) is not None:
            attrs["link"] = str(int(link["link"]))
        return Event(
            component=ids.nvswitch_id(host, match["index"]),
            name=EventName.SXID,
            observed_at=at,
            severity=Severity.FATAL if fatal else Severity.WARNING,
            excerpt=excerpt(text),
            attrs=attrs,
        )
