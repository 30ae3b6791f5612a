"""`goodput simulate`: a run of simulated telemetry as a file, with its ground truth beside it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from goodput_cli.output import Failure, out, print_json, progress
from goodput_common.bus.recording import write_record
from goodput_faultlab.ledger import Ledger
from goodput_faultlab.simulate import Simulation, scenario
from goodput_faultlab.simulate.scenarios import CATALOGUE, UnknownScenario


def command(
    name: Annotated[str, typer.Argument(metavar="[SCENARIO]", help="One of --list.")] = "dead-link",
    seed: Annotated[int, typer.Option(help="Equal seeds give equal files.")] = 1,
    hosts: Annotated[int, typer.Option(help="Hosts that carry the job.", min=2)] = 64,
    seconds: Annotated[float, typer.Option(help="Length of the run.", min=1)] = 60.0,
    output: Annotated[Path, typer.Option("--output", "-o", help="The recording, for `goodput replay`.")] = Path("run.jsonl"),
    ledger: Annotated[Path | None, typer.Option(help="The ground truth [OUTPUT with .ledger.jsonl].")] = None,
    list_them: Annotated[bool, typer.Option("--list", help="Lists the scenarios.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON.")] = False,
) -> None:
    """Writes what a fabric, a job and a fault would put on the bus, and the truth about it."""
    if list_them:
        _list(as_json=as_json)
        return
    try:
        spec = scenario(name, hosts=hosts)
    except UnknownScenario as error:
        raise Failure(str(error)) from error
    truth = Ledger(ledger or output.with_suffix(".ledger.jsonl"))
    for existing in (output, truth.path):
        if existing.exists():
            raise Failure(f"{existing} exists already: move it away or name another with --output")
    simulation = Simulation(spec, seed)
    count = 0
    try:
        for entry in (*simulation.ledger, *simulation.background):
            truth.write(entry)
        with output.open("wb") as file, progress(f"simulating {name}", total=seconds, quiet=as_json) as update:
            for message in simulation.records(spec.start + timedelta(seconds=seconds)):
                write_record(file, message)
                count += 1
                if count % 500 == 0:
                    update(completed=(message.received_at - spec.start).total_seconds())
    except OSError as error:
        raise Failure(f"{error.filename or output} could not be written: {error.strerror or error}") from error
    if as_json:
        print_json({"recording": str(output), "ledger": str(truth.path), "messages": count, "truth": simulation.ledger})
    else:
        out.print(f"{count} messages in {output}, truth in {truth.path}")
        out.print(f"next: goodput replay {output}")


def _list(*, as_json: bool) -> None:
    if as_json:
        print_json([{"name": s.name, "description": s.description, "truth": s.truth} for s in CATALOGUE.values()])
        return
    table = Table("scenario", "what happens", "right answer", box=None, header_style="bold")
    for each in CATALOGUE.values():
        table.add_row(each.name, each.description, each.truth)
    out.print(table)
