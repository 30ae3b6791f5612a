"""`goodput demo`: one fault idles a simulated 512-GPU job; watch the real services name it and get the job back.

NATS, Postgres, correlator and recovery run for real as separate processes. Simulated is what 64 hosts and 512 ranks would
say, and the launcher that carries out what recovery decides.
"""

from __future__ import annotations

import asyncio
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from goodput_cli.output import Failure, err, out, print_json
from goodput_cli.verdict_view import headline, render
from goodput_common.bus.errors import BusError
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.provision import provision
from goodput_common.bus.tail import record
from goodput_common.contracts.recovery import PlanState, RecoveryUpdate
from goodput_common.contracts.verdict import Verdict, VerdictState
from goodput_common.runtime.clock import SystemClock
from goodput_faultlab.ledger import Ledger
from goodput_faultlab.live import LiveRun, live_spec
from goodput_faultlab.score import score
from goodput_faultlab.simulate import Reaction, Simulation
from goodput_faultlab.simulate.scenarios import SCENARIOS, UnknownScenario
from goodput_faultlab.stack import Stack, StackError

START_S = 1.0  # for the subscriptions
FAULT_AT_S = 12.0
PLAY_S_MAX = 120.0


def command(
    scenario: Annotated[str, typer.Argument(help="One of `goodput simulate --list`.")] = "dead-link",
    seed: Annotated[int, typer.Option(help="Which component breaks, and all noise.")] = 7,
    hosts: Annotated[int, typer.Option(help="Hosts of 8 GPUs that carry the job.", min=2)] = 64,
    keep: Annotated[Path | None, typer.Option(help="Keep data, logs, ledger and recording in this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON; nothing else on standard output.")] = False,
) -> None:
    """One dead link idles 512 simulated GPUs; the real services name it, say why, and get the job back. Needs no root."""
    if scenario not in SCENARIOS:
        raise Failure(str(UnknownScenario(scenario)))
    if keep is not None and keep.is_dir() and any(keep.iterdir()):
        raise Failure(f"{keep} is not empty: a second run would mix with the first; name a new folder with --keep")
    with tempfile.TemporaryDirectory(prefix="goodput-demo-", ignore_cleanup_errors=True) as temporary:
        directory = keep or Path(temporary)
        try:
            result = asyncio.run(_demo(scenario, seed, hosts, directory, quiet=as_json, keep=keep is not None))
        except (StackError, BusError) as error:
            raise Failure(f"{error}\nlogs are in {directory / 'logs'}; keep them with --keep FOLDER") from error
    if as_json:
        print_json(result)
    back = result["recover_s"] is not None or not result["ledger"]
    raise typer.Exit(0 if result["correct"] and back else 1)


