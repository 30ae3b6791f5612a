"""One child process that serves from one directory: started, watched, stopped, killed, started again."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

LOG_BYTES_MAX = 16 << 20
_LAUNCHER = Path(__file__).with_name("launch.py")


def launched(
    command: Sequence[str], *, launcher_options: Sequence[str] = (), dies_by: signal.Signals | None = None
) -> list[str]:
    """`command` through the launcher: the kernel sends it `dies_by` when this process dies, also by kill -9."""
    options = list(launcher_options)
    if dies_by is not None:
        options += ["--die-with", str(os.getpid()), str(int(dies_by))]
    return [sys.executable, "-I", "-S", str(_LAUNCHER), *options, "--", *command]


class EmbeddedError(Exception):
    """An embedded server could not be started or stopped; the text says why and shows the end of its log."""


class DirectoryInUse(EmbeddedError):
    """Another process already serves from this directory."""


class DirectoryLock:
    """Keeps two owners out of one directory. The kernel lets go when the owner dies."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "lock"
        self._fd: int | None = None

    def acquire(self) -> None:
        if self._fd is not None:
            return
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise DirectoryInUse(
                f"{self._path.parent} is served by process {owner}; stop that one or use another directory"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        self._fd = fd

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class ServerProcess:
    """A running (or ended) child. Its output goes to `log_path`, cut anew at a start when larger than 16 MiB."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_path: Path,
        stop_signal: signal.Signals,
        launcher_options: Sequence[str] = (),
        die_with_parent: bool = True,
        cwd: Path | None = None,
    ) -> None:
        self.log_path = log_path
        self.stop_signal = stop_signal
        wrapped = launched(command, launcher_options=launcher_options, dies_by=stop_signal if die_with_parent else None)
        if log_path.exists() and log_path.stat().st_size > LOG_BYTES_MAX:
            log_path.unlink()
        with log_path.open("ab") as log:
            self._log_start = log.tell()
            # A session of its own: Ctrl-C must reach the owner first, which stops its servers last.
            self._popen = subprocess.Popen(
                wrapped,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=cwd,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._popen.poll()

    def log_tail(self, lines: int = 12) -> str:
        """The last lines that this run wrote."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return "\n".join(log.read()[-64_000:].decode(errors="replace").splitlines()[-lines:])

    async def ready(self, is_ready: Callable[[], bool], *, within_s: float, what: str) -> None:
        """Wait until `is_ready()`. Raises EmbeddedError when the process ends first or the time is up."""
        deadline = time.monotonic() + within_s
        while True:
            if not self.running:
                raise EmbeddedError(f"{what} ended with code {self.exit_code} at its start:\n{self.log_tail()}")
            if is_ready():
                return
            if time.monotonic() > deadline:
                self.kill()
                raise EmbeddedError(f"{what} was not ready within {within_s} s:\n{self.log_tail()}")
            await asyncio.sleep(0.01)

    def wait(self, *, within_s: float = 5.0) -> None:
        """Block until the process has ended; for commands of a few milliseconds."""
        try:
            self._popen.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise EmbeddedError(f"{self._popen.args!r} did not end within {within_s} s") from None

    async def ended(self, *, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while self.running:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.01)
        return True

    async def stop(self, *, within_s: float = 5.0) -> None:
        """Ask, then kill. Returns once the process is gone."""
        if self.running:
            self._popen.send_signal(self.stop_signal)
        if not await self.ended(within_s=within_s):
            self.kill()

    def kill(self) -> None:
        """kill -9, and wait until the process is gone."""
        if self.running:
            self._popen.kill()
        self._popen.wait(timeout=5)


def free_port(host: str) -> int:
    """A port that nobody uses now. Raises EmbeddedError where `host` cannot be listened on and reached."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.bind((host, 0))
            listener.listen(1)
            port = int(listener.getsockname()[1])
            with socket.create_connection((host, port), timeout=1.0):
                return port
    except OSError as error:
        hint = "; in a network namespace of its own, first `ip link set lo up`" if host.startswith("127.") else ""
        raise EmbeddedError(f"cannot listen on {host} and reach it: {error}{hint}") from error


def remembered_port(directory: Path, host: str, wanted: int | None) -> int:
    """The port of this directory: `wanted`, else the one of the last start, else a free one; kept in `directory/port`."""
    path = directory / "port"
    port = wanted or free_port(host)
    if wanted is None:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int(path.read_text())
    temporary = path.with_suffix(".new")
    temporary.write_text(str(port))
    temporary.replace(path)
    return port


def processes_working_in(directory: Path) -> Iterator[int]:
    """Pids whose working directory is `directory`: what a dead owner left running."""
    wanted = directory.resolve()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if (entry / "cwd").readlink() == wanted:
                    yield int(entry.name)


async def end_leftovers(directory: Path, stop_signal: signal.Signals, *, first: int | None = None) -> None:
    """End what an earlier owner left running in `directory`: politely, after 5 s by kill. `first` is asked, else all."""
    deadline = time.monotonic() + 5.0
    asked = False
    while leftovers := list(processes_working_in(directory)):
        if not asked:
            for pid in [first] if first in leftovers else leftovers:
                _signal(pid, stop_signal)
            asked = True
        elif time.monotonic() > deadline:
            for pid in leftovers:
                _signal(pid, signal.SIGKILL)
            deadline += 1.0
        await asyncio.sleep(0.02)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def pid_is_taken(pid: int) -> bool:
    """Whether `kill(pid, 0)` would find somebody, be it a zombie."""
    return Path(f"/proc/{pid}").exists()
