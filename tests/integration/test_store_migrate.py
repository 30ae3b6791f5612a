"""Migrations on a real Postgres: one schema a service, safe at simultaneous starts, nothing half done."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy.ext.asyncio import AsyncEngine

from goodput_common.runtime.lifecycle import StartError
from goodput_common.store.engine import create_engine
from goodput_common.store.inbox import inbox_table
from goodput_common.store.lease import lease_table
from goodput_common.store.migrate import upgrade
from goodput_common.store.outbox import outbox_table

FIRST = """
import sqlalchemy as sa
from alembic import op
revision, down_revision = "0001", None
def upgrade():
    op.create_table("things", sa.Column("id", sa.Integer, primary_key=True))
"""
SECOND = """
import sqlalchemy as sa
from alembic import op
revision, down_revision = "0002", "0001"
def upgrade():
    op.add_column("things", sa.Column("name", sa.Text))
"""
BROKEN = """
import sqlalchemy as sa
from alembic import op
revision, down_revision = "0003", "0002"
def upgrade():
    op.add_column("things", sa.Column("colour", sa.Text))
    op.execute("SELECT no_such_function()")
"""
SLOW_FIRST = FIRST + '    op.execute("SELECT pg_sleep(0.3)")\n'
SHARED = """
from goodput_common.store import tables
revision, down_revision = "0001", None
def upgrade():
    tables.create_outbox()
    tables.create_inbox()
    tables.create_lease()
"""


@pytest.fixture
async def engine(fresh_database: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(fresh_database)
    yield engine
    await engine.dispose()


@pytest.fixture
def scripts(tmp_path: Path) -> Callable[..., Path]:
    def write(*revisions: str, folder: str = "migrations") -> Path:
        versions = tmp_path / folder / "versions"
        versions.mkdir(parents=True, exist_ok=True)
        for number, text in enumerate(revisions, 1):
            (versions / f"{number:04}_revision.py").write_text(text)
        return tmp_path / folder

    return write


async def _columns(engine: AsyncEngine, schema: str) -> list[str]:
    async with engine.connect() as connection:
        query = "SELECT column_name FROM information_schema.columns WHERE table_schema = :schema AND table_name = 'things'"
        return sorted((await connection.execute(sa.text(query), {"schema": schema})).scalars())


async def test_pending_revisions_run_in_order_into_the_services_own_schema(
    engine: AsyncEngine, scripts: Callable[..., Path]
) -> None:
    assert await upgrade(engine, "", "one", scripts=scripts(FIRST)) == ("0001",)
    assert await upgrade(engine, "", "one", scripts=scripts(FIRST, SECOND)) == ("0002",)
    assert await upgrade(engine, "", "one", scripts=scripts(FIRST, SECOND)) == ()
    assert await _columns(engine, "one") == ["id", "name"]
    assert await _columns(engine, "public") == []


async def test_schemas_have_histories_of_their_own(engine: AsyncEngine, scripts: Callable[..., Path]) -> None:
    both = scripts(FIRST, SECOND)
    done = await asyncio.gather(*(upgrade(engine, "", schema, scripts=both) for schema in ("one", "two")))
    assert done == [("0001", "0002"), ("0001", "0002")]
    assert await _columns(engine, "one") == await _columns(engine, "two") == ["id", "name"]


async def test_replicas_that_start_at_once_run_each_revision_once(
    fresh_database: str, scripts: Callable[..., Path], tmp_path: Path
) -> None:
    """In processes of their own, as replicas are."""
    folder = scripts(SLOW_FIRST, SECOND)
    code = (
        "import asyncio, sys, pathlib\n"
        "from goodput_common.store.engine import create_engine\n"
        "from goodput_common.store.migrate import upgrade\n"
        "done = asyncio.run(upgrade(create_engine(sys.argv[1]), '', 'one', scripts=pathlib.Path(sys.argv[2])))\n"
        "print(','.join(done))\n"
    )
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, fresh_database, str(folder), stdout=asyncio.subprocess.PIPE
        )
        for _ in range(2)
    ]
    outputs = [(await process.communicate())[0].decode().strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(outputs) == ["", "0001,0002"]


async def test_a_revision_that_fails_leaves_nothing_behind_and_is_named(
    engine: AsyncEngine, scripts: Callable[..., Path]
) -> None:
    await upgrade(engine, "", "one", scripts=scripts(FIRST))
    with pytest.raises(StartError, match=r"one of 0002, 0003 failed and was rolled back.*no_such_function") as raised:
        await upgrade(engine, "", "one", scripts=scripts(FIRST, SECOND, BROKEN))
    assert raised.value.do_next
    assert await _columns(engine, "one") == ["id"]
    assert await upgrade(engine, "", "one", scripts=scripts(FIRST, SECOND, folder="mended")) == ("0002",)


async def test_a_database_newer_than_this_build_is_refused_and_left_alone(
    engine: AsyncEngine, scripts: Callable[..., Path]
) -> None:
    await upgrade(engine, "", "one", scripts=scripts(FIRST, SECOND))
    with pytest.raises(StartError, match="0002") as raised:
        await upgrade(engine, "", "one", scripts=scripts(FIRST, folder="older"))
    assert "at least as new" in raised.value.do_next
    assert await _columns(engine, "one") == ["id", "name"]


async def test_a_server_whose_backend_dies_in_mid_migration_is_as_before(
    engine: AsyncEngine, fresh_database: str, scripts: Callable[..., Path]
) -> None:
    killer = create_engine(fresh_database, application_name="killer")
    sleeping = FIRST + '    op.execute("SELECT pg_sleep(60)")\n'
    running = asyncio.create_task(upgrade(engine, "", "one", scripts=scripts(sleeping)))
    query = sa.text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid()"
    )
    for _ in range(500):
        async with killer.begin() as connection:
            if (await connection.execute(query)).first():
                break
        await asyncio.sleep(0.02)
    with pytest.raises(StartError, match="0001 failed"):
        await running
    assert await _columns(engine, "one") == []
    assert await upgrade(engine, "", "one", scripts=scripts(FIRST, folder="mended")) == ("0001",)
    await killer.dispose()


async def test_the_frozen_first_revision_makes_what_the_table_factories_describe(
    engine: AsyncEngine, scripts: Callable[..., Path]
) -> None:
    await upgrade(engine, "", "one", scripts=scripts(SHARED))
    metadata = sa.MetaData(schema="one")
    for factory in (outbox_table, inbox_table, lease_table):
        factory(metadata)

    def differences(connection: sa.Connection) -> list[object]:
        options = {
            "include_schemas": True,
            "version_table_schema": "one",
            "version_table": "schema_version",
            "compare_server_default": True,
            "include_name": lambda name, kind, _: kind != "schema" or name == "one",
        }
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))

    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_a_package_without_migrations_and_a_bad_schema_name_are_refused(engine: AsyncEngine) -> None:
    with pytest.raises(FileNotFoundError, match=r"adapters/migrations/versions is not a folder"):
        await upgrade(engine, "goodput_common", "one")
    with pytest.raises(ValueError, match="must match"):
        await upgrade(engine, "goodput_common", 'one"; DROP SCHEMA public; --')
