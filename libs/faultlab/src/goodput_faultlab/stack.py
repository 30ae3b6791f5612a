"""The whole of goodput on this machine: embedded NATS and Postgres, and the services as real processes.

`goodput up`, the demo, the lab and the fault tests all start it from here. Services are started as `python -m
goodput_<name>`, exactly as in a container, and told everything through the environment; this module imports none.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from goodput_common.embedded import EmbeddedNats, EmbeddedPostgres
from goodput_common.embedded.process import launched
from goodput_faultlab import bytecode

SERVICES = ("correlator", "recovery")
READY_WITHIN_S = 60.0
STOP_WITHIN_S = 12.0


class StackError(Exception):
    """A part did not come up; the message names it, shows the end of its log, and says where the log is."""


@dataclass
class ServiceProcess:
    name: str
    port: int
    log_path: Path
    environment: dict[str, str]
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None


@dataclass
class Stack:
    """`directory` holds data and logs. `nats_host` is the address that the bus listens on (the lab's management network)."""

    directory: Path
    fabric: str = "default"
    nats_host: str = "127.0.0.1"
    services: tuple[str, ...] = SERVICES
    settings: Mapping[str, str] = field(default_factory=dict)
    operator_token: str = field(default_factory=lambda: secrets.token_hex(16))
    ports: Mapping[str, int] = field(default_factory=dict)
    on_progress: Callable[[str], None] = lambda _text: None

    def __post_init__(self) -> None:
        self.nats = EmbeddedNats(self.directory / "nats", host=self.nats_host)
        self.postgres = EmbeddedPostgres(self.directory / "postgres")
        self._services: dict[str, ServiceProcess] = {}

    def service(self, name: str) -> ServiceProcess:
        return self._services[name]

    async def start(self) -> None:
        """Start everything and wait until each service says ready. Raises StackError; what was started is stopped again."""
        (self.directory / "logs").mkdir(parents=True, exist_ok=True)
        try:
            self.on_progress("starting NATS and Postgres")
            await asyncio.gather(self.nats.start(), self.postgres.start())
            self.on_progress("starting " + " and ".join(self.services))
            await asyncio.gather(*(self.start_service(name) for name in self.services))
        except BaseException:
            await self.stop()
            raise

    async def start_service(self, name: str) -> None:
        """Start one service (again, on the same port) and wait until it is ready."""
        service = self._services.get(name)
        if service is None:
            port = self.ports.get(name) or _free_port()
            service = ServiceProcess(name, port, self.directory / "logs" / f"{name}.log", self._environment(port))
            self._services[name] = service
        with service.log_path.open("ab") as log:
            command = launched((sys.executable, "-m", f"goodput_{name}"), dies_by=signal.SIGTERM)
            service.process = await asyncio.create_subprocess_exec(
                *command, env=service.environment, stdout=log, stderr=log, start_new_session=True
            )
        await self._ready(service)

    def kill_service(self, name: str) -> None:
        """kill -9, as the fault tests do."""
        process = self._services[name].process
        if process is not None and process.returncode is None:
            process.send_signal(signal.SIGKILL)

    async def stop(self) -> None:
        """SIGTERM to the services, then the servers."""
        self.on_progress("stopping")
        await asyncio.gather(*(self._stop_service(service) for service in self._services.values()))
        await asyncio.gather(self.nats.stop(), self.postgres.stop(), return_exceptions=True)

    def environment(self) -> dict[str, str]:
        """What any goodput process needs in its environment to take part."""
        return {
            **bytecode.kept(os.environ),
            "GOODPUT_FABRIC": self.fabric,
            "GOODPUT_NATS_URL": self.nats.url,
            "GOODPUT_LOG_JSON": "true",
            **self.settings,
        }

    def _environment(self, port: int) -> dict[str, str]:
        return {
            **self.environment(),
            "GOODPUT_DATABASE_URL": self.postgres.url,
            "GOODPUT_HTTP_HOST": "127.0.0.1",
            "GOODPUT_HTTP_PORT": str(port),
            "GOODPUT_API_TOKENS": json.dumps({self.operator_token: {"role": "operator", "name": "local"}}),
        }

    async def _ready(self, service: ServiceProcess) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_WITHIN_S
        while loop.time() < deadline:
            if not service.running:
                raise StackError(self._failure(service, "ended while starting"))
            if await asyncio.to_thread(_answers_200, f"{service.url}/readyz"):
                return
            await asyncio.sleep(0.1)
        raise StackError(self._failure(service, f"was not ready within {READY_WITHIN_S:.0f} s"))

    def _failure(self, service: ServiceProcess, what: str) -> str:
        tail = "\n".join(service.log_path.read_text(errors="replace").splitlines()[-15:])
        return f"{service.name} {what}; the end of {service.log_path}:\n{tail}"

    async def _stop_service(self, service: ServiceProcess) -> None:
        process = service.process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_WITHIN_S)
        except TimeoutError:
            self.on_progress(f"{service.name} did not stop within {STOP_WITHIN_S:.0f} s: killing it")
            process.kill()
            await process.wait()


def _answers_200(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
