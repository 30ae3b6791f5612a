"""`goodput verdicts`: what the correlator has said, and what it says from now on."""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from goodput_cli.output import out, print_json
from goodput_cli.rest import Rest
from goodput_cli.verdict_view import culprit_text, render
from goodput_common.contracts.verdict import Verdict


def command(
    job: Annotated[str | None, typer.Option(help="Only this job's.")] = None,
    fault_class: Annotated[str | None, typer.Option(help="Only this class, such as link_flap.")] = None,
    state: Annotated[str | None, typer.Option(help="open, revised or resolved.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with every new version as it comes.")] = False,
    url: Annotated[str | None, typer.Option(help="The correlator's address [GOODPUT_URL].")] = None,
    token: Annotated[str | None, typer.Option(help="Bearer token [GOODPUT_TOKEN].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON; one verdict a line with --follow.")] = False,
) -> None:
    """Lists verdicts, newest first; --follow shows each new version as it is published."""
    rest = Rest.from_options(url, token)
    filters = {"job": job, "fault_class": fault_class, "state": state}
    found = list(rest.pages("/v1/verdicts", limit=limit, **filters))
    if as_json:
        if follow:
            for each in reversed(found):
                print_json(each, line=True)
        else:
            print_json({"verdicts": found})
    else:
        _show(found)
    if follow:
        _follow(rest, filters, as_json=as_json)


def _show(found: list[dict[str, Any]]) -> None:
    if not found:
        out.print("no verdicts")
        return
    table = Table("detected", "job", "class", "culprit", "confidence", "state", "id", box=None, header_style="bold")
    for each in found:
        verdict = msgspec.convert(each, Verdict)
        table.add_row(
            f"{verdict.detected_at:%m-%d %H:%M:%S}",
            verdict.job or "-",
            verdict.fault_class,
            culprit_text(verdict.culprit),
            f"{verdict.confidence:.2f}",
            verdict.state,
            f"{verdict.id} v{verdict.version}",
        )
    out.print(table)


def _follow(rest: Rest, filters: dict[str, str | None], *, as_json: bool) -> None:
    for name, data in rest.events("/v1/events"):
        if name != "verdict":
            continue
        body = json.loads(data)
        if any(wanted is not None and body.get(field) != wanted for field, wanted in filters.items()):
            continue
        if as_json:
            print_json(body, line=True)
        else:
            out.print(render(msgspec.convert(body, Verdict)))
