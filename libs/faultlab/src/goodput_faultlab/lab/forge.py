"""The lab's side of the fork server: start ranks, hear of their ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from goodput_faultlab.lab.forkserver import Ended, Ready, Report, Started, StartRank

READY_WITHIN_S = 120.0
STARTED_WITHIN_S = 20.0


class ForgeError(RuntimeError):
    """The fork server did not come up or has died; the text says where its log is."""


class RankForge:
    """`on_end(pid, exit code)` is called in the loop for every rank that ends."""

    def __init__(self, log: Path, on_end: Callable[[int, int], None]) -> None:
        self._log = log
        self._on_end = on_end
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._started: dict[int, asyncio.Future[int]] = {}

    async def start(self, namespaces: Iterable[int]) -> None:
        """Returns at once; `ready` waits until torch is loaded."""
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with theirs, self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "goodput_faultlab.lab.forkserver", str(theirs.fileno())),
                pass_fds=(theirs.fileno(), *namespaces),
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._reading = asyncio.create_task(self._read(reader), name="lab-fork-server")

    async def ready(self) -> None:
        """Raises ForgeError."""
        assert self._reading is not None
        waiting = asyncio.create_task(self._ready.wait())
        await asyncio.wait({waiting, self._reading}, timeout=READY_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.is_set():
            waiting.cancel()
            raise ForgeError(f"the fork server did not load torch within {READY_WITHIN_S:.0f} s; see {self._log}")

    async def launch(self, request: StartRank) -> int:
        """Start one rank; its pid. Raises ForgeError."""
        if self._writer is None or self._reading is None or self._reading.done():
            raise ForgeError(f"the fork server is gone; see {self._log}")
        started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._started[request.spec.rank] = started
        self._writer.write(msgspec.json.encode(request) + b"\n")
        await self._writer.drain()
        try:
            return await asyncio.wait_for(started, STARTED_WITHIN_S)
        except TimeoutError:
            raise ForgeError(f"rank {request.spec.rank} was not started; see {self._log}") from None

    async def stop(self) -> None:
        """Ends the ranks too."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()
        if self._writer is not None:
            self._writer.close()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            report = msgspec.json.decode(line, type=Report)
            if isinstance(report, Ready):
                self._ready.set()
            elif isinstance(report, Started):
                if (waiting := self._started.pop(report.rank, None)) is not None and not waiting.done():
                    waiting.set_result(report.pid)
            elif isinstance(report, Ended):
                self._on_end(report.pid, report.status)
