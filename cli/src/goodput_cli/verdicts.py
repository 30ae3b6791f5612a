"""`goodput verdicts`: what the correlator has said, and what it says from now on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from goodput_cli.output import err, out, print_json
from goodput_cli.rest import Rest, Unreachable
from goodput_cli.verdict_view import culprit_text, render
from goodput_common.contracts.verdict import Verdict

AGAIN_S = 2.0


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
    if follow:
        _follow(rest, filters, limit=limit, as_json=as_json)
        return
    found = list(rest.pages("/v1/verdicts", limit=limit, **filters))
    if as_json:
        print_json({"verdicts": found})
    else:
        _show(found)


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


def _follow(rest: Rest, filters: dict[str, str | None], *, limit: int, as_json: bool) -> None:
    """What there is, then what comes. The stream is opened first, so that nothing falls in between; a connection that is
    lost is made again, for ever, and goes on behind the last event."""
    after: str | None = None
    listed: set[tuple[str, int]] | None = None
    while True:
        try:
            for event in rest.events("/v1/events", after=after):
                if listed is None:
                    found = list(rest.pages("/v1/verdicts", limit=limit, **filters))
                    listed = {(each["id"], each["version"]) for each in found}
                    if as_json:
                        _show_each(reversed(found))
                    else:
                        _show(found)
                body = json.loads(event.data)
                if event.name == "hello":
                    after = after or str(body["at"])
                elif event.name == "reset":
                    err.print("some versions came while the connection was lost: see `goodput verdicts`", style="yellow")
                    after = None
                elif event.name == "verdict" and (body["id"], body["version"]) not in listed and _wanted(body, filters):
                    if as_json:
                        _show_each([body])
                    else:
                        out.print(render(msgspec.convert(body, Verdict)))
                after = event.id or after
            why = "the service ended the stream"
        except Unreachable as error:
            if listed is None:
                raise
            why = str(error)
        err.print(f"{why}; connecting again", style="dim", markup=False)
        time.sleep(AGAIN_S)


def _wanted(body: dict[str, Any], filters: dict[str, str | None]) -> bool:
    return all(wanted is None or body.get(field) == wanted for field, wanted in filters.items())


def _show_each(bodies: Iterable[Any]) -> None:
    for body in bodies:
        print_json(body, line=True)
