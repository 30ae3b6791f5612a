"""The promise that the agent never raises into user code, kept in one place.

Every public entry runs under `harmless`. A failure is logged once, again when it changes, and counted; repeats are silent.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("goodput.agent")


def said(error: BaseException) -> str:
    """`Type: text` of somebody's exception, whose text may itself fail to be made."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - a broken __str__ is the user's; the type still says something
        return type(error).__name__


class Complaints:
    """Logs a failure when it is new or has changed, and when it is over."""

    def __init__(self) -> None:
        self.count = 0
        self._last: dict[str, str] = {}

    def failed(self, what: str, error: BaseException) -> None:
        self.count += 1
        text = said(error)
        if self._last.get(what) != text:
            self._last[what] = text
            log.warning("%s failed, training goes on without it: %s", what, text)

    def worked(self, what: str) -> None:
        if self._last.pop(what, None) is not None:
            log.info("%s works again", what)


complaints = Complaints()


def harmless(what: str, default: Any = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Turn any failure of the function into `default` and a complaint."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the one promise of this package
                complaints.failed(what, error)
                return default  # type: ignore[no-any-return]

        return guarded

    return decorate
