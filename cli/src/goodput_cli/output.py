"""How every command speaks: rich text for people, one JSON document for scripts.

With `--json` standard output carries exactly one JSON document (or one a line where a command follows a stream) and nothing
else; progress and notes go to standard error. Colour is used on a terminal only, and NO_COLOR is respected (rich does both).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


class Failure(Exception):
    """Ends a command with this message on standard error; the message says what to do next."""

    def __init__(self, message: str, *, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def plain(value: Any) -> Any:
    """Structs, datetimes and enums as JSON types."""
    return msgspec.to_builtins(value)


def print_json(value: Any, *, line: bool = False) -> None:
    """One JSON document; on a single line where documents follow each other."""
    text = json.dumps(plain(value), ensure_ascii=False, indent=None if line or not sys.stdout.isatty() else 2)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@contextmanager
def progress(description: str, *, total: float | None = None, quiet: bool = False) -> Iterator[Any]:
    """A progress bar on standard error, gone when done; silent off a terminal and with --json."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        task = bar.add_task(description, total=total)

        def update(*, advance: float = 0.0, completed: float | None = None, description: str | None = None) -> None:
            bar.update(task, advance=advance, completed=completed, description=description)

        yield update
