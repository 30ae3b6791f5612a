"""What a database error means for the caller: away (try the same again), refused (never), or a defect (raise)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from goodput_correlator.application.ports import StoreRefused, StoreUnavailable

# SQLSTATE classes: connection, rolled back to be retried, out of resources, stopped by an operator, system trouble.
_AWAY = frozenset({"08", "40", "53", "57", "58"})
# Data exceptions and violated constraints: the same values would fail for ever.
_NEVER = frozenset({"22", "23"})


def sqlstate(error: DBAPIError) -> str:
    """The five characters that Postgres sent, "" when the error did not come from the server."""
    seen: BaseException | None = error.orig
    while seen is not None:
        state = getattr(seen, "sqlstate", None)
        if isinstance(state, str):
            return state
        seen = seen.__cause__
    return ""


@contextmanager
def told_apart() -> Iterator[None]:
    """Turn driver errors into StoreUnavailable and StoreRefused; let defects through as they are."""
    try:
        yield
    except (OSError, PoolTimeout) as error:  # OSError includes refused and reset connections and time-outs
        raise StoreUnavailable(str(error) or type(error).__name__) from error
    except DBAPIError as error:
        state = sqlstate(error)
        if error.connection_invalidated or isinstance(error, InterfaceError) or state[:2] in _AWAY or not state:
            raise StoreUnavailable(f"{state} {error.orig}".strip()) from error
        if state[:2] in _NEVER:
            raise StoreRefused(f"Postgres {state}: {str(error.orig).splitlines()[0]}") from error
        raise
