"""`goodput rejected`: messages that could not be used, kept with the reason."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from goodput_cli.output import out, print_json
from goodput_cli.rest import Rest


def command(
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 50,
    url: Annotated[str | None, typer.Option(help="The correlator's address [GOODPUT_URL].")] = None,
    token: Annotated[str | None, typer.Option(help="Bearer token [GOODPUT_TOKEN].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON.")] = False,
) -> None:
    """Lists messages that were not JSON, of an unknown type or of the wrong shape. They are kept in the stream REJECTED."""
    found = list(Rest.from_options(url, token).pages("/v1/rejected", limit=limit))
    if as_json:
        print_json({"rejected": found})
        return
    if not found:
        out.print("nothing was rejected")
        return
    table = Table("when", "stream", "subject", "reason", box=None, header_style="bold")
    for each in found:
        table.add_row(*(str(each.get(field, "")) for field in ("rejected_at", "stream", "subject", "reason")))
    out.print(table)
