"""`goodput`: the command line. One module a command; this one only lists them and turns failures into exit codes.

A command's module is imported when it is asked for, so that `goodput diagnose` on a bare machine neither needs nor waits
for the libraries of the services.

Exit codes: 0 done (for demo, lab and score: and right), 1 done but the answer is wrong, 2 could not be done (the message
says what to do next), 130 interrupted.
"""

from __future__ import annotations

import errno
import importlib
import signal
import sys

import typer

from goodput_cli.output import Failure, err
from goodput_common.runtime.logs import configure_logging

CANNOT = 2
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
COMMANDS = ("demo", "diagnose", "up", "lab", "collector", "simulate", "replay", "verdicts", "explain", "rejected", "score")


def build(arguments: list[str]) -> typer.Typer:
    """The command line for these arguments: with only the command that they ask for, or with all."""
    app = typer.Typer(
        name="goodput",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(root)
    asked_for = next((argument for argument in arguments if argument in COMMANDS), None)
    for name in (asked_for,) if asked_for else COMMANDS:
        module = importlib.import_module(f"goodput_cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(module.command)
    return app


def root() -> None:
    """Finds the one bad GPU, NIC, link or switch port behind a stalled training job, and proves it."""


def main() -> None:
    """Entry point of the console script."""
    configure_logging("goodput", json=False, level="WARNING")
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # stop in order, as for Ctrl-C
    try:
        build(sys.argv[1:])()
    except Failure as failure:
        err.print(f"goodput: {failure}", style="red", markup=False)
        sys.exit(failure.exit_code)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise  # no failure that a person could mend: the traceback is for us
        where = error.filename or "standard output"
        err.print(f"goodput: cannot write to {where}: {error.strerror}. Make room there, or write elsewhere.", style="red")
        sys.exit(CANNOT)
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(130)


if __name__ == "__main__":
    main()
