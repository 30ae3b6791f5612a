"""What embedded servers have in common: one process that serves from one directory on one port, of which there is one owner.

A subclass says how its process is made and when it is ready (`_start`); starting, stopping, killing and starting again on
the same address and data are the same for all.
"""

from __future__ import annotations

import abc
from pathlib import Path
from typing import ClassVar, Self

from goodput_common.embedded.process import DirectoryLock, EmbeddedError, ServerProcess, remembered_port


class EmbeddedServer(abc.ABC):
    """One server in `directory`. Without `port` it takes a free one and keeps it across starts."""

    kind: ClassVar[str]
    stop_within_s: ClassVar[float] = 5.0

    def __init__(self, directory: Path | str, *, host: str, port: int | None, die_with_parent: bool) -> None:
        self.directory = Path(directory).resolve()
        self.host = host
        self._wanted_port = port
        self._die_with_parent = die_with_parent
        self._lock: DirectoryLock | None = None
        self._process: ServerProcess | None = None
        self._port: int | None = None

    @property
    def port(self) -> int:
        if self._port is None:
            raise EmbeddedError(f"this {self.kind} server has not been started: it has no port yet")
        return self._port

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """Where clients connect to."""

    @property
    def pid(self) -> int:
        if self._process is None:
            raise EmbeddedError(f"this {self.kind} server has not been started: it has no pid")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    async def start(self) -> None:
        """Returns once clients can connect. Raises EmbeddedError; then nothing runs and the directory is free again."""
        if self.running:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._lock is None:
            self._lock = DirectoryLock(self.directory)
        self._lock.acquire()
        try:
            await self._end_earlier_run()
            self._port = remembered_port(self.directory, self.host, self._wanted_port)
            await self._start()
        except BaseException:
            await self.stop()
            raise

    @abc.abstractmethod
    async def _end_earlier_run(self) -> None:
        """End what a dead owner left running in the directory."""

    @abc.abstractmethod
    async def _start(self) -> None:
        """Set `_process` and wait until it is ready. The port is known, the directory is ours."""

    async def stop(self) -> None:
        """Stop the server and let go of the directory; the data stays."""
        if self._process is not None:
            await self._process.stop(within_s=self.stop_within_s)
        if self._lock is not None:
            self._lock.release()

    def kill(self) -> None:
        """kill -9 the server's process, as a crash would."""
        if self._process is not None:
            self._process.kill()

    async def restart(self) -> None:
        """Start again after `kill()` (or stop and start), on the same address and data."""
        if self.running and self._process is not None:
            await self._process.stop(within_s=self.stop_within_s)
        await self.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
