"""The lab's outer half: what the command line and the tests call.

    with LabSession() as lab:
        for seed in range(10):
            result = lab.run("link-down", seed)

One session serves any number of runs, each a fresh job; services, network and collectors stay. Leaving it, Ctrl-C, and even
kill -9 of this process take everything down.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import msgspec

from goodput_faultlab import bytecode
from goodput_faultlab.lab import freezer
from goodput_faultlab.lab.checks import preflight
from goodput_faultlab.lab.plan import LabPlan
from goodput_faultlab.lab.protocol import Failed, Finished, Progress, Ready, Report, RunRequest, Setup
from goodput_faultlab.lab.result import LabResult
from goodput_faultlab.lab.scenarios import SCENARIOS

PREFIX = "goodput-lab-"
STOP_WITHIN_S = 30.0


class LabError(RuntimeError):
    """The lab could not be started, or broke; the text says why and where its logs are."""


class LabSession:
    """`directory` keeps logs, recordings and the ledger; without one they go to a temporary folder, removed at the end
    unless something failed. Not thread-safe."""

    def __init__(
        self,
        *,
        hosts: int = 4,
        ranks_per_host: int = 2,
        rails: int = 1,
        spares: int = 1,
        fabric: str = "lab",
        directory: Path | None = None,
        on_progress: Callable[[str], None] = lambda _text: None,
    ) -> None:
        try:
            self.plan = LabPlan(hosts=hosts, ranks_per_host=ranks_per_host, rails=rails, spares=spares, fabric=fabric)
        except ValueError as error:
            raise LabError(str(error)) from None
        self.started_in_s = 0.0
        self._given = directory
        self._on_progress = on_progress
        self._process: subprocess.Popen[bytes] | None = None
        self._keep = directory is not None
        self._directory = directory

    @property
    def directory(self) -> Path:
        if self._directory is None:
            raise LabError("the lab has not been started")
        return self._directory

    def start(self) -> None:
        """Raises LabError; then nothing is left behind but the logs that it names."""
        if problems := preflight():
            raise LabError("the lab cannot run here:\n" + "\n".join(f"- {problem}" for problem in problems))
        sweep()
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self._directory.mkdir(parents=True, exist_ok=True)
        inner = (sys.executable, "-m", "goodput_faultlab.lab.inside")
        with (self._directory / "lab.log").open("ab") as log:
            self._process = subprocess.Popen(
                (sys.executable, "-m", "goodput_faultlab.lab.enter", "--", *inner),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=bytecode.kept(os.environ),
                start_new_session=True,  # Ctrl-C goes to this process alone, which then closes the lab in order
            )
        plan = self.plan
        setup = Setup(
            directory=str(self._directory.resolve()),
            name=f"{os.getpid()}-{secrets.token_hex(2)}",
            hosts=plan.hosts,
            ranks_per_host=plan.ranks_per_host,
            rails=plan.rails,
            spares=plan.spares,
            fabric=plan.fabric,
        )
        try:
            self._tell(setup)
            report = self._hear()
        except BaseException:
            self.close()
            raise
        if not isinstance(report, Ready):
            self._keep = True
            self.close()
            raise LabError(self._explain(report))
        self.started_in_s = report.started_in_s

    def run(self, scenario: str, seed: int) -> LabResult:
        """One run; about half a minute. Raises LabError when the run could not be made (a wrong verdict is a result)."""
        if scenario not in SCENARIOS:
            raise LabError(f"there is no scenario {scenario!r}; there are {', '.join(SCENARIOS)}")
        self._tell(RunRequest(scenario=scenario, seed=seed))
        report = self._hear()
        if not isinstance(report, Finished):
            self._keep = True
            raise LabError(self._explain(report))
        if not report.result.correct:
            self._keep = True
        return report.result

    def close(self) -> None:
        """Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(BrokenPipeError):
                if process.stdin is not None:
                    process.stdin.close()
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.terminate()
                try:
                    process.wait(5.0)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if self._directory is not None and not self._keep:
            shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> LabSession:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _tell(self, message: msgspec.Struct) -> None:
        if self._process is None or self._process.stdin is None:
            raise LabError("the lab is not running")
        try:
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._keep = True
            raise LabError(self._explain(None)) from None

    def _hear(self) -> Ready | Finished | Failed | None:
        """The next report that is not mere progress; None when the lab has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            report = msgspec.json.decode(line, type=Report)
            if not isinstance(report, Progress):
                return report
            self._on_progress(report.text)
        return None

    def _explain(self, report: Report | None) -> str:
        reason = report.reason if isinstance(report, Failed) else "the lab has ended unexpectedly"
        log = self.directory / "lab.log"
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:]) if log.exists() else ""
        return f"{reason}\nlogs: {self.directory}" + (f"\nthe end of {log}:\n{tail}" if tail else "")


def run_scenario(
    name: str,
    seed: int,
    *,
    hosts: int = 4,
    ranks_per_host: int = 2,
    rails: int = 1,
    spares: int = 1,
    directory: Path | None = None,
    on_progress: Callable[[str], None] = lambda _text: None,
) -> LabResult:
    """One run in a lab of its own. Raises LabError."""
    with LabSession(
        hosts=hosts,
        ranks_per_host=ranks_per_host,
        rails=rails,
        spares=spares,
        directory=directory,
        on_progress=on_progress,
    ) as lab:
        return lab.run(name, seed)


def sweep() -> None:
    """Remove what a lab that was killed could not: frozen cgroups, temporary folders. Namespaces and processes are gone."""
    freezer.sweep()
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and os.access(folder, os.W_OK):
            shutil.rmtree(folder, ignore_errors=True)
