"""The embedded Postgres: starts as root and not, keeps its address and data, survives kill -9, leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from goodput_common.embedded import EmbeddedError, EmbeddedPostgres
from goodput_common.embedded import postgres as module


async def query(url: str, sql: str) -> object:
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


async def fill(url: str) -> None:
    await query(url, "create table t as select generate_series(1, 100) as x")


async def test_committed_rows_survive_kill_9_on_the_same_address(tmp_path: Path) -> None:
    async with EmbeddedPostgres(tmp_path) as server:
        url, pid = server.url, server.pid
        await fill(url)
        os.kill(pid, signal.SIGKILL)
        await server.restart()
        assert server.url == url
        assert server.pid != pid
        assert await query(url, "select count(*) from t") == 100


async def test_it_stops_cleanly_and_starts_again_with_its_data(tmp_path: Path) -> None:
    async with EmbeddedPostgres(tmp_path, fsync=False) as server:
        url = server.url
        await fill(url)
    assert "database system is shut down" in (tmp_path / "postgres.log").read_text()
    async with EmbeddedPostgres(tmp_path, fsync=False) as server:
        assert server.url == url
        assert await query(url, "select count(*) from t") == 100
    assert "not properly shut down" not in (tmp_path / "postgres.log").read_text()


async def test_the_password_is_needed_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    async with EmbeddedPostgres(tmp_path, fsync=False) as server:
        assert (tmp_path / "password").stat().st_mode & 0o077 == 0
        wrong = server.url.replace((tmp_path / "password").read_text(), "wrong")
        with pytest.raises(asyncpg.InvalidPasswordError):
            await query(wrong, "select 1")


async def test_an_initdb_that_was_killed_is_done_again(tmp_path: Path) -> None:
    (tmp_path / "data.new").mkdir()
    (tmp_path / "data.new" / "PG_VERSION").write_text("18")
    async with EmbeddedPostgres(tmp_path, fsync=False) as server:
        assert await query(server.url, "select 1") == 1


async def test_a_pid_file_whose_pid_now_belongs_to_somebody_else_does_not_stop_it(tmp_path: Path) -> None:
    async with EmbeddedPostgres(tmp_path, fsync=False) as server:
        await fill(server.url)
        server.kill()
        pid_file = tmp_path / "data" / "postmaster.pid"
        lines = pid_file.read_text().splitlines()
        pid_file.write_text("\n".join([str(os.getppid()), *lines[1:]]) + "\n")
        await server.restart()
        assert await query(server.url, "select count(*) from t") == 100


async def test_a_port_in_use_is_an_error_that_shows_the_log(tmp_path: Path) -> None:
    async with EmbeddedPostgres(tmp_path / "a", fsync=False) as first:
        second = EmbeddedPostgres(tmp_path / "b", port=first.port, fsync=False)
        with pytest.raises(EmbeddedError, match="Address already in use"):
            await second.start()


def anyone_may_enter(path: Path) -> bool:
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in path.absolute().parents)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.skipif(
    not anyone_may_enter(Path(sys.executable)), reason="this project lies below a folder that only root may enter"
)
async def test_root_without_user_namespaces_runs_it_as_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_user_namespaces_work", lambda scratch: False)
    base = Path("/var/tmp") / f"goodput-test-{os.getpid()}"  # tmp_path lies below a folder that only root may enter
    try:
        async with EmbeddedPostgres(base, fsync=False) as server:
            assert await query(server.url, "select 1") == 1
            assert (await asyncio.to_thread(Path(f"/proc/{server.pid}").stat)).st_uid != 0
            server.kill()
            await server.restart()
            assert await query(server.url, "select 1") == 1
        monkeypatch.undo()  # the directory now belongs to nobody, and stays with it
        async with EmbeddedPostgres(base, fsync=False) as server:
            assert await query(server.url, "select 1") == 1
    finally:
        shutil.rmtree(base, ignore_errors=True)


INSIDE = """
import asyncio, sys, asyncpg
from goodput_common.embedded import EmbeddedNats, EmbeddedPostgres
async def main():
    async with EmbeddedNats(sys.argv[1] + "/nats"), EmbeddedPostgres(sys.argv[1] + "/pg", fsync=False) as pg:
        connection = await asyncpg.connect(pg.url.replace("+asyncpg", ""))
        print(await connection.fetchval("select 40 + 2"))
        await connection.close()
asyncio.run(main())
"""


def in_namespace(directory: Path, before: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-Urnm", "true"], check=False).returncode:
        pytest.skip("user namespaces are not allowed here")
    script = f'{before} exec "$0" -c "$1" "$2"'
    command = ["unshare", "-Urnm", "sh", "-c", script, sys.executable, INSIDE, str(directory)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)


@pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2")
def test_it_runs_inside_a_user_and_network_namespace(tmp_path: Path) -> None:
    done = in_namespace(tmp_path, "ip link set lo up &&")
    assert done.stdout.strip() == "42", done.stderr


def test_a_network_namespace_without_loopback_says_what_to_do(tmp_path: Path) -> None:
    done = in_namespace(tmp_path, "")
    assert done.returncode != 0
    assert "ip link set lo up" in done.stderr
