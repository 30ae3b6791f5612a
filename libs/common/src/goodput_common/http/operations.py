"""`/healthz`, `/readyz` and `/metrics` of a process that serves nothing else, from the standard library alone.

A collector runs beside somebody's training job on every host. A web framework there costs ten megabytes and a timer that
ticks ten times a second, for three pages that a probe fetches now and then. This server has a thread that sleeps until
somebody connects. The pages are those of `http.api`, to the letter of their JSON.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
from concurrent.futures import TimeoutError as FutureTimeout
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from goodput_common.http.listen import listen
from goodput_common.runtime.health import Health
from goodput_common.runtime.lifecycle import Part
from goodput_common.runtime.logs import get_logger
from goodput_common.runtime.metrics import Metrics

AT_ONCE_MAX = 16  # connections; beyond it the newest is closed unanswered
REQUEST_WITHIN_S = 5.0
REPORT_WITHIN_S = 10.0
ACCEPT_AGAIN_S = 1.0  # after an accept that failed: who waits goes on waiting, and polling would find him at once
JSON, PROBLEM = "application/json", "application/problem+json"

_log = get_logger(__name__)


class OperationsServer(Part):
    """Serves on `host`:`port`; `url` is known once started."""

    name = "http server"

    def __init__(self, *, health: Health, metrics: Metrics, host: str, port: int) -> None:
        self._health, self._metrics, self._host, self._port = health, metrics, host, port
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._stop_read = self._stop_write = -1

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    async def start(self) -> None:
        """Raises StartError for an address that cannot be listened on."""
        listening = listen(self._host, self._port)
        self._port = int(listening.getsockname()[1])
        self._server = _Server(listening, self._health, self._metrics, asyncio.get_running_loop())
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._serve, name=self.name, daemon=True)
        self._thread.start()
        _log.info("serving", url=self.url)

    def _serve(self) -> None:
        """Sleeps until somebody connects or it is to stop: `serve_forever` would look twice a second."""
        assert self._server is not None
        poll = select.poll()
        poll.register(self._server.socket, select.POLLIN)
        poll.register(self._stop_read, select.POLLHUP)
        while not any(fd == self._stop_read for fd, _ in poll.poll()):
            self._server.accept_failed = False
            self._server.handle_request()
            if self._server.accept_failed and self._pause():
                break
        self._server.socket.close()  # from here on a connection is refused
        os.close(self._stop_read)

    def _pause(self) -> bool:
        """Whether it is to stop meanwhile."""
        poll = select.poll()
        poll.register(self._stop_read, select.POLLHUP)
        return bool(poll.poll(ACCEPT_AGAIN_S * 1000))

    async def stop_pulling(self) -> None:
        if self._stop_write >= 0:
            os.close(self._stop_write)
            self._stop_write = -1
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    async def close(self) -> None:
        await self.stop_pulling()
        if self._server is not None:
            self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    timeout = 0.0  # of `handle_request`: who connected has gone already

    def __init__(self, listening: socket.socket, health: Health, metrics: Metrics, loop: asyncio.AbstractEventLoop) -> None:
        self.address_family = listening.family
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        listening.setblocking(True)
        self.socket = listening
        self.health, self.metrics, self.loop = health, metrics, loop
        self.accept_failed = False
        self._free = threading.BoundedSemaphore(AT_ONCE_MAX)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return self.socket.accept()
        except OSError:  # no descriptor left
            self.accept_failed = True
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is nothing to report."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_WITHIN_S
    server_version, sys_version = "goodput", ""
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        pages = {"/healthz": self._alive, "/readyz": self._ready, "/metrics": self._exposition}
        page = pages.get(path)
        if page is None:
            self._problem(404, f"nothing is served at this path; there are {', '.join(pages)}")
            return
        page()

    do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

    def _alive(self) -> None:
        self._answer(200, msgspec.json.encode({"status": "alive", "phase": self.server.health.phase}), JSON)

    def _ready(self) -> None:
        asked = asyncio.run_coroutine_threadsafe(self.server.health.report(), self.server.loop)
        try:
            report = asked.result(REPORT_WITHIN_S)
        except FutureTimeout:
            asked.cancel()
            self._problem(503, f"no answer from the service within {REPORT_WITHIN_S:g} s", kind="not-ready")
            return
        if report.ready:
            self._answer(200, msgspec.json.encode(report), JSON)
        else:
            self._problem(503, report.reason, kind="not-ready", checks=report.checks)

    def _exposition(self) -> None:
        self._answer(200, *self.server.metrics.render())

    def _problem(self, status: int, detail: str, *, kind: str = "", **extra: Any) -> None:
        body = {
            "type": f"urn:goodput:problem:{kind}" if kind else "about:blank",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": detail,
            "instance": self.path.partition("?")[0],
        }
        self._answer(status, msgspec.json.encode(body | extra), PROBLEM)

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Probes come every few seconds: not logged."""
