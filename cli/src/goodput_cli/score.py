"""`goodput score`: verdicts against the ground truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from goodput_cli.output import Failure, out, print_json
from goodput_common.contracts.verdict import Verdict
from goodput_faultlab.ledger import Ledger, LedgerDamaged
from goodput_faultlab.score import score


def command(
    ledger: Annotated[Path, typer.Option(help="What was broken: a ledger.jsonl.")],
    verdicts: Annotated[Path, typer.Option(help="What was said: the --json output of replay, verdicts, demo or lab run.")],
    as_json: Annotated[bool, typer.Option("--json", help="JSON.")] = False,
) -> None:
    """Compares verdicts with the ledger: right, wrong, missed, abstained, false alarms. Exit code 0 only if all is right."""
    if not ledger.exists():
        raise Failure(f"{ledger} does not exist: name the ledger that the run wrote")
    try:
        entries = Ledger(ledger).entries()
    except LedgerDamaged as error:
        raise Failure(str(error)) from error
    scored = score(entries, read_verdicts(verdicts))
    if as_json:
        print_json(scored.as_dict())
    else:
        out.print(scored.text())
    raise typer.Exit(0 if scored.correct else 1)


def read_verdicts(path: Path) -> list[Verdict]:
    """From `{"verdicts": […]}`, a list, or one verdict a line. Raises Failure naming file and field."""
    try:
        text = path.read_text()
    except OSError as error:
        raise Failure(f"{path} could not be read: {error.strerror or error}") from error
    try:
        document: Any = json.loads(text)
    except ValueError:
        try:
            document = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise Failure(f"{path} is not JSON: {error}") from error
    found = document.get("verdicts", document) if isinstance(document, dict) else document
    try:
        return msgspec.convert(found, list[Verdict])
    except msgspec.ValidationError as error:
        raise Failure(f"{path} holds no verdicts: {error}") from error