class _Teller:
    """Tells the run as a timeline, one line an event."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._started = datetime.now(UTC)

    def begin(self) -> None:
        self._started = datetime.now(UTC)

    def tell(self, what: str, style: str = "") -> None:
        if not self._quiet:
            after_s = (datetime.now(UTC) - self._started).total_seconds()
            out.print(Text.assemble((f"{after_s:6.1f} s  ", "dim"), (what, style)))

    def show(self, what: Any) -> None:
        if not self._quiet:
            out.print(what)

    def heard(self, message: Verdict | RecoveryUpdate | Reaction) -> None:
        if isinstance(message, Verdict):
            if message.state is VerdictState.RESOLVED:
                self.tell(f"verdict resolved: {message.resolution}", "green")
            else:
                self.tell(f"verdict v{message.version}: {headline(message)}", "bold red")
        elif isinstance(message, Reaction):
            self.tell(f"launcher (simulated): {message.what}")
        else:
            style = {PlanState.RECOVERED: "bold green", PlanState.FAILED: "bold red"}.get(message.state, "yellow")
            self.tell(f"recovery {message.state}: {message.action} {message.target or ''} - {message.reason}", style)


async def _demo(name: str, seed: int, hosts: int, directory: Path, *, quiet: bool, keep: bool) -> dict[str, Any]:
    teller = _Teller(quiet)
    stack = Stack(directory, on_progress=lambda text: teller.tell(text, "dim"))
    await stack.start()
    try:
        bus = await JetStreamBus.connect(stack.nats.url, name="demo")
        try:
            await provision(bus)
            return await _play(bus, name, seed, hosts, directory, stack, teller, keep=keep)
        finally:
            await bus.close()
    finally:
        await stack.stop()


async def _play(
    bus: JetStreamBus, name: str, seed: int, hosts: int, directory: Path, stack: Stack, teller: _Teller, *, keep: bool
) -> dict[str, Any]:
    start = datetime.now(UTC) + timedelta(seconds=START_S)
    job = f"demo-{start:%H%M%S}"
    simulation = Simulation(live_spec(name, job=job, start=start, fault_at_s=FAULT_AT_S, hosts=hosts), seed)
    ledger = Ledger(directory / "ledger.jsonl")
    for entry in (*simulation.ledger, *simulation.background):
        ledger.write(entry)
    run = LiveRun(bus, simulation, SystemClock(), heard=teller.heard)
    await run.start()
    teller.begin()
    teller.tell(f"{hosts} hosts, {simulation.idle.gpus} GPUs: job {job} starts training (simulated)")
    watch = asyncio.create_task(_watch(simulation, teller), name="watch")
    healthy_until = start + timedelta(seconds=FAULT_AT_S + 15)
    try:
        if simulation.ledger:
            await run.play(lambda: run.over, timeout_s=PLAY_S_MAX)
        else:
            await run.play(lambda: datetime.now(UTC) > healthy_until, timeout_s=PLAY_S_MAX)
    finally:
        watch.cancel()
        await run.stop()
        await asyncio.gather(watch, return_exceptions=True)
    if keep:
        teller.tell(f"writing the recording to {directory / 'recording.jsonl'}", "dim")
        await _record(stack.nats.url, directory / "recording.jsonl")
    return _result(name, seed, run, simulation, teller)


async def _record(url: str, path: Path) -> None:
    """All messages of the run, for `goodput replay`."""
    streams = ("TOPOLOGY", "TELEMETRY", "JOB")
    everything = asyncio.Event()
    everything.set()  # what is stored by now, and then no more
    await record(url, path, streams, start=dict.fromkeys(streams, 1), until=everything)


async def _watch(simulation: Simulation, teller: _Teller) -> None:
    """Tells when the fault comes, when steps stop and when they move again."""
    told: set[str] = set()
    generation, stalled = simulation.generation, False
    while True:
        for entry in simulation.ledger:
            if entry.id not in told and simulation.now >= entry.injected_at:
                told.add(entry.id)
                teller.tell(f"fault injected (ledger {entry.id}); nobody tells the services", "magenta")
        if simulation.stalled_since is not None and not stalled:
            stalled = True
            teller.tell(f"training stands still after step {simulation.step}: all {simulation.idle.gpus} GPUs wait", "red")
        elif stalled and simulation.stalled_since is None and simulation.generation > generation:
            stalled, generation = False, simulation.generation
            teller.tell(f"training moves again, generation {generation}; {simulation.idle}", "green")
        await asyncio.sleep(0.1)


def _result(name: str, seed: int, run: LiveRun, simulation: Simulation, teller: _Teller) -> dict[str, Any]:
    scored = score((*simulation.ledger, *simulation.background), run.chain)
    naming = [each for each in run.chain if each.state is not VerdictState.RESOLVED]
    if naming:
        teller.show("")
        teller.show(render(naming[-1]))
    for entry in simulation.ledger:
        truth = f"{entry.fault_class}, {entry.component or 'nobody'}"
        teller.show(Text.assemble(("truth    ", "bold"), f"{truth} ({entry.note})" if entry.note else truth))
    recovered = [each for each in run.recovery if each.state is PlanState.RECOVERED]
    injected = simulation.ledger[0].injected_at if simulation.ledger else None
    recover_s = (recovered[-1].at - injected).total_seconds() if recovered and injected else None
    detect_s = scored.detect_s_median
    if detect_s is not None:
        back = f"training back after {recover_s:.1f} s" if recover_s is not None else "training is not back"
        teller.show(Text.assemble(("times    ", "bold"), f"culprit named {detect_s:.1f} s after the fault; {back}"))
    teller.show(Text.assemble(("cost     ", "bold"), str(simulation.idle)))
    correct = scored.correct
    teller.show(Text.assemble(("score    ", "bold"), ("right", "bold green") if correct else ("WRONG", "bold red")))
    if not correct:
        err.print(scored.text())
    return {
        "scenario": name,
        "seed": seed,
        "ledger": simulation.ledger,
        "verdicts": run.chain,
        "recovery": run.recovery,
        "correct": correct,
        "detect_s": detect_s,
        "recover_s": recover_s,
    }
