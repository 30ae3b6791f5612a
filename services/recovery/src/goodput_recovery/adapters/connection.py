"""Connections to Postgres, and its trouble in the words of the application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from goodput_common.store.lease import LeaseLost
from goodput_recovery.application.ports import NotLeading, StoreUnavailable

_AWAY = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, SQLAlchemyError)


@contextlib.contextmanager
def translated() -> Any:
    """Trouble with the database as StoreUnavailable. A broken promise of the schema (a constraint) is a bug, and stays."""
    try:
        yield
    except LeaseLost as error:
        raise NotLeading(str(error)) from error
    except sa.exc.IntegrityError:
        raise
    except _AWAY as error:
        raise StoreUnavailable(f"database: {type(error).__name__}: {error}") from error


@contextlib.asynccontextmanager
async def reading(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection for questions. Raises StoreUnavailable."""
    with translated():
        async with engine.connect() as connection:
            yield connection


@contextlib.asynccontextmanager
async def writing(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A transaction for what needs no lock. Raises StoreUnavailable."""
    with translated():
        async with engine.begin() as connection:
            yield connection


def plain(text: str) -> str:
    """A text column takes no NUL, and what others wrote may hold one."""
    return text.replace("\x00", "\ufffd")
