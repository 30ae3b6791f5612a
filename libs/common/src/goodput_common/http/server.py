"""uvicorn as a part of our own lifecycle: it takes no signals, ends streams, and answers what it has accepted.

`start` binds the socket itself, so that a taken port is a clear error and port 0 works. `stop_pulling` closes the listening
socket and ends event streams; `drain` waits for the requests in hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI

from goodput_common.http.listen import listen
from goodput_common.runtime.lifecycle import Part, StartError
from goodput_common.runtime.logs import get_logger
from goodput_common.runtime.tasks import Tasks, stop_task

_log = get_logger(__name__)
_CONNECTIONS_MAX = 1000  # beyond it uvicorn answers 503 at once
_DRAIN_S = 4


class _Server(uvicorn.Server):
    """The lifecycle owns the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer(Part):
    """Serves `app` on `host`:`port`; `url` is known once started."""

    name = "http server"

    def __init__(self, app: FastAPI, *, host: str, port: int, tasks: Tasks) -> None:
        self._app, self._host, self._port, self._tasks = app, host, port, tasks
        self._server: _Server | None = None
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[Any] | None = None

    @property
    def port(self) -> int:
        """The real one, also where 0 was asked for, and also when it is no longer listened on."""
        return self._port

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    async def start(self) -> None:
        self._socket = listen(self._host, self._port)
        self._port = int(self._socket.getsockname()[1])
        config = uvicorn.Config(
            self._app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            limit_concurrency=_CONNECTIONS_MAX,
            timeout_graceful_shutdown=_DRAIN_S,
        )
        self._server = _Server(config)
        self._task = self._tasks.spawn(self.name, self._server.serve(sockets=[self._socket]))
        while not self._server.started and not self._task.done():  # noqa: ASYNC110 - uvicorn has a flag, no event
            await asyncio.sleep(0.01)
        if self._task.done():
            raise StartError("the HTTP server ended while starting", do_next="see the task's traceback in the log")
        _log.info("serving", url=self.url)

    async def stop_pulling(self) -> None:
        self._app.state.stopping = True
        for end_streams in self._app.state.on_stop:
            end_streams()
        if self._server is not None:
            self._server.should_exit = True

    async def drain(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        await stop_task(self._task)
        if self._socket is not None:
            self._socket.close()
