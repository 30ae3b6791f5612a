"""From a section's lines to what its tool said: one parser a tool, all of them the collector's or its kin.

What comes out is a `Report`: the section with its parsed content, and what was not understood in it. Nothing here knows of
hosts or times; `facts` puts the reports of all files together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from goodput_cli.diagnose.sections import JSON_CHARS_MAX, Section
from goodput_cli.diagnose.tools import Tool
from goodput_collector.domain import (
    dcgm_text,
    ethtool_text,
    ib_counters_text,
    ibnetdiscover,
    lldp,
    lldpctl_text,
    port_state_text,
    ras,
    rdma_statistic,
    smi_nvlink,
    smi_query,
    smi_table,
    smi_topo,
)
from goodput_collector.domain.pasted import Unread

LINE_CHARS_MAX = 1024
_CHARS_MAX = {
    Tool.SMI_TABLE: 300,
    **dict.fromkeys((Tool.RDMA_STATISTIC, Tool.DCGM), 16_384),
    **dict.fromkeys((Tool.RDMA_JSON, Tool.RAS_JSON, Tool.LLDPCTL_JSON), JSON_CHARS_MAX),
}


@dataclass(slots=True)
class Content:
    """What a tool said, by sort; a tool fills one or two of these."""

    ports: list[port_state_text.PortSaid] = field(default_factory=list)
    statistics: list[rdma_statistic.PortStatistic] = field(default_factory=list)
    perfquery: list[ib_counters_text.PortCounts] = field(default_factory=list)
    errors: ib_counters_text.PortErrors | None = None
    fabric: ibnetdiscover.Fabric | None = None
    fabric_text: str = ""
    stats: dict[str, int] = field(default_factory=dict)
    settings: list[ethtool_text.Settings] = field(default_factory=list)
    table: list[smi_table.TableGpu] = field(default_factory=list)
    query: smi_query.SmiLog | None = None
    listed: list[smi_nvlink.ListedGpu] = field(default_factory=list)
    topo: smi_topo.Topo | None = None
    metrics: list[dcgm_text.Metric] = field(default_factory=list)
    ras: ras.RasReport | None = None
    neighbours: dict[str, list[lldp.Neighbour]] = field(default_factory=dict)


@dataclass(slots=True)
class Report:
    """`origin` is the file. `facts` counts what came of it, filled in later."""

    section: Section
    tool: Tool
    origin: str
    content: Content
    unread: Unread
    facts: int = 0


def read(section: Section, origin: str) -> Report:
    """Never raises."""
    assert section.tool is not None
    most = _CHARS_MAX.get(section.tool, LINE_CHARS_MAX)
    long = [line for line in section.lines if len(line) > most]
    text = "\n".join(line for line in section.lines if len(line) <= most) + "\n" if long else section.text
    content, unread = _PARSERS[section.tool](text)
    for line in long:  # the tool prints none so long
        unread.note(line)
    return Report(section, section.tool, origin, content, unread)


def _ibstat(text: str) -> tuple[Content, Unread]:
    ports, unread = port_state_text.parse_ibstat(text)
    return Content(ports=ports), unread


def _ibstatus(text: str) -> tuple[Content, Unread]:
    ports, unread = port_state_text.parse_ibstatus(text)
    return Content(ports=ports), unread


def _rdma_link(text: str) -> tuple[Content, Unread]:
    ports, unread = port_state_text.parse_rdma_link(text)
    return Content(ports=ports), unread


def _rdma_statistic(text: str) -> tuple[Content, Unread]:
    statistics, unread = rdma_statistic.parse_text(text)
    return Content(statistics=statistics), unread


def _rdma_json(text: str) -> tuple[Content, Unread]:
    statistics, ports, unread = rdma_statistic.parse_json(text)
    return Content(statistics=statistics, ports=ports), unread


def _perfquery(text: str) -> tuple[Content, Unread]:
    ports, unread = ib_counters_text.parse_perfquery(text)
    return Content(perfquery=ports), unread


def _ibqueryerrors(text: str) -> tuple[Content, Unread]:
    errors, unread = ib_counters_text.parse_ibqueryerrors(text)
    return Content(errors=errors), unread


def _ibnetdiscover(text: str) -> tuple[Content, Unread]:
    fabric = ibnetdiscover.parse(text)
    first = fabric.complaints[0] if fabric.complaints else ""
    return Content(fabric=fabric, fabric_text=text), Unread(fabric.complained, first)


def _ethtool_stats(text: str) -> tuple[Content, Unread]:
    stats, unread = ethtool_text.parse_stats(text)
    return Content(stats=stats), unread


def _ethtool(text: str) -> tuple[Content, Unread]:
    settings, unread = ethtool_text.parse_settings(text)
    return Content(settings=settings), unread


def _table(text: str) -> tuple[Content, Unread]:
    gpus, unread = smi_table.parse(text)
    return Content(table=gpus), unread


def _query(text: str) -> tuple[Content, Unread]:
    log, unread = smi_query.parse(text)
    return Content(query=log), unread


def _nvlink(text: str) -> tuple[Content, Unread]:
    gpus, unread = smi_nvlink.parse(text)
    return Content(listed=gpus), unread


def _topo(text: str) -> tuple[Content, Unread]:
    topo, unread = smi_topo.parse(text)
    return Content(topo=topo), unread


def _dcgm(text: str) -> tuple[Content, Unread]:
    parsed = dcgm_text.parse(text)
    return Content(metrics=parsed.metrics), Unread(parsed.bad, parsed.first_bad)


def _ras_text(text: str) -> tuple[Content, Unread]:
    report = ras.parse_text(text)
    unread = Unread(report.lines - report.understood)
    unread.first = "a line that no release of NCCL is known to print" if unread.count else ""
    return Content(ras=report), unread


def _ras_json(text: str) -> tuple[Content, Unread]:
    unread = Unread()
    try:
        return Content(ras=ras.parse_json(text)), unread
    except ras.Malformed as error:
        for line in text.splitlines():
            unread.note(line)
        unread.first = f"malformed beyond repair: {error}"
        return Content(), unread


def _lldpctl(text: str) -> tuple[Content, Unread]:
    neighbours, unread = lldpctl_text.parse(text)
    return Content(neighbours=neighbours), unread


def _lldpctl_json(text: str) -> tuple[Content, Unread]:
    try:
        neighbours, unread = lldp.parse_lldpctl(text)
    except lldp.NotLldp as error:
        return Content(), Unread(max(1, text.count("\n")), str(error))
    return Content(neighbours=neighbours), Unread(
        unread, "a neighbour heard by another protocol, or without a name" if unread else ""
    )


_PARSERS: dict[Tool, Callable[[str], tuple[Content, Unread]]] = {
    Tool.IBSTAT: _ibstat,
    Tool.IBSTATUS: _ibstatus,
    Tool.RDMA_LINK: _rdma_link,
    Tool.RDMA_STATISTIC: _rdma_statistic,
    Tool.RDMA_JSON: _rdma_json,
    Tool.PERFQUERY: _perfquery,
    Tool.IBQUERYERRORS: _ibqueryerrors,
    Tool.IBNETDISCOVER: _ibnetdiscover,
    Tool.ETHTOOL_STATS: _ethtool_stats,
    Tool.ETHTOOL: _ethtool,
    Tool.SMI_TABLE: _table,
    Tool.SMI_QUERY: _query,
    Tool.SMI_NVLINK: _nvlink,
    Tool.SMI_TOPO: _topo,
    Tool.DCGM: _dcgm,
    Tool.RAS_TEXT: _ras_text,
    Tool.RAS_JSON: _ras_json,
    Tool.LLDPCTL: _lldpctl,
    Tool.LLDPCTL_JSON: _lldpctl_json,
}
