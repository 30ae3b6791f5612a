"""`goodput diagnose PATH...`: the collector's parsers and the correlator's engines on files, with no server."""

from __future__ import annotations

from collections import Counter as Tally
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from goodput_cli.output import Failure, err, out, print_json, progress
from goodput_cli.verdict_view import render
from goodput_collector.application.read_files import Found, Read, read_paths
from goodput_common.contracts.verdict import Verdict
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.offline import diagnose_facts
from goodput_topology import jsonfile

NO_FACTS_AT = datetime(1970, 1, 1, tzinfo=UTC)


def command(
    paths: Annotated[list[Path], typer.Argument(help="Logs, dumps, sysfs trees, folders of them, in any mix.")],
    host: Annotated[str, typer.Option(help="Host of lines that do not name theirs.")] = "",
    collected_at: Annotated[
        datetime | None, typer.Option(help="When the logs were taken (UTC), for stamps without a year [each file's time].")
    ] = None,
    topology: Annotated[Path | None, typer.Option(help="The fabric as JSON, to tell link ends and placement.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help='{"verdicts", "unrecognised", "warnings"}.')] = False,
) -> None:
    """Names the culprit from files alone: kernel logs, flight-recorder dumps, NCCL and torch logs, RDMA counters."""
    reference = collected_at.replace(tzinfo=UTC) if collected_at else None
    with progress(f"reading {', '.join(str(path) for path in paths[:3])}", quiet=as_json) as update:
        read = read_paths(paths, host=host, reference_time=reference)
        update(description="diagnosing")
        verdicts = diagnose(read, topology)
    if as_json:
        unrecognised = [{"path": path, "why": why} for path, why in read.unrecognised]
        print_json({"verdicts": verdicts, "unrecognised": unrecognised, "warnings": read.warnings})
    else:
        _show(read, verdicts)
    if not read.recognised:
        raise typer.Exit(1)


def diagnose(read: Read, topology: Path | None = None) -> list[Verdict]:
    """Verdicts from what was read. The same files give the same verdicts: their time is that of the newest fact."""
    try:
        fabric = jsonfile.load(topology) if topology else None
    except jsonfile.UnreadableTopology as error:
        raise Failure(str(error)) from error
    facts = observed(read.facts)
    return diagnose_facts(facts, now=max((each.observed_at for each in facts), default=NO_FACTS_AT), topology=fabric)


def observed(found: list[Found]) -> list[Observed]:
    """Facts of files as evidence, cited as `<file>#<n>`. There is no broker: they are received when they were observed."""
    numbers: Tally[str] = Tally()
    facts = []
    for each in found:
        numbers[each.origin] += 1
        at = getattr(each.fact, "observed_at", None) or each.fact.at  # type: ignore[union-attr]
        facts.append(Observed(f"{each.origin}#{numbers[each.origin]}", each.host, each.source.value, at, at, each.fact))
    return facts


def _show(read: Read, verdicts: list[Verdict]) -> None:
    kinds = Tally(kind.value for _, kind in read.recognised)
    out.print("read " + (", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "nothing"), style="dim")
    for warning in read.warnings:
        err.print(f"warning: {warning}", style="yellow", markup=False)
    for path, why in read.unrecognised:
        err.print(f"not recognised: {path}: {why}", style="yellow", markup=False)
    for verdict in verdicts:
        out.print(render(verdict))
    if not verdicts and read.recognised:
        out.print("no fault found in what was read", style="bold green")
