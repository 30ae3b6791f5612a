"""`goodput collector check`: what a collector would see on this host, what it would cost, and what the rest would need."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from goodput_cli.output import Failure, err, out, print_json, progress
from goodput_collector.application.check import Outcome, SourceCheck
from goodput_collector.dry_run import dry_run
from goodput_collector.settings import load
from goodput_common.runtime.settings import SettingsError

app = typer.Typer(no_args_is_help=True, help="The collector of this host.")

STYLES = {
    Outcome.OK: "green",
    Outcome.PARTLY: "yellow",
    Outcome.UNREADABLE: "red",
    Outcome.ABSENT: "dim",
    Outcome.OFF: "dim",
}
COVERED_SHOWN = 3


@app.callback()
def group() -> None:
    pass


@app.command()
def check(
    all_covered: Annotated[bool, typer.Option("--covered", help="Name every component that is covered.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON.")] = False,
) -> None:
    """Reads every source of this host once, as the collector would with these settings (GOODPUT_...), and publishes nothing.

    Tells for each: found or absent, readable or what it would need, the components that it covers, and its cost. Exits 1
    when a source that is there cannot be read.
    """
    try:
        settings = load()
    except SettingsError as error:
        raise Failure(str(error)) from error
    with progress("reading every source", quiet=as_json):
        found = asyncio.run(dry_run(settings))
    if as_json:
        print_json({"host": settings.host, "sources": found})
    else:
        _show(found, all_covered)
    if any(each.outcome is Outcome.UNREADABLE for each in found):
        raise typer.Exit(1)


def _show(found: tuple[SourceCheck, ...], all_covered: bool) -> None:
    table = Table("source", "outcome", "covers", "every", "CPU a read", "of a core", box=None, header_style="bold")
    for each in found:
        table.add_row(
            Text(f"{each.source} {each.instance}".strip()),
            Text(each.outcome, STYLES[each.outcome]),
            Text(_covers(each, all_covered)),
            "" if each.interval_s is None or each.read_us is None else f"{each.interval_s:g} s",
            "" if each.read_us is None else f"{each.read_us / 1000:.2f} ms",
            "" if each.cpu_percent is None else f"{each.cpu_percent:.3f} %",
        )
    out.print(table)
    total = sum(each.cpu_percent or 0.0 for each in found)
    out.print(f"\nall sources together: {total:.2f} % of one core")
    for each in found:
        if each.outcome in (Outcome.PARTLY, Outcome.UNREADABLE) or (each.outcome is Outcome.OFF and each.remedy):
            said = "; ".join(part for part in (each.reason, each.remedy) if part)
            err.print(f"{each.source} {each.instance}".strip() + f": {said}", markup=False)


def _covers(each: SourceCheck, all_covered: bool) -> str:
    if not each.covered:
        return "" if each.outcome in (Outcome.OK, Outcome.PARTLY) else each.reason
    shown = each.covered if all_covered else each.covered[:COVERED_SHOWN]
    more = len(each.covered) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
