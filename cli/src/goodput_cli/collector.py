"""`goodput collector check`: what a collector would see on this host, what it would cost, and what the rest would need."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import typer

from goodput_cli.output import Failure, out, print_json, progress
from goodput_collector.application.check import Outcome
from goodput_collector.check_text import broken, lines
from goodput_collector.dry_run import report
from goodput_collector.settings import load
from goodput_common.runtime.settings import SettingsError

app = typer.Typer(no_args_is_help=True, help="The collector of this host.")

STYLES = {
    Outcome.OK: "green",
    Outcome.PARTLY: "yellow",
    Outcome.NOTHING: "cyan",
    Outcome.UNREADABLE: "red",
    Outcome.ABSENT: "dim",
    Outcome.OFF: "dim",
}


@app.callback()
def group() -> None:
    pass


@app.command()
def check(
    all_covered: Annotated[bool, typer.Option("--covered", help="Name every component that is covered.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON.")] = False,
) -> None:
    """Reads every source of this host once, as the collector would with these settings (GOODPUT_...), and publishes nothing.

    Tells for each: found or absent, readable or what it would need, the components that it covers, and its cost. Run it as
    the user that the collector runs as. Exits 1 when a source that is there cannot be read, 2 when a setting is wrong.
    """
    try:
        settings = load()
    except SettingsError as error:
        raise Failure(str(error)) from error
    with progress("reading every source", quiet=as_json):
        found = asyncio.run(report(settings, environ=os.environ))
    if as_json:
        print_json(found)
    else:
        for outcome, line in lines(found, all_covered=all_covered):
            out.print(line, style=STYLES[outcome] if outcome is not None else None, markup=False)
    if broken(found):
        raise typer.Exit(1)
