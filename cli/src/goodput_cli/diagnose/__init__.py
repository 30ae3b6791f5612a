"""`goodput diagnose PATH...`: the collector's parsers and the correlator's engines on files, with no server.

unpack -> files (-> sections -> reports) -> gather (hosts, times, names joined) -> facts -> engines -> view
"""

from __future__ import annotations

import tempfile
from collections import Counter as Tally
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from goodput_cli.diagnose import placement, view
from goodput_cli.diagnose.gather import Gathered, gather_paths
from goodput_cli.diagnose.needs import needs
from goodput_cli.diagnose.notable import notable
from goodput_cli.output import Failure, print_json, progress
from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.verdict import Verdict
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.offline import diagnose_facts
from goodput_topology import jsonfile

NO_FACTS_AT = datetime(1970, 1, 1, tzinfo=UTC)


def command(
    paths: Annotated[
        list[Path], typer.Argument(help="Logs, dumps, pasted output of tools, sysfs trees, archives, folders, in any mix.")
    ],
    host: Annotated[str, typer.Option(help="Host of what does not name its own.")] = "",
    collected_at: Annotated[
        datetime | None, typer.Option(help="When the logs were taken (UTC), for stamps without a year [each file's time].")
    ] = None,
    topology: Annotated[
        Path | None, typer.Option(help="The fabric as JSON, to tell link ends and placement [what the files say of it].")
    ] = None,
    ranks: Annotated[
        list[str] | None, typer.Option(help="Which ranks ran where: HOST=0-7, once for each host [what logs say].")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help='One document: "verdicts", "files", "notable", "needs", "warnings" and more.')
    ] = False,
) -> None:
    """Names the culprit from files alone: logs, flight-recorder dumps, what tools print of GPUs and networks."""
    reference = collected_at.replace(tzinfo=UTC) if collected_at else None
    try:
        given = placement.given(ranks or [])
    except placement.NotRanks as error:
        raise Failure(str(error)) from error
    with (
        tempfile.TemporaryDirectory(prefix="goodput-diagnose-") as folder,
        progress(f"reading {', '.join(str(path) for path in paths[:3])}", quiet=as_json) as update,
    ):
        gathered = gather_paths(paths, Path(folder), host=host, reference=reference, ranks=given)
        update(description="diagnosing")
        verdicts = diagnose(gathered, topology)
    told = (
        gathered,
        verdicts,
        notable(gathered.facts, gathered.fabric),
        needs(gathered, given_topology=topology is not None),
    )
    if as_json:
        print_json(view.document(*told))
    else:
        view.show(*told)
    if not any(file.kinds for file in gathered.files):
        raise typer.Exit(1)


def diagnose(gathered: Gathered, topology: Path | None = None) -> list[Verdict]:
    """Verdicts from what was read. The same files give the same verdicts: their time is that of the newest fact. A topology
    that is given stands for all that the files say of it."""
    try:
        fabric = jsonfile.load(topology) if topology else gathered.fabric
    except jsonfile.UnreadableTopology as error:
        raise Failure(str(error)) from error
    facts = observed(gathered)
    return diagnose_facts(facts, now=max((each.observed_at for each in facts), default=NO_FACTS_AT), topology=fabric)


def observed(gathered: Gathered) -> list[Observed]:
    """Facts of files as evidence, cited as `<file>#<n>`. There is no broker: they are received when they were observed.
    Places of ranks are facts of a job, so they count only where a recorder speaks of one."""
    numbers: Tally[str] = Tally()
    facts = []
    for each in gathered.facts:
        numbers[each.origin] += 1
        event_id = f"{each.origin}#{numbers[each.origin]}"
        facts.append(Observed(event_id, each.host, each.source.value, each.at, each.at, each.fact))
    if gathered.dumps:
        facts += [_place(number, rank, gathered.ranks_by) for number, rank in enumerate(gathered.ranks, 1)]
    return facts


def _place(number: int, rank: RankRegistered, by: str) -> Observed:
    return Observed(f"{by}#{number}", rank.host, "agent", rank.at, rank.at, rank)
