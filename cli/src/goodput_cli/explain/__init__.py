"""`goodput explain VERDICT`: the story of a verdict, for the person who is woken up by it.

sources (REST or file) -> story (pure: timeline, reasons) -> text | markdown | JSON
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from goodput_cli.explain import markdown, sources, text
from goodput_cli.explain.story import tell
from goodput_cli.output import Failure, out, print_json
from goodput_cli.rest import DEFAULT_URL, Rest

RECOVERY_URL = "http://127.0.0.1:8082"
RECOVERY_VARIABLE = "GOODPUT_RECOVERY_URL"


def command(
    verdict: Annotated[str | None, typer.Argument(help="Its id or the beginning of it [the newest].")] = None,
    job: Annotated[str | None, typer.Option(help="The newest verdict of this job.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="Read the --json output of replay, diagnose, verdicts or demo; - is stdin."),
    ] = None,
    url: Annotated[str | None, typer.Option(help="The correlator's address [GOODPUT_URL].")] = None,
    recovery_url: Annotated[
        str | None, typer.Option(help="The recovery service's address, for what was done [GOODPUT_RECOVERY_URL].")
    ] = None,
    token: Annotated[str | None, typer.Option(help="Bearer token [GOODPUT_TOKEN].")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Markdown, for a ticket.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON.")] = False,
) -> None:
    """Tells who is to blame and how sure that is, what happened when, why nobody else, and what would change the verdict."""
    if as_markdown and as_json:
        raise Failure("--markdown and --json exclude each other: leave one away")
    if file is not None:
        found = sources.from_file(file, id=verdict, job=job)
    else:
        rest = Rest.from_options(url, token)
        found = sources.from_rest(rest, _recovery(rest, recovery_url), id=verdict, job=job)
    story = tell(found.chain, heard=found.heard, recovery=found.recovery, recovery_unknown=found.recovery_unknown)
    if as_json:
        print_json(story)
    elif as_markdown:
        sys.stdout.write(markdown.render(story))
    else:
        for line in text.lines(story):
            out.print(line)


def _recovery(correlator: Rest, url: str | None) -> Rest | None:
    """The recovery service beside the correlator; None where it is not known. That of this machine belongs to the correlator
    of this machine and to no other."""
    address = url or os.environ.get(RECOVERY_VARIABLE) or (RECOVERY_URL if correlator.url == DEFAULT_URL else None)
    return Rest(address.rstrip("/"), correlator.token) if address else None
