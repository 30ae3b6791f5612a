"""What would tell more: each sentence names what to give, and what it would join."""

from __future__ import annotations

from goodput_cli.diagnose.gather import Gathered
from goodput_cli.verdict_view import ranks_text
from goodput_collector.application.read_files import UNKNOWN_HOST, Found
from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentKind

SHOWN = 6


def needs(gathered: Gathered, *, given_topology: bool) -> list[str]:
    found = [_hosts(gathered), _ranks(gathered), _snapshots(gathered), _ras(gathered), _cables(gathered, given_topology)]
    missing = gathered.missing[:SHOWN]
    if len(gathered.missing) > SHOWN:
        missing.append(f"and {len(gathered.missing) - SHOWN} more like these")
    return [each for each in (*found, *missing) if each]


def _hosts(gathered: Gathered) -> str:
    files = sorted({each.origin for each in gathered.facts if _host(each) == UNKNOWN_HOST})
    if not files:
        return ""
    shown = ", ".join(files[:3]) + (" and others" if len(files) > 3 else "")
    return (
        f"the host of {shown}: give --host NAME, put the file into a folder named like the host, or paste the prompt with it"
    )


def _host(found: Found) -> str:
    component = getattr(found.fact, "component", "")
    return (ids.host_of(component) or "") if component else ""


def _ranks(gathered: Gathered) -> str:
    dumps = gathered.dumps
    if not dumps or gathered.ranks or all(dump.host for dump in dumps):
        return ""
    hosts = sorted({each.host for each in gathered.facts if each.host and each.host != UNKNOWN_HOST})
    example = hosts[0] if hosts else "HOST"
    whom = (
        f"to join them with {', '.join(hosts[:3])}{' …' if len(hosts) > 3 else ''}" if hosts else "to join them with hosts"
    )
    ranks = ranks_text(tuple(sorted({dump.rank for dump in dumps})))
    return f"the ranks' hosts: give --ranks {example}=0-7 (or NCCL_DEBUG=INFO logs) for {ranks}, {whom}"


def _snapshots(gathered: Gathered) -> str:
    count = len(gathered.read_once)
    if not count:
        return ""
    shown = ", ".join(gathered.read_once[:2]) + (" …" if count > 2 else "")
    whose = "one component" if count == 1 else f"{count} components"
    return (
        f"a second snapshot, a minute or more after the first: counters of {whose} ({shown}) were read once, and one "
        "reading has no increase"
    )


def _ras(gathered: Gathered) -> str:
    return (
        "NCCL RAS again, a few times over a minute: only counts that stay the same mean that something is stuck"
        if gathered.asked_ras_once
        else ""
    )


def _cables(gathered: Gathered, given_topology: bool) -> str:
    nics = any(getattr(each.fact, "component", "").startswith("nic:") for each in gathered.facts)
    cabled = any(True for _ in gathered.fabric.of_kind(ComponentKind.LINK))
    if given_topology or cabled or not nics:
        return ""
    return "the cables: give `ibnetdiscover`, `lldpctl -f json` of the hosts, or --topology, to name links and switch ports"
