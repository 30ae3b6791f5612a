"""`goodput`: the command line. One module a command; this one only lists them and turns failures into exit codes.

A command's module is imported when it is asked for, so that `goodput diagnose` on a bare machine neither needs nor waits
for the libraries of the services.

Exit codes: 0 done (for demo, lab and score: and right), 1 done but the answer is wrong, 2 could not be done (the message
says what to do next), 130 interrupted.
"""

from __future__ import annotations

import importlib
import logging
import sys

import click
import structlog
import typer
from typer.core import TyperGroup

from goodput_cli.output import Failure, err

# name -> (module, what `goodput --help` says)
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "One dead link idles a simulated 512-GPU job; see it named."),
    "diagnose": ("diagnose", "Names the culprit from files: logs, flight-recorder dumps, sysfs trees."),
    "up": ("up", "Every service on this machine with an embedded NATS and Postgres."),
    "lab": ("lab", "Real ranks on hosts made of network namespaces, broken for real."),
    "simulate": ("simulate", "Writes a simulated run and its ground truth."),
    "replay": ("replay", "The diagnosis again, from a recording."),
    "verdicts": ("verdicts", "Lists verdicts; --follow shows new ones."),
    "rejected": ("rejected", "Lists messages that could not be used, with the reason."),
    "score": ("score", "Compares verdicts with the ground truth."),
}


class LazyGroup(TyperGroup):
    """Knows the commands' names, imports the one that is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"goodput_cli.{COMMANDS[cmd_name][0]}")
        if hasattr(module, "app"):
            return typer.main.get_command(module.app)
        one = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        one.command(cmd_name)(module.command)
        return typer.main.get_command(one)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


app = typer.Typer(
    cls=LazyGroup,
    help="Finds the one bad GPU, NIC, link or switch port behind a stalled training job, and proves it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def root() -> None:
    """Finds the one bad GPU, NIC, link or switch port behind a stalled training job, and proves it."""


def main() -> None:
    """Entry point of the console script."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        app()
    except Failure as failure:
        err.print(f"goodput: {failure}", style="red", markup=False)
        sys.exit(failure.exit_code)
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(130)


if __name__ == "__main__":
    main()
