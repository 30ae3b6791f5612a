"""The embedded NATS server: starts, keeps its address and data, survives kill -9, leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nats
import pytest

from goodput_common.embedded import EmbeddedError, EmbeddedNats
from goodput_common.embedded.process import processes_working_in


async def stored(url: str) -> int:
    client = await nats.connect(url)
    try:
        return (await client.jetstream().stream_info("S")).state.messages
    finally:
        await client.close()


async def store(url: str, count: int) -> None:
    client = await nats.connect(url)
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    for _ in range(count):
        await js.publish("s", b"x")
    await client.close()


async def test_it_starts_where_clients_find_jetstream(tmp_path: Path) -> None:
    async with EmbeddedNats(tmp_path) as server:
        await store(server.url, 1)
        assert await stored(server.url) == 1


@pytest.mark.parametrize("sync_always", [False, True])
async def test_what_was_acknowledged_survives_kill_9_on_the_same_address(tmp_path: Path, sync_always: bool) -> None:
    async with EmbeddedNats(tmp_path, sync_always=sync_always) as server:
        url, pid = server.url, server.pid
        await store(url, 20)
        os.kill(pid, signal.SIGKILL)
        await server.restart()
        assert server.url == url
        assert server.pid != pid
        assert await stored(url) == 20


async def test_a_new_owner_of_the_directory_gets_the_address_and_the_data(tmp_path: Path) -> None:
    async with EmbeddedNats(tmp_path) as first:
        url = first.url
        await store(url, 3)
    async with EmbeddedNats(tmp_path) as second:
        assert second.url == url
        assert await stored(url) == 3


async def test_a_directory_in_use_is_refused_with_its_owner(tmp_path: Path) -> None:
    async with EmbeddedNats(tmp_path):
        with pytest.raises(EmbeddedError, match=f"served by process {os.getpid()}"):
            await EmbeddedNats(tmp_path).start()


async def test_a_taken_port_is_an_error_that_shows_the_log(tmp_path: Path) -> None:
    async with EmbeddedNats(tmp_path / "a") as first:
        second = EmbeddedNats(tmp_path / "b", port=first.port)
        with pytest.raises(EmbeddedError, match="address already in use"):
            await second.start()
        assert not second.running


async def test_a_bad_configuration_is_an_error_that_shows_the_log(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"nats\.conf"):
        await EmbeddedNats(tmp_path, extra_config="no_such_option: 1").start()


async def test_extra_configuration_can_name_users(tmp_path: Path) -> None:
    users = 'authorization { users: [ {user: "a", password: "b"} ] }'
    async with EmbeddedNats(tmp_path, extra_config=users) as server:
        client = await nats.connect(server.url, user="a", password="b")
        assert client.is_connected
        await client.close()
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            await nats.connect(server.url, user="a", password="wrong", allow_reconnect=False, max_reconnect_attempts=1)


OWNER = """
import asyncio, sys
from goodput_common.embedded import EmbeddedNats
async def main():
    server = EmbeddedNats(sys.argv[1], die_with_parent=sys.argv[2] == "yes")
    await server.start()
    print(server.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def start_owner(directory: Path, die_with_parent: str) -> tuple[subprocess.Popen[str], int]:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(directory), die_with_parent], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    return owner, int(owner.stdout.readline())


def gone(pid: int) -> bool:
    """Ended, be it as a zombie that nobody has collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    while not gone(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.02)


def test_no_server_outlives_a_killed_owner(tmp_path: Path) -> None:
    owner, pid = start_owner(tmp_path, "yes")
    owner.kill()
    owner.wait()
    wait_until_gone(pid)


async def test_a_server_left_behind_is_ended_by_the_next_owner(tmp_path: Path) -> None:
    owner, pid = start_owner(tmp_path, "no")
    owner.kill()
    owner.wait()
    assert not gone(pid)
    async with EmbeddedNats(tmp_path) as server:
        assert gone(pid)
        assert server.pid != pid
        await store(server.url, 1)
    assert list(processes_working_in(tmp_path / "server")) == []
