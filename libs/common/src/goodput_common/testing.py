"""Pytest fixtures: a real NATS and a real Postgres, from the environment, Docker or the embedded binaries.

`nats_url` and `postgres_url` give one server for the whole session of a process (each xdist worker has its own). Where they
come from, first match wins: GOODPUT_TEST_NATS_URL / GOODPUT_TEST_DATABASE_URL; the embedded binaries, which start in about a
second and are the same on every machine; Docker. GOODPUT_TEST_DOCKER=1 puts Docker before the binaries. Docker is used only
when an engine answers and already has an image named `nats` / `postgres`: nothing is pulled. Tests are kept apart by
`fresh_database`, a new empty database each, and by `clean_streams`, a server without streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import importlib
import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import pytest

from goodput_common.embedded import EmbeddedError, EmbeddedNats, EmbeddedPostgres
from goodput_common.embedded.nats import nats_server_binary
from goodput_common.embedded.postgres import postgres_binaries

NATS_URL_ENV = "GOODPUT_TEST_NATS_URL"
DATABASE_URL_ENV = "GOODPUT_TEST_DATABASE_URL"
DOCKER_ENV = "GOODPUT_TEST_DOCKER"

_T = TypeVar("_T")
_database_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a NATS server with JetStream."""
    given = os.environ.get(NATS_URL_ENV)
    if given:
        yield given
    elif image := _docker_image("nats", instead_of=nats_server_binary):
        yield from _in_docker(image, 4222, "nats://{address}", command="-js")
    else:
        server = EmbeddedNats(tmp_path_factory.mktemp("nats"))
        _run(server.start)
        yield server.url
        _run(server.stop)


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Postgres server, as SQLAlchemy with asyncpg takes it; the user may create databases."""
    given = os.environ.get(DATABASE_URL_ENV)
    if given:
        yield given
    elif image := _docker_image("postgres", instead_of=postgres_binaries):
        url = "postgresql+asyncpg://postgres:postgres@{address}/postgres"
        yield from _in_docker(image, 5432, url, environment={"POSTGRES_PASSWORD": "postgres"})
    else:
        server = EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), fsync=False)
        _run(server.start)
        yield server.url
        _run(server.stop)


@pytest.fixture
async def fresh_database(postgres_url: str) -> AsyncIterator[str]:
    """Address of a new, empty database; dropped after the test, also with connections open."""
    import asyncpg

    name = f"test_{os.getpid()}_{next(_database_numbers)}"
    admin_dsn = postgres_url.replace("postgresql+asyncpg", "postgresql", 1)
    admin = await _once_up(lambda: asyncpg.connect(admin_dsn))
    try:
        await admin.execute(f'CREATE DATABASE "{name}"')
        parts = urlsplit(postgres_url)
        yield urlunsplit(parts._replace(path=f"/{name}"))
        await admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
    finally:
        await admin.close()


@pytest.fixture
async def clean_streams(nats_url: str) -> AsyncIterator[str]:
    """Address of the NATS server, with all its streams (and so consumers) deleted before the test.

    A server given by the environment is shared by all xdist workers, so the tests that use it take turns.
    """
    from goodput_common.bus.provision import delete_all_streams

    with _turn(nats_url):
        await _once_up(lambda: delete_all_streams(nats_url))
        yield nats_url


@contextlib.contextmanager
def _turn(url: str) -> Iterator[None]:
    if NATS_URL_ENV not in os.environ or "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    name = hashlib.sha256(url.encode()).hexdigest()[:16]
    with (Path(tempfile.gettempdir()) / f"goodput-test-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(action: Callable[[], Awaitable[None]]) -> None:
    """Run to the end in a loop of its own, leaving pytest-asyncio's alone."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(_coroutine(action))
    finally:
        loop.close()


async def _coroutine(action: Callable[[], Awaitable[None]]) -> None:
    await action()


async def _once_up(action: Callable[[], Awaitable[_T]], *, attempts: int = 300) -> _T:
    """A container listens before it serves: try again for a minute."""
    for _ in range(attempts - 1):
        try:
            return await action()
        except (OSError, TimeoutError, ConnectionError):
            await asyncio.sleep(0.2)
    return await action()


def _docker_image(name: str, *, instead_of: Callable[[], Path]) -> str | None:
    """A local image of repository `name`, when an engine answers and it is wanted or the binaries are not there."""
    if os.environ.get(DOCKER_ENV, "") in ("", "0"):
        with contextlib.suppress(EmbeddedError):
            instead_of()
            return None
    if not Path("/var/run/docker.sock").exists() and "DOCKER_HOST" not in os.environ:
        return None
    try:
        docker: Any = importlib.import_module("docker")
    except ImportError:
        return None
    try:
        images: list[Any] = docker.from_env(timeout=5).images.list(name=name)
    except docker.errors.DockerException:
        return None
    tags = sorted(tag for image in images for tag in image.tags if tag.startswith(f"{name}:"))
    return tags[-1] if tags else None


def _in_docker(
    image: str, port: int, url: str, *, command: str = "", environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    # The reaper's image is not here, and containers end with their context anyway.
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    containers: Any = importlib.import_module("testcontainers.core.container")
    container = containers.DockerContainer(image).with_exposed_ports(port)
    if command:
        container = container.with_command(command)
    for key, value in (environment or {}).items():
        container = container.with_env(key, value)
    with container as running:
        yield url.format(address=f"{running.get_container_host_ip()}:{running.get_exposed_port(port)}")
