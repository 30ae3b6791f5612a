"""Migrations: each service owns one schema and brings it up to date itself, at its start.

The revisions are Alembic's, packaged inside the service as `<package>/adapters/migrations/versions/*.py`; there is no
`env.py` and no `alembic.ini`, this module is both. All pending revisions run in one transaction under an advisory lock:
replicas that start together queue up, and a failed revision leaves nothing behind. Inside a revision the search path is the
schema, so tables need no prefix.
"""

from __future__ import annotations

import asyncio
import re
import weakref
from importlib.resources import files
from pathlib import Path

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext, RevisionStep
from alembic.script import ScriptDirectory
from alembic.script.revision import ResolutionError
from alembic.util.exc import CommandError
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

from goodput_common.runtime.lifecycle import Part, StartError
from goodput_common.runtime.logs import get_logger
from goodput_common.store.locks import lock_key
from goodput_common.store.wait import wait_for_database

_log = get_logger(__name__)
_SCHEMA = re.compile(r"^[a-z][a-z0-9_]{0,39}$")
_LOCK_WAIT_S = 120

# Alembic's `op` is a module-level proxy: two migrations of one process must not run into each other at an await.
_in_process: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()


async def upgrade(
    engine: AsyncEngine, package: str, schema: str, *, wait_s: float = 60.0, scripts: Path | None = None
) -> tuple[str, ...]:
    """Create `schema` where it is missing and run its pending revisions; returns their ids, oldest first.

    Waits up to `wait_s` for a server that is still starting. Raises StartError when the server does not come, the schema is
    newer than this build, or a revision fails. `scripts` overrides the folder (tests).
    """
    if not _SCHEMA.match(schema):
        raise ValueError(f"schema name {schema!r} must match {_SCHEMA.pattern}")
    script = _script_directory(scripts or migrations_folder(package))
    await wait_for_database(engine, within_s=wait_s)
    lock = _in_process.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    async with lock, engine.connect() as connection, connection.begin():
        await connection.execute(text(f"SET LOCAL statement_timeout = '{_LOCK_WAIT_S}s'"))
        await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": lock_key("migrate", schema)})
        await connection.execute(text("SET LOCAL statement_timeout = 0"))
        await connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{schema}"'))
        await connection.execute(text(f'SET LOCAL search_path TO "{schema}", public'))
        done = await connection.run_sync(_run, script, schema)
    if done:
        _log.info("schema upgraded", schema=schema, revisions=list(done))
    return done


class MigrationsPart(Part):
    """Brings a service's schema up to date before anything uses it."""

    name = "migrations"

    def __init__(self, engine: AsyncEngine, package: str, schema: str) -> None:
        self._engine, self._package, self._schema = engine, package, schema

    async def start(self) -> None:
        await upgrade(self._engine, self._package, self._schema)


def migrations_folder(package: str) -> Path:
    """Where the revisions of a service are."""
    return Path(str(files(package))) / "adapters" / "migrations"


def _script_directory(folder: Path) -> ScriptDirectory:
    if not (folder / "versions").is_dir():
        raise FileNotFoundError(f"no migrations: {folder / 'versions'} is not a folder")
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


def _run(connection: Connection, script: ScriptDirectory, schema: str) -> tuple[str, ...]:
    done: list[str] = []

    def pending(current: tuple[str, ...], _: MigrationContext) -> list[RevisionStep]:
        steps = script._upgrade_revs("head", current)  # type: ignore[arg-type]  # as `alembic upgrade` does
        done.extend(step.revision.revision for step in steps)
        return list(steps)

    with EnvironmentContext(Config(), script, fn=pending, destination_rev="head") as environment:
        environment.configure(
            connection=connection, version_table="schema_version", version_table_schema=schema, transactional_ddl=True
        )
        try:
            environment.run_migrations()
        except (CommandError, ResolutionError) as error:
            raise StartError(
                f"schema {schema!r}: {error}",
                do_next="run a build at least as new as the one that migrated this database, or restore an older backup",
            ) from error
        except Exception as error:
            failed = done[-1] if len(done) == 1 else f"one of {', '.join(done)}"
            raise StartError(
                f"schema {schema!r}: revision {failed} failed and was rolled back: {error}",
                do_next="the schema is as it was; mend the cause named in the error and start again",
            ) from error
    return tuple(done)
