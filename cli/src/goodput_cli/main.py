"""`goodput`: the command line. One module a command; this one only lists them and turns failures into exit codes.

Exit codes: 0 done (for demo, lab and score: and right), 1 done but the answer is wrong, 2 could not be done (the message says
what to do next), 130 interrupted.
"""

from __future__ import annotations

import sys

import typer

from goodput_cli import demo, diagnose, lab, rejected, replay, score, simulate, up, verdicts
from goodput_cli.output import Failure, err

app = typer.Typer(
    name="goodput",
    help="Finds the one bad GPU, NIC, link or switch port behind a stalled training job, and proves it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo")(demo.command)
app.command("diagnose")(diagnose.command)
app.command("up")(up.command)
app.add_typer(lab.app, name="lab")
app.command("simulate")(simulate.command)
app.command("replay")(replay.command)
app.command("verdicts")(verdicts.command)
app.command("rejected")(rejected.command)
app.command("score")(score.command)


def main() -> None:
    """Entry point of the console script."""
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
