"""`goodput lab`: real ranks on hosts made of network namespaces, broken for real."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from goodput_cli.output import Failure, err, out, plain, print_json
from goodput_cli.verdict_view import render
from goodput_common.contracts.verdict import VerdictState
from goodput_faultlab.lab import SCENARIOS, LabError, LabResult, LabSession, limits, preflight

app = typer.Typer(no_args_is_help=True, help="Real processes, real faults: torch ranks on hosts made of network namespaces.")


@app.command("run")
def run(
    scenario: Annotated[str, typer.Argument(help="One of `goodput lab list`.")] = "link-down",
    seed: Annotated[int, typer.Option(help="Picks the victim; the first seed with --runs.")] = 1,
    runs: Annotated[int, typer.Option(help="So many runs in one lab, seeds counting up.", min=1)] = 1,
    hosts: Annotated[int, typer.Option(help="Hosts that carry the job.", min=2, max=16)] = 4,
    ranks: Annotated[int, typer.Option(help="Ranks on each host.", min=1, max=8)] = 2,
    rails: Annotated[int, typer.Option(help="Networks between the hosts.", min=1, max=4)] = 1,
    keep: Annotated[Path | None, typer.Option(help="Keep logs, ledger and recordings in this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON (a line a run with --runs).")] = False,
) -> None:
    """Breaks one thing in a small real cluster; goodput must name it and get training back. Exit code 0 if right."""
    if scenario not in SCENARIOS:
        raise Failure(f"there is no scenario {scenario!r}; there are: {', '.join(SCENARIOS)}")
    results: list[LabResult] = []

    def say(text: str) -> None:
        err.print(text, style="dim", markup=False)

    try:
        with LabSession(hosts=hosts, ranks_per_host=ranks, rails=rails, directory=keep, on_progress=say) as lab:
            for number in range(seed, seed + runs):
                result = lab.run(scenario, number)
                results.append(result)
                if as_json:
                    print_json(_json_form(result), line=runs > 1)
                else:
                    _show(result)
    except LabError as error:
        raise Failure(str(error)) from error
    if runs > 1 and not as_json:
        _summary(scenario, results)
    back = all(result.recover_s is not None for result in results if result.ledger and SCENARIOS[scenario].blames)
    raise typer.Exit(0 if back and all(result.correct for result in results) else 1)


@app.command("list")
def list_scenarios(as_json: Annotated[bool, typer.Option("--json", help="JSON.")] = False) -> None:
    """Lists the faults that the lab can inject."""
    if as_json:
        print_json([{"name": each.name, "summary": each.summary} for each in SCENARIOS.values()])
        return
    table = Table("scenario", "what happens", box=None, header_style="bold")
    for each in SCENARIOS.values():
        table.add_row(each.name, each.summary)
    out.print(table)


@app.command("preflight")
def check(as_json: Annotated[bool, typer.Option("--json", help="JSON.")] = False) -> None:
    """Says whether the lab can run on this machine and, where not, what to do."""
    problems, lacking = preflight(), []
    if not problems:
        lacking = limits()
    if as_json:
        print_json(
            {
                "ok": not problems,
                "problems": [each._asdict() for each in problems],
                "limits": [each._asdict() for each in lacking],
            }
        )
    else:
        for each in (*problems, *lacking):
            out.print(f"- {each}", markup=False)
        if not problems:
            out.print("the lab can run here")
    raise typer.Exit(1 if problems else 0)


def _json_form(result: LabResult) -> dict[str, Any]:
    form: dict[str, Any] = plain(result)
    return form


def _show(result: LabResult) -> None:
    naming = [each for each in result.verdicts if each.state is not VerdictState.RESOLVED]
    if naming:
        out.print(render(naming[-1]))
    for entry in result.ledger:
        out.print(f"truth    {entry.fault_class}, {entry.component or 'nobody'}", markup=False)
    for note in result.notes:
        out.print(f"note     {note}", markup=False)
    detected = f"{result.detect_s:.1f} s to the verdict" if result.detect_s is not None else "no right verdict"
    back = f"{result.recover_s:.1f} s until training was back" if result.recover_s is not None else "training is not back"
    out.print(f"times    {detected}; {back}")
    out.print(
        f"score    {'right' if result.correct else 'WRONG'}: {result.why}",
        style="bold green" if result.correct else "bold red",
    )


def _summary(scenario: str, results: list[LabResult]) -> None:
    times = [result.detect_s for result in results if result.detect_s is not None]
    middle = f", median {statistics.median(times):.1f} s to the verdict" if times else ""
    out.print(f"{scenario}: {sum(result.correct for result in results)} of {len(results)} right{middle}", style="bold")
